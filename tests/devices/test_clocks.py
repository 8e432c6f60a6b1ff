from pathlib import Path

from tunery.devices.cpu.load import LoadWatch, read_clocks


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


def test_the_processors_own_sensor_is_read_not_the_hottest_thing_in_the_box(tmp_path: Path) -> None:
    zones = {"iwlwifi_1": 81000, "x86_pkg_temp": 55000}
    for number, (kind, milli) in enumerate(zones.items()):
        zone = tmp_path / f"class/thermal/thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(f"{kind}\n")
        (zone / "temp").write_text(f"{milli}\n")
    assert read_clocks((0,), tmp_path) == {"celsius": 55.0}
    for number, (name, milli) in enumerate({"nvme": 90000, "k10temp": 47000}.items()):
        chip = tmp_path / f"class/hwmon/hwmon{number}"
        chip.mkdir(parents=True)
        (chip / "name").write_text(f"{name}\n")
        (chip / "temp1_input").write_text(f"{milli}\n")
    assert read_clocks((0,), tmp_path) == {"celsius": 47.0}


def test_a_throttled_package_counts_as_a_throttled_core(tmp_path: Path) -> None:
    folder = tmp_path / "devices/system/cpu/cpu0/thermal_throttle"
    folder.mkdir(parents=True)
    (folder / "core_throttle_count").write_text("2\n")
    (folder / "package_throttle_count").write_text("5\n")
    assert read_clocks((0,), tmp_path) == {"throttled": 7}
    watch = LoadWatch((0,), cpus=tmp_path / "devices/system/cpu")
    mark = watch.mark()
    (folder / "package_throttle_count").write_text("6\n")
    assert "throttled" in watch.since(mark).contaminated
