"""Hosts that do not answer, answer without end or with nonsense: a command that measures on one still ends soon."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_tools import family, wait_until

pytestmark = [pytest.mark.hostile, pytest.mark.jobs]
SOON_S = 20.0  # five seconds where the machine is ours
AGENT = """
import os, sys, time
from pathlib import Path
from tunery.engines.remote import agent

send = agent.LocalAgent._send

def odd(self, header, body=b""):
    count[0] += header["do"] == "answer"
    if count[0] > {after}:
        Path(sys.argv[1], "odd").touch()
        {change}
    send(self, header, body)

count = [0]
agent.LocalAgent._send = odd
sys.exit(agent.serve_stdio(Path(sys.argv[1])))
"""
MUTE, NO_ANSWER = "return", "if header['do'] == 'answer': return"
SLOW, GIANT, GARBAGE = "time.sleep(600)", "body += b' ' * (60 << 20)", "os.write(1, b'\\xff' * 64)"


@pytest.mark.parametrize(
    ("after", "change"),
    [(-1, MUTE), (3, MUTE), (3, NO_ANSWER), (3, SLOW), (3, GIANT), (3, GARBAGE), (20, MUTE), (20, NO_ANSWER)],
)
def test_a_signal_ends_a_command_whatever_its_host_does(
    after: int, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_TEST_FAMILY", str(tmp_path))
    (far := tmp_path / "far").mkdir()
    script = AGENT.format(after=after, change=change)
    connect = f"{shlex.join([sys.executable, '-c', script, str(far)])} agent --stdio"
    tunery = [sys.executable, "-m", "tunery"]
    subprocess.run([*tunery, "hosts", "add", "far", "--connect", connect], check=True)
    work = ("fake:odd?tasks=2&run_s=0.01", "--dialect", "fake", "--threads", "1", "--budget", "5000trials")
    command = [*tunery, "tune", *work, "--on", "far", "--store", str(tmp_path / "store.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as process:
        wait_until((far / "odd").exists)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=SOON_S)
    assert process.returncode in {1, 130, 143}, said
    assert b"Traceback" not in said
    assert b"internal error" not in said
    wait_until(lambda: not [process for process in family(tmp_path) if process.pid != os.getpid()])
