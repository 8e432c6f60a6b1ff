"""Concrete implementations of a task."""

from dataclasses import dataclass
from enum import StrEnum

from tunery.domain.keys import BlobDigest


class Origin(StrEnum):
    """Where a candidate came from."""

    SEARCH = "search"
    BASELINE = "baseline"
    PLANTED = "planted"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation: `body` is plain data of the dialect (a trace of its schedule as JSON, say).

    `key` is the hash of the program it lowers to, so two different bodies with the same program are one candidate.
    `score` is the cost model's prediction when it was proposed (higher is faster), if there was one.
    """

    key: str
    task_key: str
    body: str
    origin: Origin = Origin.SEARCH
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built candidate: the SHA-256 of its file, and what else the dialect needs to load it, in text of its own."""

    candidate_key: str
    blob: BlobDigest
    size_bytes: int
    manifest: str = ""
