"""`tunery hosts`: what is kept of a host, and what a check says of it."""

import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tools import Run

from tunery._settings import hosts_file

pytestmark = pytest.mark.usefixtures("worker_processes")
AGENT = f"{shlex.quote(sys.executable)} -m tunery agent --stdio"
BENT = """
import sys, time
from pathlib import Path
from tunery.engines.remote import agent, facts
{change}
sys.exit(agent.serve_stdio(Path(sys.argv[1])))
"""
AHEAD = "now = time.time; agent.time.time = lambda: now() + 3600"


def bent(change: str, cache: Path) -> str:
    return f"{shlex.join([sys.executable, '-c', BENT.format(change=change), str(cache)])} agent --stdio"


def test_a_host_is_kept_until_it_is_removed(run: Run) -> None:
    assert run("hosts", "list", "--json").data == {"hosts": []}
    assert run("hosts", "add", "pi4", "--connect", "ssh pi@10.0.0.7").code == 0
    assert run("hosts", "add", "amd", "--connect", "docker exec -i it").code == 0
    assert run("hosts", "add", "pi4", "--connect", "ssh pi@10.0.0.8", "--json").data["connect"] == "ssh pi@10.0.0.8"
    found = run("hosts", "list", "--json").data["hosts"]
    assert [(host["name"], host["connect"]) for host in found] == [
        ("amd", "docker exec -i it"), ("pi4", "ssh pi@10.0.0.8"),
    ]  # fmt: skip
    assert [host["core_s"] for host in found] == [0.0, 0.0], "no job has used them yet"
    assert hosts_file().stat().st_mode & 0o777 == 0o600
    assert run("hosts", "remove", "amd").code == 0
    assert "amd" not in run("hosts", "list").out


@pytest.mark.jobs
def test_hosts_that_are_added_at_once_are_all_kept(run: Run) -> None:
    names = [f"h{number}" for number in range(6)]
    adding = [
        subprocess.Popen([sys.executable, "-m", "tunery", "hosts", "add", name, "--connect", "ssh x"]) for name in names
    ]
    assert [one.wait() for one in adding] == [0] * len(names)
    assert [host["name"] for host in run("hosts", "list", "--json").data["hosts"]] == names


@pytest.mark.parametrize(
    "words",
    [("add", "here", "--connect", "ssh x"), ("add", "a/b", "--connect", "ssh x"), ("add", "x", "--connect", 'ssh "x'),
     ("add", "x", "--connect", " "), ("add", platform.node(), "--connect", "ssh x"), ("remove", "nobody"),
     ("check", "nobody")],
)  # fmt: skip
def test_what_cannot_be_a_host_is_refused(run: Run, words: tuple[str, ...]) -> None:
    answer = run("hosts", *words)
    assert answer.code == 2
    assert len(answer.err.strip().splitlines()) == 1
    assert run("hosts", "list", "--json").data == {"hosts": []}


@pytest.mark.parametrize("harm", ["writable", "damaged"])
def test_a_file_that_others_may_have_written_is_not_obeyed(run: Run, harm: str) -> None:
    run("hosts", "add", "pi4", "--connect", "ssh pi@10.0.0.7")
    if harm == "writable":
        hosts_file().chmod(0o666)
    else:
        hosts_file().write_text("[{")
    answer = run("hosts", "list")
    assert answer.code == 2
    assert str(hosts_file()) in answer.err


@pytest.mark.jobs
def test_a_clock_that_is_an_hour_off_is_said(run: Run, tmp_path: Path) -> None:
    run("hosts", "add", "late", "--connect", bent(AHEAD, tmp_path))
    answer = run("hosts", "check", "late", "--json")
    checks = {check["name"]: check for check in answer.data["hosts"]["late"]}
    assert checks["agent"]["state"] == "ok"
    assert checks["clock"]["state"] == "warn"
    assert "3600" in checks["clock"]["found"] or "3599" in checks["clock"]["found"]
    assert checks["cache"]["state"] == "ok"
    assert checks["devices"]["found"].startswith("cpu ")


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("connect", "sign"),
    [
        ("sh -c 'exec no-such-tunery' x", "no-such-tunery"),
        ("sh -c 'echo Permission denied, please try again. >&2; exit 255' x", "ssh-copy-id"),
        (f"{shlex.quote(sys.executable)} -S -m tunery", "install tunery"),
        ("OTHER", "99.0"),
    ],
)
def test_what_is_missing_is_said_in_one_line(run: Run, connect: str, sign: str, tmp_path: Path) -> None:
    other = "agent.host_facts = lambda: __import__('dataclasses').replace(facts.host_facts(), version='99.0')"
    run("hosts", "add", "odd", "--connect", bent(other, tmp_path) if connect == "OTHER" else connect)
    answer = run("hosts", "check")
    assert answer.code == 1
    [line] = answer.out.strip().splitlines()
    assert line.startswith("fail")
    assert sign in line


@pytest.mark.jobs
def test_an_agent_of_another_protocol_is_not_told_to_install_the_version_that_it_has(run: Run, tmp_path: Path) -> None:
    run("hosts", "add", "odd", "--connect", bent("agent.PROTOCOL += 1", tmp_path))
    answer = run("hosts", "check", "odd")
    assert answer.code == 1
    assert "same build" in answer.out


@pytest.mark.jobs
@pytest.mark.parametrize("words", [("tune", "--budget", "8trials"), ("compile", "-o", "net.bin")])
def test_a_host_that_cannot_be_reached_is_named_once_and_the_work_goes_on_here(
    run: Run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (words[0], "fake:here?tasks=2&build_s=0.3", "--dialect", "fake", "--threads", "1", *words[1:], "--json")
    assert run(*command).data["hosts"] == []
    run("hosts", "add", "gone", "--connect", "sh -c 'echo no route to it >&2; exit 255' x")
    answer = run(*command[:1], "fake:there?tasks=2&build_s=0.3", *command[2:])
    assert answer.code == 0
    assert answer.data["hosts"] == ["gone"]
    assert "gone" in answer.err.splitlines()[0]
    [said] = [text for record in caplog.records if "gone" in (text := record.getMessage())]
    assert "no route to it" in said
    assert "tunery hosts check gone" in said
    assert "tunery hosts remove gone" in said


@pytest.mark.jobs
def test_nothing_is_tuned_on_a_host_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    other = "agent.host_facts = lambda: __import__('dataclasses').replace(facts.host_facts(), version='99.0')"
    run("hosts", "add", "odd", "--connect", bent(other, tmp_path))
    for host, sign in (("odd", "99.0"), ("nobody", "tunery hosts add")):
        answer = run("tune", "fake:there", "--dialect", "fake", "--on", host)
        assert answer.code != 0
        assert sign in answer.err
