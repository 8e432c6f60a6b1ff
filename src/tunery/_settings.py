"""The settings of the environment, and where things live without them: the one module that reads either."""

import os
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path, user_config_path, user_data_path

from tunery._errors import UsageError, misfit

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PREFIX = "TUNERY_"
_LONGEST_SOCKET = 100  # of a unix socket's address, with some room for the lock's name


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from the variable of its name in capitals behind `TUNERY_`; docs/settings.md lists them."""

    store: str = ""
    cache: Path | None = None
    models: Path | None = None
    engine: str = "local"
    socket: str = ""
    prices: str = ""
    load_watch: bool = True
    build_here: bool = True
    unconfined_kernels: bool = False
    server: str = ""
    token: str = ""
    test_dialects: bool = False


_CHOSEN: dict[str, str] = {}


def choose_engine(name: str) -> None:
    """Have this process use an engine, whatever the variable names; "" leaves it as it is."""
    _CHOSEN.update({"engine": name} if name else {})


def settings() -> Settings:
    """Read the settings anew: nothing keeps an old value."""
    from pydantic import ValidationError  # not before: workers are started without

    names = {f"{PREFIX}{field.name.upper()}": field.name for field in fields(Settings)}
    known = [name.removeprefix(PREFIX) for name in names]
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        meant = get_close_matches(name.removeprefix(PREFIX).upper(), known, n=1, cutoff=0.7)
        if meant and meant[0] != name.removeprefix(PREFIX):
            raise UsageError(f"the variable {name} is unknown; write {PREFIX}{meant[0]}")
    try:
        found = {names[name]: text for name, text in os.environ.items() if name in names and text}
        return _adapter().validate_python(found | _CHOSEN)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"{PREFIX}{str(first['loc'][0]).upper()}"
        what = misfit([{**first, "loc": (name,)}]).replace("true or false", "on or off")
        raise UsageError(f"the variable {what}; docs/settings.md lists what it may be") from None


@cache
def _adapter() -> "TypeAdapter[Settings]":
    from pydantic import TypeAdapter

    return TypeAdapter(Settings)


def store_place() -> str:
    return settings().store or str(_data() / "tunery.db")


def cache_directory() -> Path:
    return settings().cache or user_cache_path("tunery")


def models_directory() -> Path:
    return settings().models or _data() / "models"


def environments_directory() -> Path:
    return _data() / "environments"


def hosts_file() -> Path:
    return user_config_path("tunery") / "hosts.json"


def socket_path(chosen: str = "") -> Path:
    runtime, named = os.environ.get("XDG_RUNTIME_DIR", ""), chosen or settings().socket
    path = Path(named) if named else Path(runtime or "~/.local/state").expanduser() / "tunery" / "daemon.sock"
    if len(os.fsencode(path.absolute())) > _LONGEST_SOCKET:
        raise UsageError(f"the socket's path {path} is too long; choose a shorter one with --socket or {PREFIX}SOCKET")
    return path.absolute()


def login_file() -> Path:
    return _data() / "login.json"


def _data() -> Path:
    return user_data_path("tunery")
