"""Workloads, tasks, records, jobs and the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_tasks()
    _create_records()
    _create_jobs()


def _create_tasks() -> None:
    op.create_table(
        "workloads",
        sa.Column("key", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("program", sa.LargeBinary, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workloads"),
    )
    op.create_table(
        "targets",
        sa.Column("key", sa.String, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_targets"),
    )
    op.create_table(
        "tasks",
        sa.Column("key", sa.String, nullable=False),
        sa.Column("workload_key", sa.String, nullable=False),
        sa.Column("target_key", sa.String, nullable=False),
        sa.Column("tunable", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_tasks"),
        sa.ForeignKeyConstraint(["workload_key"], ["workloads.key"], name="fk_tasks_workload_key"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_tasks_target_key"),
    )
    op.create_index("ix_tasks_workload_key", "tasks", ["workload_key"])


def _create_records() -> None:
    op.create_table(
        "records",
        sa.Column("id", _row_id, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("task_key", sa.String, nullable=False),
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
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_records"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_records_task_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_records_digest", "records", ["digest"])
    op.create_index("ix_records_job_id", "records", ["job_id"])
    op.create_index("ix_records_key", "records", ["task_key", "dialect", "compiler", "device", "settings"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("identity", sa.String, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("owner", sa.JSON, nullable=True),
        sa.Column("heartbeat_at", sa.Double, nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_identity", "jobs", ["identity"])
    op.create_table(
        "ledger",
        sa.Column("id", _row_id, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("task_key", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("wall_s", sa.Double, nullable=False),
        sa.Column("core_s", sa.Double, nullable=False),
        sa.Column("device_s", sa.Double, nullable=False),
        sa.Column("joules", sa.Double, nullable=True),
        sa.Column("modelled", sa.Boolean, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_ledger_job_id"),
    )
    op.create_index("ix_ledger_job_id", "ledger", ["job_id"])


def downgrade() -> None:
    for table in ("ledger", "jobs", "records", "tasks", "targets", "workloads"):
        op.drop_table(table)
