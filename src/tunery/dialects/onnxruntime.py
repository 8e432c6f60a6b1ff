"""ONNX Runtime as a dialect without tasks: it runs whole networks that no compiler of ours runs faster, or rightly."""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._archive import DIMENSIONS, Archive, ArchiveError, new_archive
from tunery._errors import DialectError, TargetError, brief
from tunery._outputs import replacing
from tunery.dialects._artifacts import Built
from tunery.dialects._base import Dialect, NetworkCompiler
from tunery.dialects._loaded import Array, Compiled, CompiledNetwork, thread_count
from tunery.dialects._nodes import dimension_names, node_labels
from tunery.dialects._sessions import OnnxRuntimeSession
from tunery.domain import Candidate, Network, Target, TensorSpec

NAME = "onnxruntime"
_DTYPES = {"float32": "float", "float64": "double"}
"""What ONNX Runtime calls differently."""
_FORMAT, MODEL = "onnxruntime-1", "network.onnx"


class OnnxRuntimeDialect(Dialect, NetworkCompiler):
    """Networks as they are, run by ONNX Runtime on the CPU, if not `optimised` without its optimiser."""

    name = NAME
    packages = ("onnxruntime",)

    def __init__(self, *, optimised: bool = True) -> None:
        self._optimised = optimised

    @property
    @override
    def compiler(self) -> str:
        return f"onnxruntime {version('onnxruntime')}"

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        if spec != "native":
            raise TargetError(f"ONNX Runtime knows no target {spec!r:.60}; write native")
        return Target(self.name, {"kind": "native"}, threads)

    @override
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),
    ) -> Compiled:
        """Put the network's file into an archive; `elsewhere` of the result names all its nodes, without reasons."""
        if not network.path:
            raise DialectError(f"{network.name} has no ONNX file for ONNX Runtime to run")
        if network.weights:
            raise DialectError(f"{network.name} has more than 2 GB, too many for a file that ONNX Runtime runs whole")
        manifest = {
            "dialect": self.name,
            "format": _FORMAT,
            "network": network.name,
            "digest": network.digest,
            "threads": target.threads,
            "optimised": self._optimised,
            "inputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.inputs],
            "outputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.outputs],
        }
        if any(-1 in spec.shape for spec in network.inputs):
            manifest[DIMENSIONS] = dimension_names(Path(network.path))
        with replacing(output) as part, new_archive(part) as archive:
            archive.add(MODEL, Path(network.path))
            archive.finish(manifest)
        nodes = dict.fromkeys(node_labels(Path(network.path)), "")
        return Compiled(str(output), {}, elsewhere=nodes, digest=archive.digest)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        return OnnxRuntimeNetwork(archive, threads)


def run_once(model: bytes, inputs: Sequence[tuple[str, Sequence[int], str]]) -> list[tuple[int, ...]]:
    """Return the shapes of a model's outputs for inputs of these names, shapes and dtypes, which are zeros."""
    feed = {name: np.zeros(tuple(shape), dtype) for name, shape, dtype in inputs}
    try:
        return [one.shape for one in OnnxRuntimeSession(model, 1, spinning=False).get().run(None, feed)]
    except Exception as error:
        raise DialectError(f"ONNX Runtime does not tell the sizes of its outputs: {brief(error)}") from error


def _agree(told: Sequence[TensorSpec], there: Sequence[Any]) -> bool:
    """Tell whether specs fit a session's values; what a session does not know of a shape fits any."""
    return len(told) == len(there) and all(
        spec.name == value.name
        and _DTYPES.get(spec.dtype, spec.dtype) == value.type.removeprefix("tensor(").removesuffix(")")
        and (not value.shape or len(spec.shape) == len(value.shape))  # of an unknown rank it says that it is 0
        and all(
            not isinstance(dim, int) or extent in {-1, dim}
            for extent, dim in zip(spec.shape, value.shape, strict=False)
        )
        for spec, value in zip(told, there, strict=True)
    )


class OnnxRuntimeNetwork(CompiledNetwork):
    """A whole network in a session of ONNX Runtime's."""

    def __init__(self, archive: Archive, threads: int | None = None) -> None:
        manifest, model = archive.manifest, archive.read(MODEL)
        if manifest["format"] != _FORMAT:
            raise ArchiveError(f"it has format {manifest['format']!r:.20}, not {_FORMAT}")
        self.threads = thread_count(threads, manifest["threads"])
        self.inputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["inputs"])
        self.outputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["outputs"])
        self._taken, self._given = ([spec.name for spec in side] for side in (self.inputs, self.outputs))
        self._session = OnnxRuntimeSession(model, self.threads, spinning=True, optimised=manifest["optimised"])
        session = self._session.get()
        for told, there in ((self.inputs, session.get_inputs()), (self.outputs, session.get_outputs())):
            if not _agree(told, there):
                raise ValueError("its description is not that of its network")

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        found: list[Array] = self._session.get().run(self._given, self._feed(arrays))
        return found

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        feed, run = self._feed(self.checked(arrays)), self._session.get().run
        start = time.perf_counter_ns()
        for _ in range(calls):
            run(self._given, feed)
        return (time.perf_counter_ns() - start) * 1e-9

    def _feed(self, arrays: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self._taken, arrays, strict=True))
