"""Concatenations and shuffles of channels: one loop for each array; batch normalisation after them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery._errors import DialectError
from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.search import proposer
from tunery.dialects.metaschedule.variants.concatenations import NAME
from tunery.dialects.metaschedule.variants.program import DesignSpace, space_of, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body, read_left_out
from tunery.domain import Network, Target, Task
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm

_SIDE = 5


def joining_network(
    directory: Path, channels: tuple[int, ...], *, axis: int = 1, normalised: bool = False, groups: int = 0
) -> Network:
    """Convolutions of one input, concatenated, perhaps normalised or shuffled, and a convolution of that."""
    rng = np.random.default_rng(13)
    arrays = {f"w{i}": rng.standard_normal((n, 4, 1, 1)) for i, n in enumerate(channels)}
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [f"c{i}"]) for i in range(len(channels))]
    nodes.append(helper.make_node("Concat", [f"c{i}" for i in range(len(channels))], ["t"], axis=axis))
    wide = sum(channels) if axis == 1 else channels[0]
    last = "t"
    if normalised:
        arrays |= {"scale": 1 + rng.random(wide), "shift": rng.random(wide), "mean": rng.random(wide)}
        arrays["variance"] = 0.5 + rng.random(wide)
        nodes.append(helper.make_node("BatchNormalization", [last, "scale", "shift", "mean", "variance"], ["b"]))
        nodes.append(helper.make_node("Relu", ["b"], ["r"]))
        last = "r"
    if groups:
        shapes = {"grouped": [2, groups, wide // groups, _SIDE, _SIDE], "whole": [2, wide, _SIDE, _SIDE]}
        arrays |= {name: np.array(shape, np.int64) for name, shape in shapes.items()}
        nodes += [
            helper.make_node("Reshape", [last, "grouped"], ["g"]),
            helper.make_node("Transpose", ["g"], ["p"], perm=(0, 2, 1, 3, 4)),
            helper.make_node("Reshape", ["p", "whole"], ["s"]),
        ]
        last = "s"
    arrays["z"] = rng.standard_normal((3, wide, 1, 1)) / wide**0.5
    nodes.append(helper.make_node("Conv", [last, "z"], ["y"]))
    return write_network(directory, "joining", nodes, {"x": (2, 4, _SIDE, _SIDE)}, arrays)


def joint(dialect: Dialect, network: Network, target: Target) -> Task:
    [found] = [task for task in dialect.extract(network, target) if "concat" in task.workload.name]
    return found


@pytest.mark.parametrize(
    ("channels", "options"),
    [
        ((16, 16), {}),
        ((32, 7, 20), {}),
        ((16, 32, 8, 24), {"normalised": True}),
        ((12, 12), {"groups": 2}),
        ((6, 12), {"groups": 3}),
    ],
)
def test_each_array_has_a_loop_of_its_own_and_the_network_computes_the_same(
    channels: tuple[int, ...], options: dict[str, int], dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    network = joining_network(tmp_path, channels, **options)  # type: ignore[arg-type]
    task = joint(dialect, network, target)
    proposed = dialect.open(task, [], None, 0).propose(8)
    assert sorted(read_body(one.body)[0] for one in proposed) == [NAME, GENERIC]
    [ours] = [one for one in proposed if read_body(one.body)[0] == NAME]
    inputs = make_inputs(task.workload.input_specs, 0)
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
    reference.bind(inputs)
    reference.run()
    kernel = dialect.load(task, dialect.build(task, ours, tmp_path), open_device("cpu"))
    kernel.bind(inputs)
    kernel.poison()
    kernel.run()
    assert compare(expect(task.workload, reference.outputs()), kernel.outputs()).passed
    dialect.compile(network, target, {task.workload.key: ours}, tmp_path / "compiled")
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {"x": arrays[0]})
    [result] = load_compiled(tmp_path / "compiled")(*arrays)
    np.testing.assert_allclose(result, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


def test_what_is_predicted_without_a_measurement_is_the_loops_of_their_own(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    task = joint(dialect, joining_network(tmp_path, (16, 16)), target)
    assert read_body(dialect.open(task, [], None, 0).propose(1)[0].body)[0] == NAME


@pytest.mark.parametrize(
    ("channels", "options", "reason"),
    [
        ((16, 16), {"axis": 2}, "not decided by the channel alone"),
        ((2, 2, 2), {}, "too short"),
    ],
)
def test_what_they_cannot_handle_stays_generic_and_says_why(
    channels: tuple[int, ...],
    options: dict[str, int],
    reason: str,
    dialect: Dialect,
    target: Target,
    tmp_path: Path,
) -> None:
    found = variants(joint(dialect, joining_network(tmp_path, channels, **options), target))  # type: ignore[arg-type]
    assert list(found.found) == [GENERIC]
    assert reason in found.left_out[NAME]


def test_a_normalisation_is_one_product_and_one_sum(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = joint(dialect, joining_network(tmp_path, (16, 16), normalised=True), target)
    assert "divide" not in task.workload.program
    assert task.workload.flop == pytest.approx(3 * 2 * _SIDE * _SIDE * 32, rel=0.4)


def test_what_is_chosen_within_a_choice_is_cut_there_too(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    arrays = {
        name: np.random.default_rng(1).standard_normal((n, 4, 1, 1))
        for name, n in zip("abc", (16, 32, 64), strict=True)
    }
    nodes = [helper.make_node("Conv", ["x", name], [f"c{name}"]) for name in arrays]
    nodes += [
        helper.make_node("Concat", ["ca", "cb"], ["t"], axis=1),
        helper.make_node("LeakyRelu", ["t"], ["r"], alpha=0.1),
        helper.make_node("Concat", ["r", "cc"], ["y0"], axis=1),
        helper.make_node("Conv", ["y0", "z"], ["y"]),
    ]
    arrays["z"] = np.random.default_rng(2).standard_normal((3, 112, 1, 1))
    network = write_network(tmp_path, "nested", nodes, {"x": (1, 4, _SIDE, _SIDE)}, arrays)
    tasks = [task for task in dialect.extract(network, target) if NAME in variants(task).found]
    assert tasks
    for task in tasks:
        candidates = dialect.open(task, [], None, 0).propose(8)
        inputs = make_inputs(task.workload.input_specs, 0)
        reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
        reference.bind(inputs)
        reference.run()
        for candidate in candidates:
            kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
            kernel.bind(inputs)
            kernel.poison()
            kernel.run()
            assert compare(expect(task.workload, reference.outputs()), kernel.outputs()).passed


def test_a_variant_that_cannot_be_scheduled_costs_itself_only(
    dialect: Dialect, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = joint(dialect, joining_network(tmp_path, (16, 16)), target)

    def refused(name: str) -> Callable[..., DesignSpace]:
        def space(task: Task, asked: str = GENERIC) -> DesignSpace:
            if asked == name:
                raise DialectError("it cannot be opened")
            return space_of(task, asked)

        return space

    suggested = dialect.suggest(task, 1, "", 0)
    assert [read_body(one.body)[0] for one in (*suggested.candidates, *suggested.fallbacks)] == [NAME, GENERIC]
    [plain] = dialect.open(task, [], None, 0, generic_only_reason="it died twice").propose(8)
    assert (read_body(plain.body)[0], read_left_out(plain.body)) == (GENERIC, {NAME: "it died twice"})
    monkeypatch.setattr(proposer, "space_of", refused(NAME))
    [generic] = dialect.open(task, [], None, 0).propose(8)
    assert (read_body(generic.body)[0], read_left_out(generic.body)) == (GENERIC, {NAME: "it cannot be opened"})
    monkeypatch.setattr(proposer, "space_of", refused(GENERIC))
    with pytest.raises(DialectError):
        dialect.open(task, [], None, 0)
