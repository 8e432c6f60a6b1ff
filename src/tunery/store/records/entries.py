"""What ranking needs of tasks' records: all of them, or no more than the first few take."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection

from tunery.domain import Mode, Origin, Provenance, paced
from tunery.store.database import schema
from tunery.store.database.codec import plain
from tunery.store.database.connection import batched
from tunery.store.records.ranking import MODES, Entry, certain, ranked, tied
from tunery.store.records.rows import CONDITIONS, provenance_row

_records = schema.records
_own = sa.not_(_records.c.imported)
_FIRST_READ, _MANY = 4, 500
_columns = tuple(
    _records.c.id if name == "row_id" else _records.c[name]
    for name in Entry.__dataclass_fields__
    if name != "samples_s"
)


def holds(provenance: Provenance) -> sa.ColumnElement[bool]:
    return sa.and_(*(_records.c[name] == value for name, value in provenance_row(provenance).items()))


def tells() -> sa.ColumnElement[bool]:
    """A record that came late, after its job was lost, does not tell: it alone has a latency and no rank."""
    return sa.or_(_records.c.rank_s.is_not(None), _records.c.latency_s.is_(None))


def is_default() -> sa.ColumnElement[bool]:
    """Return the condition that a record is of a compiler's default, in the words of the index of these."""
    return _records.c.origin == sa.literal_column(f"'{Origin.BASELINE.value}'")


def entries(connection: Connection, task_key: str, provenance: Provenance, *, imported: bool = False) -> list[Entry]:
    """Own entries, or the `imported` ones, and never both: these may claim what they like."""
    origin = _records.c.imported if imported else _own
    found = _history(connection, sa.and_(_records.c.task_key == task_key, holds(provenance), origin))
    finals = [entry for entry in found if entry.mode == Mode.FINAL]
    return _with_samples(found, _samples(connection, finals))


def compilers_of(connection: Connection, task_keys: Collection[str], dialect: str) -> list[str]:
    """Each compiler is found in an index, however many records it has made."""
    found = list[str]()
    here = sa.and_(_records.c.task_key == schema.tasks.c.key, _records.c.dialect == dialect)
    following = sa.select(sa.func.min(_records.c.compiler)).where(here, _records.c.compiler > sa.bindparam("last"))
    query = sa.select(following.correlate(schema.tasks).scalar_subquery())
    parts = [query.where(schema.tasks.c.key.in_(some)) for some in batched(task_keys)]
    while True:
        given = {"last": found[-1] if found else ""}
        known = [name for part in parts for name in connection.execute(part, given).scalars() if name is not None]
        if not known:
            return found
        found.append(min(known))


def histories(connection: Connection, task_keys: Collection[str], provenance: Provenance) -> dict[str, list[Entry]]:
    """Return for each task the own entries of these conditions, oldest first, without the samples of finals."""
    found: dict[str, list[Entry]] = {key: [] for key in task_keys}
    for some in batched(task_keys):
        here = sa.and_(_records.c.task_key.in_(some), holds(provenance), _own)
        query = sa.select(_records.c.task_key, *_columns).where(here).order_by(_records.c.id)
        for row in connection.execute(query):
            found[row[0]].append(Entry(*row[1:]))
    return found


def best_entries(
    connection: Connection,
    task_keys: Collection[str],
    provenance: Provenance,
    limit: int | None = 1,
    origin: Origin | None = None,
) -> dict[str, list[Entry]]:
    """All tasks are asked for at once, and no more is read than the answer needs: the fastest of each mode, from an
    index, with all other records of their candidates, which decide whether they count."""
    reads = {key: _Read() for key in task_keys}
    if limit is None or limit > _MANY:
        for key, found in histories(connection, task_keys, provenance).items():
            reads[key] = _Read(found, dict.fromkeys(MODES, math.inf))
        _add_samples(connection, reads.values(), origin)
        return {key: read.first(limit, origin) for key, read in reads.items()}
    for mode in MODES:
        size = max(_FIRST_READ, 2 * limit)
        wanting = [key for key, read in reads.items() if len(read.first(limit, origin)) < limit]
        while wanting:
            _read_fastest(connection, {key: reads[key] for key in wanting}, provenance, mode, size, origin)
            if mode is Mode.FINAL:
                _add_samples(connection, [reads[key] for key in wanting], origin)
            wanting = [
                key
                for key in wanting
                if reads[key].unread_s[mode] < math.inf and len(reads[key].first(limit, origin)) < limit
            ]
            size *= 4
    return {key: read.first(limit, origin) for key, read in reads.items()}


@dataclass
class _Read:
    """What was read of a task: all records of some candidates, and the least place of what was not, by mode."""

    entries: list[Entry] = field(default_factory=list)
    unread_s: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(MODES, 0.0))

    def first(self, limit: int | None, origin: Origin | None) -> list[Entry]:
        return certain(ranked(self.entries, origin=origin), self.unread_s)[:limit]


def _read_fastest(  # noqa: PLR0917
    connection: Connection,
    reads: Mapping[str, _Read],
    provenance: Provenance,
    mode: Mode,
    size: int,
    origin: Origin | None,
) -> None:
    """Add to each read the `size` fastest records of a mode and origin, and all others of their candidates."""
    found: dict[str, dict[int, Entry]] = {key: {e.row_id: e for e in read.entries} for key, read in reads.items()}
    fastest: dict[tuple[str, str], dict[int, float]] = {}
    query, plain_list = _fastest_query(connection.dialect.name), connection.dialect.name == "postgresql"
    lanes = [one.value for one in (Origin if origin is None else (origin,))]
    given = {"size": size, "mode": mode.value, **provenance_row(provenance)}
    for some in batched(reads):
        values = (
            {"keys": some, "lanes": lanes} if plain_list else {"keys": json.dumps(some), "lanes": json.dumps(lanes)}
        )
        for row in connection.execute(query, given | values):
            task_key, lane, row_id, rank_s, *columns = row
            fastest.setdefault((task_key, lane), {})[row_id] = rank_s
            found[task_key].setdefault(columns[0], Entry(*columns))
    for key, read in reads.items():
        read.entries = sorted(found[key].values(), key=lambda entry: entry.row_id)
        read.unread_s[mode] = math.inf
    for (key, _), ranks in fastest.items():
        if len(ranks) == size:
            reads[key].unread_s[mode] = min(reads[key].unread_s[mode], max(ranks.values()))


@cache
def _fastest_query(database: str) -> sa.Select[Any]:
    """Return the query of `_read_fastest`; it is made once, for that costs as much as a round trip."""
    keys, lanes = _values(database, "keys"), _values(database, "lanes")
    one, other = _records.alias("one"), _records.alias("other")
    fastest = (
        sa.select(one.c.id, one.c.candidate_key, one.c.rank_s)
        .where(one.c.task_key == keys.c.value, *_given(one), one.c.origin == lanes.c.value)
        .where(one.c.mode == sa.bindparam("mode"), one.c.deliverable, one.c.rank_s.is_not(None))
        .order_by(one.c.rank_s)
        .limit(sa.bindparam("size"))
    )
    asked = keys.join(lanes, sa.true())
    top: sa.FromClause
    if database == "postgresql":
        top = fastest.lateral("top")
        asked = asked.join(top, sa.true())
    else:  # SQLite has no LATERAL
        top = _records.alias("top")
        ids = fastest.with_only_columns(one.c.id).correlate(keys, lanes).scalar_subquery()
        asked = asked.join(top, top.c.id.in_(ids))
    same = (other.c.task_key == keys.c.value, *_given(other), sa.not_(other.c.imported))
    asked = asked.join(other, sa.and_(*same, other.c.candidate_key == top.c.candidate_key))
    columns = (other.c[column.name] for column in _columns)
    return sa.select(keys.c.value, lanes.c.value, top.c.id, top.c.rank_s, *columns).select_from(asked)


def _given(records: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    return [records.c[name] == sa.bindparam(name) for name in CONDITIONS]


def _values(database: str, name: str) -> sa.TableValuedAlias:
    if database == "postgresql":
        strings = sa.bindparam(name, type_=ARRAY(sa.String))
        return sa.func.unnest(strings).table_valued("value", name=f"each_of_{name}").render_derived()
    return sa.func.json_each(sa.bindparam(name)).table_valued("value", name=f"each_of_{name}")


def _add_samples(connection: Connection, reads: Collection[_Read], origin: Origin | None) -> None:
    close = [entry for read in reads for entry in tied(read.entries, origin) if not entry.samples_s]
    samples = _samples(connection, close)
    for read in reads if samples else ():
        read.entries = _with_samples(read.entries, samples)


def _history(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Entry]:
    query = sa.select(*_columns).where(condition).order_by(_records.c.id)
    return [Entry(*row) for row in connection.execute(query)]


def _samples(connection: Connection, finals: Collection[Entry]) -> dict[int, tuple[float, ...]]:
    query = sa.select(_records.c.id, _records.c.document)
    found: dict[int, tuple[float, ...]] = {}
    for some in batched(entry.row_id for entry in finals):
        for row in connection.execute(query.where(_records.c.id.in_(some))):
            measured = row.document["measurement"]
            found[row.id] = paced(plain(measured["samples_s"]), measured.get("context") or {})
    return found


def _with_samples(found: Iterable[Entry], samples: Mapping[int, tuple[float, ...]]) -> list[Entry]:
    return [replace(one, samples_s=samples[one.row_id]) if one.row_id in samples else one for one in found]
