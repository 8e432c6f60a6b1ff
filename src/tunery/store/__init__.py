"""The store: every task, record, job and charge, durable in SQLite (default) or PostgreSQL."""

from tunery.store._accounts import (
    ACTIVE,
    DELETED,
    DISABLED,
    AuditEntry,
    MonthMoney,
    MonthPart,
    StoredAccount,
    StoredToken,
    Upload,
)
from tunery.store._devices import Devices, KnownDevice
from tunery.store._events import Event, Events
from tunery.store._interchange import ImportSummary
from tunery.store._jobs import OtherVersionError, new_job_id
from tunery.store._ledger import Charge
from tunery.store._store import AsyncStore, Store, missing, open_store, patience_s
from tunery.store._upkeep import StoreStats
from tunery.store.database.file import file_of, place_of
from tunery.store.records.records import Failure, KnownOperator, Offer, Standing, Trial
from tunery.store.records.rows import Skipped

__all__ = [
    "ACTIVE",
    "DELETED",
    "DISABLED",
    "AsyncStore",
    "AuditEntry",
    "Charge",
    "Devices",
    "Event",
    "Events",
    "Failure",
    "ImportSummary",
    "KnownDevice",
    "KnownOperator",
    "MonthMoney",
    "MonthPart",
    "Offer",
    "OtherVersionError",
    "Skipped",
    "Standing",
    "Store",
    "StoreStats",
    "StoredAccount",
    "StoredToken",
    "Trial",
    "Upload",
    "file_of",
    "missing",
    "new_job_id",
    "open_store",
    "patience_s",
    "place_of",
]
