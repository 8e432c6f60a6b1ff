"""A scheduler's run as a list of events and what was decided at each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from tunery._errors import UsageError
from tunery.scheduling._events import Decision, Event, from_json, to_json


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Events that were handled together and the decisions they led to."""

    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class EventLog:
    """All that is needed to run a scheduler again: its resources, its strategy and its events in order."""

    resources: dict[str, int]
    strategy: str
    entries: list[LogEntry]

    def lines(self) -> Iterator[str]:
        yield json.dumps({"resources": self.resources, "strategy": self.strategy})
        for entry in self.entries:
            yield json.dumps({key: [to_json(r) for r in getattr(entry, key)] for key in ("events", "decisions")})

    @classmethod
    def read(cls, lines: Iterable[str]) -> EventLog:
        """Read what `lines` wrote."""
        log: EventLog | None = None
        for number, line in enumerate(lines, 1):
            try:
                data: dict[str, Any] = json.loads(line)
                if log is None:
                    log = cls(data["resources"], data["strategy"], [])
                else:
                    decisions = tuple(cast(Decision, from_json(d)) for d in data["decisions"])
                    events = tuple(cast(Event, from_json(e)) for e in data["events"])
                    log.entries.append(LogEntry(events, decisions))
            except (ValueError, KeyError, TypeError, UsageError) as error:
                raise UsageError(f"line {number} is not of a scheduler's log: {error}") from error
        if log is None:
            raise UsageError("the scheduler's log is empty; its first line names resources and strategy")
        return log
