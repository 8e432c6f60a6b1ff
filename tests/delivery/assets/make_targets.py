"""Wrote `da7d122-targets.tunery` with the code of commit da7d122: a network for two targets, with weights of its own.

PYTHONPATH=src python tests/delivery/assets/make_targets.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
from onnx import TensorProto

import tunery
from tunery.domain.request import CompileOptions, Request
from tunery.service.session import compile_model

PLACE = Path(__file__).parent / "da7d122-targets.tunery"
TARGETS = ['{"kind": "llvm", "mcpu": "x86-64"}', '{"kind": "llvm", "mcpu": "x86-64-v3"}']  # the first runs on any


def model(path: Path) -> None:
    """Write a network that gives 64 times each row's sum, in every column."""
    value = onnx.helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(np.full((64, 64), 64.0, np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "rows",
        [value("x", TensorProto.FLOAT, (4, 64))], [value("y", TensorProto.FLOAT, (4, 64))], [weights],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


def main(place: Path) -> None:
    from tunery.delivery.placing import judging

    async def ours(*_: object) -> list[tuple[float, float]]:
        return [(1e-6, 1.0)]

    judging.time_in_turns = ours
    model(place / "rows.onnx")
    files = []
    for number, target in enumerate(TARGETS):
        files.append(place / f"{number}.tunery")
        request = Request(str(place / "rows.onnx"), threads=1, target=target, store=str(place / "s.db"))
        compile_model(request, files[-1], CompileOptions(predict=True))
    tunery.combine(files, PLACE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
