"""Who begins next where there is no place for all: no owner's queue and no stream of urgent jobs shuts others out."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tunery.domain.request import ShareRequest
from tunery.service.queue_policy import QueuedJob, next_turn

NOBODY: dict[str, int] = {}


def names(claims: list[ShareRequest]) -> list[QueuedJob]:
    return [QueuedJob(str(order), claim, order) for order, claim in enumerate(claims)]


def test_the_urgent_then_the_oldest() -> None:
    waiting = names([ShareRequest(), ShareRequest(priority=1), ShareRequest(priority=2), ShareRequest(priority=2)])
    order = []
    while one := next_turn(waiting, NOBODY):
        order.append(one.order)
        waiting.remove(one)
    assert order == [2, 3, 1, 0]


def test_one_owners_queue_does_not_make_another_wait() -> None:
    waiting = names([ShareRequest("ann")] * 500 + [ShareRequest("bob")])
    assert next_turn(waiting, {"ann": 31}) == waiting[-1]
    assert next_turn(waiting, {"ann": 3, "bob": 4}) == waiting[0]
    assert (
        next_turn(names([ShareRequest("ann"), ShareRequest("bob", weight=4.0)]), {"ann": 2, "bob": 4}).claim.owner
        == "bob"
    )  # type: ignore[union-attr]


@given(places=st.integers(1, 4), priority=st.integers(1, 10), owned=st.booleans())
def test_an_endless_stream_of_urgent_jobs_overtakes_only_so_many_times(places: int, priority: int, owned: bool) -> None:
    waiting = [QueuedJob("patient", ShareRequest("ann"), 0)]
    at_work: list[QueuedJob] = []
    for order in range(1, 1200):
        waiting.append(QueuedJob(str(order), ShareRequest("bob" if owned else "", priority=priority), order))
        if len(at_work) == places:
            at_work.pop(0)
        one = next_turn(waiting, Counter(job.owner for job in at_work))
        assert one is not None
        if one.job_id == "patient":
            return
        waiting.remove(one)
        at_work.append(one)
    raise AssertionError("it starved")
