"""Python as it is where tunery is installed without any extra, and nothing else is."""

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NAMES = {"apache-tvm": "tvm"}
EXTRA = {
    _NAMES.get(name, name)
    for line in requires("tunery") or []
    if re.search(r"extra == ['\"]tvm['\"]", line)
    for name in re.findall(r"^[\w.-]+", line)
}


def _with_what_they_need(names: Iterable[str]) -> set[str]:
    """Return distributions and all that they depend on."""
    found, waiting = set[tuple[str, str]](), [(name, "") for name in names]
    while waiting:
        if (one := waiting.pop()) in found:
            continue
        found.add(one)
        with suppress(PackageNotFoundError):  # of another system
            for needed in map(Requirement, requires(one[0]) or []):
                if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                    waiting += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    return {name for name, _ in found}


_INSTALLED = _with_what_they_need(["tunery"])
FORBIDDEN = EXTRA | {
    module
    for module, owners in packages_distributions().items()
    if _INSTALLED.isdisjoint(map(canonicalize_name, owners))
}
WITHOUT = f"import json, sys\nsys.modules.update(dict.fromkeys({sorted(FORBIDDEN)!r}))\n"
"""Code after which nothing but the wheel and what it depends on can be imported."""
