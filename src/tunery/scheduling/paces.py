"""How fast hosts build beside one another: a slow or unsteady one is given less, and named."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tunery.domain import HERE

_WEIGHT = 0.1  # of the latest build in a mean
_ENOUGH = 5  # builds of a host before it is judged
_SLOW, _MOST = 2.0, 16.0  # times the fastest host's: from where on a host is slow, and how slow it is called at most
_RECOVERED = 1.5  # times the fastest host's: below it a slow host may be named again
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Mean:
    """A moving mean of logarithms: one build that hangs weighs little."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(_WEIGHT, 1 / self.count)


@dataclass(slots=True)
class _Seen:
    against_usual: _Mean = field(default_factory=_Mean)  # log of how many times as long as usual its builds took
    losses: float = 0.0  # as they weigh now: each build that succeeds makes them lighter
    named: bool = False


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How many builds a host makes at a time, how many could begin there now, and how many wait for it."""

    builders: int
    free: int
    waiting: int = 0


def _warn(host: str, said: str) -> None:
    advice = "" if host == HERE else f"; see `tunery hosts check {host}`"
    _log.warning("host %s: %s%s", host, said, advice, extra={"host": host})


class Paces:
    """How long builds take on each host, and how often hosts were lost with builds. Each build is compared with what
    builds for tasks of its kind took on any host: these differ in length by far more than equal hosts do."""

    def __init__(self, named: Callable[[str, str], None] = _warn) -> None:
        self._seen: dict[str, _Seen] = {}
        self._usual: dict[str, _Mean] = {}  # by kind of task: log seconds
        self._named = named

    def built(self, host: str, task_kind: str, wall_s: float) -> None:
        seen, usual = self._seen.setdefault(host, _Seen()), self._usual.setdefault(task_kind, _Mean())
        took = math.log(max(wall_s, 1e-6))
        if usual.count:
            seen.against_usual.add(min(max(took - usual.value, -math.log(_MOST)), math.log(_MOST)))
        usual.add(took)
        seen.losses *= 1 - _WEIGHT
        self._name(host, seen)

    def lost(self, host: str) -> None:
        seen = self._seen.setdefault(host, _Seen())
        seen.losses += 1
        self._name(host, seen)

    def pace(self, host: str) -> float:
        """Return how many times as long as on the fastest host a build takes there; 1 unless it is clearly slower. A
        host that was lost with a build counts as twice as slow, for each time, until builds succeed there again."""
        seen, slower = self._seen.get(host, _Seen()), self._slower(host)
        return min((slower if slower >= _SLOW else 1.0) * math.pow(2.0, seen.losses), _MOST)

    def _slower(self, host: str) -> float:
        means = {name: seen.against_usual for name, seen in self._seen.items()}
        known = {name: mean.value for name, mean in means.items() if mean.count >= _ENOUGH}
        return math.exp(known[host] - min(known.values())) if host in known else 1.0

    def first_free(self, loads: Mapping[str, HostLoad]) -> str:
        """Return the host where another build would end first; of equals the one with most room for its size, then the
        faster."""

        def rank(host: str) -> tuple[float, float, float]:
            load, took = loads[host], self._seen.get(host, _Seen()).against_usual.value
            return self._ends(host, load, load.waiting + 1), (load.waiting - load.free) / load.builders, took

        return min(loads, key=rank)

    def overdue(self, loads: Mapping[str, HostLoad]) -> str | None:
        """Return the host of which a build that waits would end sooner on another one, which has room for it now; of
        several, the one where the last build would end last."""
        open_s = min((self.pace(host) for host, load in loads.items() if load.free > load.waiting), default=math.inf)
        full = [host for host, load in loads.items() if load.waiting and load.free <= 0]
        ends = {host: self._ends(host, loads[host], loads[host].waiting) for host in full}
        return max((host for host in full if ends[host] > open_s), key=ends.__getitem__, default=None)

    def _ends(self, host: str, load: HostLoad, place: int) -> float:
        return self.pace(host) * (1.0 + max(0, place - load.free) / load.builders)

    def remark(self, host: str) -> str:
        if (pace := self.pace(host)) < _SLOW:
            return ""
        why = "it was lost with builds" if self._seen[host].losses >= 1 else f"a build takes {pace:.1f} times as long"
        return f"{why}: it is given fewer"

    def _name(self, host: str, seen: _Seen) -> None:
        """Name a host when it becomes slow or unsteady, once until it has clearly recovered."""
        if said := self.remark(host):
            if not seen.named:
                self._named(host, said)
            seen.named = True
        elif self._slower(host) < _RECOVERED:
            seen.named = False
