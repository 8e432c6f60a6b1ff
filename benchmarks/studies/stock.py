"""Time to quality: how long stock MetaSchedule tunes a network, and how long we need to a network as fast as its last.

Both start from nothing, in processes of their own, one after the other on the same cores. Network latencies are those
of compiled files, timed in turns with one another and with ONNX Runtime. What is finished is kept, so that the same
command goes on; stock's sides, the long ones, are kept beyond the end of the study.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from studies._base import Options, StudyReport, noting
from studies._kept import Kept
from studies.stock_plots import over_time
from studies.stock_sides import (
    Checkpoint,
    Side,
    deliver,
    our_side,
    stock_file,
    stock_side,
)
from tunery._errors import WorkError
from tunery._settings import cache_directory
from tunery.devices import open_device
from tunery.domain.request import BenchReport, Latency, Request
from tunery.reports.format import as_text, milliseconds, new_table
from tunery.runtime.services.importer import Preparer
from tunery.service.session import bench
from tunery.testing.fake_blobs import FakeBlobs

NETWORKS = ("zoo:resnet18", "zoo:mobilenet_v2", "zoo:bert-small")
QUICK_NETWORKS, QUICK_TRIALS, QUICK_S = ("zoo:mlp-mnist",), 8, 20.0
BOUND, AIM = 10.0, 20.0
_LEAST_S, _SHARE = 60.0, 0.1
_SECONDS = 5.0
_LEAST_TRIALS = 60  # for each task in the mean; of the 64 that are asked for a few may be lost
_WITHIN = 1.01
_SIDE, _CHECKPOINTS = TypeAdapter(Side), TypeAdapter(tuple[Checkpoint, ...])
_LATENCY = TypeAdapter(dict[str, Latency])


@dataclass(frozen=True, slots=True)
class Row:
    """One network: both sides, ours at its checkpoints, and all their network latencies beside ONNX Runtime's.

    `latency_s` is keyed by `stock`, `onnxruntime` and the checkpoints' labels; `wrong` names those of them that compute
    something else.
    """

    model: str
    seed: int
    stock: Side
    ours: Side
    checkpoints: tuple[Checkpoint, ...]
    latency_s: Mapping[str, Latency]
    wrong: tuple[str, ...] = ()

    @property
    def reached(self) -> Checkpoint | None:
        """The first checkpoint that is as fast as what stock ends with."""
        goal_s = self.latency_s["stock"].median
        return next((one for one in self.checkpoints if self.latency_s[one.label].median <= goal_s), None)

    @property
    def times_wall(self) -> float | None:
        """How many times the wall time that we needed to that quality, compiling included, stock took in all."""
        if not (reached := self.reached):
            return None
        return (self.stock.wall_s + self.stock.compile_s) / (reached.wall_s + reached.compile_s)

    @property
    def times_cpu(self) -> float | None:
        """How many times the CPU time that we needed to that quality stock used in all; compiling is not counted."""
        return self.stock.cpu_s / self.reached.cpu_s if self.reached else None


@dataclass(frozen=True, slots=True)
class Acts:
    """What the study has done by others, so that a test can stand in."""

    stock: Callable[..., Side] = stock_side
    ours: Callable[[Request, float, Path], Side] = our_side
    deliver: Callable[[Request, Side, Path], Sequence[Checkpoint]] = deliver
    bench: Callable[..., BenchReport] = bench


def run(
    options: Options,
    networks: Sequence[str] = (),
    trials: int = 64,
    budget_s: float | None = None,
    dialect: str = "metaschedule",
    threads: int = 0,
    acts: Acts = Acts(),
    *,
    channels_last: bool = False,
) -> StudyReport:
    """Tune each network with stock, `trials` for each task, then with ours, `options.repeats` times, and compare.

    Without `budget_s` ours gets a tenth of stock's wall time, at least a minute. Stock has the network's layout as it
    is imported, channels first, unless `channels_last`. A network that fails costs itself only.

    Raises:
        WorkError: all networks failed.
    """
    chosen = tuple(networks) or (QUICK_NETWORKS if options.quick else NETWORKS)
    trials = min(trials, QUICK_TRIALS) if options.quick else trials
    budget_s = budget_s or (QUICK_S if options.quick else None)
    scale = f"{trials} {threads} {dialect} {budget_s} {channels_last} {' '.join(chosen)} {_conditions()}"
    kept = Kept(cache_directory(), "stock-ours", scale)
    rows, failed = list[Row](), dict[str, str]()
    for model in chosen:
        base = Request(model, dialect=dialect, threads=threads, seed=options.seed)
        with noting(model, failed, options.say):
            theirs = _stock(base, trials, acts, options.say, channels_last=channels_last)
            seeds = range(options.seed, options.seed + (1 if options.quick else options.repeats))
            for seed in seeds:
                rows.append(_row(replace(base, seed=seed), theirs, budget_s, kept, acts, options.say))
    if not rows:
        raise WorkError("; ".join(f"{model}: {why}" for model, why in failed.items()))
    if not failed:
        kept.remove()
    data = {"trials_per_task": trials, "channels_last": channels_last, "failed": failed,
            "rows": [_plain(row) for row in rows]}  # fmt: skip
    plots = {f"stock-{row.ours.network}-{row.seed}.png": over_time(row) for row in rows}
    return StudyReport("stock", data, _text(rows, channels_last=channels_last), _claims(rows, failed), plots)


def finished(model: str, threads: int) -> Path | None:
    """Return the compiled file of stock's finished side of a network, the one with most trials; None without one.

    It was made on this device, by the installed TVM, for as many threads, with all settings at their defaults and no
    fewer trials.
    """
    side = finished_side(model, threads)
    return side[1] if side else None


def finished_side(model: str, threads: int) -> tuple[Side, Path] | None:
    """Return what `finished` does, with what it took and what it reached."""
    found: list[tuple[Side, Path]] = []
    for folder in cache_directory().glob("study-stock-*"):
        for results in folder.glob(f"results-{_slug(model)}.json"):
            kept = json.loads(results.read_text(encoding="utf-8"))
            file = stock_file(folder / _slug(model))
            side = _SIDE.validate_python(kept["side"])
            enough = side.trials >= _LEAST_TRIALS * side.tasks
            if kept["conditions"] == _conditions() and side.threads == threads and enough and file.exists():
                found.append((side, file))
    return max(found, key=lambda one: one[0].trials, default=None)


def _stock(
    request: Request, trials: int, acts: Acts, say: Callable[[str], None], *, channels_last: bool
) -> tuple[Side, Path]:
    """Return stock's side and its compiled file; one that was finished before is not run again."""
    conditions = _conditions(channels_last=channels_last)
    seeded = f" {request.seed}" if request.seed else ""
    kept = Kept(cache_directory(), "stock", f"{trials} {request.threads} {conditions}{seeded}", foreign=True)
    name = _slug(request.model)
    work = kept.directory / name
    if (results := kept.results(name)) and stock_file(work).exists():
        say(f"{request.model}: stock was done before; delete {work} to have it done again")
        return _SIDE.validate_python(results["side"]), stock_file(work)
    say(f"{request.model}: stock, {trials} trials for each task")
    side = acts.stock(request, trials, work, channels_last=channels_last)
    kept.keep_results(name, {"side": asdict(side), "conditions": conditions})
    return side, stock_file(work)


def _row(
    request: Request,
    theirs: tuple[Side, Path],
    budget_s: float | None,
    kept: Kept,
    acts: Acts,
    say: Callable[[str], None],
) -> Row:
    name, (stock, file) = f"{_slug(request.model)}-{request.seed}", theirs
    work, done = kept.directory / name, kept.results(name)
    if "side" not in done:
        seconds = budget_s or max(_LEAST_S, _SHARE * stock.wall_s)
        say(f"{request.model}: ours, {seconds:.0f} s, seed {request.seed}")
        done = {"side": asdict(acts.ours(request, seconds, work))}
        kept.keep_results(name, done)
    ours = _SIDE.validate_python(done["side"])
    if "latency_s" not in done:
        say(f"{request.model}: compiling what was there at each moment, then timing all")
        checkpoints = acts.deliver(request, ours, work)
        others = {"stock": file, **{one.label: Path(one.file) for one in checkpoints[:-1]}}
        last = checkpoints[-1]
        report = acts.bench(
            replace(request, store=str(work / "bench.db")), ("onnxruntime",), _SECONDS, Path(last.file), others=others
        )
        latency_s = {last.label if label == "tunery" else label: spread for label, spread in report.latency_s.items()}
        done |= {"checkpoints": [asdict(one) for one in checkpoints], "wrong": list(report.wrong),
                 "latency_s": {label: asdict(spread) for label, spread in latency_s.items()}}  # fmt: skip
        kept.keep_results(name, done)
    return Row(
        request.model, request.seed, stock, ours, _CHECKPOINTS.validate_python(done["checkpoints"]),
        _LATENCY.validate_python(done["latency_s"]), tuple(done["wrong"]),
    )  # fmt: skip


def _slug(model: str) -> str:
    """Return a file name for a model that changes with its content."""
    name = re.sub(r"[^\w.-]+", "-", model.removeprefix("zoo:"))[-40:]
    return f"{name}-{Preparer(FakeBlobs()).identify(model, {})[:8]}"


def _conditions(*, channels_last: bool = False) -> str:
    layout = " channels last" if channels_last else ""
    return f"{version('apache-tvm')} {version('apache-tvm-ffi')} {open_device('cpu').describe().fingerprint}{layout}"


def _plain(row: Row) -> dict[str, Any]:
    reached = row.reached
    return {
        **asdict(row),
        "reached": reached.label if reached else None,
        "times_less_wall": row.times_wall,
        "times_less_cpu": row.times_cpu,
        "stock_settled_s": row.stock.settled(_WITHIN),
    }


def _claims(rows: Sequence[Row], failed: Mapping[str, str]) -> dict[str, bool]:
    claims = {f"{model}: studied to its end": False for model in failed}
    for model in dict.fromkeys(row.model for row in rows):
        times = [row.times_wall or 0.0 for row in rows if row.model == model]
        claims[f"{model}: as fast a network as stock's last in {BOUND:.0f} x less wall time, both compiled"] = (
            min(times) >= BOUND
        )
        right = not any("stock" in row.wrong for row in rows if row.model == model)
        claims[f"{model}: stock's network computes what ONNX Runtime computes"] = right
    return claims


def _text(rows: Sequence[Row], *, channels_last: bool) -> str:
    table = new_table(
        "network", "#tasks", "#trials", "#failed", "#stock s", "#CPU s", "#within 1 %", "#stock ms", "#ORT ms",
        "#ours s", "#CPU s", "#ours ms", "#last ms", "#wall", "#CPU",
    )  # fmt: skip
    for row in rows:
        reached, last, settled = row.reached, row.checkpoints[-1], row.stock.settled(_WITHIN)
        table.add_row(
            row.stock.network, str(row.stock.tasks), str(row.stock.trials), str(row.stock.failed),
            f"{row.stock.wall_s:.0f}", f"{row.stock.cpu_s:.0f}", f"{settled:.0f} s" if settled else "-",
            *(milliseconds(row.latency_s[label].median) for label in ("stock", "onnxruntime")),
            f"{reached.wall_s:.0f}" if reached else "never", f"{reached.cpu_s:.0f}" if reached else "-",
            *(milliseconds(row.latency_s[one.label].median) if one else "-" for one in (reached, last)),
            *(f"{times:.1f}x" if times else "-" for times in (row.times_wall, row.times_cpu)),
        )  # fmt: skip
    sides = dict.fromkeys(row.stock for row in rows)
    days = [f"{side.network} {datetime.fromtimestamp(side.began):%Y-%m-%d %H:%M}" for side in sides]
    began = f"stock began: {', '.join(days)}"
    return "\n".join(
        [
            as_text(table),
            *_NOTES,
            _LAYOUT[channels_last],
            began,
            *(line for row in rows for line in ("", _moments(row))),
        ]
    )


_NOTES = (
    "within 1 %: when stock's sum of tasks was as near to its last; ms: medians of whole networks, timed in turns",
    "ours s: from the start of the process to the first moment whose network is as fast as stock's last; wall, CPU:",
    "how many times that stock took in all; in wall's, but not in CPU's, compiling is counted on both sides",
    f"bound {BOUND:.0f} x less wall time, aim {AIM:.0f} x; stock MetaSchedule: all settings at their defaults",
)
_LAYOUT = {
    False: "stock's convolutions are channels first, as TVM imports them; --channels-last has them otherwise",
    True: "stock's convolutions are channels last (NHWC), which is no default of TVM's",
}


def _moments(row: Row) -> str:
    table = new_table(f"{row.stock.network}, seed {row.seed}", "#after s", "#CPU s", "#sum of tasks ms", "#network ms",
                      "#10 % to 90 %", "#compiled in s")  # fmt: skip
    known = [point.latency_s for point in row.stock.curve if point.latency_s is not None]
    stock = [f"{row.stock.wall_s:.0f}", f"{row.stock.cpu_s:.0f}", milliseconds(known[-1] if known else None)]
    for name, cells, label, compiled in (
        ("ONNX Runtime", ["", "", ""], "onnxruntime", ""),
        ("stock", stock, "stock", f"{row.stock.compile_s:.1f}" if row.stock.compile_s else ""),
        *(("ours", [f"{one.wall_s:.0f}", f"{one.cpu_s:.0f}", milliseconds(one.sum_s)], one.label,
           f"{one.compile_s:.1f}") for one in row.checkpoints),
    ):  # fmt: skip
        spread = row.latency_s[label]
        table.add_row(name, *cells, milliseconds(spread.median),
                      f"{milliseconds(spread.p10)} to {milliseconds(spread.p90)}", compiled)  # fmt: skip
    return as_text(table)
