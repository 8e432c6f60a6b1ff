"""Networks that ship with tunery as weightless graphs, so that any machine can tune them without a download. A big
weight is stored as its shape and a range; its values are drawn anew at load, the same in every process. They are not
trained values: latency does not depend on them, and activations stay finite and varied enough to check numerics. The
graphs are written by `tools/make_zoo.py`."""

import difflib
import gzip
import json
import math
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from tunery._errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

PREFIX, FILL_VERSION = "zoo:", "1"
_LONGEST_BATCH = 5  # digits
_RULE = "fill:"


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network of the zoo: `kind` is its field (`image`, `text`, ...), `parameters` its number of weights."""

    name: str
    kind: str
    parameters: int


@cache
def names() -> tuple[ZooEntry, ...]:
    index = json.loads(_graphs().joinpath("index.json").read_text())
    return tuple(ZooEntry(name, entry["kind"], entry["parameters"]) for name, entry in sorted(index.items()))


def check(name: str) -> None:
    known = [entry.name for entry in names()]
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ModelError(f"the zoo has no network {name!r}; {hint}`tunery zoo list` shows all {len(known)}")


def parts(text: str) -> tuple[str, int | None]:
    name, at, amount = text.partition("@")
    if at and not (len(amount) <= _LONGEST_BATCH and amount.isdecimal() and int(amount) > 0):
        raise ModelError(
            f"zoo:{text[:60]!r} has no batch size from 1 to 99999 after the @; write for example zoo:{name}@8"
        )
    check(name)
    return name, int(amount) if at else None


def graph(name: str) -> bytes:
    check(name)
    return gzip.decompress(_graphs().joinpath(f"{name}.onnx.gz").read_bytes())


def fill(model: "onnx.ModelProto", name: str) -> None:
    """Give every weight of a weightless graph its values, drawn from the network's and the weight's name."""
    for tensor in model.graph.initializer:
        if tensor.doc_string.startswith(_RULE):
            low, high = (float(bound) for bound in tensor.doc_string.removeprefix(_RULE).split(":"))
            values = _uniform(f"{FILL_VERSION}/{name}/{tensor.name}", math.prod(tensor.dims), low, high)
            tensor.raw_data = values.astype("<f4", copy=False).tobytes()
            tensor.ClearField("doc_string")


def _uniform(seed: str, count: int, low: float, high: float) -> "npt.NDArray[np.float32]":
    import numpy as np

    generator = np.random.PCG64(int.from_bytes(blake2b(seed.encode(), digest_size=16).digest(), "little"))
    bits = generator.random_raw((count + 1) // 2).view(np.uint32)[:count]
    return (bits >> 8).astype(np.float32) * np.float32((high - low) / 2**24) + np.float32(low)


def _graphs() -> Traversable:
    return files("tunery.models").joinpath("zoo_graphs")
