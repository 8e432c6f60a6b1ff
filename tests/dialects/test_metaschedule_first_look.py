"""The first look at a task is at one variant; what follows knows all of them, and what the look has found."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from test_metaschedule_own_spaces import bare_network

from tunery.costmodels.registry import shipped
from tunery.devices import open_device
from tunery.dialects import Dialect, Observation, Proposer
from tunery.dialects.metaschedule.search.first_look import FirstLook
from tunery.dialects.metaschedule.search.genomes import Design, Gene, Genome
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants import place_sums
from tunery.dialects.metaschedule.variants.program import variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body, read_left_out
from tunery.domain import Candidate, Outcome, Task

pytestmark = pytest.mark.tvm


class Scripted(Proposer):
    """Proposes numbered candidates, up to `most`, and remembers what it was told."""

    def __init__(self, name: str, most: int = 99) -> None:
        self.name, self.left = name, most
        self.told: list[Observation] = []
        self.models: list[str] = []

    def propose(self, n: int) -> list[Candidate]:
        count = min(n, self.left)
        self.left -= count
        return [Candidate(f"{self.name}{self.left + i}", "t", self.name) for i in range(count)]

    def observe(self, results: Sequence[Observation]) -> None:
        self.told += results

    def learn(self, cost_model: str) -> None:
        self.models.append(cost_model)


def look(first: Scripted, whole: Scripted) -> tuple[FirstLook, list[Sequence[Observation]]]:
    handed: list[Sequence[Observation]] = []

    def widen(told: Sequence[Observation]) -> Proposer:
        handed.append(list(told))
        return whole

    return FirstLook(first, widen), handed


def test_only_the_first_few_come_from_one_search() -> None:
    first, whole = Scripted("a"), Scripted("b")
    search, handed = look(first, whole)
    found = search.propose(4)
    assert [c.body for c in found] == ["a"] * 4
    assert handed == [], "the others are not prepared yet"
    told = [Observation(c, Outcome.OK, 1e-3) for c in found]
    search.observe(told)
    search.learn("model")
    assert [c.body for c in search.propose(4)] == ["b"] * 4
    assert handed == [told]
    assert whole.models == ["model"], "what came meanwhile"
    search.observe(told[:1])
    assert whole.told == told[:1]


def test_a_large_first_proposal_and_a_poor_search_open_all() -> None:
    search, handed = look(Scripted("a"), Scripted("b"))
    assert {c.body for c in search.propose(16)} == {"b"}
    assert handed == [[]]
    search, _ = look(Scripted("a", most=1), Scripted("b"))
    assert [c.body for c in search.propose(3)] == ["a", "b", "b"]


def test_a_leading_search_that_fails_is_left_to_all() -> None:
    broken = Scripted("a")
    broken.propose = lambda n: 1 // 0  # type: ignore[method-assign,assignment]
    search, handed = look(broken, Scripted("b"))
    assert [c.body for c in search.propose(2)] == ["b", "b"]
    assert handed == [[]]


@pytest.mark.parametrize("what", ["observe", "learn"])
def test_a_leading_search_that_fails_at_a_lesson_is_left_to_all(what: str) -> None:
    broken = Scripted("a")
    setattr(broken, what, lambda transfer_state: 1 // 0)
    search, handed = look(broken, Scripted("b"))
    told = [Observation(c, Outcome.OK, 1e-3) for c in search.propose(2)]
    search.observe(told)
    search.learn("model")
    assert [c.body for c in search.propose(2)] == ["b", "b"]
    assert handed == [told], "nothing that was told is lost"


def test_a_leading_search_that_cannot_learn_is_not_asked_at_all() -> None:
    broken = Scripted("a")
    broken.learn = lambda cost_model: 1 // 0  # type: ignore[method-assign,assignment]
    search, _ = look(broken, Scripted("b"))
    search.learn("model")
    assert [c.body for c in search.propose(2)] == ["b", "b"]


def mean_task(dialect: Dialect, directory: Path) -> Task:
    """Return a task with two variants."""
    tasks = dialect.extract(
        bare_network(directory, "GlobalAveragePool", (2, 32, 12, 14)), dialect.resolve_target("native", 1)
    )
    return next(task for task in tasks if place_sums.NAME in variants(task).found)


def break_search(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """Let the genes of a variant's designs not be found."""
    whole = Design._find_outline

    def broken(design: Design) -> tuple[Gene, ...]:
        if design._space.variant.name == variant:
            raise RuntimeError("  a frame\nno genes")
        return whole(design)

    monkeypatch.setattr(Design, "_find_outline", broken)


def test_the_variant_that_leads_is_the_first_look(dialect: Dialect, tmp_path: Path) -> None:
    task = mean_task(dialect, tmp_path)
    names = set(variants(task).found)
    assert len(names) > 1, "a task with one variant proves nothing"
    search = dialect.open(task, (), None, 0, warm_start=True)
    assert {read_body(c.body)[0] for c in search.propose(4)} == {place_sums.NAME}
    later = {read_body(c.body)[0] for c in search.propose(16)}
    assert later == names
    unaided = dialect.open(task, (), None, 0).propose(4)
    assert {read_body(c.body)[0] for c in unaided} == names


def test_a_search_that_fails_when_all_are_opened_costs_itself_only(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = mean_task(dialect, tmp_path)
    search = dialect.open(task, (), None, 0, warm_start=True)
    first = search.propose(4)
    observe = SurrogateProposer.observe

    def broken(self: SurrogateProposer, results: Sequence[Observation]) -> None:
        if self._space.variant.name == place_sums.NAME:
            raise RuntimeError("no lesson")
        observe(self, results)

    monkeypatch.setattr(SurrogateProposer, "observe", broken)
    search.observe([Observation(c, Outcome.OK, 1e-3) for c in first])
    found = search.propose(8)
    assert {read_body(c.body)[0] for c in found} == {GENERIC}
    assert all(read_left_out(c.body) == {place_sums.NAME: "RuntimeError: no lesson"} for c in found)


@pytest.mark.parametrize("part", ["genes", "replay"])
def test_a_search_that_cannot_be_had_costs_only_itself_and_what_is_found_says_why(
    part: str, dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, starting = mean_task(dialect, tmp_path), shipped("metaschedule", "x86")
    assert starting
    replay = SurrogateProposer._replay

    def broken(self: SurrogateProposer, genomes: Sequence[Genome]) -> list[str]:
        if self._space.variant.name == place_sums.NAME:
            raise RuntimeError("no replay")
        return replay(self, genomes)

    if part == "genes":
        break_search(monkeypatch, place_sums.NAME)
    else:
        monkeypatch.setattr(SurrogateProposer, "_replay", broken)
    search = dialect.open(task, [], None, 0, warm_start=True)
    suggested = dialect.suggest(task, 6, starting[1], 0).candidates
    for found in (suggested, search.propose(8)):
        assert {read_body(candidate.body)[0] for candidate in found} == {GENERIC}
        for candidate in found:
            assert read_left_out(candidate.body) == {place_sums.NAME: f"RuntimeError: no {part}"}
    kernel = dialect.load(task, dialect.build(task, suggested[0], tmp_path), open_device("cpu"))
    assert kernel.traits["left_out"] == {place_sums.NAME: f"RuntimeError: no {part}"}


def test_a_generic_program_that_cannot_be_searched_is_an_error(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_search(monkeypatch, GENERIC)
    with pytest.raises(RuntimeError, match="no genes"):
        dialect.open(mean_task(dialect, tmp_path), [], None, 0)
