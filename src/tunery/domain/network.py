"""An imported model, and the arrays that go in and out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunery._errors import UsageError
from tunery.domain.keys import BlobDigest, digest

SEGMENT = "tunery.segment."
WHOLE = "the whole network"  # in place of a task's name
"""What the name of a part that ONNX Runtime runs begins with, in a compiled network's profile."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One array that goes in or out: its name, shape and NumPy dtype name (`float32`, `int64`, `bfloat16`). A size is
    -1 where several are taken, in what is told of a network for several shapes."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text, with a question mark for any size.

    >>> shape_text((-1, 3, 8, 8))
    '[?, 3, 8, 8]'
    """
    return f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def merged_specs(several: Sequence[Sequence[TensorSpec]]) -> tuple[TensorSpec, ...]:
    """Return the arrays of one network for several shapes: a size that is not the same in all is -1.

    >>> merged_specs([[TensorSpec("x", (1, 8), "float32")], [TensorSpec("x", (4, 8), "float32")]])
    (TensorSpec(name='x', shape=(-1, 8), dtype='float32'),)
    """
    for alike in zip(*several, strict=True):
        if odd := next((spec for spec in alike if len(spec.shape) != len(alike[0].shape)), None):
            raise UsageError(
                f"{odd.name!r:.80} is {shape_text(alike[0].shape)} or {shape_text(odd.shape)}, by the shapes that "
                "are given, and one file takes one number of dimensions; name the shapes one by one"
            )
    return tuple(
        replace(
            alike[0],
            shape=tuple(
                sizes[0] if len({*sizes}) == 1 else -1 for sizes in zip(*(one.shape for one in alike), strict=True)
            ),
        )
        for alike in zip(*several, strict=True)
    )


@dataclass(frozen=True, slots=True)
class InputRange:
    """Which values of an input a network can read: from `low` up to `high`, None: no bound was found. `special`: an
    infinity in it meets an operator to which that is another case; `nan`: so does NaN, and ONNX Runtime gives the same
    wherever it stands; `wide`: ONNX Runtime is right on integers of more than 31 bits. `rows`: it is an index of a
    table of so many, counted from behind too; 0: it is none."""

    low: float | None = None
    high: float | None = None
    special: bool = False
    nan: bool = False
    wide: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """A model in its one normal form: a static, simplified ONNX file that ONNX Runtime can run as the reference.
    `digest` identifies the content of the original model together with the bound shapes, so the same request from two
    processes names the same network. The prepared file is the blob `blob` ("": it has none, as a network that is only
    described); `path` is that file in the process that works on it, and empty wherever a network is passed on.
    `program` is what a dialect's own network is, in text of the dialect's; such a network has no blob. `beside` says of
    each file of weights that the model names which it was: device, inode, bytes, time of the last change. `weights` is
    the blob that this file names for its large weights, of a network of more than 2 GB ("": it has none).
    `batch_of_one` names the inputs whose dynamic batch nobody bound, so that it is 1. `elsewhere` says by node why ONNX
    Runtime runs it, as far as that is decided already: a compiler leaves these to it, and what else it does not take.
    `original` is the blob of the model as it was read, its shapes bound: what it computes is right ("": as `blob`).
    `ranges` are those of the inputs, by name."""

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
    weights: BlobDigest = ""
    original: BlobDigest = ""
    ranges: Mapping[str, InputRange] = field(default_factory=dict, hash=False)

    @property
    def blobs(self) -> tuple[BlobDigest, ...]:
        return tuple(blob for blob in (self.blob, self.weights, self.original) if blob)


def merged_network(networks: Sequence[Network]) -> Network:
    return replace(
        networks[0],
        digest=digest(*(network.digest for network in networks)),
        inputs=merged_specs([network.inputs for network in networks]),
        outputs=merged_specs([network.outputs for network in networks]),
        batch_of_one=tuple(
            name for name in networks[0].batch_of_one if all(name in network.batch_of_one for network in networks)
        ),
        elsewhere={node: why for network in networks for node, why in network.elsewhere.items()},
    )
