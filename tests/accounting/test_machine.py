from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.accounting.machine import MachineTime

STEPS = st.tuples(st.sampled_from("abc"), st.sampled_from(["begin", "end", "hold", "leave"]), st.integers(0, 9))


@given(st.lists(STEPS))
def test_the_parts_are_the_time_in_which_a_job_ran(steps: list[tuple[str, str, int]]) -> None:
    now = paid = ran = 0.0
    machine = MachineTime(lambda: now)
    running, holding = dict[str, ExitStack](), {name: ExitStack() for name in "abc"}
    for name, do, seconds in steps:
        if do == "begin" and name not in running:
            running[name] = ExitStack()
            running[name].enter_context(machine.running(name))
        elif do == "end" and name in running:
            paid += machine.take(name).time_s
            running.pop(name).close()
        elif do == "hold":
            holding[name].enter_context(machine.held(name, 1 + seconds))
        elif do == "leave":
            holding[name].close()
        now += seconds
        ran += seconds if running else 0
    assert paid + sum(machine.take(name).time_s for name in running) == pytest.approx(ran)


def test_cores_divide_the_time_of_those_who_hold_some() -> None:
    now = 0.0
    machine = MachineTime(lambda: now)
    with machine.running("a"), machine.running("b"), machine.running("c"), machine.held("other", 5):
        with machine.held("a", 3), machine.held("b", 1):
            now = 8.0
        assert [machine.time_s(name) for name in "abc"] == [6.0, 2.0, 0.0]
        now = 11.0
        assert [machine.time_s(name) for name in "abc"] == [7.0, 3.0, 1.0]
    assert machine.time_s("a") == 0.0


def test_a_job_that_is_alone_pays_from_when_it_began() -> None:
    now = 10.0
    machine = MachineTime(lambda: now)
    with machine.running("a", 4.0):
        assert machine.time_s("a") == 6.0
        with machine.running("b", 4.0):
            assert machine.time_s("b") == 0.0, "another has paid for that time"
    now = 20.0
    with machine.running("c", 4.0):
        assert machine.time_s("c") == 10.0
