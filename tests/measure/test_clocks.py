from pathlib import Path

from tunery.measure.clocks import read_clocks


def test_only_what_the_machine_offers_is_reported(tmp_path: Path) -> None:
    assert read_clocks((0, 1), tmp_path) == {}
    for core, khz in ((0, 3_000_000), (1, 2_500_000)):
        folder = tmp_path / "devices/system/cpu" / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    zone = tmp_path / "class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "temp").write_text("61000\n")
    assert read_clocks((0, 1), tmp_path) == {"mhz": 2500.0, "celsius": 61.0}
    assert read_clocks((0,), tmp_path)["mhz"] == 3000.0
