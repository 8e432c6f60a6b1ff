"""Large weights of a prepared network that no ONNX file can hold: in a second file beside it, never all in memory."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tunery._errors import ModelError
from tunery.models.onnx._file import ByteRange, FileStamp

_ALIGNMENT, _CHUNK, _REMEMBERED = 4096, 1 << 20, 16


def digest_of(places: Iterable[ByteRange], stamps: Iterable[FileStamp]) -> str:
    """Return the digest of the file that `copy_weights` writes of these values; `stamps` are of the files they are in.
    A process that asks again for files that have not changed gets it without reading them."""
    return _digest_of(tuple(places), tuple(stamps))


@lru_cache(maxsize=_REMEMBERED)
def _digest_of(places: tuple[ByteRange, ...], _: tuple[FileStamp, ...]) -> str:
    hashed, size = hashlib.sha256(), 0
    for place, offset in _laid_out(places).items():
        hashed.update(bytes(offset - size))
        for chunk in _chunks(place):
            hashed.update(chunk)
        size = offset + place.length
    return hashed.hexdigest()


def copy_weights(places: Iterable[ByteRange], path: Path) -> None:
    """Write these values to a new file, whose digest is that of `digest_of` if no file has changed since. A value that
    several weights share is there once, and holes stay holes."""
    offsets = _laid_out(places)
    with path.open("xb") as file:
        for place, offset in offsets.items():
            for part in _without_holes(place):
                _copy(part, file, offset + part.offset - place.offset)
        file.truncate(max(offset + place.length for place, offset in offsets.items()))


def name_beside(model: onnx.ModelProto, large: Mapping[str, ByteRange], location: str) -> None:
    """Say in a model that its large weights are in the file of that name, where `copy_weights` puts them."""
    offsets = _laid_out(large.values())
    for tensor in (tensor for tensor in model.graph.initializer if tensor.name in large):
        place = large[tensor.name]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        told = {"location": location, "offset": str(offsets[place]), "length": str(place.length)}
        for key, value in told.items():
            tensor.external_data.add(key=key, value=value)


def _laid_out(places: Iterable[ByteRange]) -> dict[ByteRange, int]:
    offsets, size = dict[ByteRange, int](), 0
    for place in dict.fromkeys(places):
        offsets[place] = size + -size % _ALIGNMENT
        size = offsets[place] + place.length
    return offsets


def weights_of(model: onnx.ModelProto) -> str:
    """Return the name of the file that a prepared model has its large weights in, "" where it has none."""
    found = (ExternalDataInfo(tensor).location for tensor in model.graph.initializer if uses_external_data(tensor))
    return str(next(found, ""))


def _without_holes(place: ByteRange) -> Iterator[ByteRange]:
    at, end = place.offset, place.offset + place.length
    with _told(place), place.path.open("rb") as file:
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # the file system does not say
                    yield ByteRange(place.path, at, end - at)
                return  # nothing but a hole follows
            at = min(end, os.lseek(file.fileno(), start, os.SEEK_HOLE))
            if start < at:
                yield ByteRange(place.path, start, at - start)


def _copy(part: ByteRange, file: IO[bytes], offset: int) -> None:
    """Copy bytes to an offset of a file; the file system does it, and may let both files share them, if it can."""
    done = 0
    with suppress(OSError), part.path.open("rb") as source:  # what goes wrong is read and written below
        while done < part.length:
            copied = os.copy_file_range(
                source.fileno(), file.fileno(), part.length - done, part.offset + done, offset + done
            )
            if not copied:
                break
            done += copied
    file.seek(offset + done)
    for chunk in _chunks(ByteRange(part.path, part.offset + done, part.length - done)):
        file.write(chunk)


def _chunks(place: ByteRange) -> Iterator[memoryview]:
    piece = memoryview(bytearray(min(_CHUNK, place.length)))
    with _told(place), place.path.open("rb", buffering=0) as file:
        file.seek(place.offset)
        left = place.length
        while left:
            size = file.readinto(piece[: min(_CHUNK, left)])
            if not size:
                raise ModelError(f"{str(place.path)!r} was cut short while it was read; prepare the model again")
            left -= size
            yield piece[:size]


@contextmanager
def _told(place: ByteRange) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{str(place.path)!r} cannot be read: {error.strerror}; check the disk") from None
