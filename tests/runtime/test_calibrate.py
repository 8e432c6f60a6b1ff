import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from tunery._errors import WorkError
from tunery.devices import open_device
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import Budget, Calibration, SharingPoint
from tunery.domain.request import Request
from tunery.runtime import opening
from tunery.runtime.calibrate import Pass, _undisturbed
from tunery.runtime.foreign_load import Foreign, ForeignWatch
from tunery.runtime.runtime import Runtime
from tunery.service.session import calibrate_device
from tunery.store import open_store
from tunery.testing.fake_device import FakeForeignLoad


@pytest.mark.jobs
def test_a_device_is_calibrated_and_the_curve_is_stored(tmp_path: Path) -> None:
    from tunery.cli.app import app

    said: list[str] = []
    place = str(tmp_path / "store.db")
    request = Request("", {}, "native", "fake", 1, Budget(), "standard", place, 0)
    found = calibrate_device(request, said.append)
    cores = len(usable_cores())
    assert found.slots == cores
    assert {point.degree for point in found.points} == ({2, cores} if cores > 1 else set()) - {1}
    assert {point.kind for point in found.points} <= {"compute", "memory"} == set(found.isolated_tau)
    # Virtual times know no neighbours: whoever is timed beside another takes as long as alone.
    assert all(abs(point.deviation) < 0.02 for point in found.points)
    assert min(found.flop_per_s, found.bytes_per_s, found.clock_overhead_s) > 0
    assert any("at once" in line for line in said) == (cores > 1)
    with open_store(place) as store:
        assert store.calibration(found.device, "fake", 1) == found
        assert store.calibration(found.device, "fake", 2) is None
    listed = CliRunner().invoke(app, ["devices", "list", "--json", "--store", place], standalone_mode=False)
    (shown,) = json.loads(listed.stdout)["devices"][0]["calibrations"]
    assert shown["degrees"] == dict(found.degrees)


def test_a_later_calibration_replaces_an_earlier_one(tmp_path: Path) -> None:
    first = Calibration("f", "d", 1, 2, (SharingPoint("compute", 2, 0.4, 0.9, 1.3),), {}, {"compute": 1}, 1.0, 1.0, 0.0)
    with open_store(str(tmp_path / "store.db")) as store:
        store.save_calibration(first)
        store.save_calibration(Calibration("f", "d", 1, 2, (), {}, {"compute": 2}, 1.0, 1.0, 0.0))
        store.save_calibration(Calibration("f", "d", 2, 1, (), {}, {}, 1.0, 1.0, 0.0))
        assert [(c.threads, dict(c.degrees)) for c in store.calibrations("f")] == [(1, {"compute": 2}), (2, {})]


def request_in(directory: Path) -> Request:
    return Request("", {}, "native", "fake", 1, Budget(), "standard", str(directory / "store.db"), 0)


@pytest.mark.jobs
def test_a_machine_that_others_use_is_not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: object, **more: object) -> Runtime:
        more["foreign"] = ForeignWatch(FakeForeignLoad(itertools.repeat(1.0)), Foreign(1, patience_s=0.0))
        return Runtime(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "Runtime", make)
    said: list[str] = []
    with pytest.raises(WorkError, match="others use"):
        calibrate_device(request_in(tmp_path), said.append)
    assert any("once more" in line for line in said)
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.calibrations(open_device("cpu").describe().fingerprint) == [], "nothing false is kept"


def test_a_pass_that_others_disturbed_is_made_once_more() -> None:
    walls: list[float] = []

    def taken() -> Iterator[float]:
        while True:
            yield 1.0 if len(walls) == 1 else 0.0

    watch = ForeignWatch(FakeForeignLoad(taken()), Foreign(1))

    def run() -> Pass:
        walls.append(float(len(walls)))
        return Pass((), walls[-1])

    watch.look()
    assert _undisturbed(run, watch, lambda _: None).wall_s == 1.0
    assert _undisturbed(run, None, lambda _: None).wall_s == 2.0


def stopped_by(number: signal.Signals | None) -> None:
    if number is None:
        raise KeyboardInterrupt
    signal.raise_signal(number)
    raise AssertionError("it went on measuring")


@pytest.mark.jobs
@pytest.mark.parametrize(("number", "code"), [(None, 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_stops_a_calibration_hears_that_nothing_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals | None,
    code: int,
) -> None:
    from tunery.cli import main
    from tunery.runtime import calibrate

    monkeypatch.setattr(calibrate, "_curve", lambda *_: stopped_by(number))
    place = str(tmp_path / "store.db")
    monkeypatch.setattr("sys.argv", ["tunery", "devices", "calibrate", "--dialect", "fake", "--store", place])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert "nothing of this calibration is kept" in capsys.readouterr().err
    with open_store(place) as store:
        assert store.calibrations(open_device("cpu").describe().fingerprint) == []


def test_a_calibration_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    place = str(tmp_path / "store.db")
    good = Calibration("f", "d", 1, 2, (), {}, {"compute": 2}, 1.0, 1.0, 0.0)
    with open_store(place) as store:
        for threads in (1, 2, 3):
            store.save_calibration(Calibration("f", "d", threads, 2, (), {}, {"compute": 2}, 1.0, 1.0, 0.0))
    engine = sa.create_engine(f"sqlite:///{place}")
    with engine.begin() as connection:
        connection.exec_driver_sql("""UPDATE calibrations SET document = '{"device": "f", "slo' WHERE threads = 2""")
        connection.exec_driver_sql("""UPDATE calibrations SET document = '{"device": "f"}' WHERE threads = 3""")
    engine.dispose()
    with open_store(place) as store:
        assert store.calibrations("f") == [good]
        assert store.calibration("f", "d", 2) is None
        store.save_calibration(Calibration("f", "d", 2, 2, (), {}, {"compute": 2}, 1.0, 1.0, 0.0))
        assert store.calibration("f", "d", 2) is not None


@pytest.mark.tvm
def test_the_reference_kernels_of_the_compiler_build_and_run(tmp_path: Path) -> None:
    import numpy as np

    from tunery.dialects import get_dialect

    dialect = get_dialect("metaschedule")
    tasks = dialect.calibration_tasks(dialect.resolve_target("native", 1))
    assert tasks["compute"].workload.flop / tasks["memory"].workload.flop > 1
    for task in tasks.values():
        (candidate, *_) = dialect.open(task, (), None, 0).propose(2)
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        inputs = [np.ones(spec.shape, spec.dtype) for spec in task.workload.input_specs]
        kernel.bind(inputs)
        kernel.run()
        np.testing.assert_allclose(kernel.outputs()[0], inputs[0] @ inputs[1], rtol=1e-4)
