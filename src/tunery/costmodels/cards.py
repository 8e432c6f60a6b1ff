"""What is said of a trained model: what it learned from, how good it is on what it has not seen, if it may be used."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunery.costmodels.boosted import layout_of
from tunery.costmodels.dataset import Group

WORKLOAD_DIGITS = 8
"""Of a workload's key, on a card: two of a thousand are alike once in ten thousand datasets."""


@dataclass(frozen=True)
class Version:
    """One trained model's card: what it was trained on, how good it is on what was held out, whether it may be used.

    `data` holds the dataset's digest, counts, kinds, devices, networks and the first digits of its workloads' keys (of
    a model that grew on another one both together, and as `base` the other's with its `tau`); `metrics` the rows of its
    evaluation;
    `held_out` the networks that it has never seen; `kinds` the rows of its recipe on operator kinds that were left out
    of training as a whole, where that was asked for. `target` is the processor family it was trained for,
    `layout` that of its rows. The model
    that ships with tunery is version 0.
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
    kinds: tuple[Mapping[str, Any], ...] = ()
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


def as_card(document: Mapping[str, Any], path: str) -> Version:
    knows = layout_of(document["model"])
    layout = str(document.get("layout") or knows or "")
    if knows and layout != str(knows):
        raise ValueError(f"its card is of layout {layout}, and the model of {knows}")
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
        kinds=tuple(document.get("kinds", ())),
        layout=layout,
        path=path,
    )


def generator(compiler: str) -> str:
    """Return the part of a compiler's name and version that decides which code a candidate becomes: how networks are
    lowered decides which tasks there are, not what a candidate of one is worth.

    >>> generator("compiler 0.27 lowering 2 build 1")
    'compiler 0.27 build 1'
    """
    return re.sub(r" lowering \d+", "", compiler)
