"""The built wheel, installed apart from the checkout: every entry point starts and finds its package data."""

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what is packaged and install it, without its dependencies, to a directory."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        (source / name).symlink_to(_ROOT / name)
    wheels = ["wheel", "--no-deps", "--wheel-dir", str(place), str(source)]
    subprocess.run([*pip, *wheels], check=True, capture_output=True)
    (wheel,) = place.glob("tunery-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(place / "site"), str(wheel)], check=True)
    return place / "site"


def _run(installed: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.jobs
def test_the_wheel_is_what_runs(installed: Path) -> None:
    place = _run(installed, sys.executable, "-c", "import tunery; print(tunery.__file__)")
    assert Path(place.strip()).is_relative_to(installed)


@pytest.mark.jobs
def test_every_console_script_starts(installed: Path) -> None:
    scripts = [entry.name for entry in distribution("tunery").entry_points if entry.group == "console_scripts"]
    assert scripts
    for script in scripts:
        assert "Usage" in _run(installed, sys.executable, str(installed / "bin" / script), "--help")


@pytest.mark.jobs
def test_the_zoo_travels_with_the_wheel(installed: Path) -> None:
    networks = json.loads(_run(installed, sys.executable, "-m", "tunery", "zoo", "list", "--json"))["networks"]
    assert "resnet18" in {network["name"] for network in networks}


@pytest.mark.jobs
def test_a_job_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    command = ["tune", "fake:demo", "--dialect", "fake", "--target", "fake", "--budget", "8trials", "--json"]
    answer = json.loads(_run(installed, sys.executable, "-m", "tunery", *command, "--store", str(tmp_path / "s.db")))
    assert answer["status"] == "done"


@pytest.mark.jobs
def test_every_dialect_loads(installed: Path) -> None:
    names = [entry.name for entry in distribution("tunery").entry_points if entry.group == "tunery.dialects"]
    assert names
    for name in names:
        code = f"from tunery.dialects import get_dialect; print(get_dialect({name!r}).name)"
        assert _run(installed, sys.executable, "-c", code).strip() == name


@pytest.mark.jobs
def test_the_store_migrates_and_the_shipped_model_loads(installed: Path, tmp_path: Path) -> None:
    code = (
        "from tunery.store import open_store; open_store({!r}).close();"
        "from tunery.costmodels.registry import shipped;"
        "print([bool(shipped('metaschedule', 'x86', bits)) for bits in (256, 512)])"
    ).format(str(tmp_path / "s.db"))
    assert _run(installed, sys.executable, "-c", code).strip() == "[True, True]"


@pytest.mark.jobs
def test_the_dashboard_travels_with_the_wheel(installed: Path) -> None:
    def files(root: Path) -> set[str]:
        return {path.name for path in (root / "tunery" / "reports" / "static").iterdir()}

    assert "index.html" in files(installed)
    assert files(installed) == files(_ROOT / "src")
