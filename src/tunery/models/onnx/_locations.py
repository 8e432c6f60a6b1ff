"""The files that an ONNX model keeps weights in, without the package onnx: who sends a model may lack it."""

import mmap
import re
from pathlib import Path

from tunery.models._files import open_regular

_MOST_BYTES = 2**31 - 1
_SHORT = rb"[\x80-\xff]?[\x00-\x7f]"  # a length below 16 KiB, as protobuf writes it
_LOCATION = re.compile(rb"\x6a" + _SHORT + rb"\x0a\x08location\x12(" + _SHORT + rb")", re.DOTALL)
"""How an entry `location` of `TensorProto.external_data` begins: fields 13, 1 and 2, the last one's length captured."""


def weights_beside(path: Path) -> tuple[str, ...]:
    """Return the files that the model in `path` keeps weights in, by its names for them; none if it is no model."""
    with open_regular(path, _MOST_BYTES, "an ONNX file has at most 2 GB: check the file") as file:
        if not path.stat().st_size:
            return ()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = dict[str, None]()
            for entry in _LOCATION.finditer(data):
                low, *high = entry[1]
                length = (low & 0x7F) + (high[0] << 7 if high else 0)
                found[data[entry.end() : entry.end() + length].decode(errors="replace")] = None
            return tuple(found)
