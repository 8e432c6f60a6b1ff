"""Fair shares, predicted durations, and reservations: the default."""

import math

from typing_extensions import override

from tunery.scheduler._pool import Needs, Pool
from tunery.scheduler._state import Job, Stage
from tunery.scheduler.durations import Durations
from tunery.scheduler.strategies._base import Strategy
from tunery.scheduler.strategies._shares import FairQueue, Shares

# A shape that waits longer than this many typical stages gets a reservation. Making room for a wide stage idles about
# half a narrow one per core, so 16 keeps that loss near 3 % while bounding the wait.
_PATIENCE_STAGES = 16.0

# Among one owner's jobs, one that was not served for this many patiences goes before more urgent ones.
_UNSERVED = 4.0
_WINDOW = 1.0


class Predictive(Strategy):
    """Serves owners by their shares and keeps wide stages from starving, at little idle time.

    Among the shapes that fit, the one that needs the largest share of a resource goes first, so wide stages run in one
    block once the machine is theirs. A shape that was not served for long gets a reservation at the time when what it
    needs is predicted to be free; others start only if that does not delay it (EASY backfilling, Lifka, JSSPP 1995).
    """

    name = "predictive"

    def __init__(self, pool: Pool, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._shares = Shares()
        self._queues: dict[tuple[str, Needs], FairQueue] = {}
        self._typical_s: dict[str, float] = {}
        self._unit_s = 1.0
        self._depth: dict[str, float] = {}

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        queue = self._queues.get(stage.shape)
        if queue is None:
            queue = self._queues[stage.shape] = FairQueue(self._shares, stage.needs, now_s)
        self._see(stage)
        stage.job.urgency = self._urgency(stage.job)
        self._shares.woke(stage.job)
        queue.push(stage, now_s)

    @override
    def discard(self, stage: Stage) -> None:
        self._shares.slept(stage.job)
        self._leave(stage)

    @override
    def started(self, stage: Stage, now_s: float) -> None:
        self._queues[stage.shape].served(stage, now_s)
        self._leave(stage)
        job = stage.job
        used = self.pool.share(stage.needs) * stage.predicted_s / job.share
        self._shares.slept(job)
        self._shares.serve(job, used)

    @override
    def finished(self, stage: Stage, duration_s: float, now_s: float) -> None:
        kind = stage.request.kind
        typical_s = self._typical_s.get(kind, duration_s)
        self._typical_s[kind] = 0.9 * typical_s + 0.1 * duration_s
        if stage.job.done():
            self._unit_s += 0.1 * (stage.job.spent_s / stage.job.done() - self._unit_s)
        late_s = duration_s - stage.predicted_s
        self._shares.correct(stage.job, self.pool.share(stage.needs) * late_s / stage.job.share)

    @override
    def job_removed(self, job: Job) -> None:
        if not job.paused:
            self._shares.forget(job)

    @override
    def pick(self, now_s: float) -> Stage | None:
        fitting = [queue for queue in self._queues.values() if self.pool.fits(queue.needs)]
        if not fitting:
            return None
        patience_s = _PATIENCE_STAGES * max(self._typical_s.values(), default=1.0)
        heads = [queue.head(now_s, _UNSERVED * patience_s, _WINDOW * patience_s) for queue in fitting]
        starved = min(self._queues.values(), key=lambda queue: queue.since_s)
        if now_s - starved.since_s > patience_s:
            if starved in fitting:
                return heads[fitting.index(starved)][1]
            at_s = self.pool.fits_at(starved.needs, now_s)
            heads = [head for head in heads if self._leaves_room(head[1], starved.needs, at_s, now_s)]
        return min(heads, key=self._rank)[1] if heads else None

    def _leave(self, stage: Stage) -> None:
        queue = self._queues[stage.shape]
        queue.count -= 1
        if not queue.count:
            del self._queues[stage.shape]

    def _urgency(self, job: Job) -> float:
        """Return how long the rest of a job takes with all it can have in flight, times its share.

        Serving the longest rest first leaves no long job to run alone at the end (critical path first).
        """
        done = job.done()
        unit_s = job.spent_s / done if done else self._unit_s
        rest = job.asked.planned - done if job.asked.planned > done else max(done, 1.0)
        # In powers of two: jobs that are about as urgent are served in their order instead of in turns.
        return 2.0 ** math.floor(math.log2(max(rest * unit_s / job.width * job.share, 1e-6)))

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
        end_s = now_s + self.durations.predict(request.kind, stage.sort, request.size, request.hint_s, q=0.9)
        if end_s <= at_s:
            return True
        return all(self.pool.free_at(name, at_s) - mine[name] >= amount for name, amount in shared)
