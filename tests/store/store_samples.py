"""Small tasks and records, and Hypothesis strategies for records of any content."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st

from tunery.domain import (
    Candidate,
    Measurement,
    Mode,
    Network,
    Origin,
    Outcome,
    Provenance,
    Record,
    Target,
    Task,
    TensorSpec,
    Verification,
    Workload,
)
from tunery.store import Store
from tunery.store.database.schema import records as records_table

HERE = Provenance("fake", "fake-1", "device-a", "settings-a")
CHECKED = Verification("reference", Verification.FULL, 0.25, True)
HALF_CHECKED = Verification("reference", 1, 0.25, True)
WRONG = Verification("reference", Verification.FULL, 17.0, False, "element 4")


def task(name: str = "conv", *, target: str = "cpu", threads: int = 2, weight: int = 1, kind: str = "conv2d") -> Task:
    """A task whose workload is named by `name`."""
    specs = (TensorSpec("x", (1, 64, 56, 56), "float32"), TensorSpec("y", (1, 64, 56, 56), "float32"))
    workload = Workload(f"key-of-{name}", name, kind, f"program of {name} " * 20, specs, 1, 2.31e8)
    return Task(workload, Target("fake", {"kind": target, "mattr": ["+a", "-c"]}, threads), weight)


def record(
    of: Task,
    key: str = "c0",
    latency_s: float | None = 1e-3,
    *,
    mode: Mode = Mode.RACE,
    outcome: Outcome = Outcome.OK,
    verification: Verification | None = CHECKED,
    provenance: Provenance = HERE,
    origin: Origin = Origin.SEARCH,
    job_id: str = "",
    context: Mapping[str, Any] | None = None,
) -> Record:
    """A record of one candidate, verified unless told otherwise."""
    samples = () if latency_s is None else (latency_s,) * 3
    measurement = Measurement(outcome, samples, mode, "", context or {}, verification, 0.1, 0.02)
    return Record(Candidate(key, of.key, f"body of {key}", origin), measurement, provenance, job_id)


def network(digest: str = "net-1") -> Network:
    """A network that was imported from nowhere."""
    spec = TensorSpec("x", (1, 3, 224, 224), "float32")
    return Network("resnet", "resnet.onnx", digest, "prepared.onnx", (spec,), (spec,), 11_689_512)


class Accept:
    """Checks that let everything through: what a store does with a file is one thing, what dialects say another."""

    def workload(self, task: Task) -> str:
        return ""

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        return [""] * len(bodies)


ACCEPT = Accept()


_any_text = st.text(st.characters(exclude_categories=()), max_size=20)
_plain_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def _nested(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | integers | st.floats() | _any_text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_any_text | st.just("$float"), inner, max_size=3),
        max_leaves=8,
    )


_json, _small_json = _nested(st.integers()), _nested(st.integers(-(2**63), 2**63 - 1))
verifications = st.builds(Verification, _any_text, st.integers(0, 9), st.floats(), st.booleans(), detail=_any_text)
measurements = st.builds(
    Measurement,
    st.sampled_from(Outcome),
    st.lists(st.floats(), max_size=5).map(tuple),
    st.sampled_from(Mode),
    _any_text,
    st.dictionaries(_any_text, _json, max_size=3),
    st.none() | verifications,
    st.floats(),
    st.floats(),
)


def records_of(of: Task) -> st.SearchStrategy[Record]:
    """Records of a task with any content."""
    return _records_of(of, _plain_text, _plain_text, measurements, _plain_text)


def exchangeable_records_of(of: Task) -> st.SearchStrategy[Record]:
    """Records of a task with any content that may come from another store."""
    keys = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,30}", fullmatch=True)
    names = st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), min_size=1, max_size=20)
    seconds = st.floats(0, 1e9)
    measured = st.builds(
        Measurement,
        st.sampled_from(Outcome),
        st.lists(seconds | st.just(math.nan), max_size=5).map(tuple),
        st.sampled_from(Mode),
        _any_text,
        st.dictionaries(_any_text, _small_json, max_size=3),
        st.none() | verifications,
        seconds,
        seconds,
    )
    return _records_of(of, keys, names, measured, st.just(of.target.dialect))


def _records_of(
    of: Task,
    keys: st.SearchStrategy[str],
    names: st.SearchStrategy[str],
    measured: st.SearchStrategy[Measurement],
    dialects: st.SearchStrategy[str],
) -> st.SearchStrategy[Record]:
    candidates = st.builds(
        Candidate, keys, st.just(of.key), _any_text, st.sampled_from(Origin), st.none() | st.floats()
    )
    provenances = st.builds(Provenance, dialects, names, names, names)
    return st.builds(Record, candidates, measured, provenances, keys)


def multiply(store: Store, number: int) -> None:
    """Make `number` more records of each record of a store: of other candidates, each slower than the one before."""
    table = records_table
    numbers = sa.select(sa.literal(1).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < number))
    changed: dict[str, sa.ColumnElement[Any]] = {
        "digest": table.c.digest + "-" + sa.cast(numbers.c.n, sa.String),
        "candidate_key": table.c.candidate_key + "-" + sa.cast(numbers.c.n, sa.String),
        **{name: table.c[name] * (1 + numbers.c.n) for name in ("latency_s", "rank_s")},
    }
    names = [column.name for column in table.c if column.name != "id"]
    rows = sa.select(*(changed.get(name, table.c[name]).label(name) for name in names)).join_from(
        table, numbers, sa.true()
    )
    store.write(lambda connection: connection.execute(sa.insert(table).from_select(names, rows)))
