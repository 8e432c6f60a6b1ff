"""Compiled networks behind the interface of ONNX Runtime's sessions: a program changes one import."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from tunery._errors import UsageError
from tunery.delivery.files.loading import Trusted, load_compiled
from tunery.dialects import Array, CompiledNetwork
from tunery.domain import TensorSpec

_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: `type` such as `tensor(float)`.

    An unknown size is the dimension's name, None without one.
    """

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """A compiled file, used as `onnxruntime.InferenceSession` is.

    `sess_options` may be ONNX Runtime's: of it, `intra_op_num_threads` is used; `providers` and `provider_options` are
    accepted and ignored, since a compiled file runs on the CPU. `trusted` is as for `load_compiled`. As a context
    manager it is closed with the block.

    Raises:
        UsageError: as `load_compiled`.

    Example:
        session = tunery.InferenceSession("resnet18.tunery")
        [scores] = session.run(None, {"input": image})
    """

    def __init__(
        self,
        path_or_bytes: str | Path,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,  # noqa: ARG002 - for those who give it
        provider_options: Sequence[Any] | None = None,  # noqa: ARG002
        *,
        trusted: Trusted | None = None,
    ) -> None:
        network = load_compiled(
            path_or_bytes, getattr(sess_options, "intra_op_num_threads", 0) or None, trusted=trusted
        )
        self._inputs = [spec.name for spec in network.inputs]
        self._names = set(self._inputs)
        self._outputs = {spec.name: number for number, spec in enumerate(network.outputs)}
        self._network: CompiledNetwork | None = network

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the network up, with its memory; outputs stay. The session cannot be used again."""
        self._network = None

    def __getattr__(self, name: str) -> NoReturn:
        other = "; give run() the arrays to write to as `out`" if "binding" in name else ""
        raise AttributeError(
            f"a session has no {name!r:.80}, only run, get_inputs, get_outputs, get_providers, close{other}"
        )

    def _opened(self) -> CompiledNetwork:
        if self._network is None:
            raise UsageError("this session is closed; open another one")
        return self._network

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, in order."""
        network = self._opened()
        names = getattr(network, "dimensions", {})
        return [_described(spec, names.get(spec.name, ())) for spec in network.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in order."""
        return [_described(spec) for spec in self._opened().outputs]

    def get_providers(self) -> list[str]:
        """Return where it runs, in ONNX Runtime's words."""
        return ["CPUExecutionProvider"]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,  # noqa: ARG002 - for those who give it
        *,
        out: Sequence[Any] | None = None,
    ) -> list[Array]:
        """Return the named outputs, or all; inputs are arrays or DLPack's tensors, or what `np.asarray` takes, by name.

        With `out`, arrays or tensors for all of the network's outputs in their order, they are written there, as with
        an `IOBinding` of ONNX Runtime's.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or dtype; there is no such output; or `out`
                does not fit.
        """
        network = self._opened()
        if not isinstance(input_feed, (dict, Mapping)) or input_feed.keys() != self._names:
            self._refuse_inputs(input_feed)
        if output_names:
            self._check_outputs(output_names)
        given = [input_feed[name] for name in self._inputs]
        arrays = [one if hasattr(one, "__dlpack__") else _array(one) for one in given]
        outputs = network(*arrays, out=out)
        return [outputs[self._outputs[name]] for name in output_names] if output_names else outputs

    def _check_outputs(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise UsageError(f"give the names of outputs as a list, not {names!r:.80}")
        for name in names:
            if not isinstance(name, str) or name not in self._outputs:
                raise UsageError(f"there is no output {name!r:.80}; the network gives {_listed(self._outputs)}")

    def _refuse_inputs(self, feed: Mapping[str, Any]) -> NoReturn:
        if not isinstance(feed, Mapping):
            raise UsageError(
                f"give a dict of arrays by name, not {type(feed).__name__}; the network takes {_listed(self._inputs)}"
            )
        odd = sorted(set(feed).symmetric_difference(self._inputs), key=repr)[0]
        state = "is no input" if odd in feed else "is missing"
        raise UsageError(f"input {odd!r:.80} {state}; the network takes {_listed(self._inputs)}")


def _array(value: Any) -> Any:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):  # rows of several lengths
        return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _described(spec: TensorSpec, names: Sequence[str] = ()) -> NodeArg:
    kind, called = _TYPES.get(spec.dtype, spec.dtype), [*names, *[""] * len(spec.shape)]
    shape = [size if size >= 0 else name or None for size, name in zip(spec.shape, called, strict=False)]
    return NodeArg(spec.name, f"tensor({kind})", shape)
