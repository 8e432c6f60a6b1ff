"""Winograd as another variant of a convolution: found where it applies, right, and compiled into networks."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import convolution_network

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect, Observation
from tunery.dialects.metaschedule.loading.preparing import matrices, transformed
from tunery.dialects.metaschedule.tiles.winograd import NAME
from tunery.dialects.metaschedule.variants.program import program_key, space_of, tvm_target, variants
from tunery.dialects.metaschedule.variants.variant import read_body, variants_of
from tunery.domain import Network, Outcome, Target, Task
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm

ALL = ["generic", "winograd4", "tiles"]


def convolution(dialect: Dialect, network: Network, target: Target) -> Task:
    return next(task for task in dialect.extract(network, target) if task.workload.kind == "conv2d")


@pytest.mark.parametrize("tile", [2, 4])
def test_the_transforms_make_a_convolution(tile: int) -> None:
    to_data, to_weights, to_output = matrices(tile)
    random = np.random.default_rng(0)
    data, weights = random.standard_normal((tile + 2, tile + 2)), random.standard_normal((3, 3))
    product = (to_data @ data @ to_data.T) * (to_weights @ weights @ to_weights.T)
    expected = [[np.sum(data[i : i + 3, j : j + 3] * weights) for j in range(tile)] for i in range(tile)]
    np.testing.assert_allclose(to_output @ product @ to_output.T, expected, atol=1e-12)
    [moved] = transformed([weights.reshape(3, 3, 1, 1)], {0: f"winograd{tile}"})
    np.testing.assert_allclose(moved[..., 0, 0], to_weights @ weights @ to_weights.T, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"channels": (8, 32)}, "fewer than 16"),
        ({"size": 5}, "save less"),
        ({"channels": (768, 768), "size": 7}, "save less"),
        ({"constant": False}, "not constant"),
    ],
)
def test_what_it_cannot_handle_stays_generic_and_says_why(
    dialect: Dialect, target: Target, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    task = convolution(dialect, convolution_network(tmp_path, **options), target)
    found = variants(task)
    assert NAME not in found.found
    assert next(iter(found.found)) == "generic"
    assert reason in found.left_out[NAME]


@pytest.mark.parametrize("options", [{"stride": 2}, {"kernel": 5}, {"groups": 2}])
def test_of_convolutions_that_it_is_not_meant_for_nothing_is_said(
    dialect: Dialect, target: Target, tmp_path: Path, options: dict[str, object]
) -> None:
    found = variants(convolution(dialect, convolution_network(tmp_path, **options), target))
    assert NAME not in {*found.found, *found.left_out}


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2, "size": 9, "residual": True},
        pytest.param({"padding": 0, "activation": "silu"}, marks=pytest.mark.slow),
    ],
)
def test_every_variant_is_right_and_says_how_it_was_judged(
    dialect: Dialect, target: Target, tmp_path: Path, options: dict[str, object]
) -> None:
    task = convolution(dialect, convolution_network(tmp_path, **options), target)
    inputs = make_inputs(task.workload.input_specs, 0)
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
    reference.bind(inputs)
    reference.run()
    expected = expect(task.workload, reference.outputs())
    seen = set()
    for candidate in dialect.open(task, [], None, 0).propose(9):
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        verdict = compare(expected, kernel.outputs(), slack=kernel.slack)
        assert verdict.passed, (kernel.traits, verdict)
        assert kernel.traits["expression"] == read_body(candidate.body)[0]
        assert verdict.method == ("reference, tolerance x 2" if kernel.slack == 2 else "reference")
        seen.add(kernel.traits["expression"])
    assert seen == set(ALL)


def test_a_network_is_compiled_with_transformed_weights(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    network = convolution_network(tmp_path, batch=1, size=10, layers=2)
    task = convolution(dialect, network, target)
    assert task.weight == 2  # both layers share the program, each with its own weights
    chosen = next(c for c in dialect.open(task, [], None, 0).propose(9) if "winograd4" in c.body)
    compiled = dialect.compile(network, target, {task.workload.key: chosen}, tmp_path / "out")
    assert compiled.coverage[task.workload.key] == chosen.key
    [array] = make_inputs(network.inputs, 3)
    [ours] = load_compiled(tmp_path / "out")(array)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {network.inputs[0].name: array})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(np.abs(theirs).max()))


def test_a_search_goes_on_in_every_variant(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = convolution(dialect, convolution_network(tmp_path), target)
    first = dialect.open(task, [], None, 0).propose(12)
    history = [Observation(c, Outcome.OK, 1e-3) for c in first]
    second = dialect.open(task, history, None, 0).propose(12)
    assert not {c.key for c in first} & {c.key for c in second}
    assert {read_body(c.body)[0] for c in first} == set(ALL)
    assert "generic" in {read_body(c.body)[0] for c in second}, "there are few designs of tiles"


def test_a_variant_that_breaks_costs_only_itself(
    dialect: Dialect, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.tiles import winograd

    task = convolution(dialect, convolution_network(tmp_path), target)

    def broken(module: object) -> None:
        raise RuntimeError("no tile")

    monkeypatch.setattr(winograd, "winograd_of", broken)
    found = variants_of(tvm.ir.load_json(task.workload.program), tvm_target(target))
    assert list(found.found) == ["generic", "tiles"]
    assert found.left_out["winograd4"] == "RuntimeError: no tile"


def test_a_network_that_cannot_be_laid_out_channels_last_says_why(
    dialect: Dialect, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunery.dialects.metaschedule._tvm import relax, tvm
    from tunery.dialects.metaschedule.importing import lowering

    network = convolution_network(tmp_path, size=11)
    assert "channels-last" not in variants(convolution(dialect, network, target)).left_out

    def broken(layouts: object) -> None:
        raise RuntimeError("  a frame\nthe rank is not known\n@I.ir_module")

    monkeypatch.setattr(lowering, "_kept", {})
    monkeypatch.setattr(relax.transform, "ConvertLayout", broken)
    tasks = dialect.extract(network, target)
    task = next(task for task in tasks if task.workload.kind == "conv2d")
    assert task.workload.arguments[0].shape == (1, 32, 11, 11), "channels first"
    kernel = dialect.load(task, dialect.build(task, dialect.baseline(task), tmp_path), open_device("cpu"))
    assert kernel.traits["left_out"]["channels-last"] == "RuntimeError: the rank is not known"
    assert dialect.baseline(task).key == task.workload.key == program_key(space_of(task).module)
    program = tvm.ir.load_json(task.workload.program)["main"]
    earlier = tvm.IRModule({"main": program}).with_attr("tunery.left_out", "a frame is missing")
    assert variants_of(earlier, tvm_target(target)).left_out["channels-last"] == "a frame is missing"
    others = [task for task in tasks if task.workload.kind != "conv2d"]
    assert all("channels-last" not in variants(task).left_out for task in others)
    chosen = next(c for c in dialect.open(task, [], None, 0).propose(2))
    compiled = dialect.compile(network, target, {task.workload.key: chosen}, tmp_path / "out")
    assert compiled.coverage[task.workload.key] == chosen.key


def test_a_plain_search_has_the_generic_program_only_and_its_records_say_why(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    task = convolution(dialect, convolution_network(tmp_path), target)
    before = dialect.open(task, [], None, 0).propose(8)
    history = [Observation(candidate, Outcome.OK, 1e-3) for candidate in before]
    search = dialect.open(task, history[:4], None, 0, generic_only_reason="it died twice")
    search.observe(history[4:])  # what was still on its way, of any variant
    found = search.propose(8)
    assert {read_body(candidate.body)[0] for candidate in found} == {"generic"}
    assert not {candidate.key for candidate in found} & {candidate.key for candidate in before}
    kernel = dialect.load(task, dialect.build(task, found[0], tmp_path), open_device("cpu"))
    assert kernel.traits["left_out"] == dict.fromkeys(("winograd4", "tiles"), "it died twice")


@pytest.mark.parametrize("channels", [(129, 128), (3, 5)])
def test_weights_are_transformed_in_blocks_like_at_once(channels: tuple[int, int]) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 3, *channels)).astype(np.float32)
    for tile in (2, 4):
        rows = matrices(tile)[1]
        at_once = np.einsum("er,ns,rsio->enio", rows, rows, weights.astype(np.float64))
        np.testing.assert_allclose(transformed([weights], {0: f"winograd{tile}"})[0], at_once, rtol=1e-5, atol=1e-6)


def test_generic_candidates_keep_the_form_they_always_had(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = convolution(dialect, convolution_network(tmp_path), target)
    bodies = {read_body(c.body)[0]: json.loads(c.body) for c in dialect.open(task, [], None, 0).propose(3)}
    assert isinstance(bodies["generic"], list)
    assert set(bodies["winograd4"]) == {"expression", "trace"}
