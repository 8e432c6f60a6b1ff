"""The tables, and the version of them that a database has."""

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery._errors import StoreError

VERSION = 1
MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {}
"""By version, what brings a database of it to the next one: whoever changes a table counts `VERSION` up and adds it."""
_LOCK = 0x74756E65  # any number that all tunery processes agree on

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite counts rows up by itself only in a column that is exactly INTEGER.
RowId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# `json`, not `jsonb`, on PostgreSQL: it keeps numbers as they were written, so floats come back bit for bit.
Document = sa.JSON()

workloads = sa.Table(
    "workloads", metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("program", sa.LargeBinary, nullable=False),
    sa.Column("document", Document, nullable=False),
    sa.Column("imported", sa.Boolean, nullable=False),
    sa.Column("operator", sa.String, nullable=True, index=True),
)  # fmt: skip

targets = sa.Table(
    "targets", metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("document", Document, nullable=False),
)  # fmt: skip

tasks = sa.Table(
    "tasks", metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("workload_key", sa.String, sa.ForeignKey("workloads.key"), nullable=False, index=True),
    sa.Column("target_key", sa.String, sa.ForeignKey("targets.key"), nullable=False),
    sa.Column("tunable", sa.Boolean, nullable=False),
)  # fmt: skip

records = sa.Table(
    "records", metadata,
    sa.Column("id", RowId, primary_key=True),
    sa.Column("digest", sa.String, nullable=False, index=True),
    sa.Column("task_key", sa.String, sa.ForeignKey("tasks.key"), nullable=False),
    sa.Column("candidate_key", sa.String, nullable=False),
    sa.Column("origin", sa.String, nullable=False),
    sa.Column("mode", sa.String, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("latency_s", sa.Double, nullable=True),
    sa.Column("deliverable", sa.Boolean, nullable=False),
    sa.Column("rejected", sa.Boolean, nullable=False),
    sa.Column("dialect", sa.String, nullable=False),
    sa.Column("compiler", sa.String, nullable=False),
    sa.Column("device", sa.String, nullable=False),
    sa.Column("settings", sa.String, nullable=False),
    sa.Column("job_id", sa.String, nullable=False, index=True),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("document", Document, nullable=False),
    sa.Column("imported", sa.Boolean, nullable=False),
    sa.Column("rank_s", sa.Double, nullable=True),
    sa.Index(
        "ix_records_candidate", "task_key", "dialect", "compiler", "device", "settings", "imported", "candidate_key"
    ),
    # An index of only the deliverable ones: what can be best is a part of all, and imported ones are not among them.
    sa.Index(
        "ix_records_rank", "task_key", "dialect", "compiler", "device", "settings", "mode", "origin", "rank_s",
        sqlite_where=sa.text("deliverable = 1"), postgresql_where=sa.text("deliverable"),  # in the words of queries
    ),
    sa.Index(
        "ix_records_default", "task_key", "dialect", "compiler", "device", "settings", "imported", "mode",
        sqlite_where=sa.text("origin = 'baseline'"), postgresql_where=sa.text("origin = 'baseline'"),
    ),
    sqlite_autoincrement=True,
)  # fmt: skip

jobs = sa.Table(
    "jobs", metadata,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("identity", sa.String, nullable=False, index=True),
    sa.Column("request", Document, nullable=False),
    sa.Column("document", Document, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("owner", Document, nullable=True),
    sa.Column("heartbeat_at", sa.Double, nullable=True),
    sa.Column("account", sa.String, nullable=False),
    sa.Column("held_money", sa.Double, nullable=True),
    sa.Index("ix_jobs_account_created_at", "account", "created_at"),
)  # fmt: skip

ledger = sa.Table(
    "ledger", metadata,
    sa.Column("id", RowId, primary_key=True),
    sa.Column("job_id", sa.String, sa.ForeignKey("jobs.job_id"), nullable=False, index=True),
    sa.Column("task_key", sa.String, nullable=False),
    sa.Column("stage", sa.String, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("wall_s", sa.Double, nullable=False),
    sa.Column("core_s", sa.Double, nullable=False),
    sa.Column("device_s", sa.Double, nullable=False),
    sa.Column("joules", sa.Double, nullable=True),
    sa.Column("modelled", sa.Boolean, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("money", sa.Double, nullable=True),
    sa.Column("currency", sa.String, nullable=False),
    sa.Column("helped", sa.Boolean, nullable=False),
    sa.Column("host", sa.String, nullable=False),
    sa.Column("charged_at", sa.Double, nullable=False, index=True),
)  # fmt: skip

networks = sa.Table(
    "networks", metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("document", Document, nullable=False),
)  # fmt: skip

extractions = sa.Table(
    "extractions", metadata,
    sa.Column("network", sa.String, sa.ForeignKey("networks.digest"), primary_key=True),
    sa.Column("target_key", sa.String, primary_key=True),
    sa.Column("compiler", sa.String, primary_key=True),
    sa.Column("document", Document, nullable=False),
    sa.Column("elsewhere", Document, nullable=True),
)  # fmt: skip

calibrations = sa.Table(
    "calibrations", metadata,
    sa.Column("device", sa.String, primary_key=True),
    sa.Column("dialect", sa.String, primary_key=True),
    sa.Column("threads", sa.Integer, primary_key=True),
    sa.Column("document", Document, nullable=False),
)  # fmt: skip

devices = sa.Table(
    "devices", metadata,
    sa.Column("fingerprint", sa.String, primary_key=True),
    sa.Column("host", sa.String, primary_key=True),
    sa.Column("facts", Document, nullable=False),
    sa.Column("first_seen", sa.Double, nullable=False),
    sa.Column("last_seen", sa.Double, nullable=False),
)  # fmt: skip

claims = sa.Table(
    "claims", metadata,
    sa.Column("task_key", sa.String, primary_key=True),
    sa.Column("conditions", sa.String, primary_key=True),
    sa.Column("candidate_key", sa.String, primary_key=True),
    sa.Column("job_id", sa.String, nullable=False),
)  # fmt: skip

events = sa.Table(
    "events", metadata,
    sa.Column("id", RowId, primary_key=True),
    sa.Column("job_id", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("payload", Document, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("ix_events_job_id_id", "job_id", "id"),
    sqlite_autoincrement=True,
)  # fmt: skip

accounts = sa.Table(
    "accounts", metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("weight", sa.Double, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("month_money", sa.Double, nullable=True),
    sa.Column("upload_bytes", sa.BigInteger, nullable=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)  # fmt: skip

audit = sa.Table(
    "audit", metadata,
    sa.Column("id", RowId, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("account", sa.String, nullable=False),
    sa.Column("source", sa.String, nullable=False),
    sa.Column("action", sa.String, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sqlite_autoincrement=True,
)  # fmt: skip

tokens = sa.Table(
    "tokens", metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("account", sa.String, sa.ForeignKey("accounts.name"), nullable=False, index=True),
    sa.Column("label", sa.String, nullable=False),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=True),
    sa.Column("made_by", sa.String, nullable=False),
)  # fmt: skip

uploads = sa.Table(
    "uploads", metadata,
    sa.Column("account", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)  # fmt: skip

_versions = sa.Table("tunery_schema", metadata, sa.Column("version", sa.Integer, nullable=False))


def version(connection: Connection, place: str) -> int | None:
    """Return the version of the database's tables, None if it is empty."""
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    if tables and _versions.name not in tables:
        raise StoreError(
            f"{place} is a database of another program (it has a table {min(tables)!r}); name another store"
        )
    if not tables:
        return None
    known = any(column["name"] == "version" for column in inspector.get_columns(_versions.name))
    found = connection.execute(sa.select(_versions.c.version)).scalar() if known else None
    if found is None or not (found == VERSION or found in MIGRATIONS):
        raise StoreError(
            f"{place} was written by another version of tunery (its tables are of version {found}, this one reads "
            f"{VERSION}); name another store with --store, or use that version: its `tunery records export` writes "
            "what a new store can import"
        )
    return int(found)


def upgrade(connection: Connection, place: str) -> None:
    """Create the tables, or migrate them, inside an open write transaction: all or nothing."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # a large store takes its time
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    found = version(connection, place)  # again: another process may have done it while this one waited
    if found is None:
        metadata.create_all(connection)
        connection.execute(sa.insert(_versions).values(version=VERSION))
    else:
        for number in range(found, VERSION):
            MIGRATIONS[number](connection)
        connection.execute(sa.update(_versions).values(version=VERSION))
