"""What a job has at hand."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial

from tunery._errors import DialectError, EngineError, ModelError, UsageError, WorkError, lacks_memory
from tunery.dialects import extractor
from tunery.domain import Network, Provenance, Target
from tunery.domain.request import Progress, Request
from tunery.engines import Role
from tunery.measuring.settings import settings_for
from tunery.runtime import worker_bytes
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel, both, held, stamp_of, together
from tunery.runtime.runtime import Reservation, Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge


def _ignore(_: object) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """What a network takes on a quiet machine: reading it anew with its tasks, choosing all kernels that can be tuned,
    linking, and judging. Before its first compilation all of them are told by the first."""

    reading_s: float
    choosing_s: float
    linking_s: float
    judging_s: float

    @classmethod
    def by_reading(cls, read_s: float) -> "CompileTimes":
        return cls(read_s, _CHOSEN * read_s, _LINKED * read_s, _JUDGED * read_s)

    def __add__(self, other: "CompileTimes") -> "CompileTimes":
        return CompileTimes(*map(sum, zip(astuple(self), astuple(other), strict=True)))


_CHOSEN, _LINKED, _JUDGED = 10.0, 0.15, 1.0
"""Of the core-seconds of reading a model and extracting its tasks: medians of the zoo's networks."""
_READ = 0.5
"""A reading that took less of what it takes found its tasks in the store."""


@dataclass
class Work:
    """One job's workers, store and request. `imported` is the job's model once it was read: every part of the job works
    on these bytes, whatever happens to the file meanwhile. Of a job over several dialects it is the first one's,
    `others` are those of the others, and `refused` has a sentence about each that takes no part. A budget of time ends
    at `until` (monotonic seconds)."""

    runtime: Runtime
    store: AsyncStore
    request: Request
    job_id: str
    notify: Callable[[Progress], None] = field(default=_ignore)
    imported: ImportedModel | None = None
    account: Account | None = None
    others: "tuple[Work, ...]" = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    until: float | None = None
    turn: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)

    @property
    def each(self) -> "tuple[Work, ...]":
        return (self, *self.others)

    @property
    def model_read(self) -> ImportedModel:
        assert self.imported is not None
        return self.imported

    @asynccontextmanager
    async def stage(
        self, kind: str, role: Role, task_kind: str = "", worker: str | None = None, *, delivered: bool = False
    ) -> AsyncIterator[Reservation]:
        reservation: Reservation | None = None
        try:
            asked = (self.job_id, kind, role, task_kind, 1, worker)
            async with self.runtime.stage(*asked, delivered=delivered) as reservation:
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
        used: list[Reservation] | None = None,
    ) -> ImportedModel:
        """Read the model once; its tasks are those of the store if this very network was seen before. `begun` is
        called once the model and the target are known to be meant, `prepared` with the network before its tasks are
        known, `extracting` where nobody has extracted them before. `used` gets the grants of its stages, also where
        it fails."""
        if self.imported is not None:
            begun()
            prepared(self.imported.network)
            return self.imported
        used = [] if used is None else used
        each = [replace(self, request=one) for one in self.request.each_shape]
        blobs: list[str] = []
        try:
            async with self.turn:
                parts = [await one._read(begun, prepared, extracting, used, blobs) for one in each]
            self.imported = together(parts) if self.request.more_shapes else parts[0]
        except BaseException:
            for blob in blobs:
                self.runtime.holds.release(blob)
            raise
        await self._pay("import", Reservation("", self.imported.core_s, self.imported.wall_s))
        return self.imported

    async def _read(
        self,
        begun: Callable[[], None],
        prepared: Callable[[Network], None],
        extracting: Callable[[Target, str], None],
        used: list[Reservation],
        blobs: list[str],
    ) -> ImportedModel:
        unsure = {"model", "target"}
        stamp, mine = stamp_of(self.request.model), len(used)

        def meant(what: str) -> None:
            unsure.discard(what)
            if not unsure:
                begun()

        try:
            # The model is read while the compiler, which takes the longer, is still being imported.
            network, (target, compiler) = await both(self._load(meant, used, blobs), self._resolve(meant, used))
            prepared(network)
            key = (network.digest, target.key, extractor(target.dialect, compiler))
            tasks, elsewhere = await self.store.read(lambda store: (store.load_tasks(*key), store.load_elsewhere(*key)))
            if is_new := tasks is None:
                extracting(target, compiler)
                async with self._held("import", Role.IMPORTER, used) as grant:
                    tasks, elsewhere = await self.runtime.call(
                        grant.worker, "extract", network, target, deadline_s=IMPORT_DEADLINE_S, tries=3
                    )
            imported = ImportedModel(network, target, compiler, tuple(tasks or ()), stamp=stamp, elsewhere=elsewhere)
            if is_new:
                await self.settle(imported)
        except UsageError:
            raise
        except (DialectError, EngineError) as error:
            raise _refusal(self.request.model, error) from error
        finally:
            self.runtime.usage.claim(-sum(grant.core_s for grant in used[mine:]))  # whoever asked for it is to pay now
        grants = used[mine:]
        wall_s = max(grant.wall_s for grant in grants[:2]) + sum(grant.wall_s for grant in grants[2:])
        core_s = sum(grant.core_s for grant in grants)
        imported = replace(imported, network=replace(network, elsewhere=elsewhere), wall_s=wall_s, core_s=core_s)
        if is_new:
            self.remember(imported, CompileTimes.by_reading(core_s))
        return imported

    @asynccontextmanager
    async def _held(self, kind: str, role: Role, used: list[Reservation]) -> AsyncIterator[Reservation]:
        """Hold a worker; what it used is claimed until the import ends, for other jobs charge what nobody claims."""
        grant: Reservation | None = None
        try:
            async with self.runtime.stage(self.job_id, kind, role) as grant:
                used.append(grant)
                yield grant
        finally:
            self.runtime.usage.claim(grant.core_s if grant else 0.0)

    async def _load(self, meant: Callable[[str], None], used: list[Reservation], blobs: list[str]) -> Network:
        request, runtime = self.request, self.runtime
        async with self._held("prepare", Role.PREPARER, used) as grant:
            await runtime.call(grant.worker, "check", request.model, deadline_s=IMPORT_DEADLINE_S, tries=3)
            meant("model")
            load = partial(
                runtime.call, grant.worker, "load", request.model, request.shapes, request.trust,
                deadline_s=IMPORT_DEADLINE_S, tries=3,
            )  # fmt: skip
            network = await held(load, runtime.holds.add, runtime.holds.release)
            blobs += network.blobs
            return network

    async def _resolve(self, meant: Callable[[str], None], used: list[Reservation]) -> tuple[Target, str]:
        runtime = self.runtime
        device = [await runtime.device()] if runtime.builds_for_another_kind else []
        async with self._held("import", Role.IMPORTER, used) as grant:
            target, compiler = await runtime.call(
                runtime.target_worker or grant.worker, "target", self.request.target, runtime.threads, *device,
                deadline_s=IMPORT_DEADLINE_S, tries=3,
            )  # fmt: skip
        meant("target")
        return target, compiler

    async def target(self) -> Target:
        used: list[Reservation] = []
        try:
            target, _ = await self._resolve(_ignore, used)
        except (DialectError, EngineError) as error:
            raise WorkError(f"reading the target {self.request.target} failed: {error}") from error
        finally:
            self.runtime.usage.claim(-sum(grant.core_s for grant in used))
        return target

    async def settle(self, imported: ImportedModel) -> None:
        """Go on with this model, and store its network, its tasks, and where its nodes run, in place of an earlier
        one."""
        self.imported = imported
        await self.store.write(
            lambda store: store.save_tasks(
                imported.network, imported.tasks, target=imported.target,
                compiler=extractor(imported.target.dialect, imported.compiler), elsewhere=imported.elsewhere,
            )
        )  # fmt: skip

    @property
    def times(self) -> CompileTimes:
        """What compiling its model takes on a quiet machine: what it took last time here, if it did."""
        whole = CompileTimes(0.0, 0.0, 0.0, 0.0)
        for one in self.model_read.parts or (self.model_read,):
            note = self.runtime.blobs.find(_times_key(one))
            known = CompileTimes(**json.loads(self.runtime.blobs.get(note).read_text())) if note else None
            times = known or CompileTimes.by_reading(one.core_s)
            if one.core_s < _READ * times.reading_s:  # its tasks were stored
                times = replace(times, linking_s=times.linking_s + times.reading_s)
            whole += times
        return whole

    def remember(self, imported: ImportedModel, times: CompileTimes) -> None:
        """Keep what a compilation of a model took, whose linking may have had to read it anew."""
        blobs = self.runtime.blobs
        if imported.core_s < _READ * times.reading_s:
            times = replace(times, linking_s=max(times.linking_s - times.reading_s, 0.0))
        blobs.remember(_times_key(imported), blobs.put(json.dumps(asdict(times)).encode()))

    def has_time(self, core_s: float) -> bool:
        """Whether so many core-seconds of one core are left until its budget of time ends."""
        return self.until is None or time.monotonic() + self.runtime.slowness * core_s < self.until

    async def provenance(self) -> Provenance:
        """Return what a record must agree in to answer for this job's device, compiler and way of measuring."""
        device, settings = await self.runtime.device(), settings_for(self.request.trimming)
        return Provenance(self.request.dialect, self.model_read.compiler, device.fingerprint, settings.key)


def _times_key(imported: ImportedModel) -> str:
    return f"compile times {imported.network.digest} {imported.target.key} {imported.compiler}"


def _refusal(model: str, error: DialectError | EngineError) -> ModelError | WorkError:
    if lacks_memory(error):
        limit = worker_bytes(Role.IMPORTER) / 1e9
        return ModelError(
            f"{model!r} needs more memory than the {limit:.3g} GB that an import may take on this machine; "
            "check the sizes of its constants and inputs, or use a machine with more"
        )
    if isinstance(error, DialectError):  # this model cannot be had with this compiler, however often it is tried
        return ModelError(f"{error}; export it with other operators or another opset, or replace that part")
    return WorkError(f"importing {model} failed: {error}")
