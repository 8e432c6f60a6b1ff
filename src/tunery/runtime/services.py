"""What runs inside importer, proposer, builder and trainer workers, and how the measurer is started."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tunery._errors import BlobError, DialectError, UsageError
from tunery.blobs import Blobs
from tunery.costmodels import CostModel, FeatureRows, Layout, load_cost_model, with_task
from tunery.costmodels.columns import fold
from tunery.devices import open_device
from tunery.dialects import (
    Built,
    Codegen,
    CrossCompiler,
    GraphNode,
    NetworkCompiler,
    Observation,
    Proposer,
    RecordChecker,
    Space,
    TaskSource,
    get_dialect,
    graph_nodes,
    open_built,
    store_built,
)
from tunery.dialects.onnxruntime import NAME as ONNX_RUNTIME
from tunery.domain import (
    Artifact,
    BlobDigest,
    Candidate,
    DeviceDescription,
    Network,
    Target,
    Task,
    Verification,
    Workload,
)
from tunery.measuring.inputs import make_inputs
from tunery.measuring.service import Measurer
from tunery.measuring.settings import FULL_LENGTH
from tunery.runtime.preparing import Preparer

_ROOM = 1 << 16


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One candidate's features (float32 bytes) and what was measured; `latency_s` is inf for a failure."""

    task_key: str
    candidate_key: str
    features: bytes
    latency_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates, their feature rows, the cost model's scores (higher is faster; None: none), in the same order.

    `rejected` says of each why it is not worth a build, None where it is; what the search itself refused comes last,
    without features.
    """

    candidates: tuple[Candidate, ...]
    features: tuple[bytes, ...]
    scores: tuple[float | None, ...] = ()
    rejected: tuple[str | None, ...] = ()

    @property
    def worth_building(self) -> tuple[tuple[Candidate, ...], tuple[bytes, ...]]:
        """The candidates that nobody rejected, and their feature rows."""
        kept = [i for i in range(len(self.candidates)) if not (self.rejected and self.rejected[i])]
        return tuple(self.candidates[i] for i in kept), tuple(self.features[i] for i in kept)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Candidates by predicted speed, and how far each score may be off as a share of it; the first is the fastest.

    Of four and more, which are to be measured, those come first that are unlike one another.
    """

    candidates: tuple[Candidate, ...]
    uncertainty: tuple[float, ...]
    transfer_state: str = ""


@dataclass(frozen=True, slots=True)
class Pick:
    """The fastest candidate by prediction that computes what the reference computes; None and why not if there is none.

    `transfer_state` is what the task teaches about like ones; `part` is what was compiled of the candidate.
    """

    candidate: Candidate | None
    refused: str
    transfer_state: str
    part: Artifact | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether a candidate computes what the reference computes; if so, `part` is what was compiled of it."""

    verdict: Verification
    part: Artifact | None


@dataclass(frozen=True, slots=True)
class Block:
    """Features of some candidates of a task, float32: rows of `width`, and behind one another their stores."""

    width: int
    rows: bytes
    store_width: int = 0
    stores: bytes = b""
    counts: tuple[int, ...] = ()


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
            blob = self._blobs.put(directory / "network", temporary=True, move=True)
        size_bytes = self._blobs.get(blob).stat().st_size
        return CompiledBlob(blob, size_bytes, compiled.coverage, compiled.left_out, compiled.elsewhere)

    def differing(self, network: Network, target: Target, seed: int) -> dict[str, str]:
        """Return which nodes of a network compute something else than in ONNX Runtime, on inputs made with a seed."""
        inputs = make_inputs(network.inputs, seed)
        return dict(NetworkCompiler.of(self._dialect).differing(self._here(network), target, inputs))

    def nodes(self, network: Network) -> list[GraphNode]:
        """Return a network's nodes, in their order."""
        return graph_nodes(Path(self._here(network).path))

    def keep(self, network: Network, target: Target, reason: str) -> CompiledBlob:
        """Make a file of the network as it is, for ONNX Runtime to run, for a reason that is told of all its nodes."""
        compiler = NetworkCompiler.of(get_dialect(ONNX_RUNTIME))
        with self._blobs.scratch() as directory:
            compiled = compiler.compile(self._here(network), target, {}, directory / "network")
            blob = self._blobs.put(directory / "network", temporary=True, move=True)
        size_bytes = self._blobs.get(blob).stat().st_size
        return CompiledBlob(blob, size_bytes, {}, {}, dict.fromkeys(compiled.elsewhere, reason))

    def _here(self, network: Network) -> Network:
        """Return a network with the path of its file on this host."""
        if network.weights:
            self._blobs.get(network.weights)
        return replace(network, path=str(self._blobs.get(network.blob))) if network.blob else network


class Checker:
    """Checks what another store says, in a process that a hostile program may take down without harm."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def workload(self, workload: Workload) -> str:
        """Return why a workload must not be taken in, "" where nothing speaks against it."""
        try:
            RecordChecker.of(self._dialect).check_workload(workload)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""

    def bodies(self, bodies: Sequence[str]) -> list[str]:
        """Return the same for the bodies of candidates."""
        return [self._body(body) for body in bodies]

    def _body(self, body: str) -> str:
        try:
            RecordChecker.of(self._dialect).check_body(body)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""


class Peak:
    """Measures what the machine does at most."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def flops(self, spec: str, threads: int) -> float | None:
        """Return the operations per second, None where the dialect cannot tell."""
        return Codegen.of(self._dialect).peak_flops(self._dialect.resolve_target(spec, threads))


class ProposerHost:
    """Holds the searches of several tasks."""

    def __init__(self, dialect: str) -> None:
        self._space = Space.of(get_dialect(dialect))
        self._open: dict[str, tuple[Task, Proposer]] = {}
        self._model: CostModel | None = None

    def open(  # noqa: PLR0917 - arguments cross a process border by position
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        warm_start: bool = False,
        generic_only_reason: str | None = None,
    ) -> tuple[bytes, ...]:
        """Start or resume a task's search and return the feature rows of `history`."""
        self._model = load_cost_model(cost_model) if cost_model else self._model
        proposer = self._space.open(
            task, history, cost_model, seed, warm_start=warm_start, generic_only_reason=generic_only_reason
        )
        self._open[task.key] = task, proposer
        return _as_bytes(self._rows(task, [told.candidate for told in history]), len(history))

    def propose(self, task_key: str, n: int, told: Sequence[Observation]) -> Proposal:
        """Take in results, then propose up to `n` candidates."""
        task, proposer = self._open[task_key]
        if told:
            proposer.observe(told)
        candidates = tuple(proposer.propose(n))
        rows = self._rows(task, candidates)
        rejected = tuple(self._space.reject(task, candidate) for candidate in candidates)
        refused = proposer.refused()
        return Proposal(
            (*candidates, *(candidate for candidate, _ in refused)),
            (*_as_bytes(rows, len(candidates)), *(b"" for _ in refused)),
            (*self._scores(rows, len(candidates)), *(None for _ in refused)),
            (*rejected, *(why for _, why in refused)),
        )

    def _scores(self, rows: FeatureRows | None, count: int) -> tuple[float | None, ...]:
        """Score all of a proposal by the one model of now, so that the scores can be compared."""
        if self._model is None or rows is None:
            return (None,) * count
        scores = np.where(np.isfinite(rows.values).any(axis=1), self._model.predict(rows), np.nan)
        return tuple(float(score) if np.isfinite(score) else None for score in scores)

    def predict(self, task: Task, n: int, keep: int, cost_model: str, seed: int) -> Prediction:
        """Look at `n` candidates with the cost model alone and return the `keep` it thinks fastest.

        The last may be a fallback: the best of another kind than the others.
        """
        prediction = _predict(self._space, task, n, keep, cost_model, seed)
        if task.key not in self._open:
            self._space.forget(task)
        return prediction

    def learn(self, cost_model: str) -> None:
        """Hand a new cost model to every open search."""
        self._model = load_cost_model(cost_model)
        for _, proposer in self._open.values():
            proposer.learn(cost_model)

    def close(self, task_key: str) -> None:
        """Forget a task's search, and what the dialect keeps for it."""
        task, _ = self._open.pop(task_key, (None, None))
        if task is not None:
            self._space.forget(task)

    def _rows(self, task: Task, candidates: Sequence[Candidate]) -> FeatureRows | None:
        features = self._space.features(task, candidates) if candidates else None
        return None if features is None else with_task(features, task)


def _as_bytes(rows: FeatureRows | None, count: int) -> tuple[bytes, ...]:
    return (b"",) * count if rows is None else tuple(row.tobytes() for row in rows)


_WITH_FALLBACK = 4  # of so many that are measured one is of another kind than the others (docs/decisions/009)


def _predict(  # noqa: PLR0917 - what a prediction depends on
    space: Space, task: Task, n: int, keep: int, cost_model: str, seed: int, transfer_states: Sequence[str] = ()
) -> Prediction:
    suggested = space.suggest(task, n, cost_model, seed, transfer_states, several_fallbacks=keep >= _WITH_FALLBACK)
    worth = [one for one in suggested.candidates if not space.reject(task, one)]
    fallbacks = [one for one in suggested.fallbacks if not space.reject(task, one)]
    favourites = worth or list(suggested.candidates)
    candidates = favourites + fallbacks
    if not candidates:
        return Prediction((), (), suggested.transfer_state)
    features = space.features(task, candidates)
    if features is None:
        return Prediction(tuple(candidates[:keep]), (1.0,) * min(keep, len(candidates)), suggested.transfer_state)
    rows = with_task(features, task)
    model = load_cost_model(cost_model)
    # A row of NaN is no basis for a prediction, and a score that is no number is the worst.
    scores = np.where(np.isnan(rows.values).all(axis=1), -np.inf, np.nan_to_num(model.predict(rows), nan=-np.inf))
    order = np.argsort(-scores[: len(favourites)], kind="stable")
    if keep >= _WITH_FALLBACK:
        known = order[np.isfinite(scores[order])]
        order = known[unlike([suggested.source_ids.get(favourites[i].key) for i in known])] if len(known) else order
    order = order[:keep]
    if fallbacks:
        best = len(favourites) + int(np.argmax(scores[len(favourites) :]))
        order = np.append(order[: keep - 1], best)
    doubt = model.uncertainty(rows) / np.maximum(np.abs(scores), 1e-6)
    doubt = np.nan_to_num(doubt, nan=1.0, posinf=1.0)
    return Prediction(
        tuple(candidates[i] for i in order), tuple(float(doubt[i]) for i in order), suggested.transfer_state
    )


def unlike(source_ids: Sequence[int | None]) -> list[int]:
    """Return the places of candidates with the first of each source before all others, each in their order.

    >>> unlike([7, 7, None, 3, None])
    [0, 2, 3, 4, 1]
    """
    again = [source is not None and source in source_ids[:place] for place, source in enumerate(source_ids)]
    return sorted(range(len(source_ids)), key=lambda place: again[place])


@lru_cache(maxsize=1)
def _text(path: Path) -> str:
    return path.read_text()


class Featurizer:
    """Computes features of candidates that were measured before, for a dataset."""

    def __init__(self, dialect: str) -> None:
        self._space = Space.of(get_dialect(dialect))

    def features(self, task: Task, candidates: Sequence[Candidate]) -> Block:
        """Return the features of candidates; those that cannot be replayed have NaN rows and no stores."""
        stores = self._space.buffer_store_features(task, candidates)
        if stores is None:
            rows = self._space.features(task, candidates)
            if rows is None:
                raise UsageError(f"the dialect of {task.workload.name} has no features that a cost model could learn")
            return Block(len(rows.layout.columns), rows.values.tobytes())
        folded = np.stack([fold(each) for each in stores])
        counts = tuple(len(each) for each in stores)
        return Block(folded.shape[1], folded.tobytes(), stores[0].shape[1], np.concatenate(stores).tobytes(), counts)


class Builder:
    """Builds candidates; checks them on a device of the kind `device`."""

    def __init__(self, dialect: str, blobs: Blobs, device: str = "cpu") -> None:
        self._dialect = get_dialect(dialect)
        self._codegen = Codegen.of(self._dialect)
        self._blobs, self._device = blobs, device

    def compiler(self) -> str:
        """Return the name and version of the compiler that builds here."""
        return self._dialect.compiler

    def build(self, task: Task, candidate: Candidate) -> Artifact:
        """Return the built candidate.

        Raises:
            BlobError: this host takes no more; that is no fault of the candidate, and every other one would fail.
        """
        with self._scratch() as directory:
            return store_built(self._blobs, self._codegen.build(task, candidate, directory))

    def identify(self, task: Task, body: str) -> Candidate:
        """Return the candidate that a body from elsewhere describes, with a key that is computed from what it is.

        Raises:
            DialectError: it is none of this task.
        """
        return Space.of(self._dialect).identify(task, body)

    def part(self, task: Task, candidate: Candidate) -> Artifact | None:
        """Return what spares `Importer.compile` this candidate's code generation, if the dialect has such.

        Raises:
            DialectError: it does not build.
        """
        compiler = NetworkCompiler.of(self._dialect)
        with self._scratch() as directory:
            part = compiler.build_part(task, candidate, directory)
            return None if part is None else store_built(self._blobs, part)

    def read(self, cost_model: BlobDigest) -> None:
        """Read the cost model in a blob, which `pick` will be given."""
        load_cost_model(_text(self._blobs.get(cost_model)))

    def pick(  # noqa: PLR0917 - arguments cross a process border by position
        self, task: Task, n: int, keep: int, cost_model: BlobDigest, seed: int, transfer_states: Sequence[str]
    ) -> Pick:
        """Predict, then check the `keep` candidates that the cost model in a blob thinks fastest until one is right.

        In one process the task is read once, and its programs are made once. What hangs or crashes takes all of it
        with it: the caller falls back on a prediction by `ProposerHost`, and a `check` of each candidate.
        """
        space, model = Space.of(self._dialect), _text(self._blobs.get(cost_model))
        prediction = _predict(space, task, n, keep, model, seed, transfer_states)
        space.forget(task)
        refused = "its design space gave no candidate"
        for candidate in prediction.candidates:
            try:
                checked = self.check(task, candidate)
            except DialectError as error:  # the next one may build
                refused = str(error)
                continue
            if checked.verdict.deliverable:
                return Pick(candidate, "", prediction.transfer_state, checked.part)
            refused = checked.verdict.detail
        return Pick(None, refused, prediction.transfer_state)

    def check(self, task: Task, candidate: Candidate) -> Checked:
        """Build a candidate and compare it with the reference on independent inputs, untimed.

        Raises:
            DialectError: it, or the reference, does not build.
        """
        from tunery.measuring.references import Unmeasured

        compiler = self._dialect if isinstance(self._dialect, NetworkCompiler) else None
        with self._scratch() as directory:
            reference = self._reference(task, directory)
            part = None if compiler is None else compiler.build_part(task, candidate, directory)
            built = self._codegen.build(task, candidate, directory)
            verdict = Unmeasured(self._dialect, open_device(self._device)).verify(task, built, reference)
            kept = store_built(self._blobs, part) if part is not None and verdict.deliverable else None
        return Checked(verdict, kept)

    def _reference(self, task: Task, directory: Path) -> Built:
        """Return the task's reference, which is built once for all builders of this host."""
        candidate = self._codegen.reference(task)
        key = f"built reference {self._dialect.compiler} {task.key} {candidate.key}"
        if (note := self._blobs.find(key)) is not None:
            known = Artifact(**json.loads(self._blobs.get(note).read_text()))
            if self._blobs.has(known.blob):
                return open_built(self._blobs, known)
        artifact = store_built(self._blobs, self._codegen.build(task, candidate, directory))
        note = self._blobs.put(json.dumps(asdict(artifact)).encode(), temporary=True)
        self._blobs.remember(key, note)
        return open_built(self._blobs, artifact)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Give a directory to build in; what fails for want of space is told as that."""
        with self._blobs.scratch() as directory:
            try:
                yield directory
            except BlobError:
                raise
            except Exception:
                self._blobs.release(self._blobs.put(os.urandom(_ROOM), temporary=True))
                raise

    def yardsticks(self, task: Task) -> tuple[Candidate, Candidate]:
        """Return the task's reference and its baseline."""
        return self._codegen.reference(task), self._codegen.baseline(task)


class MeasurerHost(Measurer):
    """The measurer with settings that can cross a process border.

    `device` is the kind of the device that this worker opens, with the host's `cores`, and whose `slot` it keeps to.
    """

    def __init__(  # noqa: PLR0917 - settings cross a process border by name
        self,
        dialect: str,
        device: str,
        cores: tuple[int, ...],
        slot: tuple[int, ...],
        blobs: Blobs,
        full_length: bool = False,
    ) -> None:
        super().__init__(dialect, open_device(device, cores, slot), blobs, FULL_LENGTH if full_length else None)


class Trainer:
    """Keeps the rows measured so far, and cost models warm on them, one for each name."""

    def __init__(self) -> None:
        from tunery.costmodels.warm import OnlineTrainer

        self._new = OnlineTrainer
        self._warm: dict[str, OnlineTrainer] = {}

    def learn(self, name: str, layout: Layout, rows: Sequence[LabelledRow], base: str | None) -> str | None:
        """Add rows of a layout and train on top of `base`.

        Returns the model if it ranks rows that neither has seen better than the one before; None otherwise, and while
        there is too little to learn from.
        """
        fresh = [(r.task_key, r.candidate_key, np.frombuffer(r.features, np.float32), r.latency_s) for r in rows]
        return self._warm.setdefault(name, self._new(layout)).learn(fresh, base)
