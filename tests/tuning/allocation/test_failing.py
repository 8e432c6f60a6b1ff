"""What is learned of failures: nothing from few, nothing from noise, and wrong beliefs are given up."""

import numpy as np
import pytest

from tunery.costmodels import Layout
from tunery.tuning.allocation.failing import LEAST_FAILURES, LEAST_SUCCESSES, LIKELY, FailureModel

LAYOUT = Layout("made-up", 1, tuple(f"x{i}" for i in range(12)))


def rows(count: int, seed: int = 0) -> list[bytes]:
    """Rows of random knobs; the first is one of four values."""
    rng = np.random.default_rng(seed)
    knobs = rng.random((count, len(LAYOUT.columns))).astype(np.float32)
    knobs[:, 0] = rng.integers(0, 4, count)
    return [row.tobytes() for row in knobs]


def fails(row: bytes) -> bool:
    return bool(np.frombuffer(row, np.float32)[0] == 2)


def taught(count: int, seed: int = 0) -> FailureModel:
    model = FailureModel(LAYOUT)
    for row in rows(count, seed):
        model.learn(row.hex(), row, failed=fails(row))
    return model


def likely(model: FailureModel, asked: list[bytes]) -> list[bool]:
    found = model.likelihoods(asked)
    assert found is not None
    return [value > LIKELY for value in found]


@pytest.mark.parametrize("failures", [0, 1, LEAST_FAILURES - 1, 60])
def test_few_failures_or_few_successes_say_nothing(failures: int) -> None:
    model = FailureModel(LAYOUT)
    for i, row in enumerate(rows(failures + (30 if failures < LEAST_FAILURES else LEAST_SUCCESSES - 1))):
        model.learn(row.hex(), row, failed=i < failures)
    assert model.likelihoods(rows(5)) is None


def test_a_knob_that_always_fails_is_found_and_nothing_else_is_blamed() -> None:
    asked = rows(400, seed=1)
    for count, least in ((80, 0.5), (200, 0.8)):
        found = likely(taught(count), asked)
        caught = [one for row, one in zip(asked, found, strict=True) if fails(row)]
        assert sum(caught) >= least * len(caught)
        assert not [row for row, one in zip(asked, found, strict=True) if one and not fails(row)]


def test_what_was_hardly_seen_is_not_held_likely() -> None:
    model = FailureModel(LAYOUT)
    for i, row in enumerate(rows(40)):
        knobs = np.frombuffer(row, np.float32).copy()
        knobs[0] = 2 if i < LEAST_FAILURES else 0
        model.learn(str(i), knobs.tobytes(), failed=i < LEAST_FAILURES)
    found = model.likelihoods(rows(100, seed=1))
    assert found is not None
    assert 0.3 < max(found) < LIKELY


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_failures_without_a_cause_are_nobodys_fault(share: float) -> None:
    draw, model = np.random.default_rng(5), FailureModel(LAYOUT)
    for row in rows(300):
        model.learn(row.hex(), row, failed=bool(draw.random() < share))
    assert np.mean(likely(model, rows(400, seed=1))) < 0.1
    assert np.mean(model.likelihoods(rows(400, seed=1)) or []) == pytest.approx(share, abs=0.1)


def test_a_belief_that_proves_wrong_is_given_up() -> None:
    model, asked = taught(80), [row for row in rows(400, seed=1) if fails(row)]
    assert np.mean(likely(model, asked)) > 0.5
    for row in asked[:20]:
        model.learn(row.hex(), row, failed=False)
    assert not any(likely(model, asked[20:]))


def test_the_same_history_says_the_same() -> None:
    asked = rows(50, seed=1)
    assert taught(120).likelihoods(asked) == taught(120).likelihoods(asked)


def test_rows_that_are_missing_are_not_judged() -> None:
    model = taught(200)
    model.learn("", b"", failed=True)
    bad = next(row for row in rows(50, seed=1) if fails(row))
    assert model.likelihoods([b"", b""]) == [0.0, 0.0]
    assert likely(model, [b"", bad]) == [False, True]
