"""A priority queue of things whose keys change."""

import math
from collections.abc import Callable, Container, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Ranking(Generic[T]):
    """Things by a key that changes: a smaller one is noted when a thing is pushed again, a larger one when it is met.

    Each thing has a number of its own, which decides between equal keys.
    """

    def __init__(self, key: Callable[[T], float]) -> None:
        self._key = key
        self._heap: list[tuple[float, int, T]] = []
        self._listed: dict[T, tuple[float, int]] = {}

    def push(self, thing: T, number: int) -> None:
        """Add a thing, or see that its key is smaller now."""
        key = self._key(thing)
        if key < self._listed.get(thing, (math.inf,))[0]:
            self._listed[thing] = key, number
            heappush(self._heap, (key, number, thing))
            if len(self._heap) > 2 * len(self._listed) + 16:
                self._heap = [(*listed, thing) for thing, listed in self._listed.items()]
                heapify(self._heap)

    def first(self, wanted: Container[T], below: float = math.inf) -> T | None:
        """Return the thing with the smallest key of those `wanted`, None if that is not `below`.

        Things that are not wanted are forgotten where they are met.
        """
        while self._heap and self._heap[0][0] < below:
            key, number, thing = self._heap[0]
            if thing not in wanted or self._listed.get(thing) != (key, number):
                heappop(self._heap)
                if self._listed.get(thing) == (key, number):
                    del self._listed[thing]
            elif (now := self._key(thing)) > key:
                self._listed[thing] = now, number
                heapreplace(self._heap, (now, number, thing))
            else:
                return thing
        return None
