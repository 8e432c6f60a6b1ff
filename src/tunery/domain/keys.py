"""Stable identities: canonical JSON and short content hashes."""

import hashlib
import json
from collections.abc import Mapping
from mmap import mmap
from typing import Annotated, Any, Final


def canonical_json(value: Mapping[str, Any] | list[Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(*parts: str | bytes | mmap) -> str:
    """Return a 16-digit hex hash of the parts; part borders count, so ("ab", "c") differs from ("a", "bc")."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


class BlobMark:
    """Marks text that is the SHA-256 of a blob, or empty: whoever passes it on passes the blob on."""


BLOB: Final = BlobMark()
BlobDigest = Annotated[str, BLOB]
