"""The tasks of a network."""

from tunery.domain.request import Options
from tunery.reports.data import plain
from tunery.service.kinds._base import Answer, JobKind
from tunery.tuning.work import Work


async def _extract(work: Work, _: Options) -> Answer:
    found = await work.model()
    return {
        "network": found.network.name,
        "target": str(found.target),
        "tasks": [
            {
                "name": task.workload.name, "workload": task.workload.key, "operator": task.workload.operator,
                "weight": task.weight, "tunable": task.tunable, "task": task.key, "kind": task.workload.kind,
                "flop": plain(task.workload.flop),
            }
            for task in found.tasks
        ],
        "elsewhere": dict(found.elsewhere),
        "batch_of_one": list(found.network.batch_of_one),
        "bindings": max(len(found.parts), 1),
    }  # fmt: skip


EXTRACT = JobKind(name="extract", options=Options, run=_extract)
