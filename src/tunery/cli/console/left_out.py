"""What the records say of ways to compute a task that its search did without; for `-v`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tunery.reports.text import left_out_lines

if TYPE_CHECKING:
    from tunery.domain import Record
    from tunery.domain.request import CompileReport, Request, TuneReport


def of_tune(report: "TuneReport", request: "Request") -> list[str]:
    """Return a line per task of the job and reason."""
    from tunery.dialects import get_dialect
    from tunery.store import open_store

    compilers = {name: get_dialect(name).compiler for name in {task.target.dialect for task in report.tasks}}
    with open_store(request.store, create=False, keep=False) as store:
        found = {
            task.workload.label: _reasons(store.records(task.key, compiler=compilers[task.target.dialect]))
            for task in report.tasks
        }
    return left_out_lines(found)


def of_compile(report: "CompileReport", request: "Request") -> list[str]:
    """Return a line per task and reason; of one that uses a record, also what other searches of it did without."""
    from tunery.dialects import get_dialect
    from tunery.store import open_store

    compiler = get_dialect(report.dialect or request.dialect).compiler
    found = dict(report.left_out)
    with open_store(request.store, create=False, keep=False) as store:
        for share in report.tasks:
            label = f"{share.name}:{share.workload[:8]}"
            _, used = report.coverage.get(label, ("", None))
            for task in store.tasks(workload_key=share.workload) if used else ():
                records = store.records(task.key, compiler=compiler)
                if any(record.candidate.key == used for record in records):  # else it is of another target
                    found[label] = {**_reasons(records), **found.get(label, {})}
    return left_out_lines(found)


def _reasons(records: "Iterable[Record]") -> dict[str, str]:
    return {name: why for record in records for name, why in record.left_out.items()}
