"""The search of a task's configurations: spread out at first, then by a Gaussian process over what was measured. The
first is the one in the middle: extremes are rarely fast. The process learns how much each parameter matters. Where the
space is small, all of it is ranked, and in the end all of it is proposed; of a larger one a fresh sample is ranked,
with the neighbours of the best."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import DialectError
from tunery.costmodels.gaussian import GaussianProcess
from tunery.dialects import Observation, Proposer
from tunery.dialects.configurations import candidate_of, configuration_of
from tunery.dialects.configurations.space import Choices, ConfigurationSpace
from tunery.domain import Candidate, Origin, Outcome, Task, canonical_json

Floats = npt.NDArray[np.float64]

_FIRST = 4
_SPREAD_OF = 12
"""Of so many configurations drawn at random the first ones are those furthest from the others."""
_RANKED_WHOLE = 4096
_POOL, _SLOW_POOL = 1024, 128
"""From how many configurations some are chosen; from fewer at first where the space cannot be counted: drawing is slow.
"""
_LEADERS = 3
_TRIED, _FACTOR, _ALL_FACTOR, _DOUBT = 5, 2.0, 1.6, 0.75
"""Of how many parameters the length is tried anew at a time, by which factor; the deviation of its logarithm."""
_MOST_LEARNED = 320
_SLOW, _SLOW_SHARE, _FAILED_BELOW = 0.4, 0.2, 0.5
"""Which share of what was timed is slow, how much of its differences counts, and how far below it a failure is."""
_NOISE, _NOISE_ABANDONED = 1e-3, 4e-2
_WIDE = 4.0


class ConfigurationEncoder:
    """Turns configurations into rows of numbers: logarithms of wide ranges, places of narrow ones, marks of names."""

    def __init__(self, space: ConfigurationSpace) -> None:
        self._columns = [_columns(values) for values in space.values]
        self.parameters = np.repeat(np.arange(len(self._columns)), [column.shape[1] for column in self._columns])
        """Which parameter each number of a row is of."""

    def rows(self, configurations: Sequence[Choices]) -> Floats:
        chosen = np.array(configurations, dtype=np.int64).reshape(len(configurations), len(self._columns))
        parts: list[Floats] = [table[chosen[:, i]] for i, table in enumerate(self._columns)]
        return np.asarray(np.concatenate(parts, axis=1))


def _columns(values: Sequence[object]) -> Floats:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return np.eye(len(values))
    column = np.array(numbers, dtype=np.float64)
    low, high = float(column.min()), float(column.max())
    if low > 0 and high / low >= _WIDE:
        column = np.log2(column)
    elif low == 0 and high >= _WIDE:
        column = np.log2(1 + column)
    column = (column - column.mean()) / max(float(column.std()), 1e-9)
    return np.asarray(column[:, None])


class ConfigurationSearch:
    """Ask and tell over configurations; the same seed and answers give the same questions. `first` are asked for before
    others; `recorded` are all that may be asked for, where a study has no others."""

    def __init__(
        self, space: ConfigurationSpace, seed: int, first: Sequence[Choices] = (), recorded: Sequence[Choices] = ()
    ) -> None:
        self._space, self._rng = space, np.random.default_rng([seed, 0x5EED])
        self._recorded = list(recorded)
        self._turn = self._asked = 0
        self._length, self._relevance = 1.0, np.ones(len(space.names))
        self._encoder = ConfigurationEncoder(space)
        self._seen: set[Choices] = set()
        self._told: dict[Choices, tuple[float | None, bool]] = {}
        self._first = [one for one in dict.fromkeys(first) if space.allows(one)]

    def skip(self, choices: Choices) -> None:
        self._seen.add(choices)

    def tell(self, choices: Choices, latency_s: float | None, *, complete: bool = True) -> None:
        """Take in what a configuration takes, None where it failed; not `complete` if its measurement was cut off."""
        self._seen.add(choices)
        self._told[choices] = (None if latency_s is None or not 0 < latency_s < math.inf else latency_s), complete

    def ask(self, count: int) -> list[Choices]:
        asked: list[Choices] = []
        while self._first and len(asked) < count:
            one = self._first.pop(0)
            if one not in self._seen:
                asked.append(one)
                self._seen.add(one)
        timed = sum(latency_s is not None for latency_s, _ in self._told.values())
        left = count - len(asked)
        if left > 0:
            more = self._spread(left) if timed < _FIRST else self._ranked(left)
            self._seen.update(more)
            asked += more
        self._asked += len(asked)
        return asked

    def _spread(self, count: int) -> list[Choices]:
        """Return configurations far from one another and from what was asked for; the very first is in the middle."""
        slow = self._space.size is None and not self._recorded
        pool = self._random(max(_SLOW_POOL, 2 * count) if slow else _POOL)
        if len(pool) <= count:
            return pool
        rows = self._encoder.rows([*pool, *sorted(self._seen)])
        rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
        far = np.full(len(pool), np.inf)
        for row in rows[len(pool) :]:
            far = np.minimum(far, ((rows[: len(pool)] - row) ** 2).sum(axis=1))
        found: list[int] = []
        while len(found) < count:
            if not found and not self._asked and len(self._told) < 2:
                best = int(np.argmin((rows[: len(pool)] ** 2).sum(axis=1)))
            else:
                best = max((int(i) for i in self._rng.choice(len(pool), _SPREAD_OF)), key=lambda i: float(far[i]))
            if best not in found:
                found.append(best)
            far = np.minimum(far, ((rows[: len(pool)] - rows[best]) ** 2).sum(axis=1))
        return [pool[i] for i in found]

    def _random(self, count: int) -> list[Choices]:
        if (left := self._left()) is not None:
            return [left[int(i)] for i in self._rng.permutation(len(left))[:count]]
        found: dict[Choices, None] = {}
        for _ in range(6):
            found |= dict.fromkeys(one for one in self._space.sample(2 * count, self._rng) if one not in self._seen)
            if len(found) >= count:
                break
        return list(found)[:count]

    def _left(self) -> list[Choices] | None:
        """Return all that was not asked for yet; None where the space is too large for that."""
        size = self._space.size
        if self._recorded:
            return [one for one in self._recorded if one not in self._seen]
        if size is None or size > _RANKED_WHOLE:
            return None
        return [one for i in range(size) if (one := self._space.at(i)) not in self._seen]

    def _ranked(self, count: int) -> list[Choices]:
        learned = self._learned()
        found: list[Choices] = []
        for near in (True, False) if count > 1 else (bool(self._turn % 2),):
            wanted = (count + 1) // 2 if near else count - len(found)
            pool = (self._near() if near else []) or self._pool()
            found += self._picked([one for one in pool if one not in found], min(wanted, count), learned)
        self._turn += 1
        return found

    def _picked(
        self, pool: Sequence[Choices], count: int, learned: Sequence[tuple[Choices, float, bool]]
    ) -> list[Choices]:
        if len(pool) <= count:
            return list(pool)
        rows = self._encoder.rows([one for one, _, _ in learned])
        targets = np.array([target for _, target, _ in learned])
        noise = np.array([_NOISE if complete else _NOISE_ABANDONED for _, _, complete in learned])
        near = self._encoder.rows(pool)
        background = np.concatenate([rows, near])

        def fitted(length: float, relevance: Floats) -> tuple[float, GaussianProcess]:
            columns = relevance[self._encoder.parameters]
            process = GaussianProcess(rows, targets, noise, background, (length,), columns)
            # Parameters matter alike, and not much more than a deviation tells, if nothing says otherwise.
            return process.likelihood - 0.5 * float((np.log(relevance / length) ** 2).sum()) / _DOUBT**2, process

        likely, process = fitted(self._length, self._relevance)
        changes = [(factor, None) for factor in (_ALL_FACTOR, 1 / _ALL_FACTOR)] + [
            (factor, int(i)) for i in self._rng.permutation(len(self._relevance))[:_TRIED]
            for factor in (1 / _FACTOR, _FACTOR)
        ]  # fmt: skip
        for factor, parameter in changes:
            length, relevance = self._length, self._relevance.copy()
            if parameter is None:
                length *= factor
            else:
                relevance[parameter] *= factor
            more, other = fitted(length, relevance)
            if more > likely:
                likely, process, self._length, self._relevance = more, other, length, relevance
        return [pool[i] for i in process.pick(near, count)]

    def _pool(self) -> list[Choices]:
        left = self._left()
        if left is not None and len(left) <= _POOL:
            return left
        sampled = self._space.sample(_POOL, self._rng) if left is None else [
            left[int(i)] for i in self._rng.choice(len(left), _POOL, replace=False)
        ]  # fmt: skip
        return list(dict.fromkeys([*self._near(), *(one for one in sampled if one not in self._seen)]))

    def _near(self) -> list[Choices]:
        timed = [(latency_s, one) for one, (latency_s, _) in self._told.items() if latency_s is not None]
        allowed = set(self._recorded)
        return list(dict.fromkeys(
            near for _, leader in sorted(timed)[:_LEADERS] for near in self._space.neighbours(leader)
            if near not in self._seen and (not allowed or near in allowed)
        ))  # fmt: skip

    def _learned(self) -> list[tuple[Choices, float, bool]]:
        """Learn from the speed as a logarithm: of many, the fastest and the latest. Of what is slower than many,
        differences count less: they would hide those among the fastest."""
        told = list(self._told.items())
        if len(told) > _MOST_LEARNED:
            half = _MOST_LEARNED // 2
            fastest = sorted(told[:-half], key=lambda one: math.inf if one[1][0] is None else one[1][0])[:half]
            told = fastest + told[-half:]
        speeds = [-math.log(latency_s) for _, (latency_s, _) in self._told.items() if latency_s is not None]
        floor = float(np.quantile(speeds, _SLOW))
        failed = floor - max(_FAILED_BELOW, _SLOW_SHARE * (floor - min(speeds)))

        def target(latency_s: float | None) -> float:
            if latency_s is None:
                return failed
            speed = -math.log(latency_s)
            return max(speed, floor + _SLOW_SHARE * (speed - floor))

        return [(one, target(latency_s), complete) for one, (latency_s, complete) in told]


class ConfigurationProposer(Proposer):
    """The search as the tuner sees it: a task's candidates, whose bodies have a configuration under `name`."""

    def __init__(self, search: ConfigurationSearch, space: ConfigurationSpace, task: Task, name: str) -> None:
        self._search, self._space, self._task, self._name = search, space, task, name

    def _candidate(self, choices: Choices) -> Candidate:
        body = canonical_json({self._name: self._space.configuration(choices)})
        return candidate_of(self._task, body, Origin.SEARCH)

    def _choices(self, candidate: Candidate) -> Choices | None:
        try:
            return self._space.choices(configuration_of(candidate.body, self._name))
        except DialectError:
            return None

    @override
    def propose(self, n: int) -> list[Candidate]:
        return [self._candidate(choices) for choices in self._search.ask(n)] if n > 0 else []

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        for result in results:
            choices = self._choices(result.candidate)
            if choices is not None:
                right = result.outcome in {Outcome.OK, Outcome.ABANDONED}
                self._search.tell(choices, result.latency_s if right else None, complete=result.outcome is Outcome.OK)
