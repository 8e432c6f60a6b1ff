"""Drives searches of fake tasks without a job: one core, one builder, one measurer, in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tunery.accounting.prices import load_prices
from tunery.domain import Provenance, Task
from tunery.measuring.settings import MeasuringSettings
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore, Store
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.testing.inline_engine import InlineEngine
from tunery.tuning.account import Account
from tunery.tuning.calls import Context
from tunery.tuning.learning import Learning


def fake_tasks(source: str) -> list[Task]:
    dialect = FakeDialect()
    return dialect.extract(fake_network(source), dialect.resolve_target("native", 1))


@asynccontextmanager
async def runtime_in(directory: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    patch.setattr("tunery.runtime.dispatch.granted_cores", lambda: 1)
    with InlineEngine() as engine:
        yield Runtime(
            engine, RuntimeSpec("fake", device="fake"), directory / "scratch", dispatch=Dispatch(record=False)
        )


def context_of(runtime: Runtime, store: Store, job_id: str = "", seed: int = 0, **more: Any) -> Context:
    """Return the context of a job that is new, or of the one that has this id."""
    if not job_id:
        job_id = store.create_job({}).job_id
        runtime.dispatch.submit(job_id)
    provenance = Provenance("fake", "fake 1.0", "device", MeasuringSettings().key)
    calls = AsyncStore(store)
    account = Account(calls, job_id, runtime, load_prices(""), runtime.power)
    learning = more.pop("learning", None) or Learning(runtime, job_id, None)
    return Context(job_id, runtime, calls, provenance, seed, account, learning, **more)
