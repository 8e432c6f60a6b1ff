"""Which nodes of a network compute something else than in ONNX Runtime: each on what it is given there."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tunery._archive import Archive
from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects._sessions import OnnxRuntimeSession
from tunery.dialects.metaschedule.codegen.compilation import compile_network
from tunery.dialects.metaschedule.importing.mapped import with_mapped_weights
from tunery.dialects.metaschedule.importing.segments.foreign import foreign_nodes, with_small_islands
from tunery.dialects.metaschedule.importing.segments.graph import Graph, named
from tunery.dialects.metaschedule.loading.network import TvmNetwork
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.domain import Network, Target, TensorSpec, digest

Values = Mapping[str, Array]
Run = Callable[[onnx.ModelProto, Sequence[Array]], Sequence[Array]]
"""From a model and its inputs to its outputs, by the compiler."""

_MADE = "/tunery"
"""Is appended to the name of what a node makes, as others read what ONNX Runtime makes."""
_MOST_BYTES = 1 << 30
_FEW = 64
_SHARE, _HALF_SHARE, _TINY = 1e-3, 2e-2, 1e-6


def differing_nodes(graph: Graph, native: Sequence[int], inputs: Values, run: Run) -> list[int]:
    """Return those of the `native` nodes whose values differ when `run` computes them from ONNX Runtime's values.

    No node reads what another one made, so an error stays where it arises, and all nodes are tried in one model (a few
    for a network with large activations). `inputs` are the network's, by name.
    """
    found = []
    for nodes in _parts(graph, native):
        values = _recorded(graph, nodes, inputs)
        model, given, made = _apart(graph, nodes, values)
        if not made:
            continue
        outputs = dict(zip(made, run(model, [values[name] for name in given]), strict=True))
        for at in nodes:
            names = [name for name in graph.nodes[at].output if name in outputs]
            if any(_differs(outputs[name], values[name], loose=_rounds(graph.nodes[at])) for name in names):
                found.append(at)
    return found


def _parts(graph: Graph, nodes: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    taken = 0
    for at in nodes:
        names = [name for name in (*graph.reads[at], *graph.nodes[at].output) if name]
        size = sum(8 * math.prod(graph.shape(name) or ()) for name in names)
        if part and taken + size > _MOST_BYTES:
            yield part
            part, taken = [], 0
        part.append(at)
        taken += size
    if part:
        yield part


def _recorded(graph: Graph, nodes: Sequence[int], inputs: Values) -> dict[str, Array]:
    names = dict.fromkeys(name for at in nodes for name in (*graph.reads[at], *graph.nodes[at].output) if name)
    wanted = [name for name in names if name in graph.producer and graph.is_number_tensor(name)]
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.output[:]
    model.graph.output.extend(graph.info(name) for name in wanted)
    session = OnnxRuntimeSession(model.SerializeToString(), 1, spinning=False).get()
    feed = {one.name: inputs[one.name] for one in session.get_inputs()}
    return {**inputs, **dict(zip(wanted, session.run(wanted, feed), strict=True))}


def _apart(graph: Graph, nodes: Sequence[int], values: Values) -> tuple[onnx.ModelProto, list[str], list[str]]:
    """Return a model of these nodes side by side, and the names of what it is given and of what it makes. Small whole
    numbers that are computed (shapes, axes) are constants: an importer has to know them."""
    model = onnx.ModelProto(ir_version=graph.model.ir_version, functions=graph.model.functions)
    model.opset_import.extend(graph.model.opset_import)
    model.graph.name = "apart"
    given: dict[str, None] = {}
    constants: dict[str, onnx.TensorProto] = {}
    made: list[str] = []
    for at in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(graph.nodes[at])
        for name in graph.reads[at]:
            if name in graph.constants:
                constants[name] = graph.constants[name]
            elif _is_parameter(values[name]) and name in graph.producer:
                constants[name] = numpy_helper.from_array(values[name], name)
            else:
                given[name] = None
        for number, name in enumerate(node.output):
            if name in values:
                made.append(name)
                node.output[number] = name + _MADE
        model.graph.node.append(node)
    model.graph.initializer.extend(constants.values())
    model.graph.input.extend(graph.info(name) for name in given)
    for name in made:
        info = graph.info(name)
        info.name = name + _MADE
        model.graph.output.append(info)
    return model, list(given), made


def _is_parameter(value: Array) -> bool:
    return value.ndim <= 1 and value.size <= _FEW and value.dtype.kind in "iu"


def _rounds(node: onnx.NodeProto) -> bool:
    return "Quantize" in node.op_type or node.op_type.startswith("QLinear")


def _differs(ours: Array, theirs: Array, *, loose: bool) -> bool:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return True
    if theirs.dtype.kind in "iub":
        steps = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        return bool(steps.max(initial=0) > int(loose))
    share = _SHARE if theirs.dtype.itemsize >= 4 else _HALF_SHARE
    return _floats_differ(ours.astype(np.float64), theirs.astype(np.float64), share)


def _floats_differ(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], share: float) -> bool:
    finite = np.isfinite(theirs)
    if not np.array_equal(np.isfinite(ours), finite):
        return True
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return True
    error = np.abs(ours[finite] - theirs[finite]).max(initial=0.0)
    return bool(error > share * max(np.abs(theirs[finite]).max(initial=0.0), _TINY))


_DIFFERS = "TVM computes something else"


def differing(network: Network, target: Target, inputs: Sequence[Array]) -> Mapping[str, str]:
    """Return the nodes whose values differ on such inputs, with the islands that leaving them to ONNX Runtime makes."""
    graph = Graph(with_mapped_weights(Path(network.path)))
    known = foreign_nodes(graph, network.elsewhere)
    native = [at for at in range(len(graph.nodes)) if at not in known]
    values = {spec.name: one for spec, one in zip(network.inputs, inputs, strict=True)}
    try:
        wrong = differing_nodes(graph, native, values, lambda model, given: _run(model, given, target))
    except Exception as error:  # of whatever kind, ONNX Runtime's too
        raise DialectError(f"the operators of {network.name} cannot be compared: {reason_of(error)}") from error
    found = with_small_islands(graph, known | dict.fromkeys(wrong, _DIFFERS)) if wrong else {}
    return named(graph, {at: why for at, why in found.items() if at not in known})


def _run(model: onnx.ModelProto, given: Sequence[Array], target: Target) -> list[Array]:
    with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
        path, made = Path(scratch, "apart.onnx"), Path(scratch, "apart.tunery")
        onnx.save(model, path)
        inputs, outputs = (tuple(_spec(one) for one in side) for side in (model.graph.input, model.graph.output))
        apart = Network("apart", str(path), digest(str(path)), str(path), inputs, outputs, 0)
        compile_network(apart, target, {}, made)
        with Archive(made) as archive:
            return TvmNetwork(archive)(*given)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name)
    return TensorSpec(value.name, tuple(dim.dim_value for dim in kind.shape.dim), dtype)
