"""Sparse constants as plain ones: what takes a prepared network apart looks for those alone."""

import math

import numpy as np
import onnx
from onnx import numpy_helper

from tunery._errors import ModelError
from tunery.models.onnx._file import graphs

_MOST_ELEMENTS = 1 << 28


def write_out(model: onnx.ModelProto) -> None:
    """Write out the sparse initialisers and constants of a model's graphs, in place."""
    for graph in graphs(model.graph):
        found = [(sparse.values.name, sparse) for sparse in graph.sparse_initializer]
        for node in [node for node in graph.node if node.op_type == "Constant" and not node.domain]:
            if node.attribute and node.attribute[0].HasField("sparse_tensor"):
                found.append((node.output[0], node.attribute[0].sparse_tensor))
                graph.node.remove(node)
        graph.initializer.extend(_dense(name, sparse) for name, sparse in found)
        del graph.sparse_initializer[:]


def _dense(name: str, sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    sizes = tuple(sparse.dims)
    if min(sizes, default=1) < 0 or math.prod(sizes) > _MOST_ELEMENTS:
        raise ModelError(f"the sparse constant {name!r} has the sizes {list(sizes)}; export the model with plain ones")
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full = np.zeros(sizes, values.dtype)
    places = np.where(places < 0, np.iinfo(np.int64).max, places)  # NumPy counts these from the end
    try:
        full[tuple(places.T) if places.ndim > 1 else np.unravel_index(places, sizes)] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"the sparse constant {name!r} has values outside of it; export the model again") from error
    return numpy_helper.from_array(full, name)
