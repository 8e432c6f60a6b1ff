"""Which implementation is delivered for each task, and on what evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunery.domain import Artifact, Choice, Provenance, Record, Rung, Task
from tunery.domain.request import TaskShare
from tunery.measuring.inputs import size_bytes
from tunery.store import Offer, Skipped, Standing, Store
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True)
class KnownTask:
    """What is delivered for a task, and on what evidence. `skipped` are records that were not used. `untried`: nothing
    but the compiler's default was measured. `refused` says why no prediction was good enough; `measured` candidates
    were timed for this answer; `part` is what was compiled of a predicted candidate. `outdated` is the record that was
    chosen, if it is to be verified again. `late`: the time was over before its prediction."""

    task: Task
    choice: Choice
    skipped: tuple[Skipped, ...] = ()
    untried: bool = False
    refused: str = ""
    measured: int = 0
    part: Artifact | None = None
    outdated: Record | None = None
    late: bool = False

    @property
    def open(self) -> bool:
        return self.untried or self.choice.candidate is None

    @property
    def predicted(self) -> bool:
        return self.choice.rung is Rung.ZERO_SHOT

    @property
    def untuned(self) -> bool:
        return self.task.tunable and self.open and not self.predicted

    def covered(self, used: str | None) -> tuple[str, str | None]:
        """Return the rung that a compiled file has, which `used` this candidate: None where the default took over."""
        return (self.choice.rung if used else Rung.DEFAULT).value, used

    @property
    def share(self) -> TaskShare:
        workload = self.task.workload
        return TaskShare(
            workload.name, workload.key, workload.kind, self.task.weight, workload.flop, self.choice.latency_s,
            size_bytes(workload.arguments),
        )  # fmt: skip


def choose(store: Store, tasks: Sequence[Task], provenance: Provenance, host: str) -> tuple[KnownTask, ...]:
    """Return the best verified record of each task, made under exactly these conditions, or the compiler's default."""
    known = store.standings({task.key for task in tasks}, provenance)
    unknown = [task for task in tasks if known[task.key].best is None]
    skipped = store.skipped(unknown, provenance) if unknown else {}
    return tuple(_choose(task, known[task.key], tuple(skipped.get(task.key, ())), host) for task in tasks)


async def choices(work: Work, tasks: Sequence[Task]) -> tuple[KnownTask, ...]:
    provenance = await work.provenance()
    return await work.store.read(lambda store: choose(store, tasks, provenance, work.runtime.measured_on))


def _choose(task: Task, known: Standing, skipped: tuple[Skipped, ...], host: str) -> KnownTask:
    best, baseline = known.best, known.baseline
    if best is None:
        return KnownTask(task, Choice(task.key, Rung.DEFAULT), skipped)
    baseline_s = known.default_final_s or (baseline.measurement.latency_s if baseline else None)
    source = f"host {best.host}" if best.host not in {host, ""} else ""
    choice = Choice(task.key, Rung.EXACT, best.candidate, best.measurement.latency_s, baseline_s, source)
    checked = best.measurement.verification
    return KnownTask(
        task, choice, untried=task.tunable and best == baseline and not known.searched,
        outdated=None if checked and checked.deliverable else best,
    )  # fmt: skip


OFFERS = 2
"""How many candidates of a task each compatible device may offer, of each version of the compiler."""


async def offers_for(work: Work, provenance: Provenance, known: Sequence[KnownTask]) -> dict[str, list[Offer]]:
    keys = [each.task.key for each in known if each.open and each.task.tunable]
    device = await work.runtime.device()

    def ask(store: Store) -> dict[str, list[Offer]]:
        return store.offers(keys, provenance, store.devices.of_type(device.fingerprint, device.as_facts()), OFFERS)

    return await work.store.read(ask) if keys else {}


def offered(each: KnownTask, offers: Sequence[Offer]) -> KnownTask:
    if not offers:
        return each
    candidate, latency_s = offers[0].record.candidate, offers[0].record.measurement.latency_s
    choice = Choice(each.task.key, Rung.COMPATIBLE, candidate, latency_s, source=offers[0].source)
    return replace(each, choice=choice, untried=False, refused="")
