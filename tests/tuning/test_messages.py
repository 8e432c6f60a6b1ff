from dataclasses import replace

from tunery.domain import TaskState
from tunery.tuning.reporting import latency_target_summary, unreached_summary


def state(key: str, *, reached: bool) -> TaskState:
    return TaskState(key, key, key, "matmul", 1, True, 1e-3, 5e-4, outcomes={"ok": 4} if reached else {})


def test_a_target_is_said_to_be_met_only_by_what_is_verified() -> None:
    assert "not all tasks were verified" in latency_target_summary(1e-3, None, served=False)
    assert "was not met: 2 ms" in latency_target_summary(1e-3, 2e-3, served=False)
    assert "met (0.9 ms" in latency_target_summary(1e-3, 9e-4, served=False)
    assert "nothing was tuned" in latency_target_summary(1e-3, 9e-4, served=True)


def test_tasks_that_were_not_reached_are_counted() -> None:
    states = [state("a", reached=True), state("b", reached=False)]
    assert unreached_summary(states[:1], 4, 0.0) == ""
    assert unreached_summary(states, 4, 0.0).startswith("1 of 2 tasks were not reached")


def test_a_task_of_which_only_the_default_ran_was_not_reached() -> None:
    proposed = replace(state("a", reached=False), outcomes={"filtered": 3}, best_candidate="c", untried=True)
    assert proposed.unreached, "it will be delivered as predicted"
    assert not replace(proposed, outcomes={"abandoned": 1}).unreached, "the default has won"
    assert not replace(proposed, outcomes={"build-failed": 2}).unreached, "its failures are to be seen"
    assert not replace(proposed, untried=False).unreached, "an earlier job's record is known"


def test_a_resumed_run_that_found_nothing_says_that_the_budget_was_used_before() -> None:
    states = [state("a", reached=True)]
    assert "earlier ones had used 25 s: the same command with a larger --budget" in unreached_summary(states, 0, 25.2)
    assert unreached_summary(states, 8, 25.2) == "", "it went on"
    assert unreached_summary(states, 0, 0.0) == "", "a first run may find all in the store"


def test_finals_that_were_left_out_are_counted() -> None:
    said = unreached_summary([state("a", reached=True)] * 3, 4, 0.0, unproven=2)
    assert said.startswith("no time was left to time the best of 2 of 3 tasks again")
    assert "larger --budget" in said
    again = unreached_summary([state("a", reached=True)] * 3, 4, 0.0, outdated=2)
    assert "2 of 3 tasks" in again
    assert "the best of 2" not in again, "their earlier finals count"
    assert "2 ms was reached, and no time was left to time the best of 2 tasks again" in latency_target_summary(
        1e-3, 2e-3, served=False, unproven=2
    )
