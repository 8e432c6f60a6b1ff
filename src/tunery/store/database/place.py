"""From what a user writes (nothing, a path, a URL) to a place where a store can live."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tunery._errors import StoreError
from tunery._settings import store_place

VARIABLE = "TUNERY_STORE"


def resolve(text: str) -> URL:
    text = text or store_place()
    if "://" not in text:
        return _file(text)
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(f"store {text!r} is no URL; write a file path or postgresql://user@host/name") from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StoreError(f"store {text!r} names no file; write for example sqlite:///tunery.db")
        return _file(url.database)
    if url.get_backend_name() in {"postgresql", "postgres"}:
        if find_spec("psycopg") is None:
            raise StoreError("a PostgreSQL store needs psycopg; install it with: pip install 'psycopg[binary]'")
        return url.set(drivername="postgresql+psycopg")
    raise StoreError(f"store {text!r} is of an unknown kind; write a file path or postgresql://user@host/name")


def place_of(text: str) -> str:
    return shown(resolve(text))


def file_of(text: str) -> Path | None:
    url = resolve(text)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def shown(url: URL) -> str:
    is_file = url.get_backend_name() == "sqlite"
    return (url.database or "") if is_file else url.render_as_string(hide_password=True)


def _file(text: str) -> URL:
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:
        raise StoreError(f"store {text!r} names an unknown home directory; write the whole path") from None
    try:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # said where it is opened
            path.stat()
    except (OSError, ValueError) as error:  # a name that is too long, or no name at all
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(f"store {text[:60]!r} cannot be looked at ({reason}); choose another path") from None
    return URL.create("sqlite", database=str(path))
