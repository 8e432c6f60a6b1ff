"""Wrote `v1.sql` and `v2.sql`, stores as earlier schemas kept them; to be kept, not run again once tables changed."""

import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from alembic import command
from store_samples import HERE, record, task

from tunery.domain import JobState, Mode, Outcome
from tunery.store import open_store
from tunery.store._migrate import alembic_config


def main(version: str) -> None:
    path = Path(tempfile.mkdtemp()) / "store.db"
    with open_store(str(path)) as store:
        conv = task()
        store.add_record(conv, record(conv, "fast", 1e-3))
        store.add_record(conv, record(conv, "fast", 1.25e-3, mode=Mode.FINAL))
        store.add_record(conv, record(conv, "hung", None, outcome=Outcome.TIMEOUT, verification=None))
        job = store.create_job({"model": "resnet18.onnx", "budget": "10min"})
        store.charge(job.job_id, conv.key, "measure", "ok", 1.5, 2.5, 0.5)
        store.acquire_job(job.job_id)
        store.release_job(job.job_id, JobState.STOPPED)
        assert store.best(conv.key, HERE)
        with store._write() as connection:
            command.downgrade(alembic_config(connection), f"000{version}")
    with sqlite3.connect(path) as connection:
        (Path(__file__).parent / f"v{version}.sql").write_text(
            "\n".join(connection.iterdump()) + "\n", encoding="utf-8"
        )
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
