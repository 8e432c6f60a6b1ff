"""Every script in benchmarks/ starts, and what needs neither a network nor an hour runs on its smallest input."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
WITH_HELP = sorted(
    script.name for script in SCRIPTS.glob("*.py") if "argparse" in (text := script.read_text()) or "typer" in text
)
SMALLEST = {
    "across.py": ["--table", "--json", "{here}/none.jsonl"],
    "gallery.py": ["--table", "--json", "{here}/none.jsonl"],
    "agents.py": ["--hosts", "1", "--build-s", "0.05", "--seconds", "1", "--calls", "4", "--idle", "1"],
    "budgets.py": [
        "--networks",
        "fake:one?tasks=1",
        "--budgets",
        "5s",
        "--beside",
        "1",
        "--json",
        "{here}/budgets.json",
    ],
    "conformance.py": ["--only", "test_relu"],
    "delivery.py": ["tiny", "--json", "{here}/delivery.json"],
    "engine.py": [],
    "features.py": ["--candidates", "2", "--json", "{here}/features.json"],
    "iree_networks.py": ["--table", "--json", "{here}/none.jsonl"],
    "leases.py": ["{here}/leases.db", "--steps", "60", "--stores", "2", "--jobs", "2"],
    "record_durations.py": ["zoo:mlp-mnist", "--budget", "4trials", "-o", "{here}/durations.json"],
    "scheduler_scale.py": ["--quick"],
    "first_measurement.py": ["fake:one?tasks=1", "--dialect", "fake", "--rounds", "1"],
    "service.py": ["--jobs", "20", "--streams", "2", "--calls", "10"],
}
ON_POSTGRESQL = {
    "coordinators.py": ["{store}", "--coordinators", "2", "--jobs", "4", "--kill-s", "60"],
    "store_scale.py": ["{store}", "--records", "100", "--tasks", "4", "--seconds", "0.2"],
}


@pytest.mark.parametrize("script", WITH_HELP)
def test_each_script_shows_its_help(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", SMALLEST)
def test_it_runs_on_its_smallest_input(script: str, tmp_path: Path) -> None:
    run(script, SMALLEST[script], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", ON_POSTGRESQL)
def test_it_runs_on_a_small_database(script: str, tmp_path: Path, postgres_database: str) -> None:
    run(script, [word.format(store=postgres_database) for word in ON_POSTGRESQL[script]], tmp_path)


def run(script: str, words: list[str], here: Path) -> None:
    command = [sys.executable, str(SCRIPTS / script), *(word.replace("{here}", str(here)) for word in words)]
    environment = os.environ | {
        "XDG_CACHE_HOME": str(here),
        "XDG_DATA_HOME": str(here),
        "TUNERY_STORE": f"{here}/own.db",
    }
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=880, check=False)
    # 1 is a goal that was missed, which a machine that is busy may; what is broken has a traceback.
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.returncode in {0, 1}, done.stderr[-2000:]
