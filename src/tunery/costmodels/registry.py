"""Trained cost models: those that ship with the package, and the versions trained here, as gzipped JSON files."""

import gzip
import io
import json
import logging
import math
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tunery._errors import NothingFoundError, UsageError
from tunery._locks import read_small
from tunery._settings import models_directory
from tunery.costmodels._base import CostModel
from tunery.costmodels.boosted import check_trees, layout_of, load_cost_model
from tunery.costmodels.dataset import Group

VARIABLE = "TUNERY_MODELS"
_FORMAT = 1
_MOST_BYTES, _MOST_UNPACKED = 1 << 28, 1 << 30  # the models that were trained so far have a few megabytes
_NAME = re.compile(r"(?P<dialect>[a-z0-9_]+)-(?P<version>\d{4,})\.json\.gz")
_log = logging.getLogger(__name__)


WORKLOAD_DIGITS = 8
"""Of a workload's key, on a card: two of a thousand are alike once in ten thousand datasets."""


@dataclass(frozen=True)
class Version:
    """One trained model's card: what it was trained on, how good it is on what was held out, whether it may be used.
    `data` holds the dataset's digest, counts, kinds, devices, networks and the first digits of its workloads' keys (of
    a model that grew on another one both together, and as `base` the other's with its `tau`); `held_out` the networks
    that it has never seen. The model that ships with tunery is version 0."""

    version: int
    dialect: str
    compiler: str
    target: str
    created_at: float
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    passed: bool
    reasons: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    layout: str = ""
    path: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return f"version {self.version}" if self.version else "shipped"

    @property
    def overall(self) -> Mapping[str, Any]:
        mine = [m for m in self.metrics if m["kind"] == m["device"] == "all" and m["ranking"] == "model"]
        return mine[0] if mine else {}

    @property
    def tau(self) -> float | None:
        value = self.overall.get("kendall")
        return None if value is None else float(value)

    @property
    def base_tau(self) -> float | None:
        """The same of what it had grown on, which is what is used on other devices; None where that is not known."""
        value = self.data.get("base", {}).get("tau")
        return None if value is None else float(value)

    def saw(self, group: Group) -> bool:
        """A card without a list of workloads knows networks only: of a task of no known network it may have seen any,
        and what a held-out network holds has left training, whichever other networks hold it too."""
        if "workloads" in self.data:
            return group.workload_key[:WORKLOAD_DIGITS] in self.data["workloads"]
        owners = set(group.networks)
        if owners.intersection(self.held_out):
            return False
        return not owners or bool(owners.intersection(self.data.get("networks", ())))

    def of_compiler(self, compiler: str) -> bool:
        return generator(self.compiler) == generator(compiler)


def new_card(**facts: Any) -> Version:
    return Version(version=0, created_at=time.time(), **facts)


def _as_card(document: Mapping[str, Any], path: str) -> Version:
    knows = layout_of(document["model"])
    layout = str(document.get("layout") or knows or "")
    if knows and layout != str(knows):
        raise ValueError(f"its card is of layout {layout}, and the model of {knows}")
    card: Version = TypeAdapter(Version).validate_python({**document, "layout": layout, "path": path})
    return card


def generator(compiler: str) -> str:
    """Return the part of a compiler's name and version that decides which code a candidate becomes: how networks are
    lowered decides which tasks there are, not what a candidate of one is worth.

    >>> generator("compiler 0.27 lowering 2 build 1")
    'compiler 0.27 build 1'
    """
    return re.sub(r" lowering \d+", "", compiler)


def check_directory(directory: Path | None = None) -> None:
    """Check that a model can be registered, before hours are spent on one."""
    directory = directory or models_directory()
    with _writing(directory), tempfile.TemporaryDirectory(prefix=".", dir=directory) as made:
        first = Path(made, "first")
        first.write_bytes(b"written")
        Path(made, "second").hardlink_to(first)


def register(card: Version, model: CostModel, directory: Path | None = None) -> Version:
    """Write a model with its card as the next version and return the card; its own `version` is not looked at."""
    directory = directory or models_directory()
    text = model.dumps()
    with _writing(directory):
        number = max((int(m["version"]) for m in _names(directory) if m["dialect"] == card.dialect), default=0)
        while True:
            number += 1
            path = directory / f"{card.dialect}-{number:04d}.json.gz"
            partial = directory / f".{path.name}.{os.getpid()}"
            partial.write_bytes(document(card, text, number))
            try:
                path.hardlink_to(partial)  # unlike a rename, it never replaces another process's version
            except FileExistsError:
                continue
            finally:
                partial.unlink(missing_ok=True)
            return read(path)[0]


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {directory}: {error.strerror}; set {VARIABLE} to a writable directory with hard links"
        ) from error


def document(card: Version, text: str, number: int) -> bytes:
    whole = {"format": _FORMAT, **asdict(card), "version": number, "path": "", "model": json.loads(text)}
    return gzip.compress(json.dumps(whole).encode(), 9, mtime=0)


def versions(dialect: str | None = None, directory: Path | None = None) -> list[Version]:
    return [found for found in _all(dialect, directory) if isinstance(found, Version)]


def damaged(dialect: str | None = None, directory: Path | None = None) -> list[str]:
    return [found for found in _all(dialect, directory) if isinstance(found, str)]


def version(name: str, dialect: str, directory: Path | None = None) -> tuple[Version, CostModel]:
    directory = directory or models_directory()
    path = directory / f"{dialect}-{int(name):04d}.json.gz" if name.isdigit() else Path(name)
    if not path.is_file():
        if not name.isdigit():
            raise NothingFoundError(f"there is no file {name}; leave it out for the model in use")
        known = ", ".join(str(card.version) for card in versions(dialect, directory)) or "none"
        raise NothingFoundError(
            f"there is no cost model {name} of {dialect}; there are: {known}; leave it out for the model in use"
        )
    card, text = read(path)
    return card, load_cost_model(text)


def read(path: Path) -> tuple[Version, str]:
    try:
        whole = json.loads(_unpacked(path))
        if whole["format"] > _FORMAT:
            raise UsageError(f"{path} was written by a newer tunery; update tunery, or train anew")
        if whole["model"]["family"] == "boosted":
            check_trees(whole["model"])
        return _as_card(whole, str(path)), json.dumps(whole["model"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise UsageError(
            f"{path} is damaged or no cost model ({error}); delete it, and train one with `tunery costmodel train`"
        ) from error


def _unpacked(path: Path) -> bytes:
    with gzip.open(io.BytesIO(read_small(path, _MOST_BYTES))) as file:
        data = file.read(_MOST_UNPACKED + 1)
    if len(data) > _MOST_UNPACKED:
        raise ValueError(f"it holds more than {_MOST_UNPACKED} bytes")
    return data


def starting(
    dialect: str, target: str, *, compiler: str = "", vector_bits: float = math.nan, layout: str = ""
) -> tuple[Version, str] | None:
    """Models that know rows of another `layout` are passed over, unless it is not told. A damaged file is passed over
    for the next best, and a line says so."""
    found = _all(dialect, None)
    for sentence in found:
        if isinstance(sentence, str):
            _log.warning("passed over: %s", sentence)
    cards = [card for card in found if isinstance(card, Version) and _reads(card, layout)]
    fitting = [c for c in cards if c.passed and c.target == target and (not compiler or c.of_compiler(compiler))]
    if fitting:
        return read(Path(fitting[-1].path))
    ships = shipped(dialect, target, vector_bits)
    return ships if ships and _reads(ships[0], layout) else None


def shipped_targets() -> list[tuple[str, str]]:
    names = (path.name.removesuffix(".json.gz").split("-") for path in _pretrained())
    return sorted({(dialect, "-".join(target)) for dialect, *target, _ in names})


def shipped(dialect: str, target: str, vector_bits: float = math.nan) -> tuple[Version, str] | None:
    """There is one for each width of vectors on which candidates were measured. Devices with others get the first by
    name, without what it has grown: `for_device` leaves that out there."""
    ours = re.compile(rf"{re.escape(dialect)}-{re.escape(target)}-\d+\.json\.gz")
    found = sorted(path for path in _pretrained() if ours.fullmatch(path.name))
    mine = [path for path in found if path.name == f"{dialect}-{target}-{vector_bits:.0f}.json.gz"]
    for path in dict.fromkeys((*mine, *found)):
        try:
            return read(path)
        except UsageError:
            _log.warning("%s is damaged, and passed over; install tunery again", path)
    return None


def _pretrained() -> list[Path]:
    return list(Path(str(files("tunery.costmodels")), "pretrained").glob("*.json.gz"))


def _reads(card: Version, layout: str) -> bool:
    return not (layout and card.layout) or layout == card.layout


def _all(dialect: str | None, directory: Path | None) -> list[Version | str]:
    directory, found = directory or models_directory(), list[Version | str]()
    for match in sorted(_names(directory), key=lambda m: (m["dialect"], int(m["version"]))):
        if dialect in {None, match["dialect"]}:
            try:
                found.append(read(directory / match[0])[0])
            except UsageError as error:
                found.append(str(error))
    return found


def _names(directory: Path) -> list[re.Match[str]]:
    if not directory.is_dir():
        return []
    return [match for path in sorted(directory.iterdir()) if (match := _NAME.fullmatch(path.name))]
