"""Configuration spaces: restrictions hold, small spaces are counted, large ones sampled without enumeration."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunery.dialects.configurations.expressions import ExpressionError, parse, values_of
from tunery.dialects.configurations.space import ConfigurationSpace, EmptySpaceError

NAMES = ("a", "b", "c", "d")
RULES = (
    "a * b <= c + 4",
    "a <= b",
    "b % c == 0",
    "a + d != 3",
    "c in [1, 4] or d > a",
    "2 <= c < 8",
    "a / (b - 2) > 1",
)


def space(parameters: dict, *rules: str) -> ConfigurationSpace:
    return ConfigurationSpace(parameters, [parse(rule, parameters) for rule in rules])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), min_size=4, max_size=4),
    st.lists(st.sampled_from(RULES), max_size=3, unique=True),
)
def test_a_space_has_exactly_what_fulfils_all_restrictions(lists: list[list[int]], rules: list[str]) -> None:
    parameters = dict(zip(NAMES, lists, strict=True))
    parsed = [parse(rule, NAMES) for rule in rules]
    right = [
        values for values in itertools.product(*lists)
        if all(one.holds(dict(zip(NAMES, values, strict=True))) for one in parsed)
    ]  # fmt: skip
    if not right:
        with pytest.raises(EmptySpaceError):
            ConfigurationSpace(parameters, parsed)
        return
    found = ConfigurationSpace(parameters, parsed)
    assert found.size == len(right)
    listed = [tuple(found.configuration(found.at(i)).values()) for i in range(found.size)]
    assert sorted(listed) == sorted(right)
    sampled = found.sample(len(right), np.random.default_rng(0))
    assert len(set(sampled)) == len(sampled) == len(right)
    for choices in sampled:
        assert found.choices(found.configuration(choices)) == choices
        assert all(found.allows(near) for near in found.neighbours(choices))


def test_a_billion_configurations_are_sampled_without_a_list() -> None:
    parameters = {f"p{i}": tuple(range(1, 9)) for i in range(10)}
    assert 8 ** len(parameters) > 10**9
    large = space(parameters, "p0 * p1 * p2 <= 64", "p3 % p4 == 0", "p5 + p6 + p7 + p8 + p9 <= 30")
    assert large.size is not None
    assert large.size > 10**8
    sampled = large.sample(500, np.random.default_rng(0))
    assert len(set(sampled)) == 500
    assert all(large.allows(choices) for choices in sampled)


def test_a_restriction_over_all_parameters_is_sampled_too() -> None:
    parameters = {f"p{i}": tuple(range(1, 9)) for i in range(10)}
    tight = space(parameters, " + ".join(parameters) + " <= 13")
    sampled = tight.sample(20, np.random.default_rng(0))
    assert len(set(sampled)) == 20
    assert all(tight.allows(choices) for choices in sampled)


def test_samples_of_a_counted_space_are_uniform() -> None:
    found = space({"a": range(8), "b": range(8)}, "a * b >= 20")
    assert found.size is not None
    rng = np.random.default_rng(0)
    drawn = [found.sample(1, rng)[0] for _ in range(40 * found.size)]
    counts = [drawn.count(found.at(i)) for i in range(found.size)]
    assert min(counts) > 10
    assert max(counts) < 90


def test_values_are_read_as_kernel_tuner_writes_them() -> None:
    assert values_of("[1, 2.5, 'x', True]") == [1, 2.5, "x", True]
    assert values_of("list(range(1, 8, 3))") == [1, 4, 7]
    assert values_of("[16 * i for i in range(1, 4)]") == [16, 32, 48]
    assert values_of("(4,)") == [4]
    for wrong in ("[x]", "[i for i in range(3) if i]", "range(1, 9, 0)", "open('x')", "[[1]]", "range(10**30)"):
        with pytest.raises(ExpressionError):
            values_of(wrong)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | st.text("ab0123456789+-*/%()<>=!&|.,[]' ", max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        found = parse(text, ("a", "b"))
    except ExpressionError:
        return
    assert found.holds({"a": 3, "b": 5}) in (True, False)


@pytest.mark.parametrize("text", ["9**9**9", "a**64**a", "10**30 * a**60", "'x' * 10**9", "a << 10", "(lambda: 1)()"])
def test_nothing_grows_without_bound(text: str) -> None:
    try:
        found = parse(text, ("a",))
    except ExpressionError:
        return
    assert not found.holds({"a": 1 << 19})
