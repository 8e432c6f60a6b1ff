"""What all studies share: their options, their result, and how it is written."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunery._errors import UsageError
from tunery._outputs import CHART, Kind, begins_with, whole_file
from tunery.reports.data import plain

_SHOWN = 300
STUDY = Kind("a study's results", begins_with(rb'\{\s*"study": '))


@dataclass(frozen=True, slots=True)
class Options:
    """What every study can be told.

    `out` is where files go (None: nothing is written); `quick` asks for a version of a minute or two that shows the
    same effect; `say` hears one line of progress at a time.
    """

    out: Path | None = None
    quick: bool = False
    repeats: int = 3
    seed: int = 0
    say: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class StudyReport:
    """What a study found.

    `data` is plain data, all that was measured; `text` is the table for a reader; `claims` maps each claim, with its
    bound, to whether it was met in this run, None where this run cannot judge it; `plots` maps a file name
    (`gantt.png`) to a function that draws on a matplotlib figure made for it.
    """

    name: str
    data: Mapping[str, Any]
    text: str
    claims: Mapping[str, bool | None] = field(default_factory=dict)
    plots: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)


@contextmanager
def noting(what: str, failed: dict[str, str], say: Callable[[str], None]) -> Iterator[None]:
    """Note it if this part of a study fails: the other parts may be an hour's work."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is
        failed[what] = f"{type(error).__name__}: {error}"
        say(f"{what} failed: {shortened(failed[what])}")


def shortened(why: str) -> str:
    """Return the end of a failure's words, in one line: a log says last what was wrong."""
    line = " ".join(why.split())
    return line if len(line) <= _SHOWN else f"...{line[-_SHOWN:]}"


def pyplot() -> Any:
    """Return matplotlib's pyplot for files.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError(
            "plots need matplotlib; install it with `pip install 'tunery[study]'`, or leave --out away"
        ) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def write(report: StudyReport, out: Path) -> list[Path]:
    """Write `NAME.json` and the plots into `out`, which is made if need be; return the files.

    Raises:
        UsageError: `out` cannot be written, or matplotlib is missing.
    """
    plt = pyplot() if report.plots else None
    place(out)
    written = [out / f"{report.name}.json"]
    document = {"study": report.name, "claims": dict(report.claims), **report.data}
    with whole_file(written[0], STUDY) as file:
        file.write((json.dumps(plain(document), indent=1, allow_nan=False) + "\n").encode())
    for name, draw in report.plots.items():
        figure = plt.figure(figsize=(11, 6), layout="constrained")  # type: ignore[union-attr]
        draw(figure)
        written.append(out / name)
        with whole_file(written[-1], CHART) as file:
            figure.savefig(file, format=written[-1].suffix.removeprefix("."), dpi=110)
        plt.close(figure)  # type: ignore[union-attr]
    return written


def place(out: Path) -> None:
    """Make the directory for a study's files.

    Raises:
        UsageError: there is something else, or it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {out} ({error.strerror}); choose another directory with --out")
