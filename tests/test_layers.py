"""Imports point downward only, and heavy libraries stay in the rooms that exist for them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tunery

ROOT = Path(tunery.__file__).parent
LEVELS = (
    {"testing"},
    {"cli", "_api", "__init__", "__main__", "torch"},
    {"web"},
    {"service", "costmodels.training"},
    {"reports"},
    {"tuning", "delivery"},
    {"runtime"},
    {"scheduling", "engines", "accounting"},
    {"dialects", "measuring", "devices", "costmodels", "store", "models"},
    {"blobs"},
    {
        "domain",
        "_errors",
        "_archive",
        "_environments",
        "_extras",
        "_locks",
        "_outputs",
        "_processor",
        "_sandbox",
        "_settings",
    },
)
LEVEL = {room: depth for depth, rooms in enumerate(LEVELS) for room in rooms}
# Rooms beside one another that are allowed to know each other, beyond what lies below.
BESIDE = {
    ("web", "__init__"),  # it tells its version
    ("web", "_api"),  # `tunery.connect(url)` gives the same chain of calls
    ("dialects", "costmodels"),  # a compiler's search asks our cost model
    ("dialects", "devices"),  # a kernel is loaded for a device
    ("measuring", "dialects"),  # a measurer loads what a dialect has built
    ("measuring", "devices"),
    ("delivery", "tuning"),  # a few-shot delivery measures as a search does
    ("domain", "_errors"),
    ("_settings", "_errors"),
    ("_outputs", "_errors"),
    ("_archive", "_processor"),
    ("_extras", "_errors"),
    ("_environments", "_errors"),
    ("_environments", "_locks"),
    ("_locks", "_errors"),
    ("_environments", "_settings"),
}
# What may import `devices.cpu`: a host's own cores and load, and the tools that run on one. The rules of measuring and
# tuning know a device by its contract.
KNOWS_CPU = (
    "devices/",
    "engines/remote/facts.py",
    "runtime/dispatch.py",
    "runtime/extraction.py",
    "runtime/__init__.py",
    "runtime/opening.py",
    "runtime/hosts/workers.py",
    "accounting/power.py",
    "cli/",
    "costmodels/training/",
)
# How Linux tells of a CPU and its load: only a device knows that.
LINUX = re.compile(
    r"/proc|/sys/|schedstat|sched_[gs]etaffinity|cgroup|powercap|rapl|getrusage|SC_CLK_TCK|\bticks?\b|thermal",
    re.IGNORECASE,
)
KNOWS_NO_LINUX = ("measuring/", "runtime/foreign", "_locks.py")
# Rooms that may import less than what lies below them.
ONLY = {
    "scheduling": {"domain", "_errors"},
    "domain": {"_errors"},
    "_errors": set(),
    "_archive": {"_processor"},
    "_processor": set(),
    "_environments": {"_errors", "_locks", "_settings"},
    "_extras": {"_errors"},
    "_locks": {"_errors"},
    "_outputs": {"_errors"},
    "blobs": {"_errors", "_locks"},
    "store": {"domain", "_errors", "_locks", "_outputs", "_settings"},
}
HEAVY = {
    "tvm": ("dialects/metaschedule/",),
    "tvm_ffi": ("dialects/metaschedule/",),
    "torch": ("models/torch/_export.py", "models/torch/_zoo.py", "delivery/comparing/contestants.py", "torch.py"),
    "cryptography": ("delivery/files/",),
    "cuda": ("devices/cuda/", "dialects/kernels/cuda/"),
    "fastapi": ("web/",),
    "httpx": ("web/client/",),
    "iree": ("dialects/iree/",),
    "lightgbm": ("costmodels/boosted.py", "tuning/allocation/failing.py"),
    "matplotlib": ("reports/spending.py",),
    "onnx": ("models/", "delivery/", "dialects/_nodes.py", "dialects/metaschedule/", "dialects/iree/"),
    "onnxruntime": ("models/onnx/", "delivery/comparing/contestants.py", "dialects/_sessions.py"),
    "optuna": ("costmodels/training/",),
    "psycopg": ("store/",),
    "pyarrow": ("costmodels/training/",),
    "pynvml": ("devices/cuda/",),
    "psutil": (
        "accounting/power.py",
        "cli/doctor.py",
        "_processor.py",
        "engines/local/",
        "service/machines.py",
        "store/database/",
    ),
    "pyopencl": ("devices/opencl/", "dialects/kernels/_opencl_child.py"),
    "ray": ("engines/ray/",),
    "scipy": ("costmodels/", "domain/turns.py", "measuring/calibration.py", "tuning/allocation/trimming.py"),
    "sqlalchemy": ("store/",),
    "starlette": ("web/",),
    "timm": ("models/torch/_zoo.py",),
    "torchvision": ("models/torch/_zoo.py",),
    "transformers": ("models/torch/_zoo.py",),
    "uvicorn": ("web/",),
}
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def room_of(file: str) -> str:
    return room_in(file.removesuffix(".py").split("/"))


def room_in(parts: list[str]) -> str:
    two = ".".join(parts[:2])
    return two if two in LEVEL else parts[0]


@cache
def imports(file: str) -> tuple[tuple[int, str], ...]:
    """Return line and full name of every import, those inside functions included."""
    return tuple(_imports(file))


def _imports(file: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    package = ["tunery", *Path(file).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            if name == "tunery":
                yield from ((node.lineno, f"tunery.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, name


def ours(file: str) -> Iterator[tuple[int, str]]:
    for line, name in imports(file):
        if name.partition(".")[0] == "tunery":
            parts = name.split(".")
            inner = room_in(parts[1:]) if len(parts) > 1 and parts[1] in LEVEL else "__init__"
            yield line, inner


def test_imports_are_seen() -> None:
    assert {"engines", "scheduling", "_errors"} <= {room for _, room in ours("runtime/runtime.py")}
    assert "models" in {room for _, room in ours("runtime/services/importer.py")}, "inside functions too"
    assert {"tvm"} <= {name.partition(".")[0] for file in FILES for _, name in imports(file)}


def test_every_room_has_its_place() -> None:
    assert {room_of(file) for file in FILES} <= LEVEL.keys()


def test_imports_point_downward() -> None:
    assert [found for file in FILES for found in upward(file)] == []


def upward(file: str) -> list[str]:
    room = room_of(file)
    allowed = {other for other in LEVEL if LEVEL[other] > LEVEL[room] or other == room or (room, other) in BESIDE}
    allowed = allowed & (ONLY[room] | {room}) if room in ONLY else allowed
    if LEVEL[room] <= 1:
        allowed = set(LEVEL) - ({"testing"} if LEVEL[room] else set())
    return [f"{file}:{line} imports {other}" for line, other in ours(file) if other not in allowed]


def test_a_cpu_is_known_by_its_contract() -> None:
    others = [file for file in FILES if not file.startswith(KNOWS_CPU)]
    known = [(file, line, name) for file in others for line, name in imports(file)]
    wrong = [f"{file}:{line} imports {name}" for file, line, name in known if name.startswith("tunery.devices.cpu")]
    assert wrong == []


def test_the_rules_of_measuring_know_no_operating_system() -> None:
    wrong = []
    for file in (file for file in FILES if file.startswith(KNOWS_NO_LINUX)):
        lines = enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1)
        wrong += [f"{file}:{number}: {line.strip()}" for number, line in lines if LINUX.search(line)]
    assert wrong == []


def test_heavy_libraries_stay_in_their_rooms() -> None:
    wrong = []
    for file in FILES:
        for line, name in imports(file):
            library = name.partition(".")[0]
            if library in HEAVY and not any(file.startswith(place) for place in HEAVY[library]):
                wrong.append(f"{file}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        "import tunery",
        "import tunery; tunery.load('x.onnx').on('native').within('1min')",
        "import tunery.service.session, tunery.tuning.job, tunery.delivery, tunery.store, tunery.costmodels",
        "from typer.testing import CliRunner\nfrom tunery.cli.app import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
    ],
)
def test_starting_up_imports_neither_compiler_nor_framework(code: str) -> None:
    heavy = "sorted({'tvm', 'tvm_ffi', 'torch', 'onnxruntime', 'lightgbm'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint({heavy})"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
