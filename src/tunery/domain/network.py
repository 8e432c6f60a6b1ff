"""An imported model."""

from dataclasses import dataclass

from tunery.domain.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Network:
    """A model in its one normal form: a static, simplified ONNX file that ONNX Runtime can run as the reference.

    `digest` identifies the content of the original model together with the bound shapes, so the same request
    from two processes names the same network. The prepared file is the blob `blob` ("": it has none, as a network that
    is only described); `path` is that file in the process that works on it, and empty wherever a network is passed on.
    `batch_of_one` names the inputs whose dynamic batch nobody bound, so that it is 1.
    """

    name: str
    source: str
    digest: str
    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    blob: str = ""
    batch_of_one: tuple[str, ...] = ()
