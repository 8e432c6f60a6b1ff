"""What a store's records become: a dataset's rows."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from job_tools import request_in

from tunery.costmodels import Group, device_columns
from tunery.costmodels.columns import DEVICE_COLUMNS
from tunery.costmodels.dataset import columns_of
from tunery.costmodels.registry import generator
from tunery.costmodels.training.replay import _sources, load
from tunery.devices import open_device, traits_of
from tunery.domain import Origin, Outcome, Record
from tunery.measuring.settings import FULL_LENGTH
from tunery.service.session import collect
from tunery.store import open_store

pytestmark = pytest.mark.jobs


def own_columns(group: Group) -> object:
    return group.rows.values[:, : -len(DEVICE_COLUMNS)]


def test_with_records_of_several_devices_no_row_tells_of_its_device(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "40trials")
    collect(request, ["fake:one?tasks=3&frozen=1"], tasks=1, per_task=12)
    [alone] = load(request.store, "fake")
    here = device_columns(traits_of(open_device("cpu").describe().as_facts()))
    assert np.isfinite(here).any()
    assert np.array_equal(columns_of(alone), here, equal_nan=True)
    with open_store(request.store) as store:
        for record in store.records():
            [task] = [t for t in store.tasks() if t.key == record.candidate.task_key]
            store.add_record(task, replace(record, provenance=replace(record.provenance, device="elsewhere")))
    both = load(request.store, "fake").groups
    assert {group.device for group in both} == {alone.device, "elsewhere"}
    for group in both:
        assert np.isnan(group.rows.values[:, -len(DEVICE_COLUMNS) :]).all()
        assert np.array_equal(own_columns(group), own_columns(alone), equal_nan=True)


@pytest.mark.parametrize(
    ("whole", "raced", "left"),
    [
        (12, 20, {"whole"}),
        (7, 20, {"whole", "raced"}),  # too few to stand alone
        (12, 60, {"whole", "raced"}),  # a collection that was cut short
        (0, 20, {"raced"}),
    ],
)
def test_whole_samples_stand_alone_where_they_are_not_too_few(
    whole: int, raced: int, left: set[str], records: list[Record]
) -> None:
    some = [
        copied(records[0], f"whole{n}", settings=FULL_LENGTH.key) for n in range(whole)
    ] + [copied(records[0], f"raced{n}") for n in range(raced)]  # fmt: skip
    left_out = Counter[str]()
    [(_, found)] = _sources(some, None, left_out)
    assert {key.rstrip("0123456789") for key in found} == left
    assert left_out.total() == whole + raced - len(found)


def test_whole_samples_of_another_compiler_device_or_without_a_latency_cost_no_race(records: list[Record]) -> None:
    whole, one = FULL_LENGTH.key, records[0]
    raced = [copied(one, f"raced{n}") for n in range(20)]
    for other in (
        [copied(one, f"c{n}", settings=whole, compiler="another 1.0") for n in range(20)],
        [copied(one, f"d{n}", settings=whole, device="elsewhere") for n in range(20)],
        [copied(one, f"f{n}", settings=whole, outcome=Outcome.BUILD_FAILED) for n in range(20)],
    ):
        found = dict(_sources([*other, *raced], one.provenance.compiler, Counter()))
        assert len(found[one.provenance.device, generator(one.provenance.compiler)]) == 20


def copied(record: Record, key: str, *, outcome: Outcome = Outcome.OK, **provenance: str) -> Record:
    return replace(
        record,
        candidate=replace(record.candidate, key=key, origin=Origin.SEARCH),
        measurement=replace(record.measurement, outcome=outcome),
        provenance=replace(record.provenance, **provenance),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    request = request_in(tmp_path_factory.mktemp("collected"), "collect", "4trials")
    collect(request, ["fake:one?tasks=1&frozen=1"], tasks=1, per_task=4)
    with open_store(request.store) as store:
        found = [one for one in store.records() if one.measurement.outcome is Outcome.OK]
    assert found
    return found
