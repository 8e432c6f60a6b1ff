from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunery.accounting.power import Power
from tunery.devices.cpu.load import MODELLED_W_PER_CORE, ModelledMeter, RaplMeter, open_meter


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "max_energy_range_uj").write_text("9999999\n")
        (zone / "energy_uj").write_text("9000000\n")
    return tmp_path


def test_packages_are_summed_without_their_parts_and_wraps_are_undone(powercap: Path) -> None:
    meter = RaplMeter(powercap)
    assert meter.read_j() == 0
    (powercap / "intel-rapl:0" / "energy_uj").write_text("9500000\n")
    (powercap / "intel-rapl:0:0" / "energy_uj").write_text("9400000\n")
    assert meter.read_j() == pytest.approx(0.5)
    (powercap / "intel-rapl:1" / "energy_uj").write_text("1000000\n")
    assert meter.read_j() == pytest.approx(2.5)
    assert not meter.modelled


def test_a_machine_without_counters_gets_a_model_that_says_so(tmp_path: Path) -> None:
    meter = open_meter(tmp_path)
    assert meter.modelled
    before = meter.read_j()
    sum(range(200_000))
    assert meter.read_j() > before


def test_the_best_meter_is_taken(powercap: Path) -> None:
    assert open_meter(powercap).name == "rapl"


def test_the_model_follows_the_rated_power() -> None:
    frugal, greedy = ModelledMeter(1.0).read_j(), ModelledMeter(100.0).read_j()
    assert greedy > 50 * frugal


def test_the_whole_boards_counter_is_not_added_to_its_packages(powercap: Path) -> None:
    for zone, name in (("intel-rapl:0", "package-0"), ("intel-rapl:1", "psys")):
        (powercap / zone / "name").write_text(f"{name}\n")
    meter = RaplMeter(powercap)
    for zone in ("intel-rapl:0", "intel-rapl:1"):
        (powercap / zone / "energy_uj").write_text("9500000\n")
    assert meter.read_j() == pytest.approx(0.5)


@pytest.mark.parametrize("content", [None, "", "garbage\n"])
def test_a_counter_that_is_lost_leaves_the_model_and_fails_nothing(powercap: Path, content: str | None) -> None:
    meter = RaplMeter(powercap)
    (powercap / "intel-rapl:0" / "energy_uj").write_text("9500000\n")
    assert meter.read_j() == pytest.approx(0.5)
    counter = powercap / "intel-rapl:1" / "energy_uj"
    counter.unlink() if content is None else counter.write_text(content)
    lost_j = meter.read_j()
    assert lost_j == pytest.approx(0.5, abs=0.2)
    assert meter.modelled
    sum(range(200_000))
    assert meter.read_j() > lost_j


def test_counters_without_a_range_or_a_number_are_no_meter(powercap: Path) -> None:
    (powercap / "intel-rapl:0" / "max_energy_range_uj").write_text("what\n")
    assert open_meter(powercap).modelled
    (powercap / "intel-rapl:0" / "max_energy_range_uj").unlink()
    assert open_meter(powercap).modelled


@pytest.fixture
def power() -> Callable[[], tuple[Power, SimpleNamespace]]:
    """A power whose clock, counter and busy time are set by hand."""

    def make() -> tuple[Power, SimpleNamespace]:
        at: Any = SimpleNamespace(now_s=0.0, busy_s=0.0, joules=0.0, modelled=False, name="rapl")
        at.read_j = lambda: at.joules
        return Power(at, lambda: at.busy_s, lambda: at.now_s), at

    return make


def test_energy_is_shared_out_by_busy_time(power: Callable[[], tuple[Power, Any]]) -> None:
    shared, at = power()
    assert shared.joules(1.0) == MODELLED_W_PER_CORE, "nothing was counted yet"
    at.now_s, at.busy_s, at.joules = 10.0, 20.0, 400.0
    assert shared.joules(3.0) == pytest.approx(60.0)
    assert not shared.modelled


def test_a_long_pause_in_which_counters_wrap_says_nothing(power: Callable[[], tuple[Power, Any]]) -> None:
    shared, at = power()
    at.now_s, at.busy_s, at.joules = 10.0, 20.0, 400.0
    shared.joules(0.0)
    at.now_s, at.busy_s, at.joules = 4000.0, 8000.0, 401.0
    assert shared.joules(1.0) == pytest.approx(20.0), "the counter has wrapped who knows how often"
    at.now_s, at.busy_s, at.joules = 4010.0, 8010.0, 501.0
    assert shared.joules(1.0) == pytest.approx(10.0)


def test_what_is_said_after_the_counter_was_lost_is_marked(power: Callable[[], tuple[Power, Any]]) -> None:
    shared, at = power()
    at.now_s, at.busy_s, at.joules, at.modelled = 10.0, 20.0, 400.0, True
    assert shared.joules(1.0) == MODELLED_W_PER_CORE
    assert shared.modelled
