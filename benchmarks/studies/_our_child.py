"""A normal job in a process of its own: `python -m studies._our_child DIRECTORY`."""

import json
import sys
import time
from pathlib import Path

from pydantic import TypeAdapter

from studies._children import end_with_parent
from tunery.domain import Outcome
from tunery.domain.request import Progress, Request
from tunery.service.session import tune

REQUEST, FOUND = "request.json", "found.json"
_FAILED = (Outcome.BUILD_FAILED, Outcome.RUN_FAILED, Outcome.TIMEOUT, Outcome.CRASHED)
_REQUEST = TypeAdapter(Request)


def ask(work: Path, request: Request) -> None:
    """Put the request where the child reads it."""
    (work / REQUEST).write_bytes(_REQUEST.dump_json(request))


def main(directory: str) -> None:
    """Tune what the request asks for, and write what was known when: points in time, trials, the sum of the tasks."""
    end_with_parent()
    work, points = Path(directory), []

    def note(progress: Progress) -> None:
        points.append((time.time(), progress.trials, progress.best_s))

    report = tune(_REQUEST.validate_json((work / REQUEST).read_bytes()), note)
    found = {
        "network": report.network.name, "tasks": len(report.tasks), "trials": report.job.spend.trials,
        "threads": report.tasks[0].target.threads, "points": points,
        "failed": sum(task.outcomes.get(name, 0) for task in report.job.tasks for name in _FAILED),
    }  # fmt: skip
    (work / FOUND).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
