"""What a store's records become: a dataset's rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from job_tools import request_in

from tunery.costmodels import device_columns
from tunery.costmodels.columns import DEVICE_COLUMNS
from tunery.jobs.collect import collect
from tunery.jobs.dataset import load
from tunery.measure import this_device, usable_cores
from tunery.store import open_store


def test_with_records_of_several_devices_no_row_tells_of_its_device(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "40trials")
    collect(request, ["fake:one?tasks=3&frozen=1"], tasks=1, per_task=12)
    [alone] = load(request.store, "fake")
    here = device_columns(this_device(usable_cores()).facts)
    assert np.isfinite(here).any()
    assert np.array_equal(alone.rows[0, -DEVICE_COLUMNS:], here, equal_nan=True)
    with open_store(request.store) as store:
        for record in store.records():
            [task] = [t for t in store.tasks() if t.key == record.candidate.task_key]
            store.add_record(task, replace(record, provenance=replace(record.provenance, device="elsewhere")))
    both = load(request.store, "fake").groups
    assert {group.device for group in both} == {alone.device, "elsewhere"}
    for group in both:
        assert np.isnan(group.rows[:, -DEVICE_COLUMNS:]).all()
        assert np.array_equal(group.rows[:, :-DEVICE_COLUMNS], alone.rows[:, :-DEVICE_COLUMNS], equal_nan=True)
