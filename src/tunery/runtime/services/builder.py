"""What builds candidates, checks them, and measures them."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from tunery._errors import BlobError, DialectError, UsageError
from tunery.blobs import Blobs
from tunery.costmodels import load_cost_model
from tunery.devices import open_device
from tunery.dialects import Built, Codegen, NetworkCompiler, RecordChecker, Space, get_dialect, open_built, store_built
from tunery.domain import Artifact, BlobDigest, Candidate, Task, Verification, Workload
from tunery.measuring.service import Measurer
from tunery.measuring.settings import FULL_LENGTH
from tunery.runtime.services.proposer import predict

_ROOM = 1 << 16


@dataclass(frozen=True, slots=True)
class Pick:
    """The fastest candidate by prediction that computes what the reference computes; None and why not if there is none.
    `transfer_state` is what the task teaches about like ones; `part` is what was compiled of the candidate."""

    candidate: Candidate | None
    refused: str
    transfer_state: str
    part: Artifact | None = None


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """Whether a candidate computes what the reference computes; if so, `part` is what was compiled of it."""

    verdict: Verification
    part: Artifact | None


class Builder:
    """Builds candidates; checks them on a device of the kind `device`."""

    def __init__(self, dialect: str, blobs: Blobs, device: str = "cpu") -> None:
        self._dialect = get_dialect(dialect)
        self._codegen = Codegen.of(self._dialect)
        self._blobs, self._device = blobs, device

    def compiler(self) -> str:
        return self._dialect.compiler

    def build(self, task: Task, candidate: Candidate) -> Artifact:
        with self._scratch() as directory:
            return store_built(self._blobs, self._codegen.build(task, candidate, directory))

    def identify(self, task: Task, body: str) -> Candidate:
        return Space.of(self._dialect).identify(task, body)

    def part(self, task: Task, candidate: Candidate) -> Artifact | None:
        """Return what spares `Importer.compile` this candidate's code generation, if the dialect has such."""
        compiler = NetworkCompiler.of(self._dialect)
        with self._scratch() as directory:
            part = compiler.build_part(task, candidate, directory)
            return None if part is None else store_built(self._blobs, part)

    def read(self, cost_model: BlobDigest) -> None:
        load_cost_model(_text(self._blobs.get(cost_model)))

    def pick(  # noqa: PLR0917 - arguments cross a process border by position
        self,
        task: Task,
        n: int,
        keep: int,
        cost_model: BlobDigest,
        seed: int,
        transfer_states: Sequence[str],
        checked: bool = True,
    ) -> Pick:
        """Predict, then check the `keep` candidates that the cost model in a blob thinks fastest until one is right; or
        take the first unchecked, where the network that it goes into is.

        In one process the task is read once, and its programs are made once. What hangs or crashes takes all of it
        with it: the caller falls back on a prediction by `ProposerHost`, and a `check` of each candidate.
        """
        space, model = Space.of(self._dialect), _text(self._blobs.get(cost_model))
        prediction = predict(space, task, n, keep, model, seed, transfer_states)
        space.forget(task)
        refused = "its design space gave no candidate"
        for candidate in prediction.candidates:
            try:
                if not checked and (part := self.part(task, candidate)):
                    return Pick(candidate, "", prediction.transfer_state, part)
                found = self.check(task, candidate)
            except DialectError as error:  # the next one may build
                refused = str(error)
                continue
            if found.verdict.deliverable:
                return Pick(candidate, "", prediction.transfer_state, found.part)
            refused = found.verdict.detail
        return Pick(None, refused, prediction.transfer_state)

    def check(self, task: Task, candidate: Candidate) -> CheckedBody:
        from tunery.measuring.references import Unmeasured

        compiler = self._dialect if isinstance(self._dialect, NetworkCompiler) else None
        with self._scratch() as directory:
            reference = self._reference(task, directory)
            part = None if compiler is None else compiler.build_part(task, candidate, directory)
            built = self._codegen.build(task, candidate, directory)
            verdict = Unmeasured(self._dialect, open_device(self._device)).verify(task, built, reference)
            kept = store_built(self._blobs, part) if part is not None and verdict.deliverable else None
        return CheckedBody(verdict, kept)

    def _reference(self, task: Task, directory: Path) -> Built:
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
        with self._blobs.scratch() as directory:
            try:
                yield directory
            except BlobError:
                raise
            except Exception:
                self._blobs.release(self._blobs.put(os.urandom(_ROOM), temporary=True))
                raise

    def baselines(self, task: Task) -> tuple[Candidate, Candidate]:
        return self._codegen.reference(task), self._codegen.baseline(task)


@lru_cache(maxsize=1)
def _text(path: Path) -> str:
    return path.read_text()


class Checker:
    """Checks what another store says, in a process that a hostile program may take down without harm."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def workload(self, workload: Workload) -> str:
        try:
            RecordChecker.of(self._dialect).check_workload(workload)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""

    def bodies(self, bodies: Sequence[str]) -> list[str]:
        return [self._body(body) for body in bodies]

    def _body(self, body: str) -> str:
        try:
            RecordChecker.of(self._dialect).check_body(body)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""


class MeasurerHost(Measurer):
    """The measurer with settings that can cross a process border. `device` is the kind of the device that this worker
    opens, with the host's `cores`, and whose `slot` it keeps to."""

    def __init__(  # noqa: PLR0917 - settings cross a process border by name
        self,
        dialect: str,
        device: str,
        cores: tuple[int, ...],
        slot: tuple[int, ...],
        blobs: Blobs,
        full_length: bool = False,
        shares: bool = True,
    ) -> None:
        settings = FULL_LENGTH if full_length else None
        super().__init__(dialect, open_device(device, cores, slot), blobs, settings, shares=shares)


class Peak:
    """Measures what the machine does at most."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def flops(self, spec: str, threads: int) -> float | None:
        return Codegen.of(self._dialect).peak_flops(self._dialect.resolve_target(spec, threads))
