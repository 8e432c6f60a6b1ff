"""Trained cost models: those that ship with the package, and the versions trained here, as gzipped JSON files."""

import gzip
import json
import os
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from tunery._errors import NothingFoundError, UsageError
from tunery.costmodels._base import CostModel, load_cost_model

VARIABLE = "TUNERY_MODELS"
_FORMAT = 1
_NAME = re.compile(r"(?P<dialect>[a-z0-9_]+)-(?P<version>\d{4,})\.json\.gz")
_X86 = ("znver", "skylake", "cascadelake", "cooperlake", "icelake", "sapphirerapids", "x86-64", "haswell", "broadwell",
        "alderlake", "raptorlake", "core-avx")  # fmt: skip


@dataclass(frozen=True)
class Version:
    """One trained model's card: what it was trained on, how good it is on what was held out, whether it may be used.

    `data` holds the dataset's digest, counts, kinds, devices and networks; `metrics` the rows of its evaluation;
    `held_out` the networks that it has never seen. `target` is the processor family it was trained for.
    """

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
    path: str = field(default="", compare=False)


def models_directory() -> Path:
    """Return where trained models live (`TUNERY_MODELS` overrides it)."""
    chosen = os.environ.get(VARIABLE)
    return (
        Path(chosen) if chosen else Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share"), "tunery/models")
    )


def register(card: Version, model: CostModel, directory: Path | None = None) -> Version:
    """Write a model with its card as the next version and return the card; its own `version` is not looked at.

    Raises:
        UsageError: the directory cannot be written.
    """
    directory = directory or models_directory()
    text = model.dumps()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number = max((int(m["version"]) for m in _names(directory) if m["dialect"] == card.dialect), default=0)
        while True:
            number += 1
            path = directory / f"{card.dialect}-{number:04d}.json.gz"
            document = {"format": _FORMAT, **asdict(card), "version": number, "path": "", "model": json.loads(text)}
            partial = directory / f".{path.name}.{os.getpid()}"
            partial.write_bytes(gzip.compress(json.dumps(document).encode(), 6, mtime=0))
            try:
                path.hardlink_to(partial)  # unlike a rename, it never replaces another process's version
            except FileExistsError:
                continue
            finally:
                partial.unlink(missing_ok=True)
            return _card(document, path)
    except OSError as error:
        raise UsageError(
            f"cannot write {directory}: {error.strerror}; set {VARIABLE} to a writable directory"
        ) from error


def versions(dialect: str | None = None, directory: Path | None = None) -> list[Version]:
    """Return the cards of all models that were trained here, oldest first; a damaged file is passed over."""
    found = []
    for match in _names(directory or models_directory()):
        if dialect in {None, match["dialect"]}:
            try:
                found.append(read(Path(directory or models_directory(), match[0]))[0])
            except UsageError:
                continue
    return sorted(found, key=lambda card: (card.dialect, card.version))


def version(name: str, dialect: str, directory: Path | None = None) -> tuple[Version, CostModel]:
    """Return a version by its number, or the model in a file by its path.

    Raises:
        NothingFoundError: there is no such version.
        UsageError: the file is damaged, or no model.
    """
    directory = directory or models_directory()
    path = directory / f"{dialect}-{int(name):04d}.json.gz" if name.isdigit() else Path(name)
    if not path.is_file():
        known = ", ".join(str(card.version) for card in versions(dialect, directory)) or "none"
        raise NothingFoundError(f"there is no cost model {name} of {dialect}; there are: {known}")
    card, text = read(path)
    return card, load_cost_model(text)


def read(path: Path) -> tuple[Version, str]:
    """Return the card and the model's text of a file that `register` wrote.

    Raises:
        UsageError: it cannot be read, is damaged, or was written by a newer tunery.
    """
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["format"] > _FORMAT:
            raise UsageError(f"{path} was written by a newer tunery; update tunery, or train anew")
        return _card(document, path), json.dumps(document["model"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise UsageError(
            f"{path} is damaged or no cost model ({error}); delete it, and train one with `tunery costmodel train`"
        ) from error


def in_use(dialect: str, config: Mapping[str, Any], directory: Path | None = None) -> Version | None:
    """Return the card of the trained model that jobs start from: the latest that passed its gate for such targets."""
    fitting = [card for card in versions(dialect, directory) if card.passed and card.target == family(dialect, config)]
    return fitting[-1] if fitting else None


SHIPPED_HELD_OUT = ("bert-small", "efficientnet_b0", "mobilenet_v2", "resnet18", "vit_b_32")
"""Networks of the zoo none of whose workloads the shipped model has seen (docs/decisions/004)."""


def pretrained(dialect: str, config: Mapping[str, Any]) -> str | None:
    """Return the cost model to start from for a target: the one trained here, else the one shipped, else None."""
    card = in_use(dialect, config)
    if card is not None:
        return read(Path(card.path))[1]
    return shipped(dialect, config)


def shipped(dialect: str, config: Mapping[str, Any]) -> str | None:
    """Return the shipped cost model for a target of a dialect, None if there is none for it."""
    if dialect != "metaschedule" or family(dialect, config) != "x86":
        return None
    file = files("tunery.costmodels") / "pretrained" / "metaschedule-x86.json.gz"
    if not file.is_file():
        return None
    document = json.loads(gzip.decompress(file.read_bytes()))
    return json.dumps(document.get("model", document))


def family(dialect: str, config: Mapping[str, Any]) -> str:
    """Return the family of processors a target belongs to: models are shared within one."""
    if dialect == "metaschedule" and str(config.get("mcpu", "")).startswith(_X86):
        return "x86"
    return str(config.get("mcpu") or config.get("kind") or dialect)


def new_card(**facts: Any) -> Version:
    """Return the card of a model that is not registered yet."""
    return Version(version=0, created_at=time.time(), **facts)


def _names(directory: Path) -> list[re.Match[str]]:
    if not directory.is_dir():
        return []
    return [match for path in sorted(directory.iterdir()) if (match := _NAME.fullmatch(path.name))]


def _card(document: Mapping[str, Any], path: Path) -> Version:
    return Version(
        version=int(document["version"]),
        dialect=str(document["dialect"]),
        compiler=str(document["compiler"]),
        target=str(document["target"]),
        created_at=float(document["created_at"]),
        recipe=dict(document["recipe"]),
        data=dict(document["data"]),
        metrics=tuple(document["metrics"]),
        passed=bool(document["passed"]),
        reasons=tuple(document["reasons"]),
        held_out=tuple(document["held_out"]),
        path=str(path),
    )
