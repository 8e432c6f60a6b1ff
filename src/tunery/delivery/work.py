"""What a job that delivers has at hand."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tunery.delivery.ladder import KnownTask, choose
from tunery.delivery.predict import fill
from tunery.domain import Network, Provenance, Rung, Target
from tunery.domain.request import FillPolicy, Progress, Request, TaskShare
from tunery.engines import Role
from tunery.measuring.inputs import size_bytes
from tunery.measuring.settings import Settings
from tunery.runtime.importing import ImportedModel, import_model
from tunery.runtime.pools import Reservation, Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.learning import InitialModel


def _ignore(_: object) -> None:
    """Show nothing."""


@dataclass
class Work:
    """One job's workers, store and request; the scheduler knows it as `job_id`.

    `imported` is the job's model once it was read: every part of the job works on these bytes, whatever happens to the
    file meanwhile. `notify` is called with the job's progress. A job without an `account` is charged to nobody.
    """

    runtime: Runtime
    store: AsyncStore
    request: Request
    job_id: str
    notify: Callable[[Progress], None] = field(default=_ignore)
    imported: ImportedModel | None = None
    account: Account | None = None

    @asynccontextmanager
    async def stage(self, kind: str, role: Role, task_kind: str = "") -> AsyncIterator[Reservation]:
        """Hold a worker for one stage of the job, and charge the job for it if it has an account."""
        reservation: Reservation | None = None
        try:
            async with self.runtime.stage(self.job_id, kind, role, task_kind) as reservation:
                yield reservation
        finally:
            if self.account is not None and reservation is not None:
                used = Charge(self.job_id, "", kind, "", reservation.wall_s, reservation.core_s, 0.0)
                await self.account.post([PricedCharge(used, reservation.wall_s * reservation.cores)])

    async def model(
        self,
        begun: Callable[[], None] = lambda: None,
        prepared: Callable[[Network], None] = _ignore,
        extracting: Callable[[Target, str], None] = lambda *_: None,
    ) -> ImportedModel:
        """Return the model's network and tasks, read once; the callbacks are those of `import_model`.

        Raises:
            UsageError: the model, the shapes or the target are wrong.
            WorkError: the model cannot be imported.
        """
        if self.imported is None:
            self.imported = await import_model(
                self.runtime, self.store, self.request, self.job_id, begun,
                prepared=prepared, extracting=extracting,
            )  # fmt: skip
            if self.account is not None:
                spent = Charge(self.job_id, "", "import", "", self.imported.wall_s, self.imported.core_s, 0.0)
                await self.account.post([PricedCharge(spent, self.imported.wall_s)])
        else:
            begun()
            prepared(self.imported.network)
        return self.imported

    async def settle(self, imported: ImportedModel) -> None:
        """Go on with this model, and store where its nodes run: nobody will tune those that run in ONNX Runtime."""
        self.imported = imported
        await self.store.write(
            lambda store: store.save_tasks(
                imported.network, imported.tasks, target=imported.target, compiler=imported.compiler,
                elsewhere=imported.elsewhere,
            )
        )  # fmt: skip

    async def provenance(self, imported: ImportedModel) -> Provenance:
        """Return what a record must agree in to answer for this job's device, compiler and way of measuring."""
        device = await self.runtime.device()
        return Provenance(self.request.dialect, imported.compiler, device.fingerprint, Settings().key)

    async def choices(self, imported: ImportedModel) -> KnownTask:
        """Return the ladder's answer for each task, from the store alone."""
        provenance = await self.provenance(imported)
        return await self.store.read(lambda store: choose(store, imported.tasks, provenance))

    async def filled(
        self, imported: ImportedModel, policy: FillPolicy | None, ready: Awaitable[InitialModel | None] | None = None
    ) -> KnownTask:
        """Return the ladder's answer for each task; with a `policy`, what no record answers is predicted."""
        if policy is None:
            return await self.choices(imported)
        provenance = await self.provenance(imported)
        return await fill(
            self.runtime, self.store, self.request, imported.tasks, provenance, policy, self.job_id, ready,
            self.account,
        )  # fmt: skip


def open_tasks(imported: ImportedModel, known: KnownTask) -> frozenset[str]:
    """Return the keys of tunable tasks that were neither searched nor predicted."""
    predicted = {choice.task_key for choice in known.choices if choice.rung is Rung.ZERO_SHOT}
    return frozenset(task.key for task in imported.tasks if task.tunable and task.key in known.open - predicted)


def task_shares(imported: ImportedModel, known: KnownTask) -> tuple[TaskShare, ...]:
    """Return the network's tasks with what each is known to take."""
    latency_s = {choice.task_key: choice.latency_s for choice in known.choices}
    return tuple(
        TaskShare(w.name, w.key, w.kind, task.weight, w.flop, latency_s.get(task.key), size_bytes(w.arguments))
        for task in imported.tasks
        for w in (task.workload,)
    )
