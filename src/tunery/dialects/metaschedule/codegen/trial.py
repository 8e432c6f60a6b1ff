"""A network's nodes compiled side by side, to find those that compute something else than ONNX Runtime."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from tunery._archive import Archive
from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects.metaschedule.codegen.compilation import compile_network
from tunery.dialects.metaschedule.importing.mapped import with_mapped_weights
from tunery.dialects.metaschedule.importing.segments.foreign import foreign_nodes, with_small_islands
from tunery.dialects.metaschedule.importing.segments.graph import Graph, named
from tunery.dialects.metaschedule.importing.segments.replay import differing_nodes
from tunery.dialects.metaschedule.loading.network import TvmNetwork
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.domain import Network, Target, TensorSpec, digest

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
