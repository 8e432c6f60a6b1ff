"""Bytes by their SHA-256: models, artifacts, reference outputs, compiled networks. A host keeps its own."""

from tunery.blobs._base import BlobPlace, Blobs, check_digest
from tunery.blobs.directory import DirectoryBlobs, open_blobs

__all__ = ["BlobPlace", "Blobs", "DirectoryBlobs", "check_digest", "open_blobs"]
