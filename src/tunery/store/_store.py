"""Opening a store."""

import sqlite3
from pathlib import Path

from sqlalchemy.engine import URL

from tunery._errors import StoreError
from tunery.store._calibrations import Calibrations
from tunery.store._claims import Claims
from tunery.store._devices import Devices
from tunery.store._events import Events
from tunery.store._jobs import Jobs
from tunery.store._ledger import Ledger
from tunery.store._networks import Networks
from tunery.store._records import Records
from tunery.store._upkeep import Upkeep
from tunery.store.database.connection import AWAY_S, IN_MEMORY, Database
from tunery.store.database.failures import translate
from tunery.store.database.migrate import upgrade, version
from tunery.store.database.place import check_plain, prepare, resolve, shown
from tunery.store.database.schema import HEAD
from tunery.store.database.snapshot import Snapshot, is_read_only
from tunery.store.exchange.interchange import Interchange


class Store(Records, Networks, Jobs, Ledger, Calibrations, Interchange, Upkeep, Database):
    """Tasks, records, networks, jobs and the ledger; a context manager, usable from several threads.

    Whatever a method has written is durable when it returns. Every method raises StoreError when the database cannot be
    read or written.
    """

    def __init__(self, url: URL, *, keep: bool = True) -> None:
        self._snapshot = _snapshot(url, keep=keep)
        super().__init__(url.set(database=str(self._snapshot.path)) if self._snapshot else url)
        if self._snapshot is not None:
            self.path, self.place = Path(url.database or ""), shown(url)
        self.claims, self.devices, self.events = Claims(self), Devices(self), Events(self)
        try:
            if self.path is not None and self._snapshot is None and not self.in_memory:
                prepare(self.path)
            self._migrate()
        except BaseException:
            self.close()
            raise
        self._patience_s = AWAY_S

    def _migrate(self) -> None:
        if self.read(lambda connection: version(connection, self.place)) != HEAD:
            self.write(lambda connection: upgrade(connection, self.place))

    def close(self) -> None:
        """Close all connections; what was acknowledged is already durable. Closing twice is fine."""
        super().close()
        if self._snapshot is not None:
            self._snapshot.close()


def _snapshot(url: URL, *, keep: bool) -> Snapshot | None:
    path = Path(url.database or "")
    if keep or url.get_backend_name() != "sqlite" or dict(url.query) == IN_MEMORY or not is_read_only(path):
        return None
    check_plain(path)
    try:
        return Snapshot(path)
    except sqlite3.Error as error:
        raise translate(error, shown(url)) from error


def open_store(url: str = "", *, create: bool = True, keep: bool = True) -> Store:
    """Open a store, create it where there is none, and bring an older one to this version's schema.

    `url` is a file path, `sqlite:///path` or `postgresql://user@host/name`; "" means the file that `TUNERY_STORE`
    names, or else `~/.local/share/tunery/tunery.db`. Whoever only reads says that nothing is to be created: then that
    file, where it is not there yet, reads as an empty store, and one that was named must be there. Whoever can do
    without what they write themselves does not `keep` it: then a place that cannot be written is no error; what is
    there is read from a copy, which goes with the store's end.

    Raises:
        StoreError: the place cannot hold a store, or what is there is damaged, foreign or from a newer tunery; or
            there is none, and none is to be created.
    """
    absent = None if create else missing(url, keep=keep)
    if absent is None:
        return Store(resolve(url), keep=keep)
    if url:
        raise StoreError(f"there is no store at {absent}; name another with --store, or begin one with `tunery tune`")
    return Store(resolve(url).update_query_dict(IN_MEMORY))


def missing(url: str = "", *, keep: bool = True) -> Path | None:
    """Return the file in which `open_store` would create a store; None where there is one, or it is no file.

    With `keep` it must be a place that can be written.

    Raises:
        StoreError: no store can be created there.
    """
    place = resolve(url)
    path = Path(place.database or "")
    if place.get_backend_name() != "sqlite" or path.exists():
        return None
    prepare(path, create=False, keep=keep)
    return path
