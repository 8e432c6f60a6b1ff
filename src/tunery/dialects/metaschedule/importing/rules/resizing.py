"""Resize in the forms that TVM does not know: along each axis, a few elements with their weights for each new one."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects._sessions import OnnxRuntimeSession
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import dtype_of, emit, shape_of, text_of

_PLANES, _SPATIAL, _EXACT = (3, 4, 5), 2, 1e-6
_OLD_INPUTS, _OLD = 2, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""Of opset 10."""
_MOST = 4096
"""Elements of an axis, for its weights are found by resizing as many unit vectors."""


def resize(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Resize axis by axis; None for what TVM's rule does: all behind the channels, to sizes that the scales give."""
    old = len(inputs) == _OLD_INPUTS
    if old:
        inputs, attributes = [inputs[0], None, inputs[1]], {**attributes, **_OLD}
    x, _, scales, sizes = (*inputs, *[None] * 3)[:4]
    if not all(one is None or isinstance(one, tvm.ir.GenericConst) for one in (scales, sizes)):
        return None
    shape = shape_of(x, "Resize")
    by_scales = scales is not None and scales.value.numpy().size > 0
    given = (scales if by_scales else sizes).value.numpy()
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    if not old and _is_usual(shape, axes, given, attributes, by_scales=by_scales):
        return None
    for axis, one in zip(axes, given, strict=True):
        weights = _weights(shape[axis], "scales" if by_scales else "sizes", one, attributes)
        if weights is not None:
            x = emit(builder, _along(builder, x, axis, weights))
    return x


def _is_usual(shape: list[int], axes: list[int], given: Array, attributes: dict[str, Any], *, by_scales: bool) -> bool:
    if len(shape) not in _PLANES or axes != [*range(len(shape))]:
        return False
    if attributes.get("antialias", 0) or attributes.get("exclude_outside", 0):
        return False
    made = np.multiply(given, shape if by_scales else 1, dtype=np.float64)
    return bool((abs(made - np.round(made)) < _EXACT).all() and [*np.round(made[:_SPATIAL])] == shape[:_SPATIAL])


def _weights(size: int, name: str, value: Any, attributes: dict[str, Any]) -> Array | None:
    """Return the weights of the old elements (columns) in the new ones: what ONNX Runtime makes of unit vectors."""
    if size > _MOST:
        raise DialectError(f"Resize has {size} elements on an axis; at most {_MOST} are supported")
    if value == (1 if name == "scales" else size):
        return None
    wanted = np.array([1, 1, value, 1 if name == "scales" else size], np.float32 if name == "scales" else np.int64)
    left_out = {"axes", "tvm_custom", "keep_aspect_ratio_policy"}
    said = {key: text_of(one) if isinstance(one, bytes) else one for key, one in attributes.items()}
    said = {key: one for key, one in said.items() if key not in left_out}
    names = ["x", "", name] if name == "scales" else ["x", "", "", name]
    graph = helper.make_graph(
        [helper.make_node("Resize", names, ["y"], **said)],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, size, size])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(wanted, name)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = OnnxRuntimeSession(model.SerializeToString(), 1, spinning=False).get()
    [made] = session.run(None, {"x": np.eye(size, dtype=np.float32)[None, None]})
    return np.asarray(made[0, 0])


def _along(builder: Any, x: Any, axis: int, weights: Array) -> Any:
    count = max(1, int((weights != 0).sum(axis=1).max()))
    order = np.sort(np.argsort(weights == 0, axis=1, kind="stable")[:, :count], axis=1)
    shape, kind = shape_of(x, "Resize"), dtype_of(x)
    places = relax.const(order.astype(np.int64))
    shares = np.take_along_axis(weights, order, axis=1)
    plain = count == 1 and bool((shares == 1).all())
    sizes = [*shape[:axis], len(weights), *shape[axis + 1 :]]

    def resized(value: Any, places: Any, *shares: Any) -> Any:
        if plain:
            return tvm.te.compute(sizes, lambda *at: value(*at[:axis], places[at[axis], 0], *at[axis + 1 :]), "resize")
        within = tvm.te.reduce_axis((0, count), "k")

        def term(*at: Any) -> Any:
            taken = value(*at[:axis], places[at[axis], within], *at[axis + 1 :])
            return tvm.te.sum(taken * shares[0][at[axis], within], within)

        return tvm.te.compute(sizes, term, "resize")

    more = [] if plain else [relax.const(shares.astype(kind), kind)]
    return builder.call_te(resized, x, places, *more, primfunc_name_hint="resize")
