"""The kinds of jobs. A new one is a `JobKind` in a module here, and an entry in `KINDS`."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tunery._errors import UsageError, misfit
from tunery.domain import JobState, JobStatus
from tunery.domain.request import Options, Request
from tunery.reports.data import plain
from tunery.reports.job import ANSWER, COMPILED
from tunery.service.kinds._base import JobKind
from tunery.service.kinds.answers import BENCH, CALIBRATE, COLLECT, EXTRACT, MEASURE, QUERY
from tunery.service.kinds.compile import COMPILE
from tunery.service.kinds.tune import TUNE
from tunery.store import Store

KINDS: Mapping[str, JobKind[Any]] = {
    kind.name: kind for kind in (TUNE, COMPILE, BENCH, QUERY, EXTRACT, CALIBRATE, COLLECT, MEASURE)
}


def resumable(kind: str) -> bool:
    """Tell whether jobs of a kind go on where they ended; one that only a later version knows does not."""
    return kind in KINDS and KINDS[kind].go_on is not None


def answer_of(store: Store, status: JobStatus) -> dict[str, Any] | None:
    """Return what a job has answered; of a resumable one, what its report tells beside its status, and its file's."""
    if resumable(status.kind):
        found = store.events.latest(status.job_id, "began")
        compiles = json.loads(str(status.request.get("options", "{}")))
        if found and compiles and (made := store.events.latest(status.job_id, COMPILED)):
            return {**found.payload, COMPILED: made.payload}
    else:
        found = store.events.latest(status.job_id, ANSWER) if status.state is JobState.DONE else None
    return dict(found.payload) if found else None


def unusual(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their kind's defaults: of others, no version has to know."""
    known = fields(KINDS[kind].options) if kind in KINDS else ()  # a later version may have stored it
    usual = {field.name: plain(field.default) for field in known}
    return {name: value for name, value in options.items() if value is not None and value != usual.get(name)}


def identity(request: Request) -> dict[str, Any]:
    """Return the options that say what a request's job does, but for those that have their defaults."""
    named = KINDS[request.kind].identity if request.kind in KINDS else ()
    return {name: value for name, value in unusual(request.kind, request.options).items() if name in named}


def options_of(request: Request) -> Options:
    """Return the options of a request, checked: every key known, every value of its type."""
    kind, data = request.kind, request.options
    if kind not in KINDS:
        raise UsageError(f"there is no job of kind {kind!r}; use {', '.join(KINDS)}")
    known = {field.name for field in fields(KINDS[kind].options)}
    if unknown := sorted(data.keys() - known):
        takes = f"takes {', '.join(sorted(known))}" if known else "takes no options"
        raise UsageError(f"a job of kind {kind} has no option {unknown[0]!r}; it {takes}")
    try:
        options: Options = TypeAdapter(KINDS[kind].options).validate_python(dict(data))
    except ValidationError as error:
        raise UsageError(f"the option {misfit(error.errors())}") from error
    KINDS[kind].check(options, request)
    return options
