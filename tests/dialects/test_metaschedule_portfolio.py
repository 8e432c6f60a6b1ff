"""How proposals are split over variants; no compiler runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

pytest.importorskip("tvm")

from tunery.dialects import Observation, Proposer
from tunery.dialects.metaschedule.search.portfolio import PortfolioProposer, part
from tunery.dialects.metaschedule.variants.variant import write_body
from tunery.domain import Candidate, Outcome

pytestmark = pytest.mark.tvm


class Counting(Proposer):
    """Proposes numbered candidates of one variant, at most `limit`."""

    def __init__(self, name: str, limit: int = 1000) -> None:
        self.name, self.limit, self.count = name, limit, 0
        self.told: list[Observation] = []
        self.model = ""

    def propose(self, n: int) -> list[Candidate]:
        n = min(n, self.limit - self.count)
        self.count += n
        return [
            Candidate(f"{self.name}{self.count - i}", "task", write_body(self.name, [self.count - i])) for i in range(n)
        ]

    def observe(self, results: Sequence[Observation]) -> None:
        self.told += results

    def learn(self, cost_model: str) -> None:
        self.model = cost_model


def results(name: str, latencies: Sequence[float | None]) -> list[Observation]:
    return [
        Observation(
            Candidate(f"{name}-{i}", "task", write_body(name, [i])), Outcome.OK if s else Outcome.BUILD_FAILED, s
        )
        for i, s in enumerate(latencies)
    ]


def test_all_get_the_same_until_each_was_tried() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic"), "a": Counting("a")}, [])
    proposer.observe(results("generic", [1.0] * 20) + results("a", [0.1] * 7))
    assert proposer.shares() == {"generic": 0.5, "a": 0.5}
    names = [c.key[0] for _ in range(2) for c in proposer.propose(5)]
    assert sorted(names) == ["a"] * 5 + ["g"] * 5  # an odd one is carried over


def test_the_fastest_gets_most_and_the_slowest_keeps_some() -> None:
    searches = {"generic": Counting("generic"), "a": Counting("a"), "b": Counting("b")}
    proposer = PortfolioProposer(searches, results("generic", [1.0] * 60))
    proposer.observe(results("a", [2.0] * 7 + [0.5]) + results("b", [None] * 8))
    shares = proposer.shares()
    assert shares["a"] == pytest.approx(8 / 9)
    assert shares["generic"] == shares["b"] == pytest.approx(1 / 18)
    proposer.propose(180)
    assert [searches[name].count for name in ("generic", "a", "b")] == [10, 160, 10]


def test_a_loser_of_few_trials_is_not_given_up() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic"), "a": Counting("a")}, [])
    proposer.observe(results("generic", [2.0] * 8) + results("a", [1.0] * 8))
    early = proposer.shares()["generic"]
    proposer.observe(results("generic", [2.0] * 40))
    assert early > 0.25
    assert proposer.shares()["generic"] == pytest.approx(1 / 17)


def test_a_tie_is_searched_in_both() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic"), "a": Counting("a")}, [])
    proposer.observe(results("generic", [1.0] * 8) + results("a", [1.02] * 8))
    assert proposer.shares()["a"] > 0.4


def test_an_exhausted_variant_leaves_its_share_to_the_others() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic", limit=1), "a": Counting("a")}, [])
    assert len(proposer.propose(10)) == 10
    both = PortfolioProposer({"generic": Counting("generic", limit=2), "a": Counting("a", limit=3)}, [])
    assert len(both.propose(10)) == 5
    assert both.propose(1) == []


def test_results_and_models_reach_the_right_search() -> None:
    searches = {"generic": Counting("generic"), "a": Counting("a")}
    proposer = PortfolioProposer(searches, [])
    unscheduled = Observation(Candidate("plain", "task", ""), Outcome.OK, 3.0)
    mine, other = results("a", [1.0]), results("generic", [2.0])
    proposer.observe([unscheduled, *mine, *other])
    proposer.learn("model")
    assert searches["a"].told == [unscheduled, *mine]
    assert searches["generic"].told == [unscheduled, *other]
    assert {search.model for search in searches.values()} == {"model"}
    broken = Observation(Candidate("x", "task", "not json"), Outcome.BUILD_FAILED, None)
    assert part([broken, *mine], "a")[-1:] == mine


def test_one_that_has_no_more_to_propose_does_not_hold_up_the_others() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic"), "a": Counting("a", limit=3)}, [])
    proposer.propose(20)
    proposer.observe(results("generic", [1.0] * 17) + results("a", [4.0] * 3))
    assert proposer.shares()["generic"] > 0.6


def test_what_was_filtered_is_no_trial() -> None:
    proposer = PortfolioProposer({"generic": Counting("generic"), "a": Counting("a")}, [])
    dropped = [replace(told, outcome=Outcome.FILTERED) for told in results("a", [None] * 8)]
    proposer.observe(results("generic", [1.0] * 8) + dropped)
    assert proposer.shares() == {"generic": 0.5, "a": 0.5}


class Failing(Counting):
    """Fails with its second proposal."""

    def propose(self, n: int) -> list[Candidate]:
        if self.count:
            raise RuntimeError("Check failed: a rule cannot handle this program")
        return super().propose(n)


class Deaf(Counting):
    """Fails whenever it is told something."""

    def observe(self, results: Sequence[Observation]) -> None:
        raise ValueError("not this")

    def learn(self, cost_model: str) -> None:
        raise ValueError("nor that")


def test_a_search_that_fails_costs_itself_only_and_is_named() -> None:
    left_out: dict[str, str] = {}
    proposer = PortfolioProposer({"generic": Counting("generic"), "odd": Failing("odd")}, [], left_out)
    assert len(proposer.propose(4)) == 4
    assert not left_out
    assert [c.key[:7] for c in proposer.propose(4)] == ["generic"] * 4
    assert "a rule cannot handle" in left_out["odd"]
    proposer.observe(results("odd", [1.0]))
    assert len(proposer.propose(3)) == 3
    left_out.clear()
    deaf = Deaf("deaf")
    proposer = PortfolioProposer({"generic": Counting("generic"), "deaf": deaf, "a": deaf}, [], left_out)
    proposer.observe(results("deaf", [1.0]))
    proposer.learn("model")
    assert left_out == {"deaf": "ValueError: not this", "a": "ValueError: nor that"}
    proposer = PortfolioProposer({"generic": Failing("generic"), "a": Counting("a")}, [])
    proposer.propose(2)
    with pytest.raises(RuntimeError, match="a rule cannot"):
        proposer.propose(2)
