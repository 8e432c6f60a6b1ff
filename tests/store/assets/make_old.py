"""Wrote this directory's `v1.sql`, `v2.sql`, … with the code of their time; kept to show how, not to be run again."""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from alembic import command
from store_samples import HERE, network, record, task

from tunery.domain import Calibration, JobState, Mode, Outcome, SharingPoint
from tunery.store import Charge, Store, open_store
from tunery.store.database.migrate import alembic_config


def main(version: int) -> None:
    path = Path(tempfile.mkdtemp()) / "store.db"
    with open_store(str(path)) as store:
        fill(store, version)
        store.write(lambda connection: command.downgrade(alembic_config(connection), f"000{version}"))
    with closing(sqlite3.connect(path)) as connection, connection:
        (Path(__file__).parent / f"v{version}.sql").write_text(
            "\n".join(connection.iterdump()) + "\n", encoding="utf-8"
        )
    connection.close()


def fill(store: Store, version: int) -> None:
    conv = task()
    store.add_record(conv, record(conv, "fast", 1e-3))
    store.add_record(conv, record(conv, "fast", 1.25e-3, mode=Mode.FINAL))
    store.add_record(conv, record(conv, "hung", None, outcome=Outcome.TIMEOUT, verification=None))
    job = store.create_job({"model": "resnet18.onnx", "budget": "10min"})
    store.charge(job.job_id, conv.key, "measure", "ok", 1.5, 2.5, 0.5)
    if version >= 2:
        store.save_tasks(network(), [conv], target=conv.target, compiler="fake-1")
    if version >= 3:
        store.charge_all([Charge(job.job_id, "", "learn", "", 1, 1, 0, 5.0, True, 1, 0.25, "USD", True)])
    if version >= 4:
        points = (SharingPoint("compute", 2, 0.01, 0.97, 1.9), SharingPoint("memory", 2, 0.2, 0.8, 1.1))
        kinds = {"compute": 2, "memory": 1}
        rest = (1e11, 1e10, 2e-7, 1_700_000_000.0)
        store.save_calibration(Calibration("device-a", "fake", 2, 2, points, {"compute": 0.98}, kinds, *rest))
    store.acquire_job(job.job_id)
    store.release_job(job.job_id, JobState.STOPPED)
    assert store.best(conv.key, HERE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
