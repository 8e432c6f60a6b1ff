from pathlib import Path

import pytest

from tunery.measure.energy import ModelledMeter, RaplMeter, open_meter


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
