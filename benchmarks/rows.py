"""What a benchmark has found, kept as soon as it is known: one line of JSON for each row.

Each row says of which code and device it is. What other code or another device has found stays in the file, and is
never mixed with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sources import sources

from tunery.devices import open_device
from tunery.domain import digest

Row = dict[str, Any]


class Kept:
    """A file of rows, whose folder is made; `script` is the benchmark's own file.

    `conditions` are what rows must agree in beside code and device.
    """

    def __init__(self, file: Path, script: str, **conditions: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._conditions, self._made = conditions, made_by(script)

    def read(self) -> list[Row]:
        """Return the rows of earlier runs, and print how many of them are of other code or another device."""
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        asked = [row for row in map(json.loads, lines) if _agrees(row, self._conditions)]
        mine = [row for row in asked if _agrees(row, self._made)]
        if len(mine) < len(asked):
            print(f"{len(asked) - len(mine)} rows of {self._file} are of other code or another device: not used")
        return mine

    def add(self, row: Row) -> Row:
        """Write a row to the end of the file, and return it as it stands there."""
        row = {**row, **self._conditions, **self._made}
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        return row


def made_by(script: str) -> dict[str, str]:
    """Return what decides a row beside what was asked for: the code, by a digest of it, and the device."""
    code = digest(sources(), Path(script).read_text(encoding="utf-8"))
    return {"code": code[:16], "device": open_device("cpu").describe().fingerprint}


def _agrees(row: Row, conditions: Mapping[str, object]) -> bool:
    return all(row.get(name) == value for name, value in conditions.items())
