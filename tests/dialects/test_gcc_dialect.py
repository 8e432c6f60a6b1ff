"""A second real compiler fulfils the contract for what it can do, and its tasks are tuned as any others.

It proves the contract: nothing of networks, features, suggestions or exchanged records is stubbed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gcc_dialect import GccDialect, product

from tunery._errors import UsageError
from tunery.dialects import NetworkCompiler, TaskSource
from tunery.domain import Mode
from tunery.store import open_store
from tunery.testing.dialect_contract import DialectContract

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

_TUNE = """
import json
from gcc_dialect import GccDialect, product
from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.service.session import tune_tasks

target = GccDialect().resolve_target("native", 1)
tasks = [product(48, 64, 96, target, 2), product(64, 48, 80, target)]
request = Request("products", dialect="gcc", threads=1, budget=Budget.parse("22trials"), store="store.db")
report = tune_tasks(request, tasks)
states = [[state.best_candidate, state.baseline_s, state.best_s] for state in report.job.tasks]
print(json.dumps({"states": states, "before": report.before_s, "after": report.after_s}))
"""


class TestGccContract(DialectContract):
    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls):
        return GccDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect):
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, target):
        return [product(32, 24, 40, target), product(17, 9, 12, target)]


def test_what_it_cannot_do_is_told() -> None:
    for capability in (TaskSource, NetworkCompiler):
        with pytest.raises(UsageError, match="gcc"):
            capability.of(GccDialect())


@pytest.mark.jobs
def test_its_tasks_are_tuned_from_end_to_end(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    info = plugin / "gcc_dialect-1.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "gcc_dialect.py", plugin)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gcc-dialect\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tunery.dialects]\ngcc = gcc_dialect:GccDialect\n")
    found = [str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(found), "TUNERY_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", _TUNE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    with open_store(str(tmp_path / "store.db")) as store:
        records = store.records()
    assert {record.provenance.compiler for record in records} == {GccDialect().compiler}
    by_key = {record.candidate.key: record for record in records}
    for best, _, _ in report["states"]:
        assert json.loads(by_key[best].candidate.body)["level"] != "-O0", "gcc without optimization won"
        [final] = [r for r in records if r.candidate.key == best and r.measurement.mode is Mode.FINAL][-1:]
        assert final.measurement.verification is not None, "the winner was not verified"
    assert report["after"] < report["before"]
