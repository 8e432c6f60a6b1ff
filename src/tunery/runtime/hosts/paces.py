"""How fast hosts build beside one another: a slow or unsteady one is given less, and named."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunery.domain import HERE

_WEIGHT = 0.1  # of the latest build in a host's mean
_ENOUGH = 5  # builds of a host before it is judged
_SLOW, _MOST = 2.0, 16.0  # times the fastest host's: from where on a host is slow, and how slow it is called at most
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    mean_s: float = 0.0
    builds: int = 0
    losses: float = 0.0  # as they weigh now: each build that succeeds makes them lighter
    named: bool = False


class Paces:
    """What a build takes on each host, as a moving mean, and how often hosts were lost with builds."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def built(self, host: str, wall_s: float) -> None:
        """Take in that a build has ended."""
        seen = self._seen.setdefault(host, _Seen())
        seen.builds += 1
        seen.mean_s += (wall_s - seen.mean_s) * max(_WEIGHT, 1 / seen.builds)
        seen.losses *= 1 - _WEIGHT
        self._name(host, seen)

    def lost(self, host: str) -> None:
        """Take in that a host was lost with a build on it."""
        seen = self._seen.setdefault(host, _Seen())
        seen.losses += 1
        self._name(host, seen)

    def pace(self, host: str) -> float:
        """Return how many times as long as on the fastest host a build takes there; 1 unless it is clearly slower.

        A host that was lost with a build counts as twice as slow, for each time, until builds succeed there again.
        """
        seen = self._seen.get(host, _Seen())
        known = [one.mean_s for one in self._seen.values() if one.builds >= _ENOUGH]
        slower = seen.mean_s / min(known) if seen.builds >= _ENOUGH and min(known) > 0 else 1.0
        return min((slower if slower >= _SLOW else 1.0) * math.pow(2.0, seen.losses), _MOST)

    def first_free(self, hosts: Sequence[str], asked: Callable[[str], float]) -> str:
        """Return the host where another build would end first; `asked` is how many there are for each of its builders.

        Where all are equally fast, that is the host of which the least is asked.
        """
        return min(hosts, key=lambda host: self.pace(host) * (1 + asked(host)))

    def remark(self, host: str) -> str:
        """Say what is wrong with a host that is given less; "" for all others."""
        if (pace := self.pace(host)) < _SLOW:
            return ""
        why = "it was lost with builds" if self._seen[host].losses >= 1 else f"a build takes {pace:.1f} times as long"
        return f"{why}: it is given fewer"

    def _name(self, host: str, seen: _Seen) -> None:
        """Name a host in the log when it becomes slow or unsteady."""
        said = self.remark(host)
        if said and not seen.named:
            advice = "" if host == HERE else f"; see `tunery hosts check {host}`"
            _log.warning("host %s: %s%s", host, said, advice, extra={"host": host})
        seen.named = bool(said)
