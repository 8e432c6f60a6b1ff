"""Large weights of a prepared network that no ONNX file can hold: in a second file beside it, never all in memory."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tunery._errors import ModelError
from tunery.models.onnx._file import Stretch

_ALIGNMENT, _CHUNK = 4096, 1 << 24


def digest_of(place: Stretch) -> str:
    """Return the digest of a weight's value.

    Raises:
        ModelError: it cannot be read.
    """
    hashed = hashlib.sha256()
    for chunk in _chunks(place):
        hashed.update(chunk)
    return hashed.hexdigest()


def keep_beside(model: onnx.ModelProto, large: Mapping[str, Stretch], directory: Path, scratch: Path) -> None:
    """Write the values of the weights that a model still has to a file in `directory`, which the model names then.

    The file is called by its digest, and written as `scratch` first. A value that several weights share is there once.

    Raises:
        ModelError: a value cannot be read.
    """
    kept = [tensor for tensor in model.graph.initializer if tensor.name in large]
    hashed, offsets, zeros = hashlib.sha256(), dict[Stretch, int](), bytes(_CHUNK)
    with scratch.open("xb") as file:
        for place in dict.fromkeys(large[tensor.name] for tensor in kept):
            padding = bytes(-file.tell() % _ALIGNMENT)
            hashed.update(padding)
            file.write(padding)
            offsets[place] = file.tell()
            for chunk in _chunks(place):
                hashed.update(chunk)
                if chunk == (zeros if len(chunk) == _CHUNK else bytes(len(chunk))):  # holes stay holes
                    file.seek(len(chunk), os.SEEK_CUR)
                else:
                    file.write(chunk)
        file.truncate(file.tell())
    name = hashed.hexdigest()
    scratch.replace(directory / name)
    for tensor in kept:
        place = large[tensor.name]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        told = {"location": name, "offset": str(offsets[place]), "length": str(place.length)}
        for key, value in told.items():
            tensor.external_data.add(key=key, value=value)


def weights_of(model: onnx.ModelProto) -> str:
    """Return the name of the file that a prepared model has its large weights in, "" where it has none."""
    found = (ExternalDataInfo(tensor).location for tensor in model.graph.initializer if uses_external_data(tensor))
    return str(next(found, ""))


def _chunks(place: Stretch) -> Iterator[bytes]:
    """Yield a weight's value in pieces."""
    with _told(place), place.path.open("rb") as file:
        file.seek(place.offset)
        left = place.length
        while left:
            chunk = file.read(min(_CHUNK, left))
            if not chunk:
                raise ModelError(f"{str(place.path)!r} was cut short while it was read; prepare the model again")
            left -= len(chunk)
            yield chunk


@contextmanager
def _told(place: Stretch) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{str(place.path)!r} cannot be read: {error.strerror}; check the disk") from None
