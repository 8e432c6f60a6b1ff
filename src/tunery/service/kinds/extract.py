"""The tasks of a network."""

from tunery.delivery.work import Work
from tunery.service.kinds._base import Answer, JobKind, Options


async def _extract(work: Work, _: Options) -> Answer:
    found = await work.model()
    tasks = [
        {
            "task": t.key, "name": t.workload.name, "kind": t.workload.kind, "weight": t.weight,
            "workload": t.workload.key, "operator": t.workload.operator,
        }
        for t in found.tasks
    ]  # fmt: skip
    batch_of_one = list(found.network.batch_of_one)
    return {"network": found.network.name, "target": str(found.target), "tasks": tasks, "batch_of_one": batch_of_one}


EXTRACT = JobKind(name="extract", options=Options, run=_extract)
