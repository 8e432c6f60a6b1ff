"""The size of unrolled code is told as TVM's own passes then unroll it."""

import re

import pytest

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("limit", [0, 4, 8, 64, 256, 4096])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("unrolled", [False, True])
def test_stores_are_counted_as_the_compiler_unrolls_them(limit, rows, unrolled):
    from tvm import te

    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.search.limits import code_size

    a, b = te.placeholder((32, 64), name="a"), te.placeholder((64, 32), name="b")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = schedule.get_sblock("c")
    i, j, reduction = schedule.get_loops(block)
    outer, inner = schedule.split(i, [None, rows])
    schedule.reorder(outer, reduction, inner, j)
    schedule.vectorize(j)
    if unrolled:
        schedule.unroll(inner)
    schedule.decompose_reduction(block, reduction)
    schedule.annotate(outer, "pragma_auto_unroll_max_step", limit)
    schedule.annotate(outer, "pragma_unroll_explicit", 1)

    target = tvm.target.Target("llvm")
    with tvm.transform.PassContext(opt_level=3), target:
        pipeline, _, _ = tvm.tirx.get_default_tir_pipeline(target)
        lowered = pipeline(tvm.tirx.transform.BindTarget(target.with_host(target))(schedule.mod))
    stores = len(re.findall(r"^\s*c\w*\[.*\] = ", lowered.script(), re.MULTILINE))

    assert stores >= 2
    assert code_size(schedule.mod) == 2 * stores  # 32 floats are two vector registers
