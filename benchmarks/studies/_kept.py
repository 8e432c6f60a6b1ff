"""What an interrupted study has done so far, so that the next run of the same study goes on there."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sources import sources

from tunery._errors import UsageError
from tunery._outputs import replacing
from tunery.devices import open_device
from tunery.domain import Candidate, Origin, digest


class Kept:
    """A directory of one study's artifacts, candidates and results; it goes when the study is complete.

    What is kept holds for one state of the package's code, one device and one `scale` of the study only; with `foreign`
    for the `scale` alone, since it is of a program that knows nothing of ours.

    Raises:
        UsageError: the cache cannot be written.
    """

    def __init__(self, cache: Path, name: str, scale: str, *, foreign: bool = False) -> None:
        key = digest(scale) if foreign else digest(sources(), open_device("cpu").describe().fingerprint, scale)
        self.directory = cache / f"study-{name}-{key[:16]}"  # beside the lock
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot write {cache}: {error.strerror}; set TUNERY_CACHE to a writable directory"
            ) from error

    def candidates(self, task_key: str) -> list[Candidate]:
        """Return the candidates that were proposed for a task, none if that was not finished."""
        path = self.directory / f"candidates-{task_key}.json"
        return [Candidate(**{**one, "origin": Origin(one["origin"])}) for one in _read(path) or []]

    def keep_candidates(self, task_key: str, candidates: Sequence[Candidate]) -> None:
        """Keep what was proposed for a task."""
        _write(self.directory / f"candidates-{task_key}.json", [asdict(one) for one in candidates])

    def results(self, task_key: str) -> dict[str, Any]:
        """Return what `keep_results` was given last for a task, {} if it was not."""
        return dict(_read(self._results(task_key)) or {})

    def keep_results(self, task_key: str, results: Mapping[str, Any]) -> None:
        """Keep what is known of a task so far: plain data."""
        _write(self._results(task_key), results)

    def remove(self) -> None:
        """Forget all: the study is complete."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _results(self, task_key: str) -> Path:
        return self.directory / f"results-{task_key}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not there, or cut off in the middle


def _write(path: Path, document: object) -> None:
    with replacing(path) as part:
        part.write_text(json.dumps(document), encoding="utf-8")
