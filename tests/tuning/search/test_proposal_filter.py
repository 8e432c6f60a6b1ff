"""What is likely to fail is left out once failures were seen, but for a random part; decided without workers."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from job_tools import outcomes_of, records_in, run_in

from tunery.costmodels.columns import TASK_COLUMNS
from tunery.dialects import Observation
from tunery.domain import Origin, Outcome, Record
from tunery.domain.request import Trimming
from tunery.runtime.services import ProposerHost
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.tuning.allocation import failing as failing_module
from tunery.tuning.allocation.failing import FailureModel
from tunery.tuning.search.proposer import FAILING_DETAIL, ProposalFilter

pytestmark = pytest.mark.usefixtures("inline_workers")

AXES = (16, 16, 4)
BAD = [str(index) for index in range(16 * 16 * 4) if index % AXES[2] == 2]
SOURCE = f"fake:fails?tasks=1&space=16x16x4&refuse={','.join(BAD)}"  # one value of a knob never builds


class Run:
    """A search in this process: batches are proposed, selected, and end as the script says."""

    def __init__(self, trimming: Trimming, seed: int = 0) -> None:
        self.dialect, self.records = FakeDialect(), list[Record]()
        self.model = FailureModel(self.dialect.layout().with_columns(TASK_COLUMNS))
        self.task = self.dialect.extract(fake_network(SOURCE), self.dialect.resolve_target("native", 1))[0]
        self.proposal_filter = ProposalFilter(self.task, trimming, seed, None, self.model)
        self.host, self.told, self.keys = ProposerHost("fake"), list[Observation](), set[str]()
        self.built: list[bool] = []
        """Of each that was built, whether it failed."""
        self.host.open(self.task, (), None, seed)
        self.context = cast("Any", SimpleNamespace(record=partial(Record, provenance=None, job_id="job")))

    def batches(self, count: int, *, cured: bool = False) -> "Run":
        for _ in range(count):
            proposal = self.host.propose(self.task.key, 16, self.told)
            selected = self.proposal_filter.select(proposal, self.keys, {}, 16)
            self.records += selected.records(self.context)
            self.keys.update(c.key for c in (*selected.build, *selected.dropped))
            self.told = []
            for candidate, row in zip(selected.build, selected.features, strict=True):
                bad = self.dialect.fault(self.task, candidate) is not None and not cured
                latency_s = None if bad else self.dialect.latency_s(self.task, candidate)
                self.told.append(Observation(candidate, Outcome.BUILD_FAILED if bad else Outcome.OK, latency_s))
                self.model.learn(candidate.key, row, failed=bad)
                self.built.append(bad)
            self.proposal_filter.learn(self.told)
        return self

    @property
    def spared(self) -> list[Record]:
        return [record for record in self.records if record.measurement.detail.startswith(FAILING_DETAIL)]


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fewer_of_those_that_fail_are_built_once_some_have_failed(seed: int) -> None:
    untrimmed, trimmed = Run(Trimming(filter=False), seed).batches(24), Run(Trimming(), seed).batches(24)
    learning = 64
    assert trimmed.built[:32] == untrimmed.built[:32], "nothing is judged by the first few"
    assert share(trimmed.built[learning:]) < share(untrimmed.built[learning:]) / 2
    assert trimmed.spared
    assert not untrimmed.records
    for record in trimmed.spared:
        assert record.measurement.outcome is Outcome.FILTERED
        assert 90 <= int(record.measurement.detail.split("(")[1].split()[0]) < 100
        assert trimmed.dialect.fault(trimmed.task, record.candidate), "none that builds was blamed"


def test_a_random_part_is_built_all_the_same() -> None:
    none, some, all_ = (Run(Trimming(audit_share=share_)).batches(24) for share_ in (0.0, 0.3, 1.0))
    assert sum(none.built[64:]) < sum(some.built[64:])
    assert not all_.spared


def test_what_builds_after_all_comes_back() -> None:
    run = Run(Trimming(audit_share=0.3)).batches(8)
    before = len(run.spared)
    run.batches(32, cured=True)
    wrongly = [record for record in run.spared[before:] if run.dialect.fault(run.task, record.candidate)]
    late = Run(Trimming(audit_share=0.3)).batches(40)
    assert len(wrongly) < len(late.spared[before:]) / 2, "the belief goes when its audits succeed"


def test_the_same_seed_spares_the_same() -> None:
    first, second = (Run(Trimming(), 7).batches(12) for _ in range(2))
    assert [r.candidate.key for r in first.spared] == [r.candidate.key for r in second.spared]
    assert first.built == second.built


def test_nothing_is_learned_where_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing_module.FailureModel, "_fit", lambda _: pytest.fail("a model was fitted"))
    assert not Run(Trimming()).batches(8, cured=True).spared


@pytest.mark.jobs
def test_a_job_records_what_it_did_not_build(tmp_path: Path) -> None:
    report = run_in(tmp_path, SOURCE, "120trials")
    searched = [record for record in records_in(tmp_path) if record.candidate.origin is Origin.SEARCH]
    spared = [record for record in searched if record.measurement.detail.startswith(FAILING_DETAIL)]
    assert spared
    assert outcomes_of(report)["filtered"] >= len(spared)
    assert report.job.spend.trials == 120
