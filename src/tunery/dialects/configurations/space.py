"""The configurations of a kernel: all combinations of its parameters' values that its restrictions allow. Parameters
that no restriction connects are independent of one another. So the space is a product of groups; a group's
configurations are enumerated where it is small, and then the space is counted, numbered and sampled uniformly, however
large the product is. A larger group is sampled: by rejection, which is uniform, and where that finds too little, by a
random walk over its configurations that changes one or two parameters at a time (Gibbs sampling)."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunery.dialects.configurations.expressions import ParameterExpression, Value

Choices = tuple[int, ...]
"""A configuration: which value each parameter takes, by its place in the list of its values."""

_MOST_STEPS = 200_000
_MOST_LISTED = 200_000
_REJECTIONS = 100
_PAIRS = 24


class EmptySpaceError(ValueError):
    """No configuration fulfils the restrictions; the message says which of them together leave none."""


@dataclass(frozen=True)
class _Group:
    """Parameters that restrictions connect; `listed` has all their configurations, None where they are too many."""

    parameters: tuple[int, ...]
    restrictions: tuple[ParameterExpression, ...]
    listed: tuple[Choices, ...] | None


class ConfigurationSpace:
    """The configurations of parameters (name to values) under restrictions."""

    def __init__(self, parameters: Mapping[str, Sequence[Value]], restrictions: Sequence[ParameterExpression]) -> None:
        self.names = tuple(parameters)
        self.values = tuple(tuple(values) for values in parameters.values())
        self.restrictions = tuple(restrictions)
        self._groups = [self._group(members) for members in self._connected()]
        sizes = [None if group.listed is None else len(group.listed) for group in self._groups]
        self.size = None if None in sizes else math.prod(size for size in sizes if size is not None)
        """How many configurations there are; None where they are too many to count."""
        self.first = self._first()

    def configuration(self, choices: Choices) -> dict[str, Value]:
        return {name: values[i] for name, values, i in zip(self.names, self.values, choices, strict=True)}

    def choices(self, configuration: Mapping[str, Value]) -> Choices | None:
        """Return the place of each value; None where the configuration is none of this space."""
        if configuration.keys() != set(self.names):
            return None
        found = []
        for name, values in zip(self.names, self.values, strict=True):
            value = configuration[name]
            places = [
                i for i, one in enumerate(values) if one == value and isinstance(one, str) == isinstance(value, str)
            ]
            if not places:
                return None
            found.append(places[0])
        choices = tuple(found)
        return choices if self.allows(choices) else None

    def allows(self, choices: Choices) -> bool:
        values = self.configuration(choices)
        return all(restriction.holds(values) for restriction in self.restrictions)

    def at(self, number: int) -> Choices:
        found = [0] * len(self.names)
        for group in self._groups:
            assert group.listed is not None
            number, place = divmod(number, len(group.listed))
            for parameter, choice in zip(group.parameters, group.listed[place], strict=True):
                found[parameter] = choice
        return tuple(found)

    def sample(self, count: int, rng: np.random.Generator) -> list[Choices]:
        if self.size is not None and self.size <= 4 * count:
            return [self.at(int(i)) for i in rng.permutation(self.size)[:count]]
        found: dict[Choices, None] = {}
        walks: dict[int, Choices] = {}
        for _ in range(4 * count + 16):
            if len(found) == count:
                break
            found[self._drawn(walks, rng)] = None
        return list(found)

    def neighbours(self, choices: Choices) -> Iterator[Choices]:
        for place, values in enumerate(self.values):
            for other in range(len(values)):
                changed = (*choices[:place], other, *choices[place + 1 :])
                if other != choices[place] and self.allows(changed):
                    yield changed

    def _drawn(self, walks: dict[int, Choices], rng: np.random.Generator) -> Choices:
        found = [0] * len(self.names)
        for number, group in enumerate(self._groups):
            if group.listed is not None:
                chosen = group.listed[int(rng.integers(len(group.listed)))]
            elif number in walks or (drawn := self._rejected(group, rng)) is None:
                start = walks.get(number) or tuple(self.first[parameter] for parameter in group.parameters)
                chosen = walks[number] = self._walked(group, start, rng)
            else:
                chosen = drawn
            for parameter, choice in zip(group.parameters, chosen, strict=True):
                found[parameter] = choice
        return tuple(found)

    def _rejected(self, group: _Group, rng: np.random.Generator) -> Choices | None:
        sizes = [len(self.values[parameter]) for parameter in group.parameters]
        for _ in range(_REJECTIONS):
            drawn = tuple(int(i) for i in rng.integers(sizes))
            if self._fulfils(group, drawn):
                return drawn
        return None

    def _walked(self, group: _Group, start: Choices, rng: np.random.Generator) -> Choices:
        sizes = [len(self.values[parameter]) for parameter in group.parameters]
        at = start
        for _ in range(2):
            for place in rng.permutation(len(sizes)):
                options = [(*at[:place], i, *at[place + 1 :]) for i in range(sizes[place])]
                allowed = [option for option in options if self._fulfils(group, option)]
                at = allowed[int(rng.integers(len(allowed)))]
            for _ in range(_PAIRS):
                pair = rng.choice(len(sizes), 2, replace=False)
                moved = list(at)
                for place in pair:
                    moved[place] = int(rng.integers(sizes[place]))
                at = tuple(moved) if self._fulfils(group, tuple(moved)) else at
        return at

    def _fulfils(self, group: _Group, choices: Choices) -> bool:
        values = {
            self.names[parameter]: self.values[parameter][choice]
            for parameter, choice in zip(group.parameters, choices, strict=True)
        }
        return all(restriction.holds(values) for restriction in group.restrictions)

    def _first(self) -> Choices:
        found = [0] * len(self.names)
        for group in self._groups:
            if group.listed is not None:
                chosen = group.listed[0]
            else:
                searched = next(self._search(group.parameters, group.restrictions), None)
                if searched is None:
                    raise EmptySpaceError(_told(group.restrictions, "no configuration was found that fulfils"))
                chosen = searched
            for parameter, choice in zip(group.parameters, chosen, strict=True):
                found[parameter] = choice
        return tuple(found)

    def _connected(self) -> list[list[int]]:
        groups: list[set[str]] = [{name} for name in self.names]
        for restriction in self.restrictions:
            touched = [group for group in groups if group & restriction.names]
            if touched:
                groups = [group for group in groups if group not in touched] + [set().union(*touched)]
        return [[i for i, name in enumerate(self.names) if name in group] for group in groups]

    def _group(self, members: Sequence[int]) -> _Group:
        names = {self.names[i] for i in members}
        mine = tuple(one for one in self.restrictions if one.names & names)
        if not mine and len(members) == 1:
            return _Group(tuple(members), mine, tuple((i,) for i in range(len(self.values[members[0]]))))
        # The most restricted first, so that what is impossible is seen early.
        order = sorted(members, key=lambda i: -sum(self.names[i] in one.names for one in mine))
        try:
            listed = tuple(itertools.islice(self._search(order, mine, whole=True), _MOST_LISTED + 1))
        except _TooManyError:
            return _Group(tuple(order), mine, None)
        if not listed:
            raise EmptySpaceError(_told(mine, "no configuration fulfils"))
        return _Group(tuple(order), mine, listed if len(listed) <= _MOST_LISTED else None)

    def _search(
        self, order: Sequence[int], restrictions: Sequence[ParameterExpression], *, whole: bool = False
    ) -> Iterator[Choices]:
        """Yield configurations in the order of their values; a restriction prunes early. It ends after many steps;
        where the `whole` is wanted that is an error."""
        names = [self.names[i] for i in order]
        due = [
            [one for one in restrictions if names[depth] in one.names and one.names <= set(names[: depth + 1])]
            for depth in range(len(names))
        ]
        values: dict[str, Value] = {}
        at, chosen, steps = [0] * len(order), [0] * len(order), 0
        depth = 0
        while depth >= 0:
            if depth == len(order):
                yield tuple(chosen)
                depth -= 1
                continue
            if at[depth] == len(self.values[order[depth]]):
                at[depth] = 0
                depth -= 1
                continue
            steps += 1
            if steps > _MOST_STEPS:
                if whole:
                    raise _TooManyError
                return
            chosen[depth] = at[depth]
            at[depth] += 1
            values[names[depth]] = self.values[order[depth]][chosen[depth]]
            if all(one.holds(values) for one in due[depth]):
                depth += 1


class _TooManyError(Exception):
    """A group has too many configurations to list."""


def _told(restrictions: Sequence[ParameterExpression], what: str) -> str:
    shown = ", ".join(repr(restriction.text[:60]) for restriction in restrictions[:4])
    return f"{what} {shown}"
