"""Fair shares, predicted durations, and reservations: the default."""

from heapq import heappop, heappush, heapreplace

from typing_extensions import override

from tunery.scheduling._state import Capacities, Durations, Needs, ScheduledJob, Stage
from tunery.scheduling.strategies._base import Strategy
from tunery.scheduling.strategies._shares import FairQueue, Rests, Shares

# A kind of stage of which none ended among so many no longer counts for what is typical.
_RECENT = 64

# A shape that waits longer than this many typical stages gets a reservation. Making room for a wide stage idles about
# half a narrow one per core, so 16 keeps that loss near 3 % while bounding the wait.
_PATIENCE_STAGES = 16.0

# Among one owner's jobs, one that was not served for this many patiences goes before those whose turn it is.
_UNSERVED = 4.0

# Owners whose virtual times differ by less than this part of a patience are as good as equal. 1 lets owners wait three
# times as long and gains nothing.
_WINDOW = 0.1

# A job that would take over this part of what all jobs still need with the machine to itself goes first. 1 loses 2 % of
# makespan, and 0.35 lets the mean job end 7 % later than 0.5 does.
_LONG = 0.5


class Predictive(Strategy):
    """Serves owners by their shares and keeps wide stages from starving, at little idle time. Among the shapes that
    fit, the one that needs the largest share of a resource goes first, so wide stages run in one block once the machine
    is theirs. A shape that was not served for long gets a reservation at the time when what it needs is predicted to be
    free; others start only if that does not delay it (EASY backfilling, Lifka, JSSPP 1995). Of an owner's jobs the one
    with the least left goes first (weighted: Smith, 1956), so that jobs end early. What it waits for with nothing
    running is reserved for it: else wide stages run when the machine is free by chance, and all jobs go on in step. A
    job that would take long even with the machine to itself goes before it: begun too late, it would run alone at the
    end."""

    name = "predictive"

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._shares = Shares()
        self._rests = Rests(pool, durations)
        self._queues: dict[tuple[str, Needs], FairQueue] = {}
        self._by_resource: dict[str, dict[FairQueue, None]] = {}
        self._fitting: dict[FairQueue, None] = {}
        self._oldest: list[tuple[float, int, FairQueue]] = []
        self._made = 0
        self._lengths = Durations()
        self._ended = 0
        self._typical: dict[str, tuple[int, float]] = {}
        self._depth: dict[str, float] = {}
        self._most_share = 1.0

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        queue = self._queues.get(stage.shape)
        if queue is None:
            queue = self._open(stage, now_s)
        self._see(stage)
        self._rests.asked(stage)
        self._shares.woke(stage.job)
        queue.push(stage, now_s)

    @override
    def discard(self, stage: Stage) -> None:
        self._shares.slept(stage.job)
        self._leave(stage)

    @override
    def started(self, stage: Stage, now_s: float) -> None:
        queue = self._queues[stage.shape]
        queue.served(stage, now_s)
        self._leave(stage)
        job = stage.job
        used = self.pool.share(stage.needs) * stage.predicted_s / job.share
        self._shares.slept(job)
        self._shares.serve(job, used, queue.least)

    @override
    def finished(self, stage: Stage, duration_s: float, now_s: float) -> None:
        kind = stage.request.kind
        self._lengths.observe(kind, "", 1, duration_s)
        self._ended += 1
        self._typical[kind] = self._ended, self._lengths.predict(kind, "", 1)
        self._rests.ended(stage, duration_s)
        late_s = duration_s - stage.predicted_s
        self._shares.correct(stage.job, self.pool.share(stage.needs) * late_s / stage.job.share)

    @override
    def job_added(self, job: ScheduledJob) -> None:
        self._rests.add(job)
        self._most_share = max(self._most_share, job.share)

    @override
    def job_removed(self, job: ScheduledJob) -> None:
        if not job.paused:
            self._rests.remove(job)

    @override
    def pick(self, now_s: float) -> Stage | None:
        fitting = self._find_fitting()
        if not fitting:
            return None
        typical_s = [took_s for number, took_s in self._typical.values() if number > self._ended - _RECENT]
        patience_s = _PATIENCE_STAGES * max(typical_s, default=1.0)
        # Owners' virtual time runs slower the larger their shares: the patience is that of the largest.
        window = _WINDOW * patience_s / self._most_share
        long_s = _LONG * self._rests.all_s()
        starved = self._longest_unserved()
        waits = now_s - starved.since_s > patience_s
        if waits and starved in fitting:
            return starved.head(now_s, _UNSERVED * patience_s, window, long_s)[1]
        heads = [queue.head(now_s, _UNSERVED * patience_s, window, long_s) for queue in fitting]
        if waits:
            heads = self._beside(starved.needs, heads, now_s)
        while heads:
            first = min(heads, key=self._rank)
            wider = self._wider(first, now_s, _UNSERVED * patience_s, window, long_s)
            if wider is None:
                return first[1]
            beside = self._beside(wider, heads, now_s)
            if first in beside:
                return first[1]
            heads = beside
        return None

    def _beside(self, reserved: Needs, heads: list[tuple[float, Stage]], now_s: float) -> list[tuple[float, Stage]]:
        at_s = self.pool.fits_at(reserved, now_s)
        return [head for head in heads if self._leaves_room(head[1], reserved, at_s, now_s)]

    def _wider(
        self, head: tuple[float, Stage], now_s: float, patience_s: float, window: float, long_s: float
    ) -> Needs | None:
        """Return what a job that has less left than `head`'s, and nothing running, needs of the same resources."""
        used, stage = head
        for name, amount in stage.needs:
            for queue in self._by_resource[name]:
                if queue in self._fitting or dict(queue.needs)[name] <= amount:
                    continue
                theirs, other = queue.head(now_s, patience_s, window, long_s)
                if theirs <= used + window and other.job.rest < stage.job.rest and not other.job.running:
                    return queue.needs
        return None

    def _open(self, stage: Stage, now_s: float) -> FairQueue:
        queue = self._queues[stage.shape] = FairQueue(self._shares, stage.needs, now_s)
        self._made += 1
        heappush(self._oldest, (now_s, self._made, queue))
        for name, _ in stage.needs:
            self._by_resource.setdefault(name, {})[queue] = None
        if self.pool.fits(stage.needs):
            self._fitting[queue] = None
        return queue

    def _leave(self, stage: Stage) -> None:
        queue = self._queues[stage.shape]
        queue.count -= 1
        if not queue.count:
            del self._queues[stage.shape]
            self._fitting.pop(queue, None)
            for name, _ in queue.needs:
                del self._by_resource[name][queue]

    def _find_fitting(self) -> dict[FairQueue, None]:
        """Return the queues whose stages fit: only those are looked at whose resources have changed."""
        for name in self.pool.changed:
            for queue in self._by_resource.get(name, ()):
                if self.pool.fits(queue.needs):
                    self._fitting[queue] = None
                else:
                    self._fitting.pop(queue, None)
        self.pool.changed.clear()
        return self._fitting

    def _longest_unserved(self) -> FairQueue:
        while True:
            since_s, number, queue = self._oldest[0]
            if not queue.count:
                heappop(self._oldest)
            elif queue.since_s > since_s:
                heapreplace(self._oldest, (queue.since_s, number, queue))
            else:
                return queue

    def _rank(self, head: tuple[float, Stage]) -> tuple[float, float, float, int]:
        used, stage = head
        return -self.pool.share(stage.needs), -self._depth[stage.request.kind], used, stage.order

    def _see(self, stage: Stage) -> None:
        """Learn how far down a job's chain a kind of stage is: as many kinds as its jobs asked for before it."""
        kind, seen = stage.request.kind, stage.job.kinds
        if kind not in seen:
            seen[kind] = len(seen)
            depth = self._depth.get(kind, seen[kind])
            self._depth[kind] = depth + 0.1 * (seen[kind] - depth)

    def _leaves_room(self, stage: Stage, reserved: Needs, at_s: float, now_s: float) -> bool:
        """Say whether starting `stage` leaves `reserved` free at `at_s`, by predictions on the safe side."""
        mine = dict(stage.needs)
        shared = [(name, amount) for name, amount in reserved if amount and mine.get(name)]
        if not shared:
            return True
        request = stage.request
        end_s = now_s + self.durations.predict(request.kind, stage.sort, request.size, q=0.9)
        if end_s <= at_s:
            return True
        return all(self.pool.free_at(name, at_s) - mine[name] >= amount for name, amount in shared)
