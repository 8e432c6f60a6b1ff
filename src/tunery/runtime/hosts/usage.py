"""What the workers of one engine use, by stage: CPU seconds where its host tells them, else cores times seconds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tunery.engines import Engine


@dataclass(slots=True)
class _Open:
    """A stage that has not ended, with what was read when it began or was last split."""

    job_id: str
    worker: str
    cores: int
    since_s: float
    cpu_s: float
    elsewhere_s: float = 0.0


class StageUsage:
    """Meters stages between `begin` and `end`; `now` is the clock of their wall seconds.

    Without `Engine.control` a stage counts as if it used all of its cores all of the time, and nothing is known of what
    workers use outside of stages.
    """

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._control, self._now = engine.control, now
        self._open: dict[str, _Open] = {}
        self._claimed_core_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, stage_id: str, job_id: str, worker: str, cores: int) -> None:
        self._open[stage_id] = _Open(job_id, worker, cores, self._now(), self._cpu_s(worker))

    def split(self, stage_id: str) -> tuple[float, float]:
        stage = self._open[stage_id]
        now_s, cpu_s = self._now(), self._cpu_s(stage.worker)
        wall_s, core_s = now_s - stage.since_s, self._core_s(stage, now_s, cpu_s)
        stage.since_s, stage.cpu_s, stage.elsewhere_s = now_s, cpu_s, 0.0
        return wall_s, core_s

    def add(self, stage_id: str, core_s: float) -> None:
        """Meter core-seconds that another worker has used for a stage."""
        self._open[stage_id].elsewhere_s += core_s

    def end(self, stage_id: str) -> tuple[float, float]:
        """Return the same as `split`, and meter the stage no longer."""
        used = self.split(stage_id)
        del self._open[stage_id]
        return used

    def in_use(self, job_id: str | None = None) -> float:
        """Return the core-seconds, since their begin or last split, of open stages: of one job or of all."""
        now_s = self._now()
        stages = [stage for stage in self._open.values() if job_id in (None, stage.job_id)]
        return sum(self._core_s(stage, now_s, self._cpu_s(stage.worker)) for stage in stages)

    def claim(self, core_s: float) -> None:
        """Say that so many core-seconds have found somebody who pays for them."""
        self._claimed_core_s += core_s

    def unclaimed(self, workers: Iterable[str]) -> float:
        """Return the core-seconds that nobody pays for yet: starts of workers, and work that was cut short.

        Open stages are left out. 0 where the host tells no CPU seconds.
        """
        if self._control is None:
            return 0.0
        used_s = self._control.own_cpu_s() + sum(map(self._control.cpu_s, workers))
        return max(used_s - self._claimed_core_s - self.in_use(), 0.0)

    def _cpu_s(self, worker: str) -> float:
        return 0.0 if self._control is None else self._control.cpu_s(worker)

    def _core_s(self, stage: _Open, now_s: float, cpu_s: float) -> float:
        if self._control is None:
            return stage.cores * (now_s - stage.since_s) + stage.elsewhere_s
        return max(cpu_s - stage.cpu_s, 0.0) + stage.elsewhere_s
