import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import ACCEPT, HERE, WRONG, Accept, exchangeable_records_of, network, record, task

from tunery._errors import NothingFoundError, StoreError, UsageError
from tunery.domain import DeviceDescription, Mode, Origin, Outcome, Record, Task
from tunery.store import ImportSummary, Store, open_store

CONV, GPU = task(), task(target="gpu")


SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # of what no database sees


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
        assert copy.import_records(file, ACCEPT) == ImportSummary(4, 0)
        assert repr(copy.records(imported=True)) == repr(store.records())
        assert copy.tasks() == store.tasks()
        assert copy.import_records(file, ACCEPT) == ImportSummary(0, 4)
        again = tmp_path / "again.jsonl"
        copy.export_records(again)
    assert again.read_bytes() == file.read_bytes()
    for line in file.read_text(encoding="ascii").splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@SQLITE
def test_the_host_of_a_record_stays_in_its_store(store: Store, tmp_path: Path) -> None:
    store.add_record(CONV, replace(record(CONV, "a"), host="build-7"))
    assert [one.host for one in store.records()] == ["build-7"]
    file = tmp_path / "records.jsonl"
    store.export_records(file)
    assert "build-7" not in file.read_text()
    assert store.import_records(file, ACCEPT) == ImportSummary(0, 1)


CARD = DeviceDescription("cpu", "a card", (0, 1), {"arch": "x86_64", "caches": {"l2": 1 << 20}, "clock": float("nan")})


def test_the_facts_of_devices_travel_with_their_records_and_replace_none(store: Store, tmp_path: Path) -> None:
    card, local = CARD.fingerprint, replace(CARD, name="ours")
    for one in (CARD, local):
        store.add_record(CONV, record(CONV, one.name[0], provenance=replace(HERE, device=one.fingerprint)))
        store.devices.save(one.fingerprint, one.as_facts(), "far")
    store.devices.save("liar", CARD.as_facts(), "far")
    store.add_record(CONV, record(CONV, "l", provenance=replace(HERE, device="liar")))
    store.devices.save("unused", CARD.as_facts(), "far")
    file = tmp_path / "records.jsonl"
    store.export_records(file)
    with open_store(str(tmp_path / "copy.db")) as copy:
        copy.devices.save(local.fingerprint, local.as_facts(), "near")
        assert copy.import_records(file, ACCEPT) == ImportSummary(3, 0)
        assert copy.import_records(file, ACCEPT) == ImportSummary(0, 3)
        assert [(one.fingerprint, one.host, one.elsewhere) for one in copy.devices.find()] == [
            (local.fingerprint, "near", False), (card, "", True),
        ]  # fmt: skip
        assert repr(copy.devices.facts(card)) == repr(CARD.as_facts())
        assert copy.devices.compatible("mine", CARD.as_facts()) == [], "what is only told of speeds up nothing"
        copy.devices.save(card, CARD.as_facts(), "near")
        assert [one.host for one in copy.devices.find(card)] == ["near"]


@SQLITE
@pytest.mark.parametrize(
    "devices",
    [
        "[]",
        '{"d": 1}',
        '{"d": {}}',
        '{"../x": {"kind": "cpu", "name": "x", "cores": 1}}',
        '{"d": {"kind": "cpu", "name": "\\u001b[2J", "cores": 1}}',
        '{"d": {"kind": "cpu", "name": "x", "cores": "many"}}',
    ],
)
def test_devices_that_cannot_be_are_refused_in_a_sentence(store: Store, tmp_path: Path, devices: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"format": "tunery-records", "version": 1, "devices": {devices}}}\n', encoding="ascii")
    with pytest.raises(StoreError, match=r"line 1: .*nothing was imported"):
        store.import_records(file, ACCEPT)
    assert store.devices.find() == []


@given(st.lists(exchangeable_records_of(CONV), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_records_of_any_content_are_exchanged(tmp_path_factory: pytest.TempPathFactory, found: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("exchange")
    with open_store(str(folder / "a.db")) as here, open_store(str(folder / "b.db")) as there:
        for each in found:
            here.add_record(CONV, each)
        here.export_records(folder / "x.jsonl")
        there.import_records(folder / "x.jsonl", ACCEPT)
        assert repr(there.records(imported=True)) == repr(found)


def test_the_networks_that_hold_a_workload_travel_with_its_records(store: Store, tmp_path: Path) -> None:
    dense, key = task("mm", kind="dense"), CONV.workload.key
    other = replace(network("net-2"), name="vgg")
    store.save_tasks(other, [CONV], target=CONV.target, compiler="fake-1")
    store.save_tasks(network(), [CONV, dense], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        copy.import_records(tmp_path / "x.jsonl", ACCEPT)
        assert copy.owners() == {key: ("resnet", "vgg")}, "a workload without records does not travel"
        assert copy.load_tasks("net-1", CONV.target.key, "fake-1") is None, "one task was taken for all of a network"
        copy.export_records(tmp_path / "again.jsonl")
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "x.jsonl").read_bytes()
        store.add_record(dense, record(dense, "a"))
        store.prune(CONV.key, keep=0)
        store.export_records(tmp_path / "y.jsonl")
        copy.import_records(tmp_path / "y.jsonl", ACCEPT)
        assert copy.owners() == {key: ("resnet", "vgg"), dense.workload.key: ("resnet",)}
        copy.save_tasks(network(), [CONV, dense], target=CONV.target, compiler="fake-1")
        assert copy.load_tasks("net-1", CONV.target.key, "fake-1") == [CONV, dense]
        assert copy.network("net-1") == network()


@SQLITE
def test_a_name_that_no_import_takes_spoils_no_export(store: Store, tmp_path: Path) -> None:
    store.save_tasks(replace(network(), name="a\r\nX: 1"), [CONV], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        assert copy.import_records(tmp_path / "x.jsonl", ACCEPT).added == 1


def test_records_are_exported_by_every_name_that_a_job_gave_their_network(store: Store, tmp_path: Path) -> None:
    store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.create_job({"model": "bb.onnx", "name": "bb", "network": network().digest})
    assert store.export_records(tmp_path / "x.jsonl", network="bb") == 1
    with pytest.raises(NothingFoundError):
        store.export_records(tmp_path / "y.jsonl", network="cc")


@SQLITE
def test_a_file_that_names_no_networks_is_taken_in(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    fill(store)
    store.export_records(file)
    lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    older = [{name: value for name, value in line.items() if name != "networks"} for line in lines]
    assert older != lines
    file.write_text("\n".join(json.dumps(line) for line in older), encoding="ascii")
    with open_store(str(tmp_path / "copy.db")) as copy:
        assert copy.import_records(file, ACCEPT) == ImportSummary(4, 0)
        assert copy.owners() == {}


@SQLITE
def test_a_network_without_a_name_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
    store.add_record(CONV, record(CONV, "a"))
    store.export_records(file)
    spoilt = file.read_text(encoding="ascii").replace('{"net-1":"resnet"}', '{"net-1":3}')
    file.write_text(spoilt, encoding="ascii")
    with open_store(str(tmp_path / "copy.db")) as copy:
        with pytest.raises(StoreError, match=r"line 2: net-1 is 3.*nothing was imported"):
            copy.import_records(file, ACCEPT)
        assert copy.stats().tasks == copy.stats().networks == 0


def test_merging_keeps_what_was_there(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.export_records(tmp_path / "x.jsonl")
    store.add_record(CONV, record(CONV, "mine"))
    assert store.import_records(tmp_path / "x.jsonl", ACCEPT) == ImportSummary(0, 4)
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


@SQLITE
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
        store.import_records(file, ACCEPT)
    assert store.stats().tasks == store.stats().records == 0


@SQLITE
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
        store.import_records(file, ACCEPT)


@SQLITE
def test_an_export_that_fails_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    file = tmp_path / "x.jsonl"
    old = '{"format":"tunery-records","version":1}'
    file.write_text(old, encoding="ascii")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunery._outputs.os.fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        store.export_records(file)
    assert file.read_text(encoding="ascii") == old
    assert not list(tmp_path.glob(".*part"))
    with pytest.raises(UsageError, match="there is no directory"):
        store.export_records(tmp_path / "no" / "folder" / "x.jsonl")


def test_what_is_imported_is_a_hint_and_nothing_else(store: Store, tmp_path: Path) -> None:
    store.add_record(CONV, record(CONV, "a"))
    store.add_record(CONV, record(CONV, "base", 1e-9, origin=Origin.BASELINE))
    store.add_record(CONV, record(CONV, "slow", 2e-3, provenance=replace(HERE, device="other")))
    store.add_record(CONV, record(CONV, "wrong", 1e-9, outcome=Outcome.WRONG_RESULT, verification=WRONG))
    assert store.best(CONV.key, HERE)
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        copy.import_records(tmp_path / "x.jsonl", ACCEPT)
        assert copy.records() == copy.best(CONV.key, HERE) == []
        assert copy.measured_keys(CONV.key, HERE) == set()
        assert copy.hints(CONV.key, HERE, 9) == ["body of a", "body of slow"]
        assert copy.hints(CONV.key, HERE, 1) == ["body of a"]
        assert copy.hints(CONV.key, replace(HERE, compiler="other"), 9) == copy.hints(GPU.key, HERE, 9) == []
        assert {str(reason) for reason in copy.skipped([CONV], HERE)[CONV.key]} == {
            "3 records imported from another store, and not measured here",
            "1 record measured on another device (other)",
        }


def test_what_is_imported_takes_nothing_from_what_was_measured_here(store: Store, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "source.db")) as source:
        source.add_record(CONV, record(CONV, "mine", 1e-9, outcome=Outcome.WRONG_RESULT, verification=WRONG))
        source.add_record(CONV, record(CONV, "mine", 1e-9, mode=Mode.FINAL, outcome=Outcome.CRASHED))
        for number in range(4):
            source.add_record(CONV, record(CONV, f"theirs-{number}", 1e-9))
        source.export_records(tmp_path / "x.jsonl")
    store.add_record(CONV, record(CONV, "mine"))
    store.import_records(tmp_path / "x.jsonl", ACCEPT)
    assert [best.candidate.key for best in store.best(CONV.key, HERE, limit=None)] == ["mine"]
    store.prune(keep=1)
    assert [best.candidate.key for best in store.best(CONV.key, HERE, limit=None)] == ["mine"]
    assert len(store.hints(CONV.key, HERE, 9)) == 1


def test_a_network_at_hand_gives_its_programs_and_no_import_does(store: Store, tmp_path: Path) -> None:
    false = replace(CONV, workload=replace(CONV.workload, program="hostile"), tunable=False)
    with open_store(str(tmp_path / "source.db")) as source:
        source.add_record(false, record(CONV, "a"))
        source.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "later.db")) as later:
        later.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
        later.import_records(tmp_path / "x.jsonl", ACCEPT)
        assert later.load_tasks("net-1", CONV.target.key, "fake-1") == [CONV]
        assert later.tasks() == [CONV]
        assert later.imported_workloads() == set()
    store.import_records(tmp_path / "x.jsonl", ACCEPT)
    assert store.imported_workloads() == {CONV.workload.key}
    store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
    assert store.load_tasks("net-1", CONV.target.key, "fake-1") == [CONV]
    assert store.tasks() == [CONV]
    assert store.imported_workloads() == set()


class Refuse(Accept):
    """Refuses one task and one candidate, and counts what it was asked."""

    def workload(self, task: Task) -> str:
        return "of a bad task" if task.target.key == GPU.target.key else ""

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        return ["of a bad candidate" if body == "body of b" else "" for body in bodies]


def test_what_does_not_pass_the_checks_is_left_out_and_counted(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.export_records(tmp_path / "x.jsonl")
    with open_store(str(tmp_path / "copy.db")) as copy:
        taken = copy.import_records(tmp_path / "x.jsonl", Refuse())
        assert taken == ImportSummary(2, 0, 2, {"of a bad task": 1, "of a bad candidate": 1})
        assert {one.candidate.key for one in copy.records(imported=True)} == {"a", "c"}
        assert copy.tasks() == [CONV]


class Meddle(Accept):
    """Changes the file once it has been read to the end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        text = self.file.read_text(encoding="ascii")
        self.file.write_text(text.replace("body of a", "body of z"), encoding="ascii")
        return super().bodies(dialect, bodies)


def test_a_file_that_changes_after_it_was_checked_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    fill(store)
    store.export_records(file)
    with open_store(str(tmp_path / "copy.db")) as copy:
        with pytest.raises(StoreError, match="changed while it was read"):
            copy.import_records(file, Meddle(file))
        assert copy.stats().records == copy.stats().tasks == 0


def test_a_long_file_is_taken_in_by_parts_and_goes_on_where_it_was_stopped(store: Store, tmp_path: Path) -> None:
    for one in (CONV, GPU):
        store.add_records(one, [record(one, f"c{number}") for number in range(600)])
    file = tmp_path / "x.jsonl"
    assert store.export_records(file) == 1200
    lines = file.read_text(encoding="ascii").splitlines()
    first = tmp_path / "first.jsonl"
    first.write_text("\n".join([*lines[:703], lines[10]]) + "\n", encoding="ascii")
    with open_store(str(tmp_path / "copy.db")) as copy:
        assert copy.import_records(first, ACCEPT) == ImportSummary(700, 1), "the same line twice is one record"
        assert copy.import_records(file, ACCEPT) == ImportSummary(500, 700)
        assert repr(copy.records(imported=True)) == repr(store.records())


def path_to(field: str) -> Callable[[dict[str, Any], Any], None]:
    """Return what sets a field that is named by its path in a line."""
    *outer, last = field.split(".")

    def change(data: dict[str, Any], value: Any) -> None:
        for name in outer:
            data = data[int(name)] if isinstance(data, list) else data[name]
        data[last] = value

    return change


DEEP = json.loads("[" * 100 + "]" * 100)


@SQLITE
@pytest.mark.jobs
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_at", math.inf),
        ("created_at", math.nan),
        ("created_at", -1),
        ("created_at", 1e12),
        ("record.candidate.key", ""),
        ("record.candidate.key", "a\0b"),
        ("record.candidate.key", "../../escape"),
        ("record.candidate.key", "k" * 1000),
        ("record.provenance.device", "a\0b"),
        ("record.provenance.compiler", "\x1b[31m"),
        ("record.provenance.settings", "\ud800"),
        ("record.job_id", "j\0"),
        ("record.measurement.samples_s", [-1.0]),
        ("record.measurement.samples_s", [1e300]),
        ("record.measurement.build_s", -1),
        ("record.measurement.build_s", {"$float": "nan"}),
        ("record.measurement.measure_s", 1e300),
        ("record.measurement.context", {"pace": [10**4000]}),
        ("record.measurement.context", {"deep": DEEP}),
        ("record.measurement.verification.inputs", 10**30),
        ("task.workload.key", "a/b"),
        ("task.workload.name", "\x1b]0;title\x07"),
        ("task.workload.kind", ""),
        ("task.workload.flop", -1),
        ("task.workload.flop", {"$float": "inf"}),
        ("task.workload.outputs", 3),
        ("task.workload.arguments", []),
        ("task.workload.arguments.0.shape", [-1]),
        ("task.workload.arguments.0.shape", [10**30]),
        ("task.workload.arguments.0.dtype", "object; import os"),
        ("task.target.threads", 0),
        ("task.target.threads", 10**9),
        ("task.target.config", {"kind": "x" * 100_000}),
        ("task.weight", 0),
        ("networks", {"net\0": "resnet"}),
    ],
)
def test_a_field_out_of_its_range_is_named_and_nothing_is_imported(
    store: Store, tmp_path: Path, field: str, value: Any
) -> None:
    file = tmp_path / "x.jsonl"
    with open_store(str(tmp_path / "source.db")) as source:
        source.add_record(CONV, record(CONV, "a"))
        source.export_records(file)
    lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    number = next(i for i, line in enumerate(lines) if field.partition(".")[0] in line)
    path_to(field)(lines[number], value)
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="ascii")
    with pytest.raises(StoreError, match=f"line {number + 1}: .*nothing was imported"):
        store.import_records(file, ACCEPT)
    assert store.stats().tasks == store.stats().records == store.stats().networks == 0


@SQLITE
def test_a_networks_name_that_is_no_line_is_taken_in_cleaned(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with open_store(str(tmp_path / "source.db")) as source:
        source.add_record(CONV, record(CONV, "a"))
        source.export_records(file)
    lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    [task] = [line for line in lines if "task" in line]
    task["networks"] = {"net-1": "a\nb", "net-2": ""}
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="ascii")
    assert store.import_records(file, ACCEPT).added == 1
    store.export_records(tmp_path / "again.jsonl")
    assert '"a?b"' in (tmp_path / "again.jsonl").read_text(encoding="ascii")


@SQLITE
def test_what_is_no_plain_file_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no plain file"):
        store.import_records(Path("/dev/zero"), ACCEPT)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="no plain file"):
        store.import_records(tmp_path / "pipe", ACCEPT)


@SQLITE
def test_a_line_without_end_is_refused_before_it_is_read(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"format": "tunery-records", "version": 1}\n[' + "[]," * (2 << 20), encoding="ascii")
    with pytest.raises(StoreError, match="line 2 is longer"):
        store.import_records(file, ACCEPT)


@SQLITE
@pytest.mark.parametrize("head", ['"version": true', '"version": 1.0', '"version": "1"', f'"version": "{"x" * 10**6}"'])
def test_another_version_is_refused_in_a_short_line(store: Store, tmp_path: Path, head: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"format": "tunery-records", {head}}}\n', encoding="ascii")
    with pytest.raises(StoreError, match="version") as caught:
        store.import_records(file, ACCEPT)
    assert len(str(caught.value)) < 400


@SQLITE
def test_a_number_of_thousands_of_digits_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"format": "tunery-records", "version": 1}}\n{{"task": {"9" * 5000}}}\n', encoding="ascii")
    with pytest.raises(StoreError, match="5000 digits"):
        store.import_records(file, ACCEPT)
