"""Brings a database to this version's schema."""

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery._errors import StoreError
from tunery.store.database.schema import HEAD, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x74756E65  # any number that all tunery processes agree on


def version(connection: Connection, place: str) -> str | None:
    """Return the schema version of the database, None if it is empty."""
    tables = set(sa.inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        if tables:
            raise StoreError(
                f"{place} is a database of another program (it has a table {min(tables)!r}); name another store"
            )
        return None
    table = sa.table(VERSION_TABLE, sa.column("version_num"))
    found: str | None = connection.execute(sa.select(table.c.version_num)).scalar()
    if found is not None and found > HEAD:
        raise StoreError(
            f"{place} was written by a newer tunery (schema {found}, this one knows {HEAD}); "
            "upgrade tunery or name another store"
        )
    return found


def upgrade(connection: Connection, place: str) -> None:
    """Run the missing migrations inside the connection's open write transaction: all of them or none."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # a large store takes its time
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if version(connection, place) == HEAD:
        return  # another process did it while this one waited for the lock

    from alembic import command

    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> "Config":
    """Return the configuration with which Alembic runs the packaged migrations on an open connection."""
    from alembic.config import Config

    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
