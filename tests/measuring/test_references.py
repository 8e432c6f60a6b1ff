from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunery._errors import BlobError
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.dialects import Built
from tunery.domain import Task
from tunery.measuring.references import References
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_device import FakeDevice


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with FakeBlobs() as made:
        yield made


REFERENCE = Built("reference", Path("reference.so"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_another_process_reads_what_the_first_computed(
    dtype: str, bench: Callable[..., Any], blobs: Blobs, task_of: Callable[..., Task]
) -> None:
    work = task_of(dtype)
    first, second = bench().dialect, bench().dialect
    for dialect in (first, second):
        if dtype == "bool":
            dialect.scripts["reference"] = {"compute": lambda inputs: [~inputs[0]]}
    _, computed = References(first, FakeDevice(), blobs).get(work, REFERENCE, 0)
    _, stored = References(second, FakeDevice(), blobs).get(work, REFERENCE, 0)
    assert first.loaded == ["reference"]
    assert second.loaded == []
    assert stored[0].values.dtype == computed[0].values.dtype
    np.testing.assert_array_equal(stored[0].values, computed[0].values)


def test_a_damaged_file_is_computed_again(bench: Callable[..., Any], tmp_path: Path, task: Task) -> None:
    with DirectoryBlobs(tmp_path) as blobs:
        References(bench().dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
        for damage in (b"", b"not a zip"):
            (file,) = (path for path in (tmp_path / "objects").rglob("*") if path.is_file())
            whole = file.read_bytes()
            file.chmod(0o600)
            file.write_bytes(damage or whole[:-1])
            dialect = bench().dialect
            References(dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
            assert dialect.loaded == ["reference"]
            again = bench().dialect
            References(again, FakeDevice(), blobs).get(task, REFERENCE, 0)
            assert again.loaded == []


def test_a_file_of_something_else_is_computed_again(
    bench: Callable[..., Any], blobs: Blobs, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = blobs.put(b"no outputs")
    monkeypatch.setattr(blobs, "find", lambda _: other)
    dialect = bench().dialect
    _, expected = References(dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert dialect.loaded == ["reference"]
    assert expected


def test_each_input_is_computed_once_per_process(bench: Callable[..., Any], task: Task) -> None:
    dialect = bench().dialect
    references = References(dialect, FakeDevice(), None)
    first, _ = references.get(task, REFERENCE, 0)
    again, _ = references.get(task, REFERENCE, 0)
    other, _ = references.get(task, REFERENCE, 1)
    assert len(dialect.loaded) == 2
    assert again[0] is first[0]
    assert not np.array_equal(first[0], other[0])


def test_what_changes_the_outputs_is_computed_apart(bench: Callable[..., Any], blobs: Blobs, task: Task) -> None:
    dialect = bench().dialect
    dialect.scripts["other"] = {}
    asked: list[tuple[int, Built, int]] = [
        (0, REFERENCE, 0), (5, REFERENCE, 0), (0, REFERENCE, 1), (0, Built("other", Path("other.so")), 0)
    ]  # fmt: skip
    for seed, reference, number in asked:
        References(dialect, FakeDevice(), blobs, seed).get(task, reference, number)
    assert len(dialect.loaded) == len(asked)
    for seed, reference, number in asked:
        References(dialect, FakeDevice(), blobs, seed).get(task, reference, number)
    assert len(dialect.loaded) == len(asked)


def test_a_task_that_makes_nan_of_negative_numbers_gets_positive_ones(
    bench: Callable[..., Any], blobs: Blobs, task: Task
) -> None:
    first, second = bench().dialect, bench().dialect

    def square_root(inputs: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return [np.sqrt(inputs[0])]

    first.scripts["reference"] = {"compute": square_root}
    inputs, expected = References(first, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert inputs[0].min() >= 0
    assert np.isfinite(expected[0].values).all()
    again, _ = References(second, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert second.loaded == []
    np.testing.assert_array_equal(again[0], inputs[0])


def test_a_full_disk_costs_only_the_cache(
    bench: Callable[..., Any], blobs: Blobs, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise BlobError("the disk is full")

    monkeypatch.setattr(blobs, "put", full)
    _, expected = References(bench().dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert expected


def test_outputs_may_be_swept_as_soon_as_they_are_read(bench: Callable[..., Any], task: Task) -> None:
    blobs = FakeBlobs(limit_bytes=0)
    References(bench().dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert blobs.sweep() > 0
    dialect = bench().dialect
    References(dialect, FakeDevice(), blobs).get(task, REFERENCE, 0)
    assert dialect.loaded == ["reference"]
