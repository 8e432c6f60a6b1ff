"""Compiling a job's network, also several times: with the same kernels, and other nodes left to ONNX Runtime."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunery._errors import TuneryError
from tunery.delivery.ladder import KnownTask
from tunery.delivery.predict import fill
from tunery.dialects import GraphNode
from tunery.domain import WHOLE, Artifact, Candidate, Network, Task
from tunery.domain.request import CompileReport, FillPolicy
from tunery.engines import Role
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel
from tunery.runtime.services import CompiledBlob
from tunery.tuning.calls import BUILD_DEADLINE_S
from tunery.tuning.learning import InitialModel
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True)
class LinkedNetwork:
    """A network that was compiled to the blob `blob`, or `kept` for ONNX Runtime; the report's `path` is empty."""

    report: CompileReport
    network: Network
    blob: str
    kept: bool = False


@dataclass
class Linker:
    """Compiles the network of `work`; with a `policy` what no record answers is predicted, unless it is not `tuned`.
    What was chosen and compiled of a task serves further compilations. Files that it makes are there until `close`; the
    last one took `linked_s` of a core, and choosing all kernels probably `chose_s`. `late` is what was compiled where
    there was no time for all kernels; it `differed` from the model if its first file did."""

    work: Work
    policy: FillPolicy | None
    tuned: bool = True
    _known: dict[str, KnownTask] = field(default_factory=dict)
    _parts: dict[str, Artifact] = field(default_factory=dict)
    _held: list[str] = field(default_factory=list)
    late: ImportedModel | None = None
    chose_s: float = 0.0
    linked_s: float = 0.0
    differed: bool = False

    async def compile(self, imported: ImportedModel, *, filled: bool = True) -> LinkedNetwork:
        return await self.link(imported, await self.choices(imported.tasks, filled=filled))

    async def choices(
        self, tasks: Sequence[Task], ready: Awaitable[InitialModel | None] | None = None, *, filled: bool = True
    ) -> tuple[KnownTask, ...]:
        known = dict(self._known)
        if new := [task for task in tasks if task.key not in known]:
            began, runtime = time.monotonic(), self.work.runtime
            found = await fill(self.work, new, self.policy if filled else None, ready)
            known |= {each.task.key: each for each in found}
            if predicted := sum(each.predicted and each.task.tunable for each in found):
                took_s = (time.monotonic() - began) / runtime.slowness * len(runtime.workers(Role.BUILDER))
                self.chose_s = took_s * sum(task.tunable for task in tasks) / predicted
        if filled:
            self._known |= known
            for each in known.values():
                if each.part and each.task.workload.key not in self._parts:
                    self._add_part(each.task.workload.key, each.part)
        return tuple(known[task.key] for task in tasks)

    async def link(self, imported: ImportedModel, known: Sequence[KnownTask]) -> LinkedNetwork:
        chosen = dict[str, Candidate]()
        if self.tuned:
            chosen = {each.task.workload.key: each.choice.candidate for each in known if each.choice.candidate}
            await self._build(known)
        parts = {key: self._parts[key] for key in chosen if key in self._parts}
        compiled = await self._made("compile", imported.network, imported.target, chosen, parts)
        return LinkedNetwork(_report(imported.network.name, known, compiled), imported.network, compiled.blob)

    async def kept(self, network: Network, reason: str, *, optimised: bool) -> CompiledBlob:
        return await self._made("keep", network, (await self.work.model()).target, reason, optimised)

    async def _made(self, method: str, *args: object) -> CompiledBlob:
        async with self.work.stage("compile", Role.IMPORTER) as grant:
            made: CompiledBlob = await self.work.runtime.make(grant.worker, method, *args, deadline_s=IMPORT_DEADLINE_S)
        self.linked_s = grant.core_s
        self._held.append(made.blob)
        return made

    def take(self, made: LinkedNetwork, path: Path) -> None:
        """Bring a compiled network to the new file `path`, which is the caller's own."""
        self.work.runtime.holds.take(made.blob, path)
        self._held.remove(made.blob)

    def _add_part(self, workload: str, part: Artifact) -> None:
        self._held.append(part.blob)
        if self.work.runtime.holds.add(part.blob):  # else another job's of the same code was released in this moment
            self._parts[workload] = part

    async def _build(self, known: Sequence[KnownTask]) -> None:
        """What was built before is not built again; what fails is left to the compilation."""
        work = self.work

        async def build(each: KnownTask) -> None:
            task = each.task
            if each.choice.candidate is None or task.workload.key in self._parts:
                return
            with suppress(TuneryError):
                async with work.stage("build", Role.BUILDER, task.workload.kind, delivered=True) as grant:
                    part = await work.runtime.call(
                        grant.worker, "part", task, each.choice.candidate, deadline_s=BUILD_DEADLINE_S
                    )
                if part is not None:
                    self._add_part(task.workload.key, part)

        await asyncio.gather(*map(build, known))

    async def placed(self, imported: ImportedModel, elsewhere: Mapping[str, str]) -> ImportedModel:
        network = replace(imported.network, elsewhere=dict(elsewhere))
        async with self.work.stage("import", Role.IMPORTER) as grant:
            tasks, told = await self.work.runtime.call(
                grant.worker, "extract", network, imported.target, deadline_s=IMPORT_DEADLINE_S
            )
        return replace(imported, network=replace(network, elsewhere=told), tasks=tuple(tasks), elsewhere=told)

    async def nodes(self, network: Network) -> list[GraphNode]:
        async with self.work.stage("import", Role.IMPORTER) as grant:
            found: list[GraphNode] = await self.work.runtime.call(
                grant.worker, "nodes", network, deadline_s=IMPORT_DEADLINE_S
            )
        return found

    def close(self) -> None:
        for blob in self._held:
            self.work.runtime.holds.release(blob)
        self._held.clear()
        self._parts.clear()


_NOT_BUILT = "what is chosen for it does not build here"


def _report(network: str, known: Sequence[KnownTask], compiled: CompiledBlob) -> CompileReport:
    by_key = {each.task.workload.key: each for each in known}
    coverage = {
        by_key[key].task.workload.label: by_key[key].covered(used)
        for key, used in compiled.coverage.items()
        if key in by_key
    }
    labels = {WHOLE: WHOLE} | {key: each.task.workload.label for key, each in by_key.items()}
    left_out = {labels[key]: why for key, why in compiled.left_out.items() if key in labels}

    def unused(each: KnownTask) -> bool:
        return compiled.coverage.get(each.task.workload.key, "") is None

    return CompileReport(
        network, "", compiled.size_bytes, coverage, tasks=tuple(each.share for each in known),
        refused={
            each.task.workload.name: why for each in known
            if (why := each.refused or (_NOT_BUILT if each.choice.candidate and unused(each) else ""))
        },
        measured=sum(each.measured for each in known), untuned=sum(each.untuned for each in known), left_out=left_out,
        elsewhere=compiled.elsewhere, not_kept=compiled.not_kept,
        sources={by_key[key].task.workload.label: by_key[key].choice.source for key, used in compiled.coverage.items()
                 if used and key in by_key and by_key[key].choice.source},
    )  # fmt: skip
