"""What reads models, extracts their tasks and compiles networks."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tunery._errors import BlobNotFoundError, DialectError
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
    own_network,
    store_built,
)
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.domain import Artifact, BlobDigest, Candidate, DeviceDescription, Network, Target, Task, TensorSpec
from tunery.measuring.inputs import SETS, fitting, network_inputs, read_sets


class Preparer:
    """Brings model files to their normal form, which it keeps as blobs; a dialect's own networks need none. It works
    where the user's file is: on the host of who asks."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def check(self, model: str) -> None:
        if own_network(model) is not None:
            return
        from tunery.models import check

        check(model)

    def load(
        self, model: str, shapes: Mapping[str, tuple[int, ...]], trust: bool = False, temporary: bool = False
    ) -> Network:
        """Prepare a model, unless that was done before; with `trust` a torch program may run code that it holds. The
        network's blob is in use until somebody releases it; a `temporary` one that was not there is gone then."""
        if (own := own_network(model)) is not None:
            return own
        from tunery.models import original_of, prepare

        with self._blobs.scratch() as directory:
            network = prepare(model, shapes, directory, trust=trust, known=self._known)
            if network.weights and (directory / network.weights).exists():
                self._put_weights(network, directory)

            def keep(path: Path, key: str) -> str:
                if path.parent != directory and (blob := self._blobs.find(key)):
                    return blob
                self._drop_if_damaged(key)
                # It carries a digest of its own, which `prepare` looks at: the disk need not be waited for.
                blob = self._blobs.put(path, move=path.parent == directory, temporary=temporary, sync=False)
                self._blobs.remember(key, blob)
                return blob

            blob = keep(Path(network.path), _key(network.digest))
            original = keep(Path(network.original), _key(original_of(network.digest)))
        return replace(network, path="", blob=blob, original=original)

    def load_free(
        self,
        model: str,
        bindings: Sequence[Mapping[str, tuple[int, ...]]],
        outputs: Sequence[Sequence[TensorSpec]],
        trust: bool = False,
    ) -> Network:
        """Return a model as it is, with its dimensions free; `outputs` are what it gives with each of the `bindings`.
        The network's blob is gone once it is released."""
        from tunery.models import prepare_free

        with self._blobs.scratch() as directory:
            network = prepare_free(model, bindings, outputs, directory, trust=trust)
            blob = self._blobs.put(Path(network.path), move=True, temporary=True, sync=False)
        return replace(network, path="", blob=blob)

    def identify(self, model: str, shapes: Mapping[str, tuple[int, ...]], trust: bool = False) -> str:
        if (own := own_network(model)) is not None:
            return own.digest
        from tunery.models import identify

        with self._blobs.scratch() as directory:
            return identify(model, shapes, directory, trust=trust)

    def _put_weights(self, network: Network, directory: Path) -> None:
        """Keep the file of a network's large weights, which lies beside the prepared file wherever both are in use. It
        goes with those who use it: what is kept has further names, and onnx reads no such file for a model."""
        path = directory / network.weights
        self._blobs.put(path, move=True, temporary=True, sync=False, known=network.weights)

    def _drop_if_damaged(self, key: str) -> None:
        blob = self._blobs.find(key)
        if blob is not None:
            with suppress(BlobNotFoundError):
                self._blobs.get(blob, verify=True)

    def _known(self, digest: str) -> Path | None:
        blob = self._blobs.find(_key(digest))
        if blob is None:
            return None
        return self._blobs.get(blob)


def _key(digest: str) -> str:
    return f"prepared network {digest}"


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
    not_kept: tuple[str, ...] = ()


class Importer(Preparer):
    """Reads models, extracts tasks and compiles networks."""

    def __init__(self, dialect: str, blobs: Blobs) -> None:
        super().__init__(blobs)
        self._dialect = get_dialect(dialect)

    def target(self, spec: str, threads: int, device: DeviceDescription | None = None) -> tuple[Target, str]:
        if device is not None:
            return CrossCompiler.of(self._dialect).resolve_target_of(spec, threads, device), self._dialect.compiler
        return self._dialect.resolve_target(spec, threads), self._dialect.compiler

    def extract(self, network: Network, target: Target) -> tuple[list[Task], dict[str, str]]:
        source, here = TaskSource.of(self._dialect), self._here(network)
        return source.extract(here, target), dict(source.elsewhere(here, target))

    def specimens(self, target: Target, count: int) -> list[Specimen]:
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
        return CompiledBlob(
            blob, size_bytes, compiled.coverage, compiled.left_out, compiled.elsewhere, compiled.not_kept
        )

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
