"""Networks whose kernels were built before: the same numbers as without, and nothing that does not belong is linked."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from metaschedule_models import convolution_network, small_network

from tunery._archive import Archive, new_archive
from tunery._errors import UsageError
from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Array, Built, Dialect, get_dialect
from tunery.dialects.metaschedule.codegen import compilation
from tunery.dialects.metaschedule.loading import weights
from tunery.dialects.metaschedule.loading.preparing import Index, from_tiles, matrices
from tunery.dialects.metaschedule.loading.weights import Weight, map_weights, write_weights
from tunery.domain import Candidate, Network, Target, Task
from tunery.measuring.inputs import make_inputs

pytestmark = pytest.mark.tvm

PREPARED = ["e69d4712", "b4cb6eb9", "0452f88e", "d942d50a"]
"""Checksums of what a fixed array becomes."""


@dataclass(frozen=True)
class Case:
    dialect: Dialect
    network: Network
    target: Target
    tasks: tuple[Task, ...]
    chosen: Mapping[str, Candidate]

    def outputs(self, file: Path) -> list[Array]:
        image = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)
        return load_compiled(file)(image, np.array([7]))

    def kernels(self, file: Path, *, by_workload: bool = False) -> set[str]:
        """Return what is called in the network: names in the library, or workloads where that is known."""
        image, network = np.zeros((1, 16, 12, 12), np.float32), load_compiled(file)
        if not by_workload:
            network._workloads = {}  # type: ignore[attr-defined]
        return set(network.profile([image, np.array([7])]))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    dialect = get_dialect("metaschedule")
    network = small_network(tmp_path_factory.mktemp("network"))
    target = dialect.resolve_target("native", 1)
    tasks = tuple(dialect.extract(network, target))
    proposed = {task.workload.key: dialect.open(task, [], None, 0).propose(4) for task in tasks}
    return Case(dialect, network, target, tasks, {key: found[-1] for key, found in proposed.items() if found})


@pytest.fixture
def parts(case: Case, tmp_path: Path) -> dict[str, Built]:
    directory = tmp_path / "parts"
    directory.mkdir()
    made = {
        task.workload.key: case.dialect.build_part(task, case.chosen[task.workload.key], directory)
        for task in case.tasks
    }
    return {key: part for key, part in made.items() if part is not None}


@pytest.mark.parametrize("least", [1, 10**9])
def test_a_network_of_parts_computes_the_same_bits(
    case: Case, parts: dict[str, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
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
    for file in ("linked", "plain"):
        assert case.kernels(tmp_path / file, by_workload=True) <= {task.workload.key for task in case.tasks}


def test_weights_that_grow_much_are_in_the_file_as_in_the_model_and_transformed_on_loading(tmp_path: Path) -> None:
    dialect = get_dialect("metaschedule")
    network, target = convolution_network(tmp_path, size=10, layers=2), dialect.resolve_target("native", 1)
    [task] = [task for task in dialect.extract(network, target) if task.workload.kind == "conv2d"]
    chosen = next(c for c in dialect.open(task, [], None, 0).propose(9) if "winograd4" in c.body)
    part = dialect.build_part(task, chosen, tmp_path)
    assert part is not None
    for name, parts in (("plain", {}), ("linked", {task.workload.key: part})):
        dialect.compile(network, target, {task.workload.key: chosen}, tmp_path / name, parts)
    [image] = make_inputs(network.inputs, 3)
    [ours], [theirs] = (load_compiled(tmp_path / name)(image) for name in ("linked", "plain"))
    np.testing.assert_array_equal(ours, theirs)
    size = 4 * 32 * 32 * 3 * 3
    manifest, place = opened(tmp_path / "linked")
    assert place.file_size <= 1.05 * 2 * size, "of two that would be four times as large, none"
    transforms = [one["transform"] for one in manifest["weights"]["arrays"]]
    assert [transform.partition("tiles")[0] for transform in transforms] == ["winograd4"] * 2
    assert (tmp_path / "linked").stat().st_size < (tmp_path / "plain").stat().st_size - size
    bits = bytearray((tmp_path / "linked").read_bytes())
    bits[place.header_offset + size] ^= 1
    (tmp_path / "damaged").write_bytes(bits)
    with pytest.raises(UsageError, match="damaged"):
        load_compiled(tmp_path / "damaged")


def opened(file: Path) -> tuple[dict[str, Any], zipfile.ZipInfo]:
    with zipfile.ZipFile(file) as archive:
        return json.loads(archive.read("manifest.json"))["parts"][0], archive.getinfo(weights.WEIGHTS)


def _without_weights(told: dict[str, Any]) -> None:
    del told["parts"][0]["weights"]


def _of_another_network(told: dict[str, Any]) -> None:
    told["members"]["weights.bin"]["sha256"] = "0" * 64


def _too_few(told: dict[str, Any]) -> None:
    del told["parts"][0]["weights"]["arrays"][-1]


def _at_another_place(told: dict[str, Any]) -> None:
    told["parts"][0]["weights"]["arrays"][-1]["offset"] += 4


def _of_another_type(told: dict[str, Any]) -> None:
    told["parts"][0]["weights"]["arrays"][0]["dtype"] = "no type"


def _of_another_shape(told: dict[str, Any]) -> None:
    told["parts"][0]["weights"]["arrays"][0]["shape"] = [1 << 30]


@pytest.mark.parametrize(
    "change",
    [_without_weights, _of_another_network, _too_few, _at_another_place, _of_another_type, _of_another_shape],
)
def test_weights_that_are_not_those_of_the_code_are_refused(
    change: Any, case: Case, parts: dict[str, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_LEAST", 1)
    case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "whole", parts)
    with zipfile.ZipFile(tmp_path / "whole") as old, zipfile.ZipFile(tmp_path / "other", "w") as new:
        told = json.loads(old.read("manifest.json"))
        change(told)
        for name in old.namelist():
            new.writestr(name, json.dumps(told) if name == "manifest.json" else old.read(name))
    load_compiled(tmp_path / "whole")
    with pytest.raises(UsageError, match="write it again") as caught:
        load_compiled(tmp_path / "other")
    assert str(tmp_path / "other") in str(caught.value)


def test_equal_weights_of_two_layers_are_one(tmp_path: Path) -> None:
    dialect = get_dialect("metaschedule")
    network, target = convolution_network(tmp_path, size=10, layers=2), dialect.resolve_target("native", 1)
    model = onnx.load(network.path)
    first, second = (next(i for i in model.graph.initializer if i.name == name) for name in ("w0", "w1"))
    second.raw_data = first.raw_data
    onnx.save(model, network.path)
    [task] = [task for task in dialect.extract(network, target) if task.workload.kind == "conv2d"]
    chosen = next(c for c in dialect.open(task, [], None, 0).propose(9) if "winograd4" in c.body)
    part, key = dialect.build_part(task, chosen, tmp_path), task.workload.key
    assert part is not None
    dialect.compile(network, target, {key: chosen}, tmp_path / "linked", {key: part})
    manifest, place = opened(tmp_path / "linked")
    assert place.file_size == 4 * 32 * 32 * 3 * 3
    assert len(manifest["weights"]["arrays"]) == 1
    [image] = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {network.inputs[0].name: image})
    [ours] = load_compiled(tmp_path / "linked")(image)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(np.abs(theirs).max()))


def test_how_weights_are_prepared_on_loading_is_part_of_the_format() -> None:
    raw = np.random.default_rng(1).standard_normal((3, 3, 16, 20)).astype(np.float32)
    packing: list[Index] = ["2", ["FloorDiv", "3", 4], "0", "1", ["FloorMod", "3", 4]]
    made = [Weight(raw, name).prepared() for name in ("winograd2", "winograd4", "tiles2x1x16")]
    made.append(Weight(raw, packing=((16, 5, 3, 3, 4), packing)).prepared())
    found = [f"{zlib.crc32((np.round(array.astype(np.float64), 4) + 0.0).tobytes()):08x}" for array in made]
    assert found == PREPARED, (
        "files that are there would be read wrongly: raise archive._FORMAT and refuse the old ones"
    )


def test_an_array_of_several_weights_is_kept_once(tmp_path: Path) -> None:
    table = np.arange(64 * 80, dtype=np.float32).reshape(64, 80)
    turned = Weight(table, packing=((80, 64), ["1", "0"]))
    several = [Weight(table), turned, Weight(table[:1, :5].copy()), Weight(table), turned, Weight(table, "tiles3x1x32")]
    with new_archive(tmp_path / "zip") as archive:
        with archive.member(weights.WEIGHTS) as member:
            told = write_weights(member, several)
        archive.finish(told)
    assert len({one["offset"] for one in told["arrays"]}) == 2
    with Archive(tmp_path / "zip") as opened:
        assert opened.sizes[weights.WEIGHTS] < 4 * (64 * 80 + 5) + 2 * 64
        found = map_weights(opened.map(weights.WEIGHTS), json.loads(json.dumps(told))["arrays"])
    for ours, weight in zip(found, several, strict=True):
        np.testing.assert_array_equal(ours.numpy(), weight.prepared())
        assert ours.data_ptr() % 64 == 0, "compiled code reads whole vectors"
    assert [one.apart for one in several[:3]] == [True, True, False]
    assert not Weight(table.astype(complex)).apart


def test_weights_of_a_model_in_half_precision_take_no_more_in_the_file(tmp_path: Path) -> None:
    halves = np.random.default_rng(0).standard_normal((64, 80)).astype(np.float16).astype(np.float32)
    tiled = Weight(halves + halves, "tiles5x1x16")
    several = [Weight(halves), Weight(halves, packing=((80, 64), ["1", "0"])), Weight(halves + np.float32(1e-6)), tiled]
    with new_archive(tmp_path / "zip") as archive:
        with archive.member(weights.WEIGHTS) as member:
            told = write_weights(member, several)
        archive.finish(told)
    with Archive(tmp_path / "zip") as opened:
        assert opened.sizes[weights.WEIGHTS] < halves.size * (2 + 4 + 2) + 3 * 64
        assert [one["transform"] for one in told["arrays"]] == [""] * 4, "what only moves is moved when it is written"
        found = map_weights(opened.map(weights.WEIGHTS), json.loads(json.dumps(told))["arrays"])
        for ours, weight in zip(found, several, strict=True):
            np.testing.assert_array_equal(ours.numpy(), weight.prepared())


def test_weights_of_winograd_are_transformed_on_loading(tmp_path: Path) -> None:
    rng, swapped = np.random.default_rng(0), ((6, 6, 24, 300), ["0", "1", "3", "2"])
    forms: list[tuple[str, Any]] = [("winograd4", None), ("winograd4", swapped), ("winograd4tiles72x1x16", None)]
    several = [Weight(rng.standard_normal((3, 3, 300, 24), np.float32), *form) for form in forms]
    with new_archive(tmp_path / "zip") as archive:
        with archive.member(weights.WEIGHTS) as member:
            told = write_weights(member, several)
        archive.finish(told)
    with Archive(tmp_path / "zip") as opened:
        assert opened.sizes[weights.WEIGHTS] < 1.05 * sum(one.array.nbytes for one in several)
        found = map_weights(opened.map(weights.WEIGHTS), json.loads(json.dumps(told))["arrays"])
    rows = matrices(4)[1]
    for ours, weight in zip(found, several, strict=True):
        made = ours.numpy().transpose(0, 1, 3, 2) if weight.packing else ours.numpy()
        made = from_tiles(made, (6, 6, 300, 24), "tiles72x1x16") if "tiles" in weight.transform else made
        wanted = np.einsum("ai,ijxy,bj->abxy", rows, weight.array.astype(np.float64), rows)
        np.testing.assert_allclose(made, wanted, rtol=1e-6, atol=1e-7)
        assert ours.data_ptr() % 64 == 0, "compiled code reads whole vectors"


def test_weights_of_several_targets_are_kept_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table, filters = rng.standard_normal((64, 80), np.float32), rng.standard_normal((3, 3, 32, 64), np.float32)
    turned: tuple[tuple[int, ...], list[Index]] = ((80, 64), ["1", "0"])
    swapped: tuple[tuple[int, ...], list[Index]] = ((6, 6, 64, 32), ["0", "1", "3", "2"])
    targets = [
        [Weight(table, "", turned), Weight(table), Weight(filters, "winograd4", swapped), Weight(filters[0, 0])],
        [Weight(table, "tiles3x1x32"), Weight(table), Weight(filters, "winograd4"), Weight(filters[0, 0])],
    ]
    files = []
    for number, several in enumerate(targets):
        with new_archive(tmp_path / f"{number}") as archive:
            with archive.member(weights.WEIGHTS) as member:
                files.append(json.loads(json.dumps(write_weights(member, several)))["arrays"])
            archive.finish({})
    with Archive(tmp_path / "0") as one, Archive(tmp_path / "1") as other:
        given = [(file.map(weights.WEIGHTS), told) for file, told in zip((one, other), files, strict=True)]
        with new_archive(tmp_path / "both") as archive:
            with archive.member(weights.WEIGHTS) as member:
                told = weights.write_shared(member, given)
            archive.finish({})
    with Archive(tmp_path / "both") as opened:
        once = 4 * (64 * 80 + 36 * 32 * 64 + 32 * 64)
        assert opened.sizes[weights.WEIGHTS] < once + 3 * 64
        for several, here in zip(targets, json.loads(json.dumps(told)), strict=True):
            for ours, weight in zip(map_weights(opened.map(weights.WEIGHTS), here["arrays"]), several, strict=True):
                np.testing.assert_array_equal(ours.numpy(), weight.prepared())
    assert [one["packing"] for one in told[0]["arrays"]][-1] is None


@pytest.mark.parametrize(
    "lie",
    [{"offset": 1 << 40}, {"offset": -64}, {"shape": [1 << 40]}, {"shape": [-5, 3]}, {"dtype": "O"}, {"stored": "O"}],
)
def test_weights_that_are_not_in_the_file_are_refused(lie: dict[str, Any]) -> None:
    told = {"offset": 0, "shape": [4, 4], "dtype": "float32", "stored": "float32", "transform": "", "packing": None}
    with pytest.raises((ValueError, TypeError)):
        map_weights(memoryview(bytearray(64)), [{**told, **lie}])


def test_what_has_no_part_is_compiled_as_ever(case: Case, parts: dict[str, Built], tmp_path: Path) -> None:
    convolution = next(task for task in case.tasks if task.workload.kind == "conv2d")
    kept = case.chosen[convolution.workload.key].key
    for key, part in parts.items():
        if key != convolution.workload.key:
            part.path.unlink()
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
def test_a_part_that_does_not_fit_is_not_linked(
    case: Case, parts: dict[str, Built], tmp_path: Path, change: Any
) -> None:
    parts = {key: replace(part, manifest=json.dumps(change(json.loads(part.manifest)))) for key, part in parts.items()}
    compiled = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "out", parts)
    assert all(compiled.coverage.values())
    names = {name.rpartition("_")[2] for name in case.kernels(tmp_path / "out")}
    assert not names & {one.key for one in case.chosen.values()}


def test_a_kernel_is_built_from_its_part(case: Case, parts: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tunery.dialects.metaschedule.codegen.kernel.tvm.tirx.build",
        lambda *_, **__: pytest.fail("code was generated again"),
    )
    for task in case.tasks:
        part = parts[task.workload.key]
        built = case.dialect.build(task, case.chosen[task.workload.key], part.path.parent)
        assert part.path.exists(), "it stays for the network"
        case.dialect.load(task, built, open_device("cpu"))


def test_a_network_is_lowered_once_for_all_its_compilations(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunery.dialects.metaschedule.importing import lowering

    lowered, original = [], lowering.lower
    monkeypatch.setattr(lowering, "lower", lambda *given: lowered.append(given) or original(*given))
    case.dialect.extract(case.network, case.target)
    outputs = []
    for number in range(2):  # each compilation changes the module that it is given
        case.dialect.compile(case.network, case.target, case.chosen, tmp_path / str(number))
        outputs.append(case.outputs(tmp_path / str(number)))
    assert len(lowered) == 1
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])


def test_parts_that_cannot_be_linked_cost_only_time(
    case: Case, parts: dict[str, Built], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    next(iter(parts.values())).path.write_bytes(b"no object file")
    compiled = case.dialect.compile(case.network, case.target, case.chosen, tmp_path / "out", parts)
    assert all(compiled.coverage.values())
    assert np.isfinite(case.outputs(tmp_path / "out")[0]).all()
    assert "without what was built before" in caplog.text
