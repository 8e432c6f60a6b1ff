"""Turns a database's errors into one sentence for a user."""

import sqlite3

from sqlalchemy.exc import DBAPIError

from tunery._errors import StoreError

# By prefix of SQLite's extended result code names, most specific first (https://www.sqlite.org/rescode.html).
_SQLITE = (
    ("SQLITE_FULL", "the disk under {place} is full; what was stored before is intact: free some space and resume"),
    ("SQLITE_NOTADB", "{place} is not a tunery store; name another file, or move this one away"),
    ("SQLITE_CORRUPT", "{place} is damaged; restore a copy, or move the file away and import your last export"),
    ("SQLITE_READONLY", "{place} cannot be written; make it and its folder writable, or name another store"),
    ("SQLITE_PERM", "{place} cannot be written; make it and its folder writable, or name another store"),
    ("SQLITE_CANTOPEN", "{place} cannot be opened; make its folder writable, or name another store"),
    ("SQLITE_BUSY", "another process keeps {place} locked; wait for it or end it, then try again"),
    ("SQLITE_PROTOCOL", "{place} cannot be locked; put it on a local disk or use a postgresql:// store"),
    ("SQLITE_IOERR", "{place} could not be read or written ({detail}): is the disk full, over quota or failing? "
     "What was stored before is intact: make room and resume"),
)  # fmt: skip


def translate(error: DBAPIError | sqlite3.Error, place: str) -> StoreError:
    """Return the StoreError that tells a user what `error` means for the store at `place`, and what to do."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    line = str(cause).strip().partition("\n")[0]
    code = getattr(cause, "sqlite_errorname", "")
    for prefix, text in _SQLITE:
        if code.startswith(prefix):
            return StoreError(text.format(place=place, detail=line))
    if type(cause).__name__ == "DiskFull":
        return StoreError(f"the disk under {place} is full; free some space on the server and resume")
    if type(cause).__name__ in {"OperationalError", "InterfaceError"}:
        return StoreError(f"{place} does not answer ({line}); check that it is running and reachable")
    return StoreError(f"{place} refused the operation ({line}); please report this as a bug in tunery")
