"""What is said of a trained model: what it learned from, how good it is on what it has not seen, if it may be used."""

import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunery.costmodels.dataset import Group

_X86 = ("x86", "znver", "skylake", "cascadelake", "cooperlake", "icelake", "sapphirerapids", "emeraldrapids", "haswell",
        "broadwell", "alderlake", "raptorlake", "core-avx", "gracemont")  # fmt: skip
"""Names of x86 processors that a machine of another kind knows, too; there are new ones every year."""
_OTHERS = ("a64fx", "ampere", "apple", "arm", "carmel", "cortex", "cyclone", "exynos", "falkor", "fujitsu", "gb10",
           "generic-", "grace", "hip", "kryo", "la464", "la664", "loongarch", "neoverse", "olympus", "oryon", "power",
           "ppc", "pwr", "rocket-", "saphira", "sifive", "spacemit", "syntacore", "thunderx", "tsv110", "veyron",
           "xiangshan", "z1")  # fmt: skip
"""What LLVM's names of processors of other architectures begin with."""

WORKLOAD_DIGITS = 8
"""Of a workload's key, on a card: two of a thousand are alike once in ten thousand datasets."""


@dataclass(frozen=True)
class Version:
    """One trained model's card: what it was trained on, how good it is on what was held out, whether it may be used.

    `data` holds the dataset's digest, counts, kinds, devices, networks and the first digits of its workloads' keys (of
    a model that grew on another one both together, and as `base` the other's with its `tau`); `metrics` the rows of its
    evaluation;
    `held_out` the networks that it has never seen; `kinds` the rows of its recipe on operator kinds that were left out
    of training as a whole, where that was asked for. `target` is the processor family it was trained for. The model
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
    path: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"version {self.version}" if self.version else "shipped"

    @property
    def overall(self) -> Mapping[str, Any]:
        """The model's own row of metrics over all kinds and devices; empty where it was not judged."""
        mine = [m for m in self.metrics if m["kind"] == m["device"] == "all" and m["ranking"] == "model"]
        return mine[0] if mine else {}

    @property
    def tau(self) -> float | None:
        """Kendall's tau that it has shown on tasks it had not seen, None where it was not judged."""
        value = self.overall.get("kendall")
        return None if value is None else float(value)

    @property
    def base_tau(self) -> float | None:
        """The same of what it had grown on, which is what is used on other devices; None where that is not known."""
        value = self.data.get("base", {}).get("tau")
        return None if value is None else float(value)

    def saw(self, group: Group) -> bool:
        """Return whether it may have learned from the group's workload.

        A card without a list of workloads knows networks only: of a task of no known network it may have, and what a
        held-out network holds has left training, whichever other networks hold it too.
        """
        if "workloads" in self.data:
            return group.workload_key[:WORKLOAD_DIGITS] in self.data["workloads"]
        owners = set(group.networks)
        if owners.intersection(self.held_out):
            return False
        return not owners or bool(owners.intersection(self.data.get("networks", ())))

    def of_compiler(self, compiler: str) -> bool:
        """Return whether it was trained on what this compiler version generates."""
        return generator(self.compiler) == generator(compiler)


def new_card(**facts: Any) -> Version:
    """Return the card of a model that is not registered yet."""
    return Version(version=0, created_at=time.time(), **facts)


def as_card(document: Mapping[str, Any], path: str) -> Version:
    """Return the card in a model's file."""
    return Version(
        version=int(document["version"]),
        dialect=str(document["dialect"]),
        compiler=str(document["compiler"]),
        # Earlier, an x86 processor of a name that was not listed was a family of its own.
        target=family(str(document["dialect"]), {"mcpu": str(document["target"])}),
        created_at=float(document["created_at"]),
        recipe=dict(document["recipe"]),
        data=dict(document["data"]),
        metrics=tuple(document["metrics"]),
        passed=bool(document["passed"]),
        reasons=tuple(document["reasons"]),
        held_out=tuple(document["held_out"]),
        kinds=tuple(document.get("kinds", ())),
        path=path,
    )


def family(dialect: str, config: Mapping[str, Any]) -> str:
    """Return the family of processors a target belongs to: models are shared within one.

    All x86 processors are one family, whatever LLVM calls them; of the others each name is a family of its own.

    >>> family("metaschedule", {"kind": "llvm", "mcpu": "znver4"}), family("metaschedule", {"mcpu": "apple-m1"})
    ('x86', 'apple-m1')
    """
    if dialect == "metaschedule" and config.get("kind", "llvm") == "llvm" and _is_x86(config):
        return "x86"
    return str(config.get("mcpu") or config.get("kind") or dialect)


def _is_x86(config: Mapping[str, Any]) -> bool:
    """Say whether a target is x86 by its triple, else by its name; a name that is not known is of this machine."""
    triple, name = str(config.get("mtriple", "")), str(config.get("mcpu", ""))
    if triple:
        return triple.startswith(("x86", "amd64", "i386", "i686"))
    if not name or name.startswith((*_X86, *_OTHERS)):
        return name.startswith(_X86)
    return platform.machine().lower() in {"x86_64", "amd64"}


def generator(compiler: str) -> str:
    """Return the part of a compiler's name and version that decides which code a candidate becomes.

    How networks are lowered decides which tasks there are, not what a candidate of one is worth.

    >>> generator("apache-tvm 0.27 lowering 2 build 1")
    'apache-tvm 0.27 build 1'
    """
    return re.sub(r" lowering \d+", "", compiler)
