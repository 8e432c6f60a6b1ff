from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunery.devices.fake import FakeDevice
from tunery.domain import Artifact, Task
from tunery.measuring.references import References

REFERENCE = Artifact("reference", "reference.so", 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_another_process_reads_what_the_first_computed(
    dtype: str, bench: Callable[..., Any], tmp_path: Path, task_of: Callable[..., Task]
) -> None:
    work = task_of(dtype)
    first, second = bench().dialect, bench().dialect
    for dialect in (first, second):
        if dtype == "bool":
            dialect.scripts["reference"] = {"compute": lambda inputs: [~inputs[0]]}
    _, computed = References(first, FakeDevice(), tmp_path).get(work, REFERENCE, 0)
    _, stored = References(second, FakeDevice(), tmp_path).get(work, REFERENCE, 0)
    assert first.loaded == ["reference"]
    assert second.loaded == []
    assert stored[0].values.dtype == computed[0].values.dtype
    np.testing.assert_array_equal(stored[0].values, computed[0].values)


def test_a_torn_file_is_computed_again(bench: Callable[..., Any], tmp_path: Path, task: Task) -> None:
    References(bench().dialect, FakeDevice(), tmp_path).get(task, REFERENCE, 0)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for torn in (b"", whole[: len(whole) // 2], whole[:-1], b"not a zip", whole.replace(b"output0", b"outputX")):
        file.write_bytes(torn)
        dialect = bench().dialect
        References(dialect, FakeDevice(), tmp_path).get(task, REFERENCE, 0)
        assert dialect.loaded == ["reference"]
        assert file.read_bytes() == whole


def test_each_input_is_computed_once_per_process(bench: Callable[..., Any], task: Task) -> None:
    dialect = bench().dialect
    references = References(dialect, FakeDevice(), None)
    first, _ = references.get(task, REFERENCE, 0)
    again, _ = references.get(task, REFERENCE, 0)
    other, _ = references.get(task, REFERENCE, 1)
    assert len(dialect.loaded) == 2
    assert again[0] is first[0]
    assert not np.array_equal(first[0], other[0])


def test_what_changes_the_outputs_changes_the_file(bench: Callable[..., Any], tmp_path: Path, task: Task) -> None:
    References(bench().dialect, FakeDevice(), tmp_path, seed=0).get(task, REFERENCE, 0)
    References(bench().dialect, FakeDevice(), tmp_path, seed=5).get(task, REFERENCE, 0)
    References(bench().dialect, FakeDevice(), tmp_path, seed=0).get(task, REFERENCE, 1)
    dialect = bench().dialect
    dialect.scripts["other"] = {}
    References(dialect, FakeDevice(), tmp_path, seed=0).get(task, Artifact("other", "other.so", 1), 0)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_task_that_makes_nan_of_negative_numbers_gets_positive_ones(
    bench: Callable[..., Any], tmp_path: Path, task: Task
) -> None:
    first, second = bench().dialect, bench().dialect

    def square_root(inputs: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return [np.sqrt(inputs[0])]

    first.scripts["reference"] = {"compute": square_root}
    inputs, expected = References(first, FakeDevice(), tmp_path).get(task, REFERENCE, 0)
    assert inputs[0].min() >= 0
    assert np.isfinite(expected[0].values).all()
    again, _ = References(second, FakeDevice(), tmp_path).get(task, REFERENCE, 0)
    assert second.loaded == []
    np.testing.assert_array_equal(again[0], inputs[0])


def test_a_directory_that_cannot_be_written_costs_only_the_cache(
    bench: Callable[..., Any], tmp_path: Path, task: Task
) -> None:
    (tmp_path / "file").write_text("")
    _, expected = References(bench().dialect, FakeDevice(), tmp_path / "file").get(task, REFERENCE, 0)
    assert expected
