"""Files of records are checked by the dialects that they name, in processes that they may take down."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunery.domain import Candidate, Measurement, Outcome, Provenance, Record, Task, Verification
from tunery.engines import Engine
from tunery.runtime.record_checks import RecordChecks
from tunery.store import ImportSummary, Store, open_store
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.testing.inline_engine import InlineEngine

DIALECT = FakeDialect()
TARGET = DIALECT.resolve_target("native", 1)
CHECKED = Verification("reference", Verification.FULL, 0.0, True)


def tasks_of(source: str) -> list[Task]:
    return DIALECT.extract(fake_network(source), TARGET)


def record_of(task: Task, candidate: Candidate, latency_s: float = 1e-9) -> Record:
    provenance = Provenance("fake", DIALECT.compiler, "elsewhere", "settings")
    return Record(candidate, Measurement(Outcome.OK, (latency_s,) * 3, verification=CHECKED), provenance, "j")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with InlineEngine() as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """What a store with two tasks, three candidates each, exports."""
    with open_store(str(tmp_path / "source.db")) as source:
        for task in tasks_of("fake:two?tasks=2"):
            for candidate in DIALECT.open(task, (), None, 0).propose(3):
                source.add_record(task, record_of(task, candidate))
        source.export_records(tmp_path / "x.jsonl")
    return [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="ascii").splitlines()]


def taken(store: Store, engine: Engine, folder: Path, lines: list[dict[str, Any]]) -> ImportSummary:
    file = folder / "changed.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="ascii")
    return store.import_records(file, RecordChecks(engine))


def test_what_another_store_made_is_taken_in(
    store: Store, engine: Engine, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    assert taken(store, engine, tmp_path, lines) == ImportSummary(6, 0)


def other_program(line: dict[str, Any]) -> None:
    [other] = tasks_of("fake:other?tasks=1&size=9")
    line["task"]["workload"]["program"] = other.workload.program


def other_arguments(line: dict[str, Any]) -> None:
    line["task"]["workload"]["arguments"][0]["shape"] = [1]


def garbage(line: dict[str, Any]) -> None:
    line["task"]["workload"]["program"] = "[" * 100_000


def other_dialect(line: dict[str, Any]) -> None:
    line["task"]["target"]["dialect"] = "nowhere"


@pytest.mark.parametrize("change", [other_program, other_arguments, garbage], ids=lambda change: change.__name__)
def test_a_workload_that_is_not_what_it_says_it_is_stays_out_with_its_records(
    store: Store, engine: Engine, tmp_path: Path, lines: list[dict[str, Any]], change: Callable[[dict[str, Any]], None]
) -> None:
    change(lines[1])
    summary = taken(store, engine, tmp_path, lines)
    assert (summary.added, summary.refused, sum(summary.reasons.values())) == (3, 3, 3)
    assert len(store.tasks()) == 1


def test_records_of_a_dialect_that_is_not_here_stay_out(
    store: Store, engine: Engine, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    key = lines[1]["task"]["workload"]["key"]
    [task] = [task for task in tasks_of("fake:two?tasks=2") if task.workload.key == key]
    moved = replace(task, target=replace(task.target, dialect="nowhere"))
    other_dialect(lines[1])
    for line in lines[1:]:
        if "record" in line and line["record"]["candidate"]["task_key"] == task.key:
            line["record"]["candidate"]["task_key"] = moved.key
    summary = taken(store, engine, tmp_path, lines)
    assert (summary.added, summary.refused) == (3, 3)
    [reason] = summary.reasons
    assert "not installed" in reason


def test_a_candidate_of_unknown_constructs_stays_out(
    store: Store, engine: Engine, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    record = next(line for line in lines if "record" in line)["record"]
    record["candidate"]["body"] = '{"schedule": "import os"}'
    summary = taken(store, engine, tmp_path, lines)
    assert (summary.added, summary.refused) == (5, 1)


class Mortal(FakeDialect):
    """Dies of one program, as a compiler may."""

    def check_workload(self, workload: Any) -> None:
        raise MemoryError


def test_a_check_that_fails_refuses_the_task_only(
    store: Store, engine: Engine, tmp_path: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.runtime.services.builder.get_dialect", lambda _: Mortal())
    summary = taken(store, engine, tmp_path, lines)
    assert (summary.added, summary.refused) == (0, 6)
