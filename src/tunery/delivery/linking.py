"""Compiling a job's network, also several times: with the same kernels, and other nodes left to ONNX Runtime."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tunery._errors import TuneryError
from tunery.delivery.ladder import KnownTask
from tunery.delivery.work import Work, open_tasks, task_shares
from tunery.dialects import GraphNode
from tunery.domain import Artifact, Candidate, Network, Rung, Task
from tunery.domain.request import CompileReport, FillPolicy
from tunery.engines import Role
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel
from tunery.runtime.services import CompiledBlob
from tunery.tuning.calls import BUILD_DEADLINE_S
from tunery.tuning.learning import InitialModel


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A network that was compiled to the blob `blob`, or `kept` for ONNX Runtime; the report's `path` is empty."""

    report: CompileReport
    network: Network
    blob: str
    kept: bool = False


@dataclass
class Linker:
    """Compiles the network of `work`; with a `policy` what no record answers is predicted, unless it is not `tuned`.

    What was chosen for a task, and compiled of it, serves further compilations until `close`.
    """

    work: Work
    policy: FillPolicy | None
    tuned: bool = True
    _known: dict[str, KnownTask] = field(default_factory=dict)
    _parts: dict[str, Artifact] = field(default_factory=dict)

    async def compile(
        self, imported: ImportedModel, ready: Awaitable[InitialModel | None] | None = None, *, filled: bool = True
    ) -> CompiledModel:
        """Compile an imported model; not `filled`: with the compiler's default for tasks that are new.

        Raises:
            DialectError or EngineError: it does not compile.
        """
        known = await self.choices(imported, ready, filled=filled)
        return await self.link(imported, known)

    async def choices(
        self, imported: ImportedModel, ready: Awaitable[InitialModel | None] | None = None, *, filled: bool = True
    ) -> KnownTask:
        """Return what is known, or predicted, of a model's tasks."""
        fresh = tuple(task for task in imported.tasks if task.key not in self._known)
        found = KnownTask((), ())
        if fresh:
            found = await self.work.filled(replace(imported, tasks=fresh), self.policy if filled else None, ready)
            if filled:
                self._known |= dict.fromkeys((task.key for task in fresh), found)
                self._parts |= {task.workload.key: found.parts[task.key] for task in fresh if task.key in found.parts}
        return _merged(imported.tasks, self._known, found)

    async def link(self, imported: ImportedModel, known: KnownTask) -> CompiledModel:
        """Compile with what is known of the tasks.

        Raises:
            DialectError or EngineError: it does not compile.
        """
        work, workloads = self.work, {task.key: task.workload for task in imported.tasks}
        chosen = {workloads[c.task_key].key: c.candidate for c in known.choices if c.candidate and self.tuned}
        parts = await self._built(imported.tasks, chosen)
        async with work.stage("compile", Role.IMPORTER) as grant:
            compiled: CompiledBlob = await work.runtime.call(
                grant.worker, "compile", imported.network, imported.target, chosen, parts, deadline_s=IMPORT_DEADLINE_S
            )
        rungs = {workloads[c.task_key].key: (workloads[c.task_key].label, c.rung) for c in known.choices}
        coverage = {  # a candidate that could not be used left its place to the default
            rungs[key][0]: ((rungs[key][1] if used else Rung.DEFAULT).value, used)
            for key, used in compiled.coverage.items()
            if key in rungs
        }
        refused = {workloads[key].name: why for key, why in known.refused.items()}
        report = CompileReport(
            imported.network.name, "", compiled.size_bytes, coverage, tasks=task_shares(imported, known),
            refused=refused, measured=known.measured, untuned=len(open_tasks(imported, known)),
            left_out={rungs[key][0]: why for key, why in compiled.left_out.items() if key in rungs},
            elsewhere=compiled.elsewhere,
        )  # fmt: skip
        return CompiledModel(report, imported.network, compiled.blob)

    async def _built(self, tasks: Sequence[Task], chosen: Mapping[str, Candidate]) -> dict[str, Artifact]:
        """Have all builders generate the code of the network's kernels, and return it by workload key.

        What was built before is not built again; what fails is left to the compilation.
        """
        work = self.work

        async def one(task: Task, candidate: Candidate) -> None:
            with suppress(TuneryError):
                async with work.stage("build", Role.BUILDER, task.workload.kind) as grant:
                    part = await work.runtime.call(grant.worker, "part", task, candidate, deadline_s=BUILD_DEADLINE_S)
                if part is not None:
                    self._parts[task.workload.key] = part

        own = [(task, chosen[task.workload.key]) for task in tasks if task.workload.key in chosen]
        await asyncio.gather(*(one(*each) for each in own if each[0].workload.key not in self._parts))
        keys = {task.workload.key for task, _ in own}
        return {key: part for key, part in self._parts.items() if key in keys}

    async def placed(self, imported: ImportedModel, elsewhere: Mapping[str, str]) -> ImportedModel:
        """Return the model with these nodes left to ONNX Runtime, and what it does not take beside them.

        Raises:
            DialectError or EngineError: that cannot be imported.
        """
        network = replace(imported.network, elsewhere=dict(elsewhere))
        async with self.work.stage("import", Role.IMPORTER) as grant:
            tasks, told = await self.work.runtime.call(
                grant.worker, "extract", network, imported.target, deadline_s=IMPORT_DEADLINE_S
            )
        return replace(imported, network=replace(network, elsewhere=told), tasks=tuple(tasks), elsewhere=told)

    async def nodes(self, network: Network) -> list[GraphNode]:
        """Return a network's nodes, in their order."""
        async with self.work.stage("import", Role.IMPORTER) as grant:
            found: list[GraphNode] = await self.work.runtime.call(
                grant.worker, "nodes", network, deadline_s=IMPORT_DEADLINE_S
            )
        return found

    def close(self) -> None:
        """Drop what was compiled of kernels."""
        for part in self._parts.values():
            self.work.runtime.discard(part)
        self._parts.clear()


def _merged(tasks: Sequence[Task], before: Mapping[str, KnownTask], found: KnownTask) -> KnownTask:
    """Return what is known of these tasks, in their order."""
    sources = {task.key: before.get(task.key, found) for task in tasks}
    answers = list({id(one): one for one in sources.values()}.values())
    by_key = {choice.task_key: choice for one in answers for choice in one.choices}
    return KnownTask(
        tuple(by_key[task.key] for task in tasks),
        tuple(pair for one in answers for pair in one.skipped if pair[0] in sources),
        {key: why for one in answers for key, why in one.refused.items() if key in sources},
        frozenset(key for one in answers for key in one.untried if key in sources),
        sum(one.measured for one in answers),
    )
