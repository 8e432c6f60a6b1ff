"""The scheduler's own records: resources, durations, jobs, stages."""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush

from tunery.scheduling._events import JobSubmitted, StageRequest

Resources = Mapping[str, int]
Needs = tuple[tuple[str, int], ...]


class Capacities:
    """What is free now, what runs until when; `ceiling` is the most there ever was of a resource. A free amount is
    negative while a resource that shrank is still held by stages started before. `changed` names the resources of which
    more or less is free than when a strategy last emptied it."""

    def __init__(self, resources: Resources) -> None:
        self.capacity = dict(resources)
        self.ceiling = dict(resources)
        self.free = dict(resources)
        self.changed: set[str] = set()
        # Per resource: (predicted end, order of start, amount), soonest end first, for reservations.
        self._ends: dict[str, list[tuple[float, int, int]]] = {name: [] for name in resources}

    def fits(self, needs: Needs) -> bool:
        free = self.free
        for name, amount in needs:  # noqa: SIM110 - a loop takes a third of the time that all() does
            if free[name] < amount:
                return False
        return True

    def missing(self, needs: Needs) -> str | None:
        for name, amount in needs:
            if name not in self.ceiling:
                known = ", ".join(sorted(self.ceiling))
                return f"it needs {name!r}, which does not exist here; there are: {known}"
            if not isinstance(amount, int):
                return f"it needs {amount} of {name!r}; an amount is a whole number"
            if amount > self.ceiling[name]:
                return f"it needs {amount} of {name!r}, which has {self.ceiling[name]}"
            if amount < 0:
                return f"it needs {amount} of {name!r}; an amount cannot be negative"
        return None

    def take(self, needs: Needs, end_s: float, order: int) -> None:
        for name, amount in needs:
            self.free[name] -= amount
            self.changed.add(name)
            insort(self._ends[name], (end_s, order, amount))

    def release(self, needs: Needs, end_s: float, order: int) -> None:
        """Give back what `take` took with the same arguments."""
        for name, amount in needs:
            self.free[name] += amount
            self.changed.add(name)
            ends = self._ends[name]
            index = bisect_left(ends, (end_s, order, amount))
            if ends[index] != (end_s, order, amount):
                raise AssertionError(f"{name!r} was released without being taken")
            del ends[index]

    def resize(self, name: str, capacity: int) -> None:
        self.free[name] = self.free.get(name, 0) + capacity - self.capacity.get(name, 0)
        self.capacity[name] = capacity
        self.ceiling[name] = max(capacity, self.ceiling.get(name, 0))
        self.changed.add(name)
        self._ends.setdefault(name, [])

    def fits_at(self, needs: Needs, now_s: float) -> float:
        """Return when `needs` should be free if nothing else starts; infinity if only a larger capacity helps."""
        when = now_s
        for name, amount in needs:
            free = self.free[name]
            ends = iter(self._ends[name])
            while free < amount:
                entry = next(ends, None)
                if entry is None:
                    return float("inf")
                free += entry[2]
                when = max(when, entry[0])
        return when

    def free_at(self, name: str, at_s: float) -> int:
        free = self.free[name]
        for end_s, _, amount in self._ends[name]:
            if end_s > at_s:
                break
            free += amount
        return free

    def share(self, needs: Needs) -> float:
        share = 0.0
        for name, amount in needs:
            share = max(share, amount / (self.ceiling[name] or 1))
        return share


class StageState(IntEnum):
    """Where a stage stands: HELD waits for its worker or its paused job, OFFERED may be picked by the strategy."""

    HELD = 0
    OFFERED = 1
    RUNNING = 2
    GONE = 3


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """A job that may submit stages. `rest` is what it is predicted to need still of the resource that it needs most, in
    seconds of all of that resource, divided by its share; `alone_s` is how long it would take with the machine to
    itself."""

    asked: JobSubmitted
    order: int
    paused: bool = False
    ended: bool = False
    ready: dict[str, "Stage"] = field(default_factory=dict)
    running: dict[str, "Stage"] = field(default_factory=dict)
    done_units: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    rest: float = 0.0
    alone_s: float = 0.0

    def done(self) -> float:
        """Return the units of work done, as a mean over the kinds of stages that they pass through."""
        return sum(self.done_units.values()) / max(1, len(self.done_units))

    @property
    def share(self) -> float:
        return float(self.asked.weight * 2.0**self.asked.priority)


@dataclass(slots=True, eq=False)
class Stage:
    """A stage that is ready or runs. `offer` counts how often it was offered: older entries in any queue are stale."""

    request: StageRequest
    job: ScheduledJob
    needs: Needs
    order: int
    state: StageState = StageState.HELD
    offer: int = 0
    started_s: float = 0.0
    predicted_s: float = 0.0
    attempts: int = 0

    @property
    def sort(self) -> str:
        devices = [name for name, _ in self.needs if name.rpartition("/")[2].startswith("device:")]
        return "@".join((self.request.task_kind, *devices))

    @property
    def shape(self) -> tuple[str, Needs]:
        return self.request.kind, self.needs


class Lane:
    """The stages that may only run on one worker: at most one of them runs, at most one is offered. Jobs take turns; a
    job's stages go in the order in which they became ready."""

    def __init__(self) -> None:
        self.busy: Stage | None = None
        self.offered: Stage | None = None
        self._jobs: OrderedDict[str, list[tuple[int, Stage]]] = OrderedDict()

    def add(self, stage: Stage) -> None:
        heappush(self._jobs.setdefault(stage.job.asked.job_id, []), (stage.order, stage))

    def next(self) -> Stage | None:
        """Take the next stage to offer, None if there is none; stages that left meanwhile are forgotten."""
        while self._jobs:
            job_id, heap = next(iter(self._jobs.items()))
            while heap and (heap[0][1].state is not StageState.HELD or heap[0][1].job.paused):
                heappop(heap)
            if not heap:
                del self._jobs[job_id]
                continue
            stage = heappop(heap)[1]
            self._jobs.move_to_end(job_id)
            return stage
        return None

    def empty(self) -> bool:
        return self.busy is None and self.offered is None and not self._jobs


_WINDOW = 32
_PRIOR_S = 1.0


@dataclass(slots=True)
class _Recent:
    """The last durations per unit of one sort of stage, in order of age and of length."""

    by_age: deque[float] = field(default_factory=deque)
    by_length: list[float] = field(default_factory=list)

    def add(self, unit_s: float) -> None:
        if len(self.by_age) == _WINDOW:
            self.by_length.remove(self.by_age.popleft())
        self.by_age.append(unit_s)
        insort(self.by_length, unit_s)

    def quantile(self, q: float) -> float:
        # Linear between ranks. 32 values: a single straggler moves the median by one rank at most.
        position = q * (len(self.by_length) - 1)
        low = int(position)
        high = min(low + 1, len(self.by_length) - 1)
        return self.by_length[low] + (position - low) * (self.by_length[high] - self.by_length[low])


class Durations:
    """Running quantiles of seconds per unit of work, by (kind, sort) and by kind; a sort is a task kind on a device.
    The own sort's observations answer; without any those of other sorts, then one second. Windows are short, so a
    machine that slows down is followed."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str] | tuple[str], _Recent] = {}

    def observe(self, kind: str, sort: str, size: int, duration_s: float) -> None:
        unit_s = max(0.0, duration_s) / max(1, size)
        for key in ((kind, sort), (kind,)):
            recent = self._recent.get(key)
            if recent is None:
                recent = self._recent[key] = _Recent()
            recent.add(unit_s)

    def predict(self, kind: str, sort: str, size: int, q: float = 0.5) -> float:
        recent = self._recent.get((kind, sort)) or self._recent.get((kind,))
        return recent.quantile(q) * max(1, size) if recent else _PRIOR_S
