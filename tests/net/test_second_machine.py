"""The steps of docs/service.md from a second machine, which has no compiler: from nothing to a tuned model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from base_install import WITHOUT
from machines import Machine, machines, needs_namespaces, run

# Both marks: what leaves out the slow ones leaves these out as well.
pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 120.0


def environment(place: Path, **more: str) -> dict[str, str]:
    place.mkdir()
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "TUNERY_LOAD_WATCH": "off"}
    return {**kept, "HOME": str(place), "TUNERY_STORE": str(place / "store.db"), **more}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_second_machine_has_an_account_and_a_tuned_model(tmp_path: Path) -> None:
    needs_namespaces()
    with machines(tmp_path, 1) as [machine]:
        there = tmp_path / "there"
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", 1,
            "-subj", "/CN=service", "-addext", f"subjectAltName=IP:{machine.gateway}")  # fmt: skip
        server = [sys.executable, "-m", "tunery", "serve", "--listen", f"{machine.gateway}:0", "--json"]
        refused = subprocess.run(
            server, env=environment(tmp_path / "refused"), capture_output=True, text=True, check=False
        )
        assert (refused.returncode, "in the clear" in refused.stdout) == (2, True)
        server += ["--tls-certificate", str(certificate), "--tls-key", str(key)]
        variables, here = environment(there), environment(tmp_path / "here", TUNERY_TEST_DIALECTS="on")
        with subprocess.Popen(server, env=here, stdout=subprocess.PIPE, text=True) as service:
            try:
                told = first_object(service)
                unknown = client(machine, variables, "login", told["url"], says=told["token"])
                assert unknown.returncode == 1
                assert "SSL_CERT_FILE" in unknown.stdout
                variables["SSL_CERT_FILE"] = str(certificate)
                done(machine, variables, "login", told["url"], says=told["token"])
                ann = done(machine, variables, "accounts", "create", "ann")["token"]
                done(machine, variables, "login", told["url"], says=ann)
                how = ("--dialect", "fake", "--threads", "1", "--budget", "8trials")
                tuned = done(machine, variables, "tune", "fake:first?tasks=1", *how, "-o", str(there / "net.tunery"),
                             "--server", told["url"])  # fmt: skip
                assert tuned["spend"]["trials"] == 8
                assert (there / "net.tunery").stat().st_size > 0
                assert len(done(machine, variables, "jobs", "list", "--server", told["url"])["jobs"]) == 1
            finally:
                service.terminate()
            assert service.wait(PATIENCE_S) == 0


def first_object(service: "subprocess.Popen[str]") -> Any:
    assert service.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = service.stdout.readline()
        assert line, "the service has ended"
        text += line
    return json.loads(text)


def client(
    machine: Machine, variables: dict[str, str], *words: str, says: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command on the machine, of an installation without the compiler."""
    program = [sys.executable, "-c", f"{WITHOUT}from tunery.cli import main\nmain()", *words, "--json"]
    return subprocess.run(
        ["ip", "netns", "exec", machine.name, *program], env=variables, input=says, text=True, capture_output=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def done(machine: Machine, variables: dict[str, str], *words: str, says: str = "") -> Any:
    answer = client(machine, variables, *words, says=says)
    assert answer.returncode == 0, (words, answer.stdout, answer.stderr)
    return json.loads(answer.stdout)
