"""Named integer capacities and who holds them."""

from bisect import bisect_left, insort
from collections.abc import Mapping

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
