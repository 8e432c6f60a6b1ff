"""The kinds of jobs. A new one is a module here, and an entry in `KINDS`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tunery._errors import UsageError, misfit
from tunery.domain.request import Request
from tunery.service.kinds._base import JobKind, Options
from tunery.service.kinds.bench import BENCH
from tunery.service.kinds.calibrate import CALIBRATE
from tunery.service.kinds.collect import COLLECT
from tunery.service.kinds.compile import COMPILE
from tunery.service.kinds.extract import EXTRACT
from tunery.service.kinds.measure import MEASURE
from tunery.service.kinds.query import QUERY
from tunery.service.kinds.tune import TUNE

KINDS: Mapping[str, JobKind[Any]] = {
    kind.name: kind for kind in (TUNE, COMPILE, BENCH, QUERY, EXTRACT, CALIBRATE, COLLECT, MEASURE)
}


def options_of(request: Request) -> Options:
    """Return the options of a request, checked: every key known, every value of its type.

    Raises:
        UsageError: the kind is unknown, or an option is not one of its.
    """
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
    options.check(request)
    return options
