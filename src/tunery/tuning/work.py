"""What a job has at hand."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tunery.domain import Network, Provenance, Target
from tunery.domain.request import Progress, Request
from tunery.engines import Role
from tunery.measuring.settings import settings_for
from tunery.runtime.importing import ImportedModel, import_model, keep
from tunery.runtime.runtime import Reservation, Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge


def _ignore(_: object) -> None:
    """Show nothing."""


@dataclass
class Work:
    """One job's workers, store and request; the scheduler knows it as `job_id`.

    `imported` is the job's model once it was read: every part of the job works on these bytes, whatever happens to the
    file meanwhile. `notify` is called with the job's progress. A job without an `account` is charged to nobody.
    Of a job over several dialects it is the first one's, `others` are those of the others, and `refused` has a sentence
    about each that takes no part.
    """

    runtime: Runtime
    store: AsyncStore
    request: Request
    job_id: str
    notify: Callable[[Progress], None] = field(default=_ignore)
    imported: ImportedModel | None = None
    account: Account | None = None
    others: "tuple[Work, ...]" = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def each(self) -> "tuple[Work, ...]":
        """It and the others."""
        return (self, *self.others)

    @property
    def model_read(self) -> ImportedModel:
        """Its model, of a job whose model was read before."""
        assert self.imported is not None
        return self.imported

    @asynccontextmanager
    async def stage(
        self, kind: str, role: Role, task_kind: str = "", worker: str | None = None
    ) -> AsyncIterator[Reservation]:
        """Hold a worker (None: any) for one stage of the job, and charge the job for it if it has an account."""
        reservation: Reservation | None = None
        try:
            async with self.runtime.stage(self.job_id, kind, role, task_kind, 1, worker) as reservation:
                yield reservation
        finally:
            if reservation is not None:
                await self._pay(kind, reservation)

    async def _pay(self, kind: str, used: Reservation) -> None:
        if self.account is not None:
            charge = Charge(self.job_id, "", kind, "", used.wall_s, used.core_s, 0.0, host=used.host)
            await self.account.post([PricedCharge(charge, used.wall_s * used.cores)])

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
            await self._pay("import", Reservation("", self.imported.core_s, self.imported.wall_s))
        else:
            begun()
            prepared(self.imported.network)
        return self.imported

    async def settle(self, imported: ImportedModel) -> None:
        """Go on with this model, and store where its nodes run: nobody will tune those that run in ONNX Runtime."""
        self.imported = imported
        await keep(self.store, imported)

    async def provenance(self) -> Provenance:
        """Return what a record must agree in to answer for this job's device, compiler and way of measuring."""
        device, settings = await self.runtime.device(), settings_for(self.request.trimming)
        return Provenance(self.request.dialect, self.model_read.compiler, device.fingerprint, settings.key)
