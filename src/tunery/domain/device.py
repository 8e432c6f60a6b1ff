"""A concrete thing that runs kernels."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunery.domain.keys import canonical_json, digest


@dataclass(frozen=True)
class Device:
    """A machine's processor or accelerator: `facts` make timings comparable (model, cores, caches, driver)."""

    kind: str
    name: str
    cores: tuple[int, ...]
    facts: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Identity for comparing timings: the same machine type and core count give the same fingerprint."""
        return digest(self.kind, self.name, str(len(self.cores)), canonical_json(dict(self.facts)))
