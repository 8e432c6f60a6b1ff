"""Which state of the package's code this is."""

import hashlib
from functools import cache
from pathlib import Path

import tunery
from tunery.domain import digest


@cache
def sources() -> str:
    """Return a digest of the package and the benchmarks: results of different code are never mixed."""
    places = (Path(tunery.__file__).parent, Path(__file__).parent)
    found = (file for place in places for file in place.rglob("*"))
    files = sorted(file for file in found if file.suffix in {".py", ".json", ".gz", ".toml"})
    return digest(*(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
