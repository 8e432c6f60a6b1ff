"""Constants that are only moved become constants without a compiler, with the values TVM itself would compute."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.folding import move_constants

pytestmark = pytest.mark.tvm


def _module(weight: np.ndarray) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(relax.op.permute_dims(relax.const(weight), [2, 0, 1]))
            shaped = builder.emit(relax.op.reshape(moved, (1, 2, 12)))
            back = builder.emit(relax.op.squeeze(relax.op.reshape(shaped, (1, 2, 3, 4)), [0]))
            computed = builder.emit(relax.op.permute_dims(relax.op.add(x, back), [1, 0, 2]))
            result = builder.emit_output(computed)
        builder.emit_func_output(result)
    return builder.get()


def test_moves_are_folded_and_computations_stay() -> None:
    weight = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    folded = relax.transform.DeadCodeElimination()(move_constants(_module(weight)))
    text = folded.script()
    assert text.count("permute_dims") == 1, "the one of a computed value"
    assert "reshape" not in text
    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    expected = (x + weight.transpose(2, 0, 1).reshape(2, 3, 4)).transpose(1, 0, 2)
    machine = relax.VirtualMachine(tvm.compile(folded, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), expected)


def test_a_guarded_bound_is_folded() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            bound = relax.const(np.float32(6.0))
            guarded = builder.emit(relax.op.where(relax.op.isnan(bound), relax.const(np.float32(np.inf)), bound))
            result = builder.emit_output(relax.op.minimum(x, guarded))
        builder.emit_func_output(result)
    folded = relax.transform.DeadCodeElimination()(move_constants(builder.get()))
    text = folded.script()
    assert "isnan" not in text
    assert "where" not in text
    assert "R.const(6.0" in text, "a scalar stays one"
    machine = relax.VirtualMachine(tvm.compile(folded, "llvm"), tvm.cpu())
    given = np.array([-1.0, 5.0, 7.0], np.float32)
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(given)).numpy(), np.minimum(given, 6))
