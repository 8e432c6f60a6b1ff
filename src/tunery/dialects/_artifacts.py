"""Built candidates as blobs: what crosses to other processes and hosts, and what a dialect reads here."""

from dataclasses import dataclass
from pathlib import Path

from tunery.blobs import Blobs
from tunery.domain import Artifact


@dataclass(frozen=True, slots=True)
class Built:
    """A built candidate on this host: one file, and text of the dialect's own that loading it needs."""

    candidate_key: str
    path: Path
    manifest: str = ""


def store_built(blobs: Blobs, built: Built) -> Artifact:
    size_bytes = built.path.stat().st_size
    blob = blobs.put(built.path, temporary=True, move=True)
    return Artifact(built.candidate_key, blob, size_bytes, built.manifest)


def open_built(blobs: Blobs, artifact: Artifact) -> Built:
    return Built(artifact.candidate_key, blobs.get(artifact.blob), artifact.manifest)
