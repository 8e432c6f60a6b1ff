"""The lowering configurations of a product, and the tuning spec that has the compiler use them."""

from collections.abc import Mapping, Sequence

from tunery.dialects.configurations.expressions import parse
from tunery.dialects.configurations.space import ConfigurationSpace
from tunery.dialects.iree.dispatches import Contraction

Configuration = Mapping[str, int]

_TILES = (1, 2, 4, 6, 8, 12, 13, 14, 16, 32, 48, 64)
_REGISTERS = 1024
"""Elements of the largest tile of outputs: somewhat more than registers hold."""
_HEAD = """\
module attributes {iree_codegen.tuning_spec_with_default_entrypoint, transform.with_named_sequence} {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, \
%config: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }
"""


def space_of(product: Contraction) -> ConfigurationSpace:
    """Return the configurations: `v0` is the tile of loop 0 in registers, `d0` how many of those make a thread's part;
    `k` is the step of the innermost sum."""
    parameters: dict[str, Sequence[int]] = {}
    tiled = [i for i, reduced in enumerate(product.reduced) if not reduced]
    for i in tiled:
        extent = product.extents[i]
        parameters[f"v{i}"] = _within(extent, _TILES) if i in tiled[-2:] or i == product.vector else (1,)
        steps = -(-extent // min(parameters[f"v{i}"]))
        parameters[f"d{i}"] = [one for one in (1, 2, 4, 8, 16, 32, 64) if one < 2 * steps] or [1]
    sums = [i for i, reduced in enumerate(product.reduced) if reduced]
    parameters["k"] = _within(product.extents[sums[-1]], (1, 2, 4, 8, 16))
    names = [f"v{i}" for i in tiled]
    return ConfigurationSpace(parameters, [parse(f"{' * '.join(names)} <= {_REGISTERS}", parameters)])


def _within(extent: int, values: Sequence[int]) -> list[int]:
    """Return which values a loop has room for, at least one: a tile may be longer than what is left of the loop."""
    return [value for value in values if value <= extent] or [extent]


def starts(product: Contraction) -> list[dict[str, int]]:
    """Return configurations that often do well, to begin with: tiles that fill the registers."""
    space, found = space_of(product), []
    for rows, columns, step in ((1, 64, 4), (4, 64, 4), (8, 32, 1), (4, 32, 4), (6, 32, 8), (12, 32, 1)):
        one = {}
        for name, values in zip(space.names, space.values, strict=True):
            wanted = {"v": columns if name == f"v{product.vector}" else rows, "d": 8, "k": step}[name[0]]
            one[name] = max((int(value) for value in values if int(value) <= wanted), default=int(values[0]))
        if one not in found and space.choices(one) is not None:
            found.append(one)
    return found


def lowering(product: Contraction, configuration: Configuration) -> str:
    distribution, vector, sums = [], [], []
    last = max(i for i, reduced in enumerate(product.reduced) if reduced)
    for i, (extent, reduced) in enumerate(zip(product.extents, product.reduced, strict=True)):
        tile = 0 if reduced else configuration[f"v{i}"]
        part = 0 if reduced else min(tile * configuration[f"d{i}"], -(-extent // tile) * tile)
        distribution.append(part)
        vector.append(tile)
        sums.append((configuration["k"] if i == last else 1) if reduced else 0)
    return (
        f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = {distribution}, "
        f"vector_common_parallel = {vector}, vector_reduction = {sums}>, "
        "translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )


def tuning_spec(chosen: Sequence[tuple[Contraction, Configuration]]) -> str:
    parts, matchers = [_HEAD], []
    for number, (product, configuration) in enumerate(chosen):
        operands = ", ".join(f"{name}: {kind}" for name, kind in product.operands.items())
        matchers.append(f"@match_{number} -> @apply")
        parts.append(
            f"  transform.named_sequence @match_{number}(%op: !transform.any_op {{transform.readonly}}) "
            "-> (!transform.any_op, !transform.any_param) {\n"
            f"    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {{\n    ^bb0({operands}):\n"
            f"      %found = {product.text}\n"
            "    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)\n"
            f"    %config = transform.param.constant {lowering(product, configuration)} -> !transform.any_param\n"
            "    transform.yield %op, %config : !transform.any_op, !transform.any_param\n  }\n"
        )
    listed = ",\n        ".join(matchers)
    parts.append(
        "  transform.named_sequence @__kernel_config(%root: !transform.any_op {transform.consumed}) "
        "-> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {\n"
        f"    %tuned = transform.foreach_match in %root\n        {listed}\n"
        "      : (!transform.any_op) -> !transform.any_op\n"
        "    transform.yield %tuned : !transform.any_op\n  }\n}\n"
    )
    return "".join(parts)
