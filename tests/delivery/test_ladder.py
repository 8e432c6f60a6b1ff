import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tunery._errors import WorkError
from tunery.delivery.compile import with_right_defaults
from tunery.delivery.ladder import choose
from tunery.delivery.query import skipped_lines
from tunery.domain import (
    Candidate,
    DeviceDescription,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Provenance,
    Record,
    Rung,
    Target,
    Task,
    TensorSpec,
    Verification,
    Workload,
)
from tunery.domain.request import Request
from tunery.store import Skipped, Store, open_store

if TYPE_CHECKING:
    from tunery.tuning.work import Work

HERE = Provenance("fake", "fake-1", "device-a", "settings-a")
CHECKED, HALF = Verification("reference", Verification.FULL, 0.1, True), Verification("reference", 1, 0.1, True)
WRONG = Verification("reference", Verification.FULL, 9.0, False)


def task(name: str = "conv", target: str = "cpu", threads: int = 2) -> Task:
    spec = TensorSpec("x", (4,), "float32")
    return Task(Workload(name, name, "conv2d", "", (spec, spec), 1, 1.0), Target("fake", {"kind": target}, threads))


def add(
    store: Store,
    of: Task,
    key: str,
    latency_s: float | None = 1e-3,
    *,
    verification: Verification | None = CHECKED,
    outcome: Outcome = Outcome.OK,
    mode: Mode = Mode.FINAL,
    provenance: Provenance = HERE,
    origin: Origin = Origin.SEARCH,
) -> None:
    samples = () if latency_s is None else (latency_s,) * 3
    measurement = Measurement(outcome, samples, mode, verification=verification)
    store.add_record(of, Record(Candidate(key, of.key, f"body of {key}", origin), measurement, provenance))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_the_best_verified_record_is_delivered_with_its_rung(store: Store) -> None:
    add(store, task(), "slow", 2e-3)
    add(store, task(), "fast", 1e-3)
    add(store, task(), "base", 8e-3, origin=Origin.BASELINE)
    [choice] = [each.choice for each in choose(store, [task()], HERE, "here")]
    assert (choice.rung, choice.latency_s, choice.baseline_s) == (Rung.EXACT, 1e-3, 8e-3)
    assert choice.candidate is not None
    assert choice.candidate.key == "fast"


def test_a_kernel_that_cannot_be_verified_on_its_host_is_refused_with_why_its_records_are_not_used(
    store: Store,
) -> None:
    async def device() -> DeviceDescription:
        return DeviceDescription("cpu", "a board", (0,), {})

    add(store, task(), "fast", provenance=replace(HERE, settings="settings-b"))
    no_builder = SimpleNamespace(device=device, pools=SimpleNamespace(on=lambda *_: ()), measure_host="pi")
    work = cast("Work", SimpleNamespace(runtime=no_builder, request=Request("scale.toml", on="pi")))
    with pytest.raises(WorkError, match=r"on pi.*1 record measured with other settings \(settings-b\)"):
        asyncio.run(with_right_defaults(work, choose(store, [task()], HERE, "here")))


def test_the_baseline_wins_where_it_is_fastest(store: Store) -> None:
    add(store, task(), "slow", 9e-3)
    add(store, task(), "base", 8e-3, origin=Origin.BASELINE)
    [choice] = [each.choice for each in choose(store, [task()], HERE, "here")]
    assert (choice.rung, choice.latency_s) == (Rung.EXACT, 8e-3)
    assert choice.candidate is not None
    assert choice.candidate.origin is Origin.BASELINE


REFUSED = {
    "of another compiler": {"provenance": replace(HERE, compiler="fake-2")},
    "measured on another device": {"provenance": replace(HERE, device="device-b")},
    "measured with other settings": {"provenance": replace(HERE, settings="settings-b")},
    "of the dialect other": {"provenance": replace(HERE, dialect="other")},
    "not fully checked": {"verification": HALF},
    "whose numerics": {"verification": None},
    "wrong-result": {"verification": WRONG, "outcome": Outcome.WRONG_RESULT, "latency_s": None},
    "abandoned": {"outcome": Outcome.ABANDONED},
    "timeout": {"outcome": Outcome.TIMEOUT, "latency_s": None},
    "crashed": {"outcome": Outcome.CRASHED, "latency_s": None, "verification": None},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_may_not_be_delivered_is_named_with_its_reason(store: Store, reason: str) -> None:
    add(store, task(), "a", **REFUSED[reason])  # type: ignore[arg-type]
    [known] = choose(store, [task()], HERE, "here")
    assert known.task == task()
    assert (known.choice.rung, known.choice.candidate, known.choice.latency_s) == (Rung.DEFAULT, None, None)
    [why] = known.skipped
    assert reason in str(why)
    assert why.count == 1


def test_a_reason_that_many_tasks_share_is_said_once_with_their_names() -> None:
    names = {str(number): f"dense{number}" for number in range(6)}
    skipped = [*((key, Skipped("imported", "", 2)) for key in names), ("1", Skipped("device", "d", 1))]
    many, one = skipped_lines(skipped, names)
    assert "12 records" in many
    assert "dense0" in many
    assert "2 more" in many
    assert "1 record " in one
    assert "dense1" in one


@pytest.mark.parametrize("other", [task(target="gpu"), task(threads=1)])
def test_other_targets_are_never_served(store: Store, other: Task) -> None:
    add(store, other, "a")
    [known] = choose(store, [task()], HERE, "here")
    assert known.choice.rung is Rung.DEFAULT
    assert [str(why) for why in known.skipped] == [f"1 record measured for another target ({other.target.key})"]


def test_a_planted_fast_and_wrong_one_never_wins(store: Store) -> None:
    add(store, task(), "right", 1e-3)
    add(store, task(), "liar", 1e-5)
    add(store, task(), "liar", None, outcome=Outcome.WRONG_RESULT, verification=WRONG)
    add(store, task(), "zero", 0.0)
    add(store, task(), "nan", float("nan"))
    [choice] = [each.choice for each in choose(store, [task()], HERE, "here")]
    assert choice.candidate is not None
    assert choice.candidate.key == "right"


def test_choices_keep_the_tasks_order_and_mix_rungs(store: Store) -> None:
    tasks = [task("a"), task("b"), task("c")]
    add(store, tasks[1], "x")
    known = choose(store, tasks, HERE, "here")
    assert [each.choice.task_key for each in known] == [t.key for t in tasks]
    assert [each.choice.rung for each in known] == [Rung.DEFAULT, Rung.EXACT, Rung.DEFAULT]
    assert choose(store, [], HERE, "here") == ()
