"""Python as it is where tunery is installed with few extras, and nothing else is."""

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NAMES = {"apache-tvm": "tvm", "tunery": ""}


def modules_of(extra: str) -> set[str]:
    """Return the modules that an extra adds by itself."""
    lines = [line for line in requires("tunery") or [] if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    names = {name for line in lines for name in re.findall(r"^[\w.-]+", line)}
    return {_NAMES.get(name, name) for name in names} - {""}


def only(extra: str) -> str:
    """Return code after which nothing but tunery with one extra ("" for none) and its needs can be imported."""
    installed = _with_what_they_need([("tunery", ""), *([("tunery", extra)] if extra else [])])
    forbidden = {
        module
        for module, owners in packages_distributions().items()
        if installed.isdisjoint(map(canonicalize_name, owners))
    }
    for other in {"client", "tune", "serve"} - {extra}:
        forbidden |= modules_of(other) - installed
    return f"import json, sys\nsys.modules.update(dict.fromkeys({sorted(forbidden)!r}))\n"


def _with_what_they_need(names: Iterable[tuple[str, str]]) -> set[str]:
    found, waiting = set[tuple[str, str]](), list(names)
    while waiting:
        if (one := waiting.pop()) in found:
            continue
        found.add(one)
        with suppress(PackageNotFoundError):  # of another system
            for needed in map(Requirement, requires(one[0]) or []):
                if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                    waiting += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    return {name for name, _ in found}


WITHOUT = only("client")
"""Code after which nothing but the commands and what asks a service can be imported."""
