from collections import Counter
from random import Random

import pytest

from tunery.domain import HERE
from tunery.scheduling.paces import HostLoad, Paces

HOSTS = ("here", "near", "far")


def shares(paces: Paces, builds: int, builders: int = 2) -> Counter[str]:
    """Where builds go that are all asked for at once."""
    asked = Counter[str]()
    for _ in range(builds):
        loads = {host: HostLoad(builders, max(0, builders - asked[host]), max(0, asked[host] - builders))
                 for host in HOSTS}  # fmt: skip
        asked[paces.first_free(loads)] += 1
    return asked


def slow(host: str, times: float) -> Paces:
    paces = Paces(named=lambda *_: None)
    for _ in range(20):
        for one in HOSTS:
            paces.built(one, "alike", times if one == host else 1.0)
    return paces


def test_hosts_that_nothing_is_known_of_get_equal_shares() -> None:
    assert shares(Paces(), 30) == dict.fromkeys(HOSTS, 10)


def test_small_differences_change_nothing() -> None:
    paces = Paces()
    for _ in range(20):
        for host, wall_s in zip(HOSTS, (1.0, 1.3, 1.8), strict=True):
            paces.built(host, "alike", wall_s)
    assert shares(paces, 30) == dict.fromkeys(HOSTS, 10)
    assert all(paces.remark(host) == "" for host in HOSTS)


def test_of_idle_hosts_the_one_that_has_been_faster_is_asked_first() -> None:
    idle = {host: HostLoad(1, 1) for host in HOSTS}
    for usual, fastest in (((1.0, 1.3, 1.2), "here"), ((1.3, 1.0, 1.2), "near"), ((1.3, 1.2, 1.0), "far")):
        paces = Paces()
        for _ in range(20):
            for host, wall_s in zip(HOSTS, usual, strict=True):
                paces.built(host, "alike", wall_s)
        assert paces.first_free(idle) == fastest
        assert paces.first_free(idle | {fastest: HostLoad(1, 0)}) != fastest


def test_a_slow_host_is_given_less_and_named_until_it_is_fast_again(caplog: pytest.LogCaptureFixture) -> None:
    paces = Paces()
    for _ in range(20):
        for host, wall_s in zip(HOSTS, (1.0, 1.0, 4.0), strict=True):
            paces.built(host, "alike", wall_s)
    given = shares(paces, 45)
    assert given["here"] >= 3 * given["far"] > 0
    assert paces.remark("far")
    assert [record.args[0] for record in caplog.records if record.args] == ["far"], "named once"
    assert "tunery hosts check far" in caplog.text
    for _ in range(60):
        paces.built("far", "alike", 1.0)
    assert shares(paces, 30) == dict.fromkeys(HOSTS, 10)


def test_a_host_about_twice_as_slow_is_named_once_until_it_has_clearly_recovered() -> None:
    named: list[str] = []
    paces = Paces(named=lambda host, _: named.append(host))

    def build(times: float, builds: int = 15) -> None:
        for _ in range(builds):
            for host in HOSTS:
                paces.built(host, "alike", times if host == "far" else 1.0)

    for _ in range(5):
        build(2.4)
        build(1.8)
    assert named == ["far"]
    build(1.0, builds=60)
    build(3.0)
    assert named == ["far", "far"]


def test_equal_hosts_that_build_different_things_are_equal() -> None:
    paces = Paces()
    random = Random(0)
    for _ in range(400):
        host = random.choice(HOSTS)
        # One has most of the long builds; those of one kind differ by a factor of two either way.
        kind, usual_s = ("long", 3.0) if random.random() < (0.9 if host == "far" else 0.1) else ("short", 0.1)
        paces.built(host, kind, usual_s * 2 ** random.uniform(-1, 1))
        assert all(paces.pace(host) == 1.0 for host in HOSTS)


def test_a_slow_host_is_known_by_what_others_build_as_well() -> None:
    paces = Paces(named=lambda *_: None)
    random = Random(0)
    for _ in range(400):
        host, (kind, usual_s) = random.choice(HOSTS), random.choice([("long", 3.0), ("short", 0.1)])
        paces.built(host, kind, usual_s * (4 if host == "far" else 1) * 2 ** random.uniform(-1, 1))
    assert 2.5 < paces.pace("far") < 6.0
    assert paces.pace("near") == paces.pace("here") == 1.0


def test_one_long_build_does_not_make_a_host_slow() -> None:
    paces = Paces()
    for _ in range(10):
        for host in HOSTS:
            paces.built(host, "alike", 1.0)
    paces.built("near", "alike", 9.0)
    assert paces.pace("near") == 1.0


def test_a_host_that_is_lost_again_and_again_is_given_less_until_builds_succeed_there() -> None:
    paces = Paces()
    for _ in range(10):
        for host in HOSTS:
            paces.built(host, "alike", 1.0)
    for _ in range(3):
        paces.lost("near")
    given = shares(paces, 30)
    assert given["here"] > 3 * given["near"]
    assert paces.remark("near")
    for _ in range(60):
        paces.built("near", "alike", 1.0)
    assert shares(paces, 30)["near"] == 10


def test_this_machine_is_named_without_the_advice_to_check_a_host(caplog: pytest.LogCaptureFixture) -> None:
    paces = Paces()
    for _ in range(10):
        paces.built(HERE, "alike", 4.0)
        paces.built("near", "alike", 1.0)
    assert HERE in caplog.text
    assert "hosts check" not in caplog.text


def test_a_build_waits_for_a_fast_host_only_as_long_as_a_slow_one_would_take() -> None:
    paces = slow("far", 4.0)
    assert paces.first_free({"here": HostLoad(2, 0, 3), "far": HostLoad(8, 8)}) == "here"
    assert paces.first_free({"here": HostLoad(2, 0, 9), "far": HostLoad(8, 8)}) == "far"


def test_a_host_with_room_is_given_what_waits_elsewhere() -> None:
    paces = Paces()
    loads = {"here": HostLoad(2, 0, 3), "near": HostLoad(2, 0, 1), "far": HostLoad(2, 2)}
    assert paces.overdue(loads) == "here"
    assert paces.overdue(loads | {"here": HostLoad(2, 0)}) == "near"
    assert paces.overdue(loads | {"far": HostLoad(2, 0)}) is None, "it has no room"
    assert paces.overdue(loads | {"far": HostLoad(2, 1, 1)}) is None, "what waits there takes it"
    assert slow("far", 4.0).overdue(loads) is None, "it would take longer there"
    assert slow("far", 2.0).overdue(loads) == "here"
