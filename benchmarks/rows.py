"""What a benchmark has found, kept as soon as it is known: one line of JSON for each row.

Each row says of which code and device it is.
"""

import json
from pathlib import Path
from typing import Any

from tunery.domain import digest
from tunery.measure import this_device, usable_cores
from tunery.studies import _kept

Row = dict[str, Any]


class Kept:
    """The rows of a file, whose folder is made; `script` is the benchmark's own file.

    `conditions` are the further things that each row says of how it was made.
    """

    def __init__(self, file: Path, script: str, **conditions: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._made = {**conditions, **made_by(script)}
        self.rows: list[Row] = []

    def add(self, row: Row) -> Row:
        """Write a row to the end of the file, and return it as it stands there."""
        self.rows.append({**row, **self._made})
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(self.rows[-1]) + "\n")
        return self.rows[-1]


def made_by(script: str) -> dict[str, str]:
    """Return what decides a row beside what was asked for: the code, by a digest of it, and the device."""
    code = digest(_kept._sources(), Path(script).read_text(encoding="utf-8"))
    return {"code": code[:16], "device": this_device(usable_cores()).fingerprint}
