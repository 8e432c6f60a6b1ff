"""An imported model."""

from dataclasses import dataclass

from tunery.domain.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Network:
    """A model in its one normal form: a static, simplified ONNX file that ONNX Runtime can run as the reference.

    `digest` identifies the content of the original model together with the bound shapes, so the same request
    from two processes names the same network; `path` is the prepared file on this machine.
    """

    name: str
    source: str
    digest: str
    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
