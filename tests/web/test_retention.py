"""What a service forgets by its age, and what it keeps."""

import hashlib
import os
from pathlib import Path

import pytest
from test_web_jobs import QUICK, ended, submitted
from web_tools import Serve, Site

from tunery.domain import JobState
from tunery.store import Store
from tunery.web._files import forget

HOUR_S, DAY_S = 3600.0, 86_400.0
pytestmark = pytest.mark.jobs


def age(files: Path) -> None:
    """Make all files a day old."""
    for path in files.rglob("*"):
        old_s = path.stat().st_mtime - DAY_S
        os.utime(path, (old_s, old_s))


def test_old_files_and_events_go_and_answers_records_and_new_ones_stay(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        service = site.app.state.service
        places = []
        for blob in (b"old", b"needed", b"new"):
            places.append(f"/v1/blobs/sha256:{hashlib.sha256(blob).hexdigest()}")
            assert (await ann.put(places[-1], content=blob)).status_code == 201
            if blob == b"needed":
                age(service.files)
        job = await ended(ann, (await submitted(ann, {**QUICK, "deliver": True}))["id"])
        model = service.files / "models" / places[1].rpartition(":")[2] / "net.onnx"
        waits = {"model": str(model), "dialect": "fake", "queue_owner": "ann", "kind": "tune"}

        def later(store: Store) -> tuple[int, int]:
            store.create_job(waits)
            return forget(store, service.files, HOUR_S), forget(store, service.files, HOUR_S)

        assert await service.store.write(later) == (1, 0)
        assert [(await ann.get(place)).status_code for place in places] == [404, 200, 200]
        assert (await ann.get(f"/v1/jobs/{job['id']}/file")).status_code == 200
        age(service.files)
        await service.store.write(lambda store: forget(store, service.files, -HOUR_S))
        assert (await ann.get(f"/v1/jobs/{job['id']}/file")).status_code == 404
        after = (await ann.get(f"/v1/jobs/{job['id']}")).json()
        assert (after["tasks"], after["answer"]["compiled"]) == (job["tasks"], job["answer"]["compiled"])
        kinds = await service.store.read(lambda store: {event.kind for event in store.events.after(job_id=job["id"])})
        assert "state" not in kinds
        assert (await ann.put(places[0], content=b"old")).status_code == 201, "it is uploaded again"

    serve(main)


@pytest.mark.parametrize("state", JobState)
def test_the_model_of_a_job_stays_until_it_is_over(serve: Serve, state: JobState) -> None:
    async def main(site: Site) -> None:
        service = site.app.state.service
        model = service.files / "models" / hashlib.sha256(b"model").hexdigest() / "net.onnx"
        model.parent.mkdir(parents=True)
        model.write_bytes(b"model")
        age(service.files)

        def later(store: Store) -> None:
            job = store.create_job(
                {"model": str(model), "dialect": "fake", "queue_owner": "ann", "kind": "tune"}
            ).job_id
            if state is not JobState.QUEUED:
                assert store.acquire_job(job)
            if state not in {JobState.QUEUED, JobState.RUNNING}:
                assert store.release_job(job, state)
            forget(store, service.files, HOUR_S)

        await service.store.write(later)
        assert model.exists() == (state not in {JobState.DONE, JobState.CANCELLED, JobState.FAILED})

    serve(main)
