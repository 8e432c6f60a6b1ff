"""Small model files that ask for everything: memory, names that a terminal or a shell obeys, weights that lie."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from attack_tools import expect_refused, run
from onnx import TensorProto, helper, numpy_helper

pytestmark = [pytest.mark.hostile, pytest.mark.tvm]
MEMORY_BYTES = 3 << 30


def saved(
    path: Path, nodes: Sequence[onnx.NodeProto], *constants: onnx.TensorProto, x: str = "x", y: Sequence[int] = (4,),
    name: str = "g",
) -> None:  # fmt: skip
    value = helper.make_tensor_value_info
    inputs, outputs = [value(x, TensorProto.FLOAT, [4])], [value("y", TensorProto.FLOAT, y)]
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


def constant(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value), name)


def lying(**facts: object) -> onnx.TensorProto:
    """Return four weights that say something else of themselves."""
    tensor = constant("w", np.ones(4, np.float32))
    for name, value in facts.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)  # type: ignore[arg-type]
        else:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = name, str(value)
    return tensor


def summed(name: str) -> list[onnx.NodeProto]:
    return [helper.make_node("ReduceSum", [name], ["y"], keepdims=0)]


def add(name: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Add", ["x", name], ["y"])]


def expanded(path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), *summed("e")]
    saved(path, nodes, constant("s", [2**20, 2**10, 4]), y=())


def padded(path: Path) -> None:
    saved(path, [helper.make_node("Pad", ["x", "p"], ["e"]), *summed("e")], constant("p", [2**38, 2**38]), y=())


def tiled(path: Path) -> None:
    saved(path, [helper.make_node("Tile", ["x", "r"], ["e"]), *summed("e")], constant("r", [2**45]), y=())


def ranged(path: Path) -> None:
    numbers = [constant(name, np.float32(value)) for name, value in (("a", 0), ("b", 1e11), ("c", 1))]
    saved(path, [helper.make_node("Range", ["a", "b", "c"], ["e"]), *summed("e")], *numbers, y=())


def named(path: Path) -> None:
    name = "--help\n$(touch canary)`touch canary`;touch canary\x1b]0;title\x07"
    saved(path, [helper.make_node("Relu", [name], ["y"])], x=name, name="\x1b[2J" + "n" * 1_000_000)


MODELS: dict[str, Callable[[Path], None]] = {
    "an expansion to 17 GB": expanded,
    "padding by terabytes": padded,
    "repeated to terabytes": tiled,
    "a range of 400 GB": ranged,
    "names that are commands": named,
    "weights of other sizes": lambda path: saved(path, add("w"), lying(dims=[2**40, 2**20])),
    "negative sizes": lambda path: saved(path, add("w"), lying(dims=[-4])),
    "weights at a negative place": lambda path: saved(path, add("w"), lying(location="w.bin", offset=-5)),
    "weights in a device": lambda path: saved(path, add("w"), lying(location="/dev/zero", length=16)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_hostile_model_is_compiled_or_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    make(tmp_path / "m.onnx")
    done = run(tmp_path, "compile", "m.onnx", "-o", "m.tunery", memory=MEMORY_BYTES)
    if done.returncode:
        expect_refused(done)
        assert len(done.stderr.splitlines()[-1]) < 1000
        assert not (tmp_path / "m.tunery").exists()
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()
    assert not list(tmp_path.rglob("canary"))
