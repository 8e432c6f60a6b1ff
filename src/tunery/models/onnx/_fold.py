"""Constants and shapes, computed as the file would: by ONNX Runtime's kernels, one operator at a time, unoptimised."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tunery.models.onnx._file import STANDARD, graphs

_LARGE = 65_536  # elements; what is larger is folded where it is no larger than what it is computed of
_FEW = 1024  # elements of a constant that shapes may be inferred from
_KEPT = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
    | {"DequantizeLinear"}  # its integers are what a compiler multiplies
)
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
PADDED = _POOLS | {"ConvTranspose"}
_LOWER, _UPPER, _NAMED = b"SAME_LOWER", b"SAME_UPPER", b"NOTSET"
_SIZED = PADDED | {"Shape", "Size"}
NO_FILES = ("session.model_external_initializers_file_folder_path", os.devnull)
"""What a model names is read with it, by `_file`; else ONNX Runtime would look in the working directory."""
SILENT = 4


def fold(model: onnx.ModelProto, hints: Mapping[str, onnx.TypeProto], absent: Collection[str] = ()) -> bool:
    """Replace what is known without any data by its value, in the outermost graph, in place; say if anything was. Pads
    are written down where ONNX's sizes are not those that ONNX Runtime computes, before a size is read. `hints` are
    types of values that inference does not know, `absent` names initialisers whose values are not here."""
    return _Folder(model, hints, absent).run()


class _Folder:
    def __init__(self, model: onnx.ModelProto, hints: Mapping[str, onnx.TypeProto], absent: Collection[str]) -> None:
        self._model, self._graph, self._hints = model, model.graph, hints
        self._opsets = {"" if entry.domain in STANDARD else entry.domain: entry.version for entry in model.opset_import}
        self._types = {value.name: value.type for value in model.graph.input}
        self._given, self._values = dict[str, onnx.TensorProto](), dict[str, np.ndarray]()
        for tensor in model.graph.initializer:
            self._types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            if tensor.name not in absent and tensor.data_location != onnx.TensorProto.EXTERNAL:
                self._given[tensor.name] = tensor
        self._sessions = dict[bytes, Any]()
        self._infers = any(node.op_type in _SIZED for node in self._graph.node)

    def run(self) -> bool:
        outputs = {value.name for value in self._graph.output}
        kept, changed = list[onnx.NodeProto](), False
        for node in self._graph.node:
            known = self._known(node)
            if known is not None and (outputs.isdisjoint(node.output) or node.op_type != "Identity"):
                changed = True
                kept += [
                    self._named(name, value) for name, value in zip(node.output, known, strict=True) if name in outputs
                ]
                continue
            while write_pads(node, self._types):  # those of `SAME` first, then of a window behind the data
                changed = True
            kept.append(node)
            self._infer(node)
        return self._drop_dead(kept) or changed

    def _known(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """Return a node's values and keep them, None where they depend on data, or are too large."""
        names = [name for name in node.input if name]
        attributes = {one.name: one for one in node.attribute}
        if node.domain not in STANDARD or node.op_type in _KEPT or any(one.g.node for one in node.attribute):
            return None
        if node.op_type in {"Shape", "Size"} and (shape := _static(self._types.get(node.input[0]))) is not None:
            if node.op_type == "Size":
                return self._keep(node, [np.array(int(np.prod(shape, dtype=np.int64)), np.int64)])
            ends = (attributes[end].i if end in attributes else None for end in ("start", "end"))
            return self._keep(node, [np.array(shape[slice(*ends)], np.int64)])
        if any(name not in self._given and name not in self._values for name in names):
            return None
        most = max(_LARGE, *(self._size(name) for name in names)) if names else _LARGE
        self._infer(node, always=True)
        if any(_elements(self._types.get(name)) > most for name in node.output):
            return None
        found = self._evaluated(node, [self._value(name) for name in names])
        return None if found is None or any(one.size > most for one in found) else self._keep(node, found)

    def _named(self, name: str, value: np.ndarray) -> onnx.NodeProto:
        self._values[f"{name}/value"] = value
        return helper.make_node("Identity", [f"{name}/value"], [name])

    def _keep(self, node: onnx.NodeProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for name, array in zip(node.output, arrays, strict=True):
            if name:
                self._values[name] = array
                self._types[name] = helper.make_tensor_type_proto(
                    helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
        return arrays

    def _size(self, name: str) -> int:
        return _elements(self._types[name])

    def _value(self, name: str) -> np.ndarray:
        if name not in self._values:
            self._values[name] = numpy_helper.to_array(self._given[name])
        return self._values[name]

    def _evaluated(self, node: onnx.NodeProto, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        numbers = iter(range(len(arrays)))
        alone.name = ""
        alone.input[:] = [f"i{next(numbers)}" if name else "" for name in node.input]
        alone.output[:] = [f"o{number}" if name else "" for number, name in enumerate(node.output)]
        kinds = [(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for array in arrays]
        key = alone.SerializeToString(deterministic=True) + repr(kinds).encode()
        try:
            if key not in self._sessions:
                self._sessions[key] = self._session(alone, kinds)
            made = iter(self._sessions[key].run(None, {f"i{number}": array for number, array in enumerate(arrays)}))
        except Exception:  # noqa: BLE001 - of many kinds: what ONNX Runtime cannot compute alone stays where it is
            return None
        return [np.asarray(next(made)) if name else np.empty(0) for name in node.output]

    def _session(self, node: onnx.NodeProto, kinds: list[tuple[int, tuple[int, ...]]]) -> Any:
        inputs = [helper.make_tensor_value_info(f"i{at}", kind, shape) for at, (kind, shape) in enumerate(kinds)]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        model = helper.make_model(
            helper.make_graph([node], "node", inputs, outputs), ir_version=self._model.ir_version,
            opset_imports=self._model.opset_import,
        )  # fmt: skip
        return unoptimised(model.SerializeToString())

    def _infer(self, node: onnx.NodeProto, *, always: bool = False) -> None:
        """Tell the types of a node's outputs as far as ONNX does, from those of its inputs and from small constants."""
        if not (always or self._infers):  # nobody reads sizes
            return
        found: Mapping[str, onnx.TypeProto] = {}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets[""], "")
            if node.domain in STANDARD and not any(one.HasField("g") for one in node.attribute):
                names = [name for name in node.input if name]
                types = {name: self._types[name] for name in names if name in self._types}
                constants = {name: self._proto(name) for name in names if self._is_small(name)}
                found = onnx.shape_inference.infer_node_outputs(
                    schema, node, types, constants, opset_imports=list(self._model.opset_import),
                    ir_version=self._model.ir_version,
                )  # fmt: skip
        except Exception:  # noqa: BLE001 - of no schema, or of types that contradict it: nothing is known then
            found = {}
        for name in filter(None, node.output):
            known = found.get(name)
            if known is None or (_static(known) is None and name in self._hints):
                known = self._hints.get(name, known)
            if known is not None:
                self._types[name] = known

    def _is_small(self, name: str) -> bool:
        return (name in self._given or name in self._values) and self._size(name) <= _FEW

    def _proto(self, name: str) -> onnx.TensorProto:
        return self._given[name] if name in self._given else numpy_helper.from_array(self._values[name], name)

    def _drop_dead(self, nodes: Iterable[onnx.NodeProto]) -> bool:
        """Write the nodes that lead to an output, and the constants that they read; say if any node was dropped."""
        used = {value.name for value in self._graph.output}
        kept = list[onnx.NodeProto]()
        for node in reversed(list(nodes)):
            if used.intersection(node.output):
                used.update(_reads(node))
                kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
        dropped = len(kept) < len(self._graph.node)
        del self._graph.node[:]
        self._graph.node.extend(reversed(kept))
        for at in reversed(range(len(self._graph.initializer))):
            if self._graph.initializer[at].name not in used:
                del self._graph.initializer[at]
        made = {name for node in kept for name in node.output}
        new = (used & self._values.keys()) - self._given.keys() - made
        self._graph.initializer.extend(numpy_helper.from_array(self._values[name], name) for name in sorted(new))
        return dropped


def unoptimised(model: bytes) -> Any:
    import onnxruntime  # it starts a thread, which a process that is still to be shut in must not have

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = SILENT
    options.add_session_config_entry(*NO_FILES)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def _static(kind: onnx.TypeProto | None) -> tuple[int, ...] | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _elements(kind: onnx.TypeProto | None) -> int:
    return int(np.prod(_static(kind) or (0,), dtype=object)) if _static(kind) != () else 1


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    for attribute in node.attribute:
        for nested in (attribute.g, *attribute.graphs):
            for graph in graphs(nested) if nested.node or nested.output else ():
                yield from (name for inner in graph.node for name in inner.input)
                yield from (value.name for value in graph.output)


def write_pads(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Change a node in place whose output ONNX Runtime computes in another size than ONNX infers; say if it was. A pool
    that rounds up has no window behind its data; nothing is added to the size that follows from `output_shape`, or from
    being `SAME`, which for pools has no dilations. An odd pad of `SAME_LOWER` comes first."""
    pool = node.op_type in _POOLS
    if node.domain not in STANDARD or node.op_type not in PADDED:
        return False
    data, kernel = _sizes(types.get(node.input[0])), [] if pool else _sizes(types.get(node.input[1]))
    if not data or min(data) <= 0:
        return False
    said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    wanted = _of_pool(node, data, said) if pool else _of_transposed(data, kernel, said)
    if not wanted or min(wanted) < 0:
        return False
    _write(node, wanted)
    return True


def _sizes(kind: onnx.TypeProto | None) -> list[int]:
    return [dim.dim_value for dim in kind.tensor_type.shape.dim][2:] if kind is not None else []


def _of_pool(node: onnx.NodeProto, sizes: Sequence[int], said: Mapping[str, Any]) -> list[int]:
    """Return the pads of a pool; none where they are written down and no window is lost."""
    one, rank = [1] * len(sizes), len(sizes)
    strides, dilations = said.get("strides") or one, said.get("dilations") or one
    windows = [(width - 1) * d + 1 for width, d in zip(said["kernel_shape"], dilations, strict=True)]
    side, pads = said.get("auto_pad", _NAMED), said.get("pads") or [0] * 2 * rank
    if side == _LOWER or (side == _UPPER and max(dilations) > 1):
        steps = zip(sizes, said["kernel_shape"], strides, strict=True)  # ONNX Runtime's do not count dilations
        return _halves([max(0, (size - 1) // s * s + width - size) for size, width, s in steps], side)
    if not said.get("ceil_mode") or side != _NAMED or (node.op_type == "AveragePool" and said.get("count_include_pad")):
        return []
    first, ends, lost = pads[:rank], [], False
    for size, window, stride, begin, end in zip(sizes, windows, strides, first, pads[rank:], strict=True):
        count = -(-(size + begin + end - window) // stride) + 1
        behind = (count - 1) * stride >= size + begin
        lost = lost or behind
        ends.append(max(0, (count - 1 - behind) * stride + window - size - begin))
    return [*first, *ends] if lost else []


def _of_transposed(sizes: Sequence[int], kernel: Sequence[int], said: Mapping[str, Any]) -> list[int]:
    one, none, side = [1] * len(sizes), [0] * len(sizes), said.get("auto_pad", _NAMED)
    more, wanted = said.get("output_padding") or none, said.get("output_shape")
    if len(kernel) != len(sizes) or not (wanted or side == _LOWER or (side == _UPPER and any(more))):
        return []
    strides, dilations = said.get("strides") or one, said.get("dilations") or one
    wanted = wanted or [size * stride for size, stride in zip(sizes, strides, strict=True)]
    steps = zip(sizes, kernel, strides, dilations, more, wanted[-len(sizes) :], strict=True)
    totals = [(size - 1) * s + extra + (width - 1) * d + 1 - made for size, width, s, d, extra, made in steps]
    return _halves(totals, side)


def _halves(totals: Sequence[int], side: bytes) -> list[int]:
    fewer, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*fewer, *more] if side == _UPPER else [*more, *fewer]


def _write(node: onnx.NodeProto, pads: Sequence[int]) -> None:
    replaced = {"auto_pad", "output_shape", "pads"}
    if not any(one.name == "auto_pad" and one.s != _NAMED for one in node.attribute):
        replaced.add("ceil_mode")  # the pads are those of all windows
    kept = [one for one in node.attribute if one.name not in replaced]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
