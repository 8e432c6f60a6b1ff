"""Candidates whose body is one configuration, under a name: the `parameters` of a kernel, the `tiles` of a product."""

import json
from typing import Any

from tunery._errors import DialectError
from tunery.domain import Candidate, Origin, Task, digest


def candidate_of(task: Task, body: str, origin: Origin) -> Candidate:
    return Candidate(digest(task.workload.key, task.target.key, body), task.key, body, origin)


def configuration_of(body: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(body)[name]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DialectError(f"{body[:80]!r} is no candidate with {name}") from error
    if not isinstance(found, dict):
        raise DialectError(f"{body[:80]!r} is no candidate with {name}")
    return found
