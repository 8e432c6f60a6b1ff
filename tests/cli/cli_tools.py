"""Running a command line in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from tunery.cli.app import app


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


Run = Callable[..., Answer]


def run_in_process(*args: str) -> Answer:
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)
