"""What ranking needs of a task's records: all of them, or the best first and no more than are asked for."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain, groupby

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery.domain import Mode, Origin, Provenance, paced
from tunery.domain.ties import CLOSE, CLOSE_BASELINE
from tunery.store._ranking import Entry, finals_in_order, verdicts
from tunery.store._rows import provenance_row
from tunery.store.database import schema
from tunery.store.database.codec import plain
from tunery.store.database.connection import batched

_records = schema.records
_FIRST_PAGE, _LARGEST_PAGE = 16, 2000
_columns = tuple(
    _records.c.id.label(name) if name == "row_id" else _records.c[name]
    for name in Entry.__dataclass_fields__
    if name != "samples_s"
)


def holds(provenance: Provenance) -> sa.ColumnElement[bool]:
    """Return the condition that a record was made under exactly these conditions."""
    return sa.and_(*(_records.c[name] == value for name, value in provenance_row(provenance).items()))


def tells() -> sa.ColumnElement[bool]:
    """Return the condition that a record tells of its candidate: one that came late, after its job was lost, does not.

    It alone has a latency and no rank.
    """
    return sa.or_(_records.c.rank_s.is_not(None), _records.c.latency_s.is_(None))


def entries(connection: Connection, task_key: str, provenance: Provenance, *, imported: bool = False) -> list[Entry]:
    """Return what ranking needs of all records of a task under these conditions, oldest first.

    Own ones, or the `imported` ones, and never both: these may claim what they like.
    """
    here = _here(task_key, provenance, imported=imported)
    finals = connection.execute(sa.select(_records.c.id).where(here, _records.c.mode == Mode.FINAL.value)).scalars()
    samples = _samples(connection, finals.all())
    return [replace(one, samples_s=samples.get(one.row_id, ())) for one in _history(connection, here)]


def history(connection: Connection, task_key: str, provenance: Provenance) -> list[Entry]:
    """Return the own `entries` of these conditions without the samples of finals."""
    return _history(connection, _here(task_key, provenance))


def ranked_entries(
    connection: Connection, task_key: str, provenance: Provenance, origin: Origin | None = None
) -> Iterator[Entry]:
    """Yield what `ranked` makes of the own `entries` of these conditions; no more rows are read than are needed.

    With `origin`, only entries of that origin take part. Rows come by mode and `rank_s` from an index; whether one
    counts is decided by the other records of its candidate.
    """
    here = _here(task_key, provenance)
    yield from _ties_first(connection, _by_rank(connection, here, Mode.FINAL, origin))
    for mode in (Mode.RACE, Mode.SHARED):
        yield from _by_rank(connection, here, mode, origin)


def _ties_first(connection: Connection, finals: Iterator[Entry]) -> Iterator[Entry]:
    """Yield finals, which come by their medians, with those that are tied with the fastest in the order of ties."""
    head: list[Entry] = []
    rest: list[Entry] = []
    for entry in finals:
        if head and not _within(entry, head[0], CLOSE_BASELINE):
            rest = [entry]
            break
        head.append(entry)
    close = [e.row_id for e in head if _within(e, head[0], CLOSE_BASELINE if e.origin == Origin.BASELINE else CLOSE)]
    samples = _samples(connection, close)
    yield from finals_in_order([replace(e, samples_s=samples.get(e.row_id) or (_rank(e),)) for e in head])
    yield from chain(rest, finals)


def _by_rank(
    connection: Connection, here: sa.ColumnElement[bool], mode: Mode, origin: Origin | None
) -> Iterator[Entry]:
    """Yield the entries of one mode that stand for their candidates, by `rank_s`, then by key."""
    for _, equal in groupby(_standing(connection, here, mode, origin), key=_rank):
        yield from sorted(equal, key=lambda entry: entry.candidate_key)


def _standing(
    connection: Connection, here: sa.ColumnElement[bool], mode: Mode, origin: Origin | None
) -> Iterator[Entry]:
    usable = sa.and_(_records.c.mode == mode.value, _records.c.deliverable, _records.c.rank_s.is_not(None))
    query = sa.select(*_columns).where(here, usable).order_by(_records.c.rank_s, _records.c.id)
    if origin is not None:
        query = query.where(_records.c.origin == origin.value)
    stand: dict[str, int] = {}
    size, page = _FIRST_PAGE, [Entry(*row) for row in connection.execute(query.limit(_FIRST_PAGE))]
    complete = False
    while page:
        new = {entry.candidate_key for entry in page}.difference(stand)
        stand.update(dict.fromkeys(new, -1))
        if size == _LARGEST_PAGE and not complete:  # one pass over all costs less than many lists of keys
            stand.update((entry.candidate_key, entry.row_id) for entry in verdicts(_history(connection, here)))
            complete = True
        elif not complete:
            stand.update((entry.candidate_key, entry.row_id) for entry in _verdicts(connection, here, new))
        yield from (entry for entry in page if stand[entry.candidate_key] == entry.row_id)
        if len(page) < size:
            return
        rank_s, row_id = page[-1].rank_s, page[-1].row_id
        passed = sa.and_(_records.c.rank_s == rank_s, _records.c.id <= row_id)
        size = min(4 * size, _LARGEST_PAGE)
        rows = connection.execute(query.where(_records.c.rank_s >= rank_s, sa.not_(passed)).limit(size))
        page = [Entry(*row) for row in rows]


def _verdicts(connection: Connection, here: sa.ColumnElement[bool], keys: Collection[str]) -> list[Entry]:
    """Return for those candidates that may be used the entry that stands for each."""
    parts = (_history(connection, sa.and_(here, _records.c.candidate_key.in_(some))) for some in batched(keys))
    return [entry for part in parts for entry in verdicts(part)]


def _history(connection: Connection, condition: sa.ColumnElement[bool]) -> list[Entry]:
    query = sa.select(*_columns).where(condition).order_by(_records.c.id)
    return [Entry(*row) for row in connection.execute(query)]


def _samples(connection: Connection, row_ids: Collection[int]) -> dict[int, tuple[float, ...]]:
    """Return the samples of finals at their rounds' pace."""
    query = sa.select(_records.c.id, _records.c.document)
    found: dict[int, tuple[float, ...]] = {}
    for some in batched(row_ids):
        for row in connection.execute(query.where(_records.c.id.in_(some))):
            measured = row.document["measurement"]
            found[row.id] = paced(plain(measured["samples_s"]), measured.get("context") or {})
    return found


def _here(task_key: str, provenance: Provenance, *, imported: bool = False) -> sa.ColumnElement[bool]:
    origin = _records.c.imported if imported else sa.not_(_records.c.imported)
    return sa.and_(_records.c.task_key == task_key, holds(provenance), origin)


def _rank(entry: Entry) -> float:
    assert entry.rank_s is not None
    return entry.rank_s


def _within(entry: Entry, fastest: Entry, share: float) -> bool:
    return _rank(entry) <= _rank(fastest) * (1 + share)
