"""Candidates that are one configuration of a space: its parameters, the restrictions on them, and the search."""

import json
from typing import Any

from tunery._errors import DialectError
from tunery.domain import Candidate, Origin, Task, digest


def candidate_of(task: Task, body: str, origin: Origin) -> Candidate:
    """Return a candidate whose body is one configuration under a name: a kernel's parameters, a product's tiles."""
    return Candidate(digest(task.workload.key, task.target.key, body), task.key, body, origin)


def configuration_of(body: str, name: str) -> dict[str, Any]:
    """Return the configuration that a candidate's body has under a name."""
    try:
        found = json.loads(body)[name]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DialectError(f"{body[:80]!r} is no candidate with {name}") from error
    if not isinstance(found, dict):
        raise DialectError(f"{body[:80]!r} is no candidate with {name}")
    return found
