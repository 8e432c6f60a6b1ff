"""Which task gets the next batch: the largest expected weighted gain per second of spend."""

from dataclasses import dataclass, field

# Shares of observed slope and of optimism in the expected gain, as in Ansor (OSDI 2020, section 6).
_SLOPE, _OPTIMISM = 0.2, 0.8
_WINDOW = 3


@dataclass
class Standing:
    """What is known of one task: `best_s` after each batch (None: nothing valid yet), and the seconds batches took."""

    task_key: str
    weight: int
    flop: float
    best_s: list[float | None] = field(default_factory=list)
    batch_s: list[float] = field(default_factory=list)
    in_flight: int = 0
    exhausted: bool = False

    @property
    def batches(self) -> int:
        """Batches that ended."""
        return len(self.best_s)

    @property
    def latency_s(self) -> float | None:
        """The best latency so far."""
        return self.best_s[-1] if self.best_s else None


class Allocator:
    """Chooses tasks by gain per spend; each task first gets one batch, heaviest first.

    The expected gain of a batch is Ansor's mix of recent slope and optimism, but never more than what the task could
    still win if it ran at the highest arithmetic rate seen on this machine: a task at the peak gets nothing more.
    """

    def __init__(self, standings: list[Standing]) -> None:
        self.standings = {standing.task_key: standing for standing in standings}

    def next(self) -> Standing | None:
        """Return the task for the next batch, None while there is none to give it to.

        A task has one batch in flight, and a second one only where no other task could use the machine meanwhile.
        """
        alive = [s for s in self.standings.values() if not s.exhausted]
        ready = [s for s in alive if not s.in_flight] or [s for s in alive if s.batches and s.in_flight < 2]
        if not ready:
            return None
        fresh = [s for s in ready if not s.batches]
        if fresh:
            return fresh[0]
        rate = self.peak_rate()
        return max(ready, key=lambda s: (self.gain_per_second(s, rate), s.task_key))

    def peak_rate(self) -> float:
        """Return the highest flop/s any task has reached."""
        return max((s.flop / s.latency_s for s in self.standings.values() if s.latency_s), default=0.0)

    def gain_per_second(self, standing: Standing, rate: float) -> float:
        """Return the expected weighted seconds won per second spent on the task's next batch."""
        known = [b for b in standing.best_s if b is not None]
        if not known:
            # Nothing valid yet: worth a batch now and then, less with each that brought nothing.
            return 1e-9 / (1 + standing.batches)
        best = known[-1]
        before = known[-1 - min(_WINDOW, len(known) - 1)]
        slope = (before - best) / _WINDOW
        expected = _SLOPE * slope + _OPTIMISM * best / standing.batches
        if rate > 0 and standing.flop > 0:
            # 5 % above the best rate seen: the true peak is not known.
            expected = min(expected, max(best - standing.flop / (1.05 * rate), 0.02 * best / standing.batches))
        spend = sum(standing.batch_s[-_WINDOW:]) / max(len(standing.batch_s[-_WINDOW:]), 1) or 1.0
        return standing.weight * expected / spend
