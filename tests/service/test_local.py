"""The daemon's side of a connection."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tunery._errors import TuneryError
from tunery.domain.request import Request, ShareRequest
from tunery.service.client import Client
from tunery.service.local import serve
from tunery.service.manager import JobManager


def test_an_error_of_the_system_is_told_and_does_not_close_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> str:
        raise OSError(5, "Input/output error")

    told: list[str] = []

    def ask() -> None:
        try:
            Client(tmp_path / "d.sock").submit(Request("fake:x", dialect="fake"), ShareRequest())
        except TuneryError as error:
            told.append(str(error))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(JobManager, "submit", fail)
    client = threading.Thread(target=ask)
    serve(str(tmp_path / "store.db"), tmp_path / "d.sock", "predictive", lambda _: client.start())
    client.join()
    assert len(told) == 1
    assert "Input/output error" in told[0]
    assert "Input/output error" in caplog.text
