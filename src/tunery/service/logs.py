"""A service's log as JSON lines: when, how grave, what, and of which job, account and host."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

_FIELDS = ("job", "account", "kind", "state", "host")
"""What a message may be given as `extra`."""


class JsonLines(logging.Formatter):
    """Formats each message as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower(),
            "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        told |= {name: value for name in _FIELDS if (value := getattr(record, name, ""))}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_json() -> Callable[[str], None]:
    """Write what tunery logs, from what is merely of interest on, to standard error as JSON lines. Return what logs a
    message of the command's own."""
    handler, logger = logging.StreamHandler(), logging.getLogger("tunery")
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger.info
