"""An imported model, and the arrays that go in and out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunery.domain.keys import BlobDigest

SEGMENT = "tunery.segment."
"""What the name of a part that ONNX Runtime runs begins with, in a compiled network's profile."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One array that goes in or out: its name, static shape and NumPy dtype name (`float32`, `int64`, `bfloat16`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Network:
    """A model in its one normal form: a static, simplified ONNX file that ONNX Runtime can run as the reference.

    `digest` identifies the content of the original model together with the bound shapes, so the same request
    from two processes names the same network. The prepared file is the blob `blob` ("": it has none, as a network that
    is only described); `path` is that file in the process that works on it, and empty wherever a network is passed on.
    `program` is what a dialect's own network is, in text of the dialect's; such a network has no blob. `beside` says of
    each file of weights that the model names which it was: device, inode, bytes, time of the last change.
    `batch_of_one` names the inputs whose dynamic batch nobody bound, so that it is 1. `elsewhere` says by node why ONNX
    Runtime runs it, as far as that is decided already: a compiler leaves these to it, and what else it does not take.
    """

    name: str
    source: str
    digest: str
    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    blob: BlobDigest = ""
    batch_of_one: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict, hash=False)
    program: str = ""
    beside: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict, hash=False)
