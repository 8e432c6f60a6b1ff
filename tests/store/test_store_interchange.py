import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import HERE, network, record, records_of, task

from tunery._errors import StoreError
from tunery.domain import Mode, Outcome, Record
from tunery.store import ImportSummary, Store, open_store

CONV, GPU = task(), task(target="gpu")


def fill(store: Store) -> None:
    store.add_record(CONV, record(CONV, "a", 1e-3, job_id="j"))
    store.add_record(GPU, record(GPU, "a", 0.1 + 0.2, mode=Mode.FINAL, context={"$float": "nan", "x": float("nan")}))
    store.add_record(CONV, record(CONV, "b", None, outcome=Outcome.CRASHED, verification=None))
    store.add_record(CONV, record(CONV, "c", provenance=replace(HERE, compiler="other")))


def test_export_then_import_gives_an_equal_store(store: Store, tmp_path: Path) -> None:
    fill(store)
    file = tmp_path / "records.jsonl"
    assert store.export_records(file) == 4
    with open_store(str(tmp_path / "copy.db")) as copy:
        assert copy.import_records(file) == ImportSummary(4, 0)
        assert repr(copy.records()) == repr(store.records())
        assert copy.tasks() == store.tasks()
        assert copy.import_records(file) == ImportSummary(0, 4)
        again = tmp_path / "again.jsonl"
        copy.export_records(again)
    assert again.read_bytes() == file.read_bytes()
    for line in file.read_text(encoding="ascii").splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@given(st.lists(records_of(CONV), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_records_of_any_content_are_exchanged(tmp_path_factory: pytest.TempPathFactory, found: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("exchange")
    with open_store(str(folder / "a.db")) as here, open_store(str(folder / "b.db")) as there:
        for each in found:
            here.add_record(CONV, each)
        here.export_records(folder / "x.jsonl")
        there.import_records(folder / "x.jsonl")
        assert repr(there.records()) == repr(found)


def test_the_networks_that_hold_a_workload_travel_with_its_records(store: Store, tmp_path: Path) -> None:
    dense, key = task("mm", kind="dense"), CONV.workload.key
    other = replace(network("net-2"), name="vgg")
    store.save_tasks(other, [CONV], target=CONV.target, compiler="fake-1")
    store.save_tasks(network(), [CONV, dense], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        copy.import_records(tmp_path / "x.jsonl")
        assert copy.owners() == {key: ("resnet", "vgg")}, "a workload without records does not travel"
        assert copy.load_tasks("net-1", CONV.target.key, "fake-1") is None, "one task was taken for all of a network"
        copy.export_records(tmp_path / "again.jsonl")
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "x.jsonl").read_bytes()
        store.add_record(dense, record(dense, "a"))
        store.prune(CONV.key, keep=0)
        store.export_records(tmp_path / "y.jsonl")
        copy.import_records(tmp_path / "y.jsonl")
        assert copy.owners() == {key: ("resnet", "vgg"), dense.workload.key: ("resnet",)}
        copy.save_tasks(network(), [CONV, dense], target=CONV.target, compiler="fake-1")
        assert copy.load_tasks("net-1", CONV.target.key, "fake-1") == [CONV, dense]
        assert copy.network("net-1") == network()


def test_a_file_that_names_no_networks_is_taken_in(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    fill(store)
    store.export_records(file)
    lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    older = [{name: value for name, value in line.items() if name != "networks"} for line in lines]
    assert older != lines
    file.write_text("\n".join(json.dumps(line) for line in older), encoding="ascii")
    with open_store(str(tmp_path / "copy.db")) as copy:
        assert copy.import_records(file) == ImportSummary(4, 0)
        assert copy.owners() == {}


def test_a_network_without_a_name_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.export_records(file)
    spoilt = file.read_text(encoding="ascii").replace('{"net-1":"resnet"}', '{"net-1":3}')
    file.write_text(spoilt, encoding="ascii")
    with open_store(str(tmp_path / "copy.db")) as copy:
        with pytest.raises(StoreError, match=r"line 2: net-1 is 3.*nothing was imported"):
            copy.import_records(file)
        assert copy.stats().tasks == copy.stats().networks == 0


def test_merging_keeps_what_was_there(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.export_records(tmp_path / "x.jsonl")
    store.add_record(CONV, record(CONV, "mine"))
    assert store.import_records(tmp_path / "x.jsonl") == ImportSummary(0, 4)
    assert len(store.records()) == 5


def spoil(line: str, what: str) -> str:
    data = json.loads(line)
    if what == "cut off":
        return line[: len(line) // 2]
    if what == "outcome":
        data["record"]["measurement"]["outcome"] = "splendid"
    elif what == "field":
        del data["record"]["provenance"]["device"]
    elif what == "task":
        data["record"]["candidate"]["task_key"] = "unknown"
    elif what == "time":
        del data["created_at"]
    elif what == "kind":
        data = [1, 2]
    elif what == "nesting":
        return "[" * 100_000
    return json.dumps(data)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("cut off", "no JSON .was the file cut off"),
        ("outcome", "measurement.outcome is 'splendid', but should be 'ok'"),
        ("field", "provenance.device is missing"),
        ("task", "task unknown, which no line above describes"),
        ("time", "'created_at' is missing"),
        ("kind", "no JSON object"),
        ("nesting", "recursion"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_imported(store: Store, tmp_path: Path, what: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    with open_store(str(tmp_path / "source.db")) as source:
        fill(source)
        source.export_records(file)
    lines = file.read_text(encoding="ascii").splitlines()
    lines[-1] = spoil(lines[-1], what)
    file.write_text("\n".join(lines), encoding="ascii")
    with pytest.raises(StoreError, match=f"line {len(lines)}: .*{message}.*nothing was imported"):
        store.import_records(file)
    assert store.stats().tasks == store.stats().records == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is not text"),
        (b'{"format": "other"}\n', "line 1: no tunery-records file"),
        (b'{"format": "tunery-records", "version": 2}\n', "version 2 is unknown, this tunery reads 1"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_named(store: Store, tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "x.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        store.import_records(file)


def test_an_export_that_fails_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    file = tmp_path / "x.jsonl"
    file.write_text("old", encoding="ascii")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunery.store._interchange.os.fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.export_records(file)
    assert file.read_text(encoding="ascii") == "old"
    assert not list(tmp_path.glob(".*part"))
    with pytest.raises(StoreError, match="cannot be written"):
        store.export_records(tmp_path / "no" / "folder" / "x.jsonl")


def test_what_is_imported_is_known_but_not_delivered(store: Store, tmp_path: Path) -> None:
    store.add_record(CONV, record(CONV, "a"))
    assert store.best(CONV.key, HERE)
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        copy.import_records(tmp_path / "x.jsonl")
        assert copy.measured_keys(CONV.key, HERE) == store.measured_keys(CONV.key, HERE)
        assert copy.best(CONV.key, HERE) == []
