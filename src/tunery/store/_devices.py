"""The devices on which something was measured, and their calibrations."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from tunery._errors import NothingFoundError
from tunery.domain import Calibration
from tunery.domain.device import fingerprint_of
from tunery.store.database import schema
from tunery.store.database.codec import decode, encode, plain
from tunery.store.database.connection import Database, database_time, upsert

_table = schema.devices
_TYPE = ("kind", "name", "arch", "vector")
_ELSEWHERE = ""  # the host of a device that only imported records know


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device as a worker on `host` described it. One that only imported records know is `elsewhere`: it has no
    host."""

    fingerprint: str
    facts: Mapping[str, Any]
    host: str
    first_seen: float
    last_seen: float

    @property
    def elsewhere(self) -> bool:
        return self.host == _ELSEWHERE


class Devices:
    """The store's devices: one row for each fingerprint and host. Machines of one type share a fingerprint."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, fingerprint: str, facts: Mapping[str, Any], host: str) -> None:
        """Store that a device was seen on a host; the facts replace those of an earlier time."""
        row = {"fingerprint": fingerprint, "host": host, "facts": encode(facts)}

        def insert(connection: Connection) -> None:
            now = database_time(connection)
            connection.execute(sa.delete(_table).filter_by(fingerprint=fingerprint, host=_ELSEWHERE))
            upsert(connection, _table, {**row, "first_seen": now, "last_seen": now}, replaced=["facts", "last_seen"])

        self._database.write(insert)

    def facts(self, fingerprint: str) -> Mapping[str, Any]:
        """Return the facts of a device, the latest if hosts disagree."""
        found = self.find(fingerprint)
        if not found:
            raise NothingFoundError(
                f"the store {self._database.place} knows no device {fingerprint}; measure something on it first"
            )
        return found[0].facts

    def find(self, fingerprint: str | None = None) -> list[KnownDevice]:
        order = (_table.c.host == _ELSEWHERE, _table.c.last_seen.desc(), _table.c.fingerprint, _table.c.host)
        query = sa.select(_table).order_by(*order)
        if fingerprint is not None:
            query = query.where(_table.c.fingerprint == fingerprint)
        rows = self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [_device(row) for row in rows]

    def of_type(self, fingerprint: str, facts: Mapping[str, Any]) -> list[KnownDevice]:
        return [*self.find(fingerprint)[:1], *self.compatible(fingerprint, facts)]

    def compatible(self, fingerprint: str, facts: Mapping[str, Any]) -> list[KnownDevice]:
        """Return the other devices with the same type of processor, last seen first: one for each fingerprint. They may
        differ in their number of cores, in their caches and in memory: what is fast there is likely fast here."""
        others = (one for one in reversed(self.find()) if one.fingerprint != fingerprint and not one.elsewhere)
        found = {one.fingerprint: one for one in others}
        same = [one for one in found.values() if all(one.facts.get(name) == facts.get(name) for name in _TYPE)]
        return same[::-1] if facts.get("name") else []


def known_facts(connection: Connection, fingerprints: Collection[str]) -> dict[str, Any]:
    """Those of another fingerprint, which no worker of ours has told, are left out."""
    order = (_table.c.fingerprint, _table.c.host != _ELSEWHERE, _table.c.last_seen)
    rows = connection.execute(sa.select(_table.c.fingerprint, _table.c.facts).order_by(*order)).all()
    return {one: facts for one, facts in rows if one in fingerprints and fingerprint_of(plain(facts)) == one}


def insert_elsewhere(connection: Connection, devices: Mapping[str, Mapping[str, Any]]) -> None:
    now, known = database_time(connection), known_facts(connection, devices)
    rows = [
        {"fingerprint": fingerprint, "host": _ELSEWHERE, "facts": encode(facts), "first_seen": now, "last_seen": now}
        for fingerprint, facts in devices.items() if fingerprint not in known
    ]  # fmt: skip
    if rows:
        connection.execute(sa.insert(_table), rows)


def _device(row: RowMapping) -> KnownDevice:
    return KnownDevice(row["fingerprint"], plain(row["facts"]), row["host"], row["first_seen"], row["last_seen"])


_calibrations = schema.calibrations


class Calibrations(Database):
    """The store's calibrations."""

    def save_calibration(self, calibration: Calibration) -> None:
        place = {"device": calibration.device, "dialect": calibration.dialect, "threads": calibration.threads}
        row = {**place, "document": encode(calibration)}
        self.write(lambda connection: upsert(connection, _calibrations, row, replaced=["document"]))

    def calibration(self, device: str, dialect: str, threads: int) -> Calibration | None:
        return next((c for c in self.calibrations(device) if (c.dialect, c.threads) == (dialect, threads)), None)

    def calibrations(self, device: str) -> list[Calibration]:
        """A calibration that cannot be read (of another version of tunery) is as good as none: the device is calibrated
        again."""
        text = sa.cast(_calibrations.c.document, sa.Text)
        query = sa.select(text).filter_by(device=device).order_by(_calibrations.c.dialect, _calibrations.c.threads)
        found = []
        for document in self.read(lambda connection: connection.execute(query).scalars().all()):
            with suppress(ValueError):
                found.append(decode(Calibration, json.loads(document)))
        return found
