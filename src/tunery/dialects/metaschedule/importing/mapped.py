"""Weights that lie in a file beside the model: mapped, so that an import neither reads nor copies them. Reading them
made four copies of a model of 2.4 GB at once, before anything was compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tunery.dialects import Array
from tunery.dialects.metaschedule.loading import library


def with_mapped_weights(path: Path) -> onnx.ModelProto:
    """Return a prepared model whose weights that lie beside it tell where, whatever part of it they get into."""
    model = onnx.load(path, load_external_data=False)
    for tensor in filter(uses_external_data, model.graph.initializer):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(path.parent / entry.value)
    return model


def array_of(tensor: onnx.TensorProto) -> Array:
    """Return a weight's value where it lies in its file; nothing is read before it is used."""
    told = ExternalDataInfo(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(told.location, dtype, "c", int(told.offset or 0), tuple(tensor.dims))


def tensor_of(tensor: onnx.TensorProto) -> Any:
    array = array_of(tensor)
    return library.shared(array) if array.dtype.isbuiltin == 1 else library.tensor(array)


def read_in(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(array_of(tensor), tensor.name) if uses_external_data(tensor) else tensor
