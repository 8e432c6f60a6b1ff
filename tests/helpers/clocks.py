"""The clock of the calendar as a test sets it."""

import time
from datetime import datetime

import pytest


class Clock:
    """Goes on from `at` as the real one does, and by as much as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: datetime) -> None:
        real, self._ahead_s = time.time, at.timestamp() - time.time()
        monkeypatch.setattr(time, "time", lambda: real() + self._ahead_s)

    def go_on(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._ahead_s += seconds
