"""The search of configurations: each is asked for once, hints come first, and what was told is made use of."""

import math

import numpy as np

from tunery.dialects.configurations.expressions import parse
from tunery.dialects.configurations.search import ConfigurationSearch
from tunery.dialects.configurations.space import Choices, ConfigurationSpace

PARAMETERS = {"x": tuple(2**i for i in range(10)), "y": tuple(range(1, 13)), "kind": ("a", "b", "c"), "flag": (0, 1)}
SPACE = ConfigurationSpace(PARAMETERS, [parse("x * y <= 1536", PARAMETERS)])


def latency_s(choices: Choices) -> float:
    """A bowl, with a name that matters and steep walls."""
    one = SPACE.configuration(choices)
    distance = (math.log2(float(one["x"])) - 6) ** 2 / 8 + (float(one["y"]) - 7) ** 2 / 20
    return (
        1e-3 * math.exp(distance) * {"a": 1.5, "b": 1.0, "c": 4.0}[str(one["kind"])] * (1.2 - 0.2 * float(one["flag"]))
    )


def best_of(asked: list[Choices]) -> float:
    return min(latency_s(one) for one in asked)


def searched(seed: int, count: int, batch: int = 1) -> list[Choices]:
    search, asked = ConfigurationSearch(SPACE, seed), []
    while len(asked) < count and (batched := search.ask(batch)):
        for one in batched:
            search.tell(one, latency_s(one))
        asked += batched
    return asked


def test_each_is_asked_for_once_until_all_were() -> None:
    small = ConfigurationSpace({"x": (1, 2, 4, 8, 16), "y": tuple(range(9))}, [parse("x * y != 8", ("x", "y"))])
    search, asked = ConfigurationSearch(small, 0), []
    while batch := search.ask(6):
        for one in batch:
            search.tell(one, 1e-3 + 1e-4 * one[0] + 1e-5 * one[1])
        asked += batch
    assert len(asked) == len(set(asked)) == small.size
    assert all(small.allows(one) for one in asked)


def test_the_same_seed_and_answers_give_the_same_questions() -> None:
    assert searched(3, 30, 5) == searched(3, 30, 5)
    assert searched(3, 30, 5) != searched(4, 30, 5)


def test_hints_come_first_and_what_is_skipped_never() -> None:
    hints = [SPACE.at(17), SPACE.at(5)]
    search = ConfigurationSearch(SPACE, 0, [*hints, (99, 0, 0, 0)][:2])
    search.skip(hints[1])
    assert search.ask(1) == hints[:1]
    assert hints[1] not in search.ask(400)


def test_the_first_of_a_space_that_cannot_be_counted_are_chosen_of_few_also_after_failures() -> None:
    """Drawing one configuration of such a space takes milliseconds."""

    class Uncounted(ConfigurationSpace):
        drawn = 0

        def sample(self, count: int, rng: np.random.Generator) -> list[Choices]:
            self.drawn += count
            return super().sample(count, rng)

    space = Uncounted(PARAMETERS, SPACE.restrictions)
    space.size = None
    search, asked = ConfigurationSearch(space, 0), []
    for _ in range(3):
        asked += search.ask(8)
        for one in asked:
            search.tell(one, None)
    assert len(set(asked)) == 24
    assert space.drawn <= 3 * 512


def test_it_finds_better_than_random_with_as_many_questions() -> None:
    ours = [best_of(searched(seed, 50, 5)) for seed in range(6)]
    drawn = [best_of(SPACE.sample(50, np.random.default_rng(seed))) for seed in range(60)]
    assert np.mean(ours) < np.mean(drawn)
    assert np.median(ours) < 1.1e-3


def test_failures_and_unfinished_measurements_are_told_too() -> None:
    search = ConfigurationSearch(SPACE, 0)
    for number, one in enumerate(search.ask(30)):
        search.tell(one, None if number % 3 == 0 else latency_s(one), complete=number % 3 == 1)
    asked = search.ask(10)
    assert len(asked) == 10
    only_failures = ConfigurationSearch(SPACE, 0)
    for one in only_failures.ask(30):
        only_failures.tell(one, None)
    assert len(only_failures.ask(10)) == 10


def test_where_nothing_can_be_learned_it_is_about_as_good_as_random() -> None:
    space = ConfigurationSpace({name: tuple(range(8)) for name in ("x", "y", "z")}, [])
    drawn = np.random.default_rng(1).lognormal(size=(8, 8, 8))
    found = []
    for seed in range(8):
        search, best = ConfigurationSearch(space, seed), math.inf
        for _ in range(16):
            [one] = search.ask(1)
            search.tell(one, float(drawn[one]))
            best = min(best, float(drawn[one]))
        found.append(best)
    random = [min(drawn[one] for one in space.sample(16, np.random.default_rng(seed))) for seed in range(200)]
    assert np.mean(found) < 1.5 * np.mean(random)


def test_where_the_fastest_are_level_the_slow_ones_are_left_alone() -> None:
    space = ConfigurationSpace({"x": tuple(2**i for i in range(8)), "y": tuple(range(1, 9)), "kind": ("a", "b")}, [])
    noise = np.random.default_rng(0).uniform(1, 1.05, (8, 8, 2))

    def is_slow(one: Choices) -> bool:
        return one[1] < 2 or (one[2] == 1 and one[0] < 6)

    whole = [space.at(i) for i in range(space.size or 0)]
    slow = 0
    for seed in range(4):
        search = ConfigurationSearch(space, seed)
        for number in range(50):
            [one] = search.ask(1)
            search.tell(one, float(noise[one]) * (3 if is_slow(one) else 1))
            slow += number >= 10 and is_slow(one)
    assert slow / (4 * 40) < 0.5 * sum(map(is_slow, whole)) / len(whole)
