"""Cost models that ship with the package."""

import gzip
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_X86 = ("znver", "skylake", "cascadelake", "cooperlake", "icelake", "sapphirerapids", "x86-64", "haswell", "broadwell",
        "alderlake", "raptorlake", "core-avx")  # fmt: skip


def pretrained(dialect: str, config: Mapping[str, Any]) -> str | None:
    """Return the shipped cost model for a target of a dialect, None if there is none for it."""
    if dialect != "metaschedule" or not str(config.get("mcpu", "")).startswith(_X86):
        return None
    file = files("tunery.costmodels") / "pretrained" / "metaschedule-x86.json.gz"
    return gzip.decompress(file.read_bytes()).decode() if file.is_file() else None
