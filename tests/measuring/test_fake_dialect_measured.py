"""The measurer on the fake dialect: a whole task raced and decided, with planted faults."""

from pathlib import Path

import pytest

from tunery.dialects import get_dialect, store_built
from tunery.domain import Artifact, Candidate, Measurement, Origin, Outcome, Provenance, Record, Task
from tunery.measuring.selection import finalists, winner
from tunery.measuring.service import Measurer
from tunery.measuring.settings import MeasuringSettings
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_device import FakeDevice
from tunery.testing.fake_dialect import FakeDialect, fake_network

PLANTED = {"one_off": 3, "all_nan": 5, "constant": 7, "partial": 9, "zero_time": 11, "nan_time": 13, "fail": 15}


class Bench(Measurer):
    """Builds and measures with one dialect."""

    def __init__(self, dialect: str | FakeDialect, directory: Path, device: FakeDevice | None = None) -> None:
        self.blobs, self.directory = FakeBlobs(), directory
        super().__init__(dialect, device or FakeDevice(), self.blobs)

    def built(self, task: Task, candidate: Candidate) -> Artifact:
        return store_built(self.blobs, self._codegen.build(task, candidate, self.directory))


def task_with(options: str) -> Task:
    dialect = FakeDialect()
    return dialect.extract(fake_network(f"fake:test?tasks=1&{options}"), dialect.resolve_target("native", 1))[0]


@pytest.mark.parametrize("op", ["matmul", "gather", "elementwise", "argmax"])
def test_a_task_is_raced_and_decided_and_no_planted_fault_wins(op: str, tmp_path: Path) -> None:
    task = task_with(f"ops={op}&" + "&".join(f"{fault}={index}" for fault, index in PLANTED.items()))
    dialect = FakeDialect()
    bench = Bench(dialect, tmp_path)
    reference = bench.built(task, dialect.reference(task))
    candidates = [dialect.candidate(task, index) for index in range(60)]
    provenance = Provenance("fake", dialect.compiler, "device", MeasuringSettings().key)
    records, best = [], None
    for index, candidate in enumerate(candidates):
        # What a busy machine makes slow is given up before it is checked: without an incumbent nothing is.
        incumbent_s = None if index in PLANTED.values() else best
        result = bench.race(task, bench.built(task, candidate), candidate, incumbent_s, reference)
        records.append(Record(candidate, result, provenance))
        if result.outcome is Outcome.OK and result.latency_s is not None:
            best = min(best or result.latency_s, result.latency_s)
    assert {records[i].measurement.outcome for i in PLANTED.values()} <= {Outcome.WRONG_RESULT, Outcome.RUN_FAILED}
    healthy = [record.measurement for i, record in enumerate(records) if i not in PLANTED.values()]
    assert {one.outcome for one in healthy} <= {Outcome.OK, Outcome.ABANDONED}
    assert sum(one.outcome is Outcome.ABANDONED for one in healthy) > 20

    chosen = [dialect.baseline(task), *finalists(records, 6)]
    finals = bench.finals(task, [bench.built(task, one) for one in chosen], chosen, reference, 12)
    index = winner(chosen, finals)
    assert index is not None
    assert chosen[index].origin is not Origin.BASELINE
    fastest = min(one.latency_s for one in healthy if one.latency_s is not None)
    assert finals[index].latency_s == pytest.approx(fastest, rel=0.02)


def test_a_candidate_that_is_right_on_some_inputs_only_does_not_pass_the_finals(tmp_path: Path) -> None:
    task = task_with("ops=matmul&some=0,1,2,3,4,5,6,7&some_share=0.7")
    dialect = FakeDialect()
    bench = Bench(dialect, tmp_path)
    reference = bench.built(task, dialect.reference(task))
    candidates = [dialect.candidate(task, index) for index in range(8)]
    built = [bench.built(task, candidate) for candidate in candidates]
    results: list[Measurement] = bench.finals(task, built, candidates, reference, 3)
    assert all(result.outcome is Outcome.WRONG_RESULT for result in results)


def test_the_measurer_finds_its_dialect_by_name(tmp_path: Path) -> None:
    task = task_with("ops=elementwise")
    dialect = get_dialect("fake")
    candidate = dialect.baseline(task)
    bench = Bench("fake", tmp_path)
    built = bench.built(task, candidate)
    result = bench.race(task, built, candidate, None, bench.built(task, dialect.reference(task)))
    assert result.outcome is Outcome.OK


def test_a_fake_device_times_a_fake_kernel_by_its_own_clock(tmp_path: Path) -> None:
    task, dialect = task_with("ops=elementwise&noise=0&best_us=500"), FakeDialect()
    device = FakeDevice(sharing={2: 3.0})
    bench = Bench(dialect, tmp_path, device)
    reference = bench.built(task, dialect.reference(task))
    candidate = dialect.baseline(task)
    built = bench.built(task, candidate)
    alone = bench.race(task, built, candidate, None, reference)
    assert alone.latency_s == pytest.approx(dialect.latency_s(task, candidate))
    assert alone.context["warm_up_s"] == pytest.approx(alone.latency_s), "the first run is timed by that clock too"
    assert alone.measure_s == pytest.approx(device.now_s - 0.0), "all that passed is the device's time"
    device.busy = 2
    shared = bench.race(task, built, candidate, None, reference)
    assert shared.latency_s == pytest.approx(3.0 * alone.latency_s), "what slows the device is seen on its clock"


def test_interference_on_the_device_contaminates_a_fake_kernels_samples(tmp_path: Path) -> None:
    task, dialect = task_with("ops=elementwise&noise=0&best_us=500"), FakeDialect()
    bench = Bench(dialect, tmp_path, FakeDevice(interference=[(0.0, 1e9, 1.5)]))
    reference = bench.built(task, dialect.reference(task))
    candidate = dialect.baseline(task)
    result = bench.race(task, bench.built(task, candidate), candidate, None, reference)
    assert result.context["contaminated"] is True
    assert result.context["load"]["waited"] == pytest.approx(1 / 3, rel=0.2)
