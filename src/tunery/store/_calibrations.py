"""Devices' calibrations: the latest of each device, dialect and thread count."""

import json
from contextlib import suppress

import sqlalchemy as sa

from tunery.domain import Calibration
from tunery.store.database import schema
from tunery.store.database.codec import decode, encode
from tunery.store.database.connection import Database, upsert

_table = schema.calibrations


class Calibrations(Database):
    """The store's calibrations."""

    def save_calibration(self, calibration: Calibration) -> None:
        place = {"device": calibration.device, "dialect": calibration.dialect, "threads": calibration.threads}
        row = {**place, "document": encode(calibration)}
        self.write(lambda connection: upsert(connection, _table, row, replaced=["document"]))

    def calibration(self, device: str, dialect: str, threads: int) -> Calibration | None:
        """Return what is known of a device (by its fingerprint), None if it was never calibrated so."""
        return next((c for c in self.calibrations(device) if (c.dialect, c.threads) == (dialect, threads)), None)

    def calibrations(self, device: str) -> list[Calibration]:
        """Return all calibrations of a device, by dialect and threads.

        One that cannot be read (of another version of tunery) is as good as none: the device is calibrated again.
        """
        text = sa.cast(_table.c.document, sa.Text)
        query = sa.select(text).filter_by(device=device).order_by(_table.c.dialect, _table.c.threads)
        found = []
        for document in self.read(lambda connection: connection.execute(query).scalars().all()):
            with suppress(ValueError):
                found.append(decode(Calibration, json.loads(document)))
        return found
