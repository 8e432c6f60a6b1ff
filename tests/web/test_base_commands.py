"""Every command that a service may be given, where nothing but the wheel and what it depends on is installed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from base_install import WITHOUT
from dashboard_site import Served, served

from tunery.cli.app import app
from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.service.codec import request_data

pytestmark = pytest.mark.jobs

NET = "fake:base?tasks=1 --dialect fake --threads 1"
COMMANDS = f"""
tune {NET} --budget 4trials -o tuned.tunery
extract {NET}
query {NET}
compile {NET} -o compiled.tunery
inspect JOB
spend
report JOB -o report.html
jobs list
jobs show JOB
jobs log JOB
jobs submit {NET} --budget 4trials
jobs watch JOB -o fetched.tunery
jobs pause WAITS
jobs resume WAITS --detach
jobs cancel WAITS
records stats
records export records.jsonl
records import records.jsonl
devices list
hosts list
accounts list
accounts create ann
accounts token ann
accounts tokens ann
accounts limit ann --uploads 2GiB
accounts disable ann
accounts enable ann
accounts log
accounts delete ann
"""
REFUSED = f"""
bench {NET} --against untuned --seconds 0.1
accounts end-token ann 000000000000
devices calibrate --threads 1
dialects list
dialects check fake
dialects install iree
dialects remove iree
"""
RUN = """
import io
from contextlib import redirect_stderr, redirect_stdout
from tunery.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv[1:], out, said, code = line.split(), io.StringIO(), io.StringIO(), None
    with redirect_stderr(said), redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps({'line': line, 'code': code, 'said': said.getvalue()}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


def remote_commands(command: Any, words: str = "tunery") -> Iterator[str]:
    """Return the commands that have the option --server."""
    for name, one in getattr(command, "commands", {}).items():
        yield from remote_commands(one, f"{words} {name}")
    if any(parameter.name == "server" for parameter in command.params):
        yield words


def test_all_commands_that_a_service_is_asked_by_are_here() -> None:
    lines = [f"tunery {line} " for line in (COMMANDS + REFUSED).split("\n") if line]
    for command in remote_commands(typer.main.get_command(app)):
        assert [line for line in lines if line.startswith(f"{command} ")], command


@pytest.mark.usefixtures("inline_workers")
def test_a_service_is_asked_by_every_command_of_the_wheel_alone(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    asked = {"model": "fake:base?tasks=1", "dialect": "fake", "budget": "4trials", "threads": 1}
    job = site.ended(site.admin_token, {**asked, "kind": "tune", "deliver": True})["id"]
    endless = Request("fake:waits?tasks=2&build_s=0.05&space=16x16x16", dialect="fake", budget=Budget(trials=5000))
    waits = site.write(lambda store: store.create_job(request_data(endless))).job_id
    lines = (COMMANDS + REFUSED).replace("JOB", job).replace("WAITS", waits).split("\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + RUN], input="\n".join(f"{line} --server {site.url}" for line in lines if line),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    good = COMMANDS.count("\n") - 1
    assert [one for one in told[:good] if one["code"]] == []
    assert [one["code"] for one in told[good:]] == [2, 1, 2, 2, 2, 2, 2]
    assert [one for one in told if "not installed" in one["said"]] == []
    assert {file.name for file in tmp_path.glob("*.*")} >= {
        "tuned.tunery", "compiled.tunery", "fetched.tunery", "report.html", "records.jsonl",
    }  # fmt: skip
