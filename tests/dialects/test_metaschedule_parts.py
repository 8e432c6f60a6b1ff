"""Networks whose kernels were built before: the same numbers as without, and nothing that does not belong is linked."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metaschedule_models import convolution_network, small_network

from tunery._errors import UsageError
from tunery.delivery import load_compiled
from tunery.dialects import Array, Dialect, get_dialect
from tunery.dialects.metaschedule import compilation, weights
from tunery.dialects.metaschedule.weights import Weight, read_weights, write_weights
from tunery.domain import Candidate, Network, Target, Task
from tunery.measure import make_inputs

pytestmark = pytest.mark.tvm


@dataclass(frozen=True)
class Case:
    dialect: Dialect
    network: Network
    target: Target
    tasks: tuple[Task, ...]
    chosen: Mapping[str, Candidate]

    def outputs(self, file: Path) -> list[Array]:
        image = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)
        return self.dialect.load_network(file)(image, np.array([7]))

    def kernels(self, file: Path) -> set[str]:
        image = np.zeros((1, 16, 12, 12), np.float32)
        return set(self.dialect.load_network(file).profile([image, np.array([7])], 1))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    dialect = get_dialect("metaschedule")
    network = small_network(tmp_path_factory.mktemp("network"))
    target = dialect.resolve_target("native", 1)
    tasks = tuple(dialect.extract(network, target))
    proposed = {task.workload.key: dialect.open(task, [], None, 0).propose(4) for task in tasks}
    return Case(dialect, network, target, tasks, {key: found[-1] for key, found in proposed.items() if found})


@pytest.fixture
def parts(case: Case, tmp_path: Path) -> Path:
    directory = tmp_path / "parts"
    directory.mkdir()
    for task in case.tasks:
        case.dialect.build_part(task, case.chosen[task.workload.key], directory)
    return directory


@pytest.mark.parametrize("least", [1, 10**9])
def test_a_network_of_parts_computes_the_same_bits(
    case: Case, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(weights, "_LEAST", least)  # all weights are apart, or none
    plain = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "plain")
    monkeypatch.setattr(compilation, "replay", lambda *_: pytest.fail("a schedule was made again"))
    linked = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "linked", parts)
    assert linked.coverage == plain.coverage == {key: one.key for key, one in case.chosen.items()}
    for ours, theirs in zip(case.outputs(tmp_path / "linked"), case.outputs(tmp_path / "plain"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (weights.WEIGHTS in zipfile.ZipFile(tmp_path / "linked").namelist()) is (least == 1)
    names = case.kernels(tmp_path / "linked")
    assert {one.key for one in case.chosen.values()} <= {name.rpartition("_")[2] for name in names}


def test_weights_are_in_the_file_as_in_the_model_and_transformed_on_loading(tmp_path: Path) -> None:
    dialect = get_dialect("metaschedule")
    network, target = convolution_network(tmp_path, size=10, layers=2), dialect.resolve_target("native", 1)
    [task] = [task for task in dialect.extract(network, target) if task.workload.kind == "conv2d"]
    chosen = next(c for c in dialect.open(task, [], None, 0).propose(9) if "winograd4" in c.body)
    dialect.build_part(task, chosen, tmp_path)
    for name, parts in (("plain", ()), ("linked", (tmp_path,))):
        dialect.compile(network, target, {task.workload.key: chosen}, tmp_path / name, *parts)
    [image] = make_inputs(network.inputs, 3)
    [ours], [theirs] = (dialect.load_network(tmp_path / name)(image) for name in ("linked", "plain"))
    np.testing.assert_array_equal(ours, theirs)
    size = 4 * 32 * 32 * 3 * 3
    with zipfile.ZipFile(tmp_path / "linked") as archive:
        told, place = json.loads(archive.read("manifest.json"))["weights"], archive.getinfo(weights.WEIGHTS)
    assert place.file_size == 2 * size, "each layer has its own"
    assert [one["offset"] for one in told] == [0, size]
    assert all(one["transform"] for one in told)
    assert (tmp_path / "linked").stat().st_size < (tmp_path / "plain").stat().st_size - size
    bits = bytearray((tmp_path / "linked").read_bytes())
    bits[place.header_offset + size] ^= 1
    (tmp_path / "damaged").write_bytes(bits)
    with pytest.raises(UsageError, match=r"damaged.*CRC"):
        load_compiled(tmp_path / "damaged")


def test_an_array_of_several_weights_is_kept_once(tmp_path: Path) -> None:
    table = np.arange(64 * 80, dtype=np.float32).reshape(64, 80)
    several = [Weight(table), Weight(table, packing=((80, 64), ["1", "0"])), Weight(table[:1].copy())]
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        told = write_weights(archive, several)
    with zipfile.ZipFile(tmp_path / "zip") as archive:
        assert archive.getinfo(weights.WEIGHTS).file_size == 4 * (64 * 80 + 80)
        found = read_weights(archive, json.loads(json.dumps(told)))
    for ours, theirs in zip(found, (table, table.T, table[:1]), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert [one.apart for one in several] == [True, True, False]
    assert not Weight(table.astype(complex)).apart


def test_what_has_no_part_is_compiled_as_ever(case: Case, parts: Path, tmp_path: Path) -> None:
    convolution = next(task for task in case.tasks if task.workload.kind == "conv2d")
    kept = case.chosen[convolution.workload.key].key
    for file in parts.glob("*.o"):
        if not file.name.startswith(kept):
            file.unlink()
    mixed = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "mixed", parts)
    assert all(mixed.coverage.values())
    names = case.kernels(tmp_path / "mixed")
    assert [name for name in names if name.endswith(kept)]
    assert len([name for name in names if name.rpartition("_")[2] in {c.key for c in case.chosen.values()}]) == 1


def _of_another_workload(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"workload": "0" * 16}


def _with_code_that_packs(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"packing": [], "packed": [[[1], "float32"]]}


def _with_an_input_as_a_constant(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"transforms": [[0, "winograd2"]]}


@pytest.mark.parametrize(
    "change", [_of_another_workload, _with_code_that_packs, _with_an_input_as_a_constant, lambda _: {}]
)
def test_a_part_that_does_not_fit_is_not_linked(case: Case, parts: Path, tmp_path: Path, change: Any) -> None:
    for file in parts.glob("*.json"):
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
    compiled = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "out", parts)
    assert all(compiled.coverage.values())
    names = {name.rpartition("_")[2] for name in case.kernels(tmp_path / "out")}
    assert not names & {one.key for one in case.chosen.values()}


def test_a_kernel_is_built_from_its_part(case: Case, parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tunery.dialects.metaschedule.kernel.tvm.tirx.build", lambda *_, **__: pytest.fail("code was generated again")
    )
    for task in case.tasks:
        artifact = case.dialect.build(task, case.chosen[task.workload.key], parts)
        assert Path(artifact.path).with_suffix(".o").exists(), "it stays for the network"
        case.dialect.load(task, artifact)


def test_a_lowered_network_serves_one_compilation(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunery.dialects.metaschedule import lowering

    lowered, original = [], lowering.lower
    monkeypatch.setattr(lowering, "lower", lambda *given: lowered.append(given) or original(*given))
    case.dialect.extract(case.network, case.target)
    outputs = []
    for number in range(2):  # the first changes what was kept
        case.dialect.compile(case.network, case.target, case.chosen, tmp_path / str(number))
        outputs.append(case.outputs(tmp_path / str(number)))
    assert len(lowered) == 2, "once to extract, and again for the second compilation"
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])


def test_parts_that_cannot_be_linked_cost_only_time(case: Case, parts: Path, tmp_path: Path) -> None:
    next(parts.glob("*.o")).write_bytes(b"no object file")
    compiled = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "out", parts)
    assert all(compiled.coverage.values())
    assert np.isfinite(case.outputs(tmp_path / "out")[0]).all()
