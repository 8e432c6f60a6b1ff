"""Files of records in which any field lies, with the real compiler behind them: none of it runs or is delivered."""

import copy
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunery import load_compiled
from tunery._errors import StoreError
from tunery.dialects import get_dialect
from tunery.domain import Budget, Measurement, Origin, Outcome, Provenance, Record, Verification
from tunery.domain.request import CompileOptions, Request
from tunery.engines import LocalEngine
from tunery.measuring.settings import MeasuringSettings
from tunery.runtime.record_checks import RecordChecks
from tunery.service.session import Session
from tunery.store import Store, open_store

pytestmark = pytest.mark.tvm
CLAIMED_S = 1e-9  # faster than anything here: what believes it delivers it
CANARY = "canary"

Line = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Place:
    """A model, what an honest store exports of it, and the words that an attacker writes into that."""

    folder: Path
    model: str
    lines: list[Line]
    checks: RecordChecks

    @property
    def words(self) -> list[Any]:
        touch = f"touch {self.folder / CANARY}"
        return [
            None, True, 0, -1, 2**31, 2**63 - 1, 2**64, 10**400, 1e308, math.inf, math.nan, 0.5, "", "\0", "\x1b[2J",
            "../../x", "\ud800", "x" * 70_000, [], {}, [[[[[]]]]], json.loads("[" * 90 + "]" * 90),
            {"$float": "nan"}, touch, "tirx.call_extern", "tirx.tvm_call_packed", "tirx.call_llvm_intrin", "system",
            "runtime.SystemLib", "handle", "pragma_import_c", "pragma_import_llvm", "Annotate", "TransformLayout",
            f'int f() {{ return system("{touch}"); }}', "global.texture", "ok", "baseline", "search", "final",
            "ffi.Module", "float32x9999", f"__import__('os').system('{touch}')",
            ["Annotate", ["b0"], ["pragma_import_c", touch], []],
        ]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    value = onnx.helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["m"]), onnx.helper.make_node("Softmax", ["m"], ["y"])]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, (4, 16))],
        [value("y", onnx.TensorProto.FLOAT, (4, 16))],
        [weights],
    )
    model = str(folder / "model.onnx")
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    with pytest.MonkeyPatch.context() as patch, LocalEngine() as engine:
        patch.setenv("TUNERY_CACHE", str(folder / "cache"))
        patch.setattr("tunery.tuning.search.task_search.HINTS", 100)  # all that lie are tried, not the first dozen
        yield Place(folder, model, honest(folder, model), RecordChecks(engine))


def honest(folder: Path, model: str) -> list[Line]:
    """Return what a store that has tuned the model exports, but for its claims of speed."""
    dialect = get_dialect("metaschedule")
    with Session(str(folder / "source.db")) as session:
        session.tune(Request(model, threads=1, budget=Budget(trials=2)))
    with open_store(str(folder / "source.db")) as source, open_store(str(folder / "claims.db")) as claims:
        provenance = Provenance("metaschedule", dialect.compiler, "elsewhere", MeasuringSettings().key)
        verified = Measurement(
            Outcome.OK, (CLAIMED_S,) * 3, verification=Verification("reference", Verification.FULL, 0.0, True)
        )
        for task in source.tasks():
            for candidate in dialect.open(task, (), None, 7).propose(8):
                claims.add_record(task, Record(candidate, verified, provenance, "j"))
        claims.export_records(folder / "honest.jsonl")
    return [json.loads(line) for line in (folder / "honest.jsonl").read_text(encoding="ascii").splitlines()]


def places_in(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in plain data."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def inner(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def spoil(data: Any, rng: random.Random, words: list[Any]) -> Any:
    """Return plain data with one value changed, removed, doubled or exchanged with another one."""
    found = list(places_in(data))
    if not found:
        return rng.choice(words)
    *path, last = rng.choice(found)
    holder, other = inner(data, tuple(path)), rng.choice(found)
    way = rng.randrange(5)
    if way == 0:
        del holder[last]
    elif way == 1:
        holder[last] = copy.deepcopy(inner(data, other)) if other[: len(path) + 1] != (*path, last) else None
    elif way == 2 and isinstance(holder, list):
        holder.insert(last, copy.deepcopy(holder[last]))
    elif way == 3 and isinstance(holder[last], int):
        holder[last] = holder[last] * rng.choice((-1, 2, 3, 1000)) + rng.choice((-1, 0, 1))
    else:
        holder[last] = copy.deepcopy(rng.choice(words))
    return data


def attack(lines: list[Line], seed: int, words: list[Any]) -> str:
    """Return the text of a file in which something lies: a field, a node of a program, or a step of a schedule."""
    rng, lines = random.Random(seed), copy.deepcopy(lines)
    for line in rng.sample(lines[1:] if rng.random() < 0.98 else lines, rng.randint(1, 4)):
        holder, name = (line["task"]["workload"], "program") if "task" in line else (line, "")
        if "record" in line:
            holder, name = line["record"]["candidate"], "body"
        if name and rng.random() < 0.8:
            text = holder[name]
            holder[name] = json.dumps(spoil(json.loads(text), rng, words)) if text.startswith(("[", "{")) else text
        else:
            spoil(line, rng, words)
    text = "\n".join(json.dumps(line) for line in lines)
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", "\n", "\0", "}", '"')) + text[at + rng.randrange(3) :]
    return text


def take_in(place: Place, store: Store, text: str) -> bool:
    """Import a file; return whether it was taken in. One that was not has changed nothing."""
    file, before = place.folder / "hostile.jsonl", store.stats()
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        store.import_records(file, place.checks)
    except StoreError:
        assert replace(store.stats(), size_bytes=0) == replace(before, size_bytes=0)
        return False
    return True


def expect_nothing_believed(place: Place, url: str) -> None:
    """A tuning of the operators ends well with what it found itself, and so does what is compiled from it."""
    with Session(url) as session:
        request = Request(place.model, threads=1, budget=Budget(trials=60))
        report = session.tune(request)
        session.compile(request, place.folder / "net.tunery", CompileOptions(predict=True))
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    [output] = load_compiled(place.folder / "net.tunery")(x)
    np.testing.assert_allclose(output, np.full((4, 16), 1 / 16, np.float32), rtol=1e-4)
    assert report.after_s is not None
    assert report.after_s > 10 * CLAIMED_S
    with open_store(url) as store:
        store.check()
        own = store.records()
        assert own
        assert all(record.provenance.device != "elsewhere" for record in own)
        raced = [r for r in own if r.candidate.origin is Origin.SEARCH and r.measurement.outcome is Outcome.OK]
        assert all(sample > CLAIMED_S for record in raced for sample in record.measurement.samples_s)
        store.export_records(place.folder / "again.jsonl", force=True)
        take_in(place, store, (place.folder / "again.jsonl").read_text(encoding="ascii"))
    assert not list(place.folder.rglob(CANARY))


def check_files(place: Place, url: str, seeds: Iterable[int], *, tuned: bool = True) -> None:
    with open_store(url) as store:
        taken = [take_in(place, store, attack(place.lines, seed, place.words)) for seed in seeds]
        assert store.records() == []
        assert all(store.best(task.key, HERE, limit=None) == [] for task in store.tasks())
    if tuned:
        assert any(taken)
        expect_nothing_believed(place, url)


HERE = Provenance("metaschedule", "", "elsewhere", MeasuringSettings().key)


def test_an_honest_file_is_taken_in(place: Place) -> None:
    with open_store(str(place.folder / "honest.db")) as store:
        assert take_in(place, store, "\n".join(map(json.dumps, place.lines)))
        assert len(store.records(imported=True)) == len(place.lines) - 1 - len(store.tasks())


def test_a_hundred_files_that_lie(place: Place, tmp_path: Path) -> None:
    check_files(place, str(tmp_path / "store.db"), range(100))


@pytest.mark.hostile
@pytest.mark.parametrize("seed", range(1, 5))
def test_more_files_that_lie(place: Place, tmp_path: Path, seed: int) -> None:
    check_files(place, str(tmp_path / "store.db"), range(100 * seed, 100 * seed + 60))


@pytest.mark.hostile
def test_files_in_which_any_field_lies(place: Place, tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.integers(0, 2**62))
    def check_one(seed: int) -> None:
        check_files(place, url, [seed], tuned=False)

    check_one()
    expect_nothing_believed(place, url)
