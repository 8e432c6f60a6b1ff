"""What reads models, extracts their tasks and compiles networks."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tunery._errors import DialectError
from tunery.blobs import Blobs
from tunery.dialects import (
    Codegen,
    CrossCompiler,
    GraphNode,
    NetworkCompiler,
    Space,
    TaskSource,
    get_dialect,
    graph_nodes,
    open_built,
    store_built,
)
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.domain import (
    Artifact,
    BlobDigest,
    Candidate,
    DeviceDescription,
    Network,
    Target,
    Task,
)
from tunery.measuring.inputs import SETS, fitting, network_inputs, read_sets
from tunery.runtime.preparing import Preparer


@dataclass(frozen=True, slots=True)
class Specimen:
    """A reference task to calibrate with, of the kind `compute` or `memory`, with built candidates."""

    kind: str
    task: Task
    reference: Artifact
    entrants: tuple[tuple[Candidate, Artifact], ...]


@dataclass(frozen=True, slots=True)
class CompiledBlob:
    """A compiled network: as `Compiled`, but its file is a blob."""

    blob: BlobDigest
    size_bytes: int
    coverage: Mapping[str, str | None]
    left_out: Mapping[str, Mapping[str, str]]
    elsewhere: Mapping[str, str]


class Importer(Preparer):
    """Reads models, extracts tasks and compiles networks."""

    def __init__(self, dialect: str, blobs: Blobs) -> None:
        super().__init__(blobs)
        self._dialect = get_dialect(dialect)

    def target(self, spec: str, threads: int, device: DeviceDescription | None = None) -> tuple[Target, str]:
        """Return the resolved target and the compiler's name and version; `device` is one of another kind than ours."""
        if device is not None:
            return CrossCompiler.of(self._dialect).resolve_target_of(spec, threads, device), self._dialect.compiler
        return self._dialect.resolve_target(spec, threads), self._dialect.compiler

    def extract(self, network: Network, target: Target) -> tuple[list[Task], dict[str, str]]:
        """Return the network's tasks, and by node of it why ONNX Runtime runs it."""
        source, here = TaskSource.of(self._dialect), self._here(network)
        return source.extract(here, target), dict(source.elsewhere(here, target))

    def specimens(self, target: Target, count: int) -> list[Specimen]:
        """Return the dialect's calibration tasks with up to `count` candidates each, built."""
        found, space, codegen = [], Space.of(self._dialect), Codegen.of(self._dialect)

        def build(task: Task, candidate: Candidate) -> Artifact:
            return store_built(self._blobs, codegen.build(task, candidate, directory))

        with self._blobs.scratch() as directory:
            for kind, task in space.calibration_tasks(target).items():
                reference = build(task, codegen.reference(task))
                entrants = []
                for candidate in space.open(task, (), None, 0).propose(count):
                    with suppress(DialectError):
                        entrants.append((candidate, build(task, candidate)))
                found.append(Specimen(kind, task, reference, tuple(entrants)))
        return found

    def compile(
        self, network: Network, target: Target, chosen: Mapping[str, Candidate], parts: Mapping[str, Artifact]
    ) -> CompiledBlob:
        """Build the network with the chosen candidates, from what `Builder.part` made of some, both by workload key."""
        built = {key: open_built(self._blobs, part) for key, part in parts.items()}
        compiler = NetworkCompiler.of(self._dialect)
        with self._blobs.scratch() as directory:
            compiled = compiler.compile(self._here(network), target, chosen, directory / "network", built)
            size_bytes = (directory / "network").stat().st_size
            blob = self._blobs.put(directory / "network", temporary=True, move=True, known=compiled.digest)
        return CompiledBlob(blob, size_bytes, compiled.coverage, compiled.left_out, compiled.elsewhere)

    def differing(self, network: Network, target: Target, seed: int, number: int, given: BlobDigest) -> dict[str, str]:
        """Return which nodes of a network compute something else than in ONNX Runtime, on a set of inputs."""
        if number >= len(SETS):
            inputs = fitting(read_sets(self._blobs.get(given))[number - len(SETS)], network.inputs)
        else:
            inputs = network_inputs(network.inputs, network.ranges, seed, number)
        return dict(NetworkCompiler.of(self._dialect).differing(self._here(network), target, inputs))

    def nodes(self, network: Network) -> list[GraphNode]:
        return graph_nodes(Path(self._here(network).path))

    def keep(self, network: Network, target: Target, reason: str, optimised: bool) -> CompiledBlob:
        """Make a file of the model as it was read, which ONNX Runtime runs, without its optimiser where that errs."""
        compiler, here = OnnxRuntimeDialect(optimised=optimised), self._here(network)
        if network.original:
            here = replace(here, path=str(self._blobs.get(network.original)))
        with self._blobs.scratch() as directory:
            compiled = compiler.compile(here, target, {}, directory / "network")
            size_bytes = (directory / "network").stat().st_size
            blob = self._blobs.put(directory / "network", temporary=True, move=True, known=compiled.digest)
        return CompiledBlob(blob, size_bytes, {}, {}, dict.fromkeys(compiled.elsewhere, reason))

    def _here(self, network: Network) -> Network:
        if network.weights:
            self._blobs.get(network.weights)
        return replace(network, path=str(self._blobs.get(network.blob))) if network.blob else network
