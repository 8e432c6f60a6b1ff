"""Constants that are only moved become constants without a compiler, with the values TVM itself would compute."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.folding import move_constants

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


@pytest.mark.parametrize("index", [2, -1, -3])
def test_an_index_that_counts_from_the_end_of_a_known_shape_is_folded(index: int) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sizes = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(x))))
            size = builder.emit(relax.op.take(sizes, relax.const(0, "int64"), axis=0, mode="wrap"))
            given = relax.const(index, "int64")
            negative = builder.emit(relax.op.less(given, relax.const(0, "int64")))
            place = builder.emit(relax.op.where(negative, relax.op.add(given, size), given))
            result = builder.emit_output(relax.op.take(x, place, axis=0, mode="fast"))
        builder.emit_func_output(result)
    folded = relax.transform.DeadCodeElimination()(move_constants(builder.get()))
    text = folded.script()
    assert text.count("take") == 1, "the one from what is computed"
    assert not any(name in text for name in ("shape_of", "shape_to_tensor", "less", "where", "add"))
    machine = relax.VirtualMachine(tvm.compile(folded, "llvm"), tvm.cpu())
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(data)).numpy(), data[index])


def _arithmetic(dtype: str) -> tuple[tvm.IRModule, list[str]]:
    """Return a sum of a network's input with what constants of a normalisation are in one step after another."""
    rng = np.random.default_rng(0)
    of_one, names = ("sqrt", "round"), ["add", "subtract", "multiply", "divide", "maximum", "minimum", "sqrt", "round"]
    a, b = (relax.const(np.array([0.5, 1.5, 2.5, *rng.uniform(0.1, 9, 254)], dtype)) for _ in range(2))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((257,), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            steps = [builder.emit(getattr(relax.op, name)(*((a,) if name in of_one else (a, b)))) for name in names]
            whole = builder.emit(relax.op.astype(builder.emit(relax.op.multiply(a, b)), "int32"))
            steps.append(builder.emit(relax.op.astype(whole, dtype)))
            rows = builder.emit(relax.op.concat([relax.op.expand_dims(step, 0) for step in (x, *steps)]))
            result = builder.emit_output(rows)
        builder.emit_func_output(result)
    return builder.get(), [*names, "astype"] if dtype == "float32" else names


def test_arithmetic_of_constants_is_folded_to_the_bits_that_a_program_gives() -> None:
    module, names = _arithmetic("float32")
    folded = relax.transform.DeadCodeElimination()(move_constants(module))
    assert not any(f"R.{name}(" in folded.script() for name in names)
    given = tvm.runtime.tensor(np.zeros(257, np.float32))
    ours, theirs = (
        relax.VirtualMachine(tvm.compile(one, "llvm"), tvm.cpu())["main"](given).numpy() for one in (folded, module)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_what_is_of_half_precision_or_out_of_range_is_left_to_the_compiler() -> None:
    module, names = _arithmetic("float16")
    assert all(f"R.{name}(" in move_constants(module).script() for name in names)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            half = relax.const(np.full(3, 0.5, np.float32))
            beyond = builder.emit(relax.op.take(half, relax.const(7, "int64"), axis=0, mode="fast"))
            result = builder.emit_output(relax.op.add(x, beyond))
        builder.emit_func_output(result)
    assert move_constants(builder.get()).script().count("R.take") == 1
