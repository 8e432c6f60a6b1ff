"""Turns a database's errors into one sentence for a user."""

import sqlite3

from sqlalchemy.exc import DBAPIError

from tunery._errors import StoreAwayError, StoreError

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

_UNREACHABLE = frozenset({"OperationalError", "InterfaceError"})
# PostgreSQL's codes (https://www.postgresql.org/docs/current/errcodes-appendix.html), by prefix: connection failures,
# idle in a transaction for too long, too many connections, shut down, crashed or just starting.
_LOST = ("08", "25P03", "53300", "57P01", "57P02", "57P03", "57P05")
_CONFLICTS = frozenset({"40001", "40P01"})  # serialization failure, deadlock


def is_lost(error: DBAPIError | sqlite3.Error) -> bool:
    """Return whether the connection to a server was lost or not made: a later attempt may succeed."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = getattr(error.orig, "sqlstate", None)
    unnamed = state is None and any(base.__name__ in _UNREACHABLE for base in type(error.orig).__mro__)
    return error.connection_invalidated or unnamed or (state or "").startswith(_LOST)


def is_conflict(error: DBAPIError | sqlite3.Error) -> bool:
    """Return whether a transaction was undone in favour of another one: done again it will succeed."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


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
    if type(cause).__name__ == "LockNotAvailable":
        return StoreError(f"another process keeps {place} locked; wait for it or end it, then try again")
    if is_lost(error):
        return StoreAwayError(f"{place} does not answer ({line}); check that it is running and reachable")
    return StoreError(f"{place} refused the operation ({line}); please report this as a bug in tunery")
