"""Files of the fake dialect: JSON objects that are either whole or absent."""

import json
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery._outputs import replacing


def write(path: Path, content: str | bytes) -> None:
    """Write a file so that nobody sees a part of it; on an error nothing is left."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def read(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DialectError(f"{path} cannot be loaded: {error}") from error
    if not isinstance(data, dict):
        raise DialectError(f"{path} holds no object")
    return data
