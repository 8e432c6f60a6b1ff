"""How to install what only some uses need."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from tunery._errors import UsageError

_CLIENT = frozenset({"httpx", "platformdirs", "pydantic", "rich", "typer"})
_SERVE = frozenset({"fastapi", "psycopg", "uvicorn"})
_TUNE = frozenset({
    "cryptography", "lightgbm", "onnx", "onnxruntime", "psutil", "scipy", "sqlalchemy", "tvm",
})  # fmt: skip
"""The modules of these extras; a test compares them with the package's metadata."""
_ALONE = frozenset({"cryptography", "onnxruntime"})
"""Those that some compiled files need, without a compiler."""
COMPILER = "pip install 'tunery[tune]'"
"""The command that adds the compiler, and what tuning here needs."""


def missing_part(error: BaseException) -> str:
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return name if name in _CLIENT | _TUNE | _SERVE else ""


def to_install(package: str) -> str:
    extra = "client" if package in _CLIENT else "serve" if package in _SERVE else "tune"
    return f"pip install 'tunery[{extra}]'"


@contextmanager
def compiler_parts(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if name := missing_part(error):
            command = f"pip install {name}" if name in _ALONE else to_install(name)
            raise UsageError(f"{what} needs {name}, which is not installed: {command}") from None
        raise


def pip_install(extra: str) -> str:
    """It names the packages one by one: no index need have a package called tunery."""
    from importlib.metadata import requires  # 30 ms of a command's start

    lines = [line.partition(";") for line in requires("tunery") or ()]
    needed = [need.strip() for need, _, marker in lines if marker.strip().replace("'", '"') == f'extra == "{extra}"']
    return f"pip install {shlex.join(needed)}"
