import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tunery.domain import Budget, Calibration, SharingPoint
from tunery.jobs import Request
from tunery.jobs.session import calibrate_device
from tunery.measure import usable_cores
from tunery.store import open_store


def test_a_device_is_calibrated_and_the_curve_is_stored(tmp_path: Path) -> None:
    from tunery.cli._app import app

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


@pytest.mark.tvm
def test_the_reference_kernels_of_the_compiler_build_and_run(tmp_path: Path) -> None:
    import numpy as np

    from tunery.dialects import get_dialect

    dialect = get_dialect("metaschedule")
    tasks = dialect.calibration_tasks(dialect.resolve_target("native", 1))
    assert tasks["compute"].workload.flop / tasks["memory"].workload.flop > 1
    for task in tasks.values():
        (candidate, *_) = dialect.open(task, (), None, 0).propose(2)
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path))
        inputs = [np.ones(spec.shape, spec.dtype) for spec in task.workload.input_specs]
        kernel.bind(inputs)
        kernel.run()
        np.testing.assert_allclose(kernel.outputs()[0], inputs[0] @ inputs[1], rtol=1e-4)
