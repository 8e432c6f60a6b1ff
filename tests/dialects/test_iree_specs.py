"""What is read of IREE's modules and written for it, as text of the pinned version; IREE itself is not needed."""

import re

import numpy as np
import pytest

from tunery._errors import TargetError
from tunery.dialects.iree import IreeDialect
from tunery.dialects.iree.configurations import lowering, space_of, starts, tuning_spec
from tunery.dialects.iree.dispatches import DEVICE, dispatches

TENSOR = "!iree_tensor_ext.dispatch.tensor"
FLOW = f"""\
module attributes {{stream.affinity.default = #hal.device.affinity<@__device_0>}} {{
  util.global private @__device_0 = #hal.device.target<"local", []>
  flow.executable private @main_graph$async_dispatch_0 {{
    flow.executable.export public @main_graph$async_dispatch_0_matmul_like_12x64x27_f32 workgroups() -> (index) {{
      flow.return %x : index
    }}
    builtin.module {{
      func.func @main_graph$async_dispatch_0_matmul_like_12x64x27_f32(%arg0: {TENSOR}<readonly:tensor<12x27xf32>>) {{
        %cst = arith.constant 0.000000e+00 : f32
        %cst_0 = arith.constant dense_resource<__elided__> : tensor<64xf32>
        %4 = linalg.generic {{indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, \
affine_map<(d0, d1, d2) -> (d2, d1)>, \
affine_map<(d0, d1, d2) -> (d0, d1)>], \
iterator_types = ["parallel", "parallel", "reduction"]}} \
ins(%0, %1 : tensor<12x27xf32>, tensor<27x64xf32>) outs(%3 : tensor<12x64xf32>) {{
        ^bb0(%in: f32, %in_0: f32, %out: f32):
          %6 = arith.mulf %in, %in_0 : f32
          %7 = arith.addf %out, %6 : f32
          linalg.yield %7 : f32
        }} -> tensor<12x64xf32>
        return
      }}
    }}
  }}
  flow.executable private @main_graph$async_dispatch_1 {{
    flow.executable.export public @main_graph$async_dispatch_1_slow_memcpy workgroups() -> (index) {{
    }}
  }}
  util.initializer {{
    %0 = flow.dispatch @main_graph$async_dispatch_1::@main_graph$async_dispatch_1_slow_memcpy(%a, %b) : \
(tensor<4xf32>, tensor<8xf32>) -> %b
    util.return
  }}
  util.func public @main_graph$async(%arg0: !hal.buffer_view) -> !hal.buffer_view {{
    %1 = flow.dispatch @main_graph$async_dispatch_0::@main_graph$async_dispatch_0_matmul_like_12x64x27_f32(%0, %w) : \
(tensor<12x27xf32>, tensor<27x64xf32>) -> tensor<12x64xf32>
    %2 = flow.dispatch @main_graph$async_dispatch_0::@main_graph$async_dispatch_0_matmul_like_12x64x27_f32(%1, %w) : \
(tensor<12x27xf32>, tensor<27x64xf32>) -> tensor<12x64xf32>
    %3 = flow.dispatch @main_graph$async_dispatch_1::@main_graph$async_dispatch_1_slow_memcpy(%2, %b) : \
(tensor<4xf32>, tensor<8xf32>) -> %b
    %4 = flow.dispatch @main_graph$async_dispatch_1::@main_graph$async_dispatch_1_unknown(%2, %i) : \
(tensor<?xf32>, index) -> tensor<?xf32>
    util.return %4 : !hal.buffer_view
  }}
}}
"""


def test_dispatches_become_modules_of_their_own_with_their_calls() -> None:
    product, copy = dispatches(FLOW)  # what is called with anything but static tensors is left out
    assert (product.name, product.calls, copy.name, copy.calls) == ("matmul_like_12x64x27_f32", 2, "slow_memcpy", 1)
    assert product.inputs == (((12, 27), "float32"), ((27, 64), "float32"))
    assert product.outputs == (((12, 64), "float32"),)
    assert DEVICE in product.module
    assert "main_graph" not in product.module, "where it stands in a network is no part of a task"
    assert "dense_resource" not in product.module, "weights are no part of a task"
    assert "flow.tensor.clone %t1" in copy.module, "what is updated in place stays as it was given"
    assert copy.outputs == (((8,), "float32"),)


def test_equal_operators_of_two_layers_are_one_task() -> None:
    other = FLOW.replace("dispatch_0", "dispatch_7").replace(
        "dense_resource<__elided__> : tensor<64xf32>", f"dense<{[0.5] * 64}> : tensor<64xf32>"
    )
    assert next(iter(dispatches(other))).module == next(iter(dispatches(FLOW))).module


@pytest.mark.parametrize("graph", ["torch-jit-export", "my.net", "a b", r"\C3\A9"])
def test_a_graph_may_have_any_name(graph: str) -> None:
    quoted = re.sub(r"@main_graph([\w$]*)", lambda found: f'@"{graph}{found[1]}"', FLOW)
    assert list(dispatches(quoted)) == list(dispatches(FLOW))
    if graph == "my.net":  # needs no quotes
        assert list(dispatches(FLOW.replace("@main_graph", f"@{graph}"))) == list(dispatches(FLOW))


def test_the_product_of_a_dispatch_is_read() -> None:
    product, copy = (one.contraction for one in dispatches(FLOW))
    assert copy is None
    assert product is not None
    assert product.extents == (12, 64, 27)
    assert product.reduced == (False, False, True)
    assert (product.vector, product.flop) == (1, 2.0 * 12 * 64 * 27)


def test_a_window_is_no_product() -> None:
    window = FLOW.replace("affine_map<(d0, d1, d2) -> (d0, d2)>", "affine_map<(d0, d1, d2) -> (d0 + d2, d2)>")
    assert next(iter(dispatches(window))).contraction is None


def test_each_configuration_has_a_tile_for_each_loop_and_never_sums_in_parallel() -> None:
    product = next(iter(dispatches(FLOW))).contraction
    assert product is not None
    space = space_of(product)
    drawn = [space.configuration(one) for one in space.sample(50, np.random.default_rng(0))]
    for configuration in [*starts(product), *drawn]:
        found = re.findall(
            r"= \[([\d, ]+)\]", lowering(product, {name: int(configuration[name]) for name in configuration})
        )
        parts, tiles, sums = ([int(one) for one in each.split(",")] for each in found)
        assert parts[2] == tiles[2] == 0
        assert sums[:2] == [0, 0]
        assert sums[2] > 0
        assert all(part % tile == 0 for part, tile in zip(parts[:2], tiles[:2], strict=True))


def test_a_tuning_spec_is_as_this_version_of_iree_reads_it() -> None:
    product = next(iter(dispatches(FLOW))).contraction
    assert product is not None
    spec = tuning_spec([(product, {"v0": 4, "d0": 2, "v1": 32, "d1": 1, "k": 4})])
    assert (
        "lowering_config = #iree_cpu.lowering_config<distribution = [8, 32, 0], vector_common_parallel = [4, 32, 0], "
        "vector_reduction = [0, 0, 4]>, translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>"
    ) in spec
    assert "^bb0(%x0: tensor<12x27xf32>, %x1: tensor<27x64xf32>, %x2: tensor<12x64xf32>):" in spec
    assert "ins(%x0, %x1 : tensor<12x27xf32>, tensor<27x64xf32>) outs(%x2 : tensor<12x64xf32>)" in spec
    assert spec.count("{") == spec.count("}")


@pytest.mark.parametrize("mcpu", ["", "a\\u0000b", "a b", "x" * 200_000])
def test_a_processor_that_no_program_can_be_given_is_refused(mcpu: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        IreeDialect().resolve_target(f'{{"kind": "llvm-cpu", "mcpu": "{mcpu}"}}', 1)
