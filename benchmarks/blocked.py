"""Channels in blocks of a vector against channels last: single convolutions, each tuned in both layouts.

In blocks, data are [blocks, height, width, vector] and weights [blocks out, blocks in, height, width, vector in, vector
out], as vendors' libraries hold them; last, data are [height, width, channels]. Both sides have MetaSchedule's generic
space with our channel tiles and free layouts of weights, no variant of our own and no model that ships,
the same trials and seeds, in turns. What a network would pay for reordering its inputs and outputs is not counted.

    python benchmarks/blocked.py [--trials 64] [--seeds 3] [--convolutions 3x3-64,1x1-96] [--json FILE]

One line of JSON is kept for each search in --json; run it again to go on, with the same code on the same device.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ablation
from rows import Kept, Row
from studies._children import end_with_parent, watch

from tunery._errors import WorkError
from tunery.domain import Budget, Target, Task, TensorSpec, Workload
from tunery.domain.request import Request
from tunery.reports.format import as_text, milliseconds, new_table
from tunery.service.session import tune_tasks

LAST, BLOCKED = "last", "blocked"
LAYOUTS = (LAST, BLOCKED)


@dataclass(frozen=True)
class Convolution:
    """`size` is the output's height and width; the input is padded already."""

    size: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int = 1

    @property
    def padded(self) -> int:
        """Height and width of the padded input."""
        return (self.size - 1) * self.stride + self.kernel

    @property
    def flop(self) -> float:
        """Operations of one call."""
        return 2.0 * self.size**2 * self.kernel**2 * self.channels_in * self.channels_out


CONVOLUTIONS: Mapping[str, Convolution] = {
    "3x3-64": Convolution(56, 64, 64, 3),
    "3x3-128-stride-2": Convolution(28, 64, 128, 3, 2),
    "3x3-256": Convolution(14, 256, 256, 3),
    "3x3-512": Convolution(7, 512, 512, 3),
    "1x1-96": Convolution(14, 96, 576, 1),
    "1x1-192": Convolution(28, 192, 32, 1),
    "1x1-1024": Convolution(14, 1024, 256, 1),
}


def task_of(convolution: Convolution, layout: str, target: Target) -> Task:
    """Return one convolution in a layout, for a target with vectors that divide its channels."""
    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.variants.program import normalised, program_key, tvm_target
    from tunery.dialects.metaschedule.variants.vectors import lanes_of

    lanes = lanes_of(tvm_target(target))
    data, weight, result = (_last if layout == LAST else _blocked)(tvm.te, convolution, lanes)
    function = tvm.te.create_prim_func([data, weight, result])
    module = normalised(function.with_attr("layout_free_buffers", [1]))
    arguments = tuple(
        TensorSpec(f"a{i}", tuple(map(int, each.shape)), "float32") for i, each in enumerate((data, weight, result))
    )
    workload = Workload(
        program_key(module), f"conv2d_{layout}", "conv2d", tvm.ir.save_json(module), arguments, 1, convolution.flop
    )
    return Task(workload, target)


def _last(te: Any, of: Convolution, lanes: int) -> tuple[Any, Any, Any]:  # noqa: ARG001 - as in blocks
    data = te.placeholder((of.padded, of.padded, of.channels_in), name="data")
    weight = te.placeholder((of.kernel, of.kernel, of.channels_in, of.channels_out), name="weight")
    y, x, c = (
        te.reduce_axis((0, n), name=name) for n, name in ((of.kernel, "ky"), (of.kernel, "kx"), (of.channels_in, "c"))
    )
    return data, weight, te.compute(
        (of.size, of.size, of.channels_out),
        lambda h, w, o: te.sum(data[h * of.stride + y, w * of.stride + x, c] * weight[y, x, c, o], axis=[y, x, c]),
        name="conv",
    )  # fmt: skip


def _blocked(te: Any, of: Convolution, lanes: int) -> tuple[Any, Any, Any]:
    blocks_in, blocks_out = of.channels_in // lanes, of.channels_out // lanes
    data = te.placeholder((blocks_in, of.padded, of.padded, lanes), name="data")
    weight = te.placeholder((blocks_out, blocks_in, of.kernel, of.kernel, lanes, lanes), name="weight")
    extents = (("cb", blocks_in), ("ky", of.kernel), ("kx", of.kernel), ("c", lanes))
    b, y, x, c = (te.reduce_axis((0, n), name=name) for name, n in extents)
    return data, weight, te.compute(
        (blocks_out, of.size, of.size, lanes),
        lambda ob, h, w, o: te.sum(
            data[b, h * of.stride + y, w * of.stride + x, c] * weight[ob, b, y, x, c, o], axis=[b, y, x, c]
        ),
        name="conv",
    )  # fmt: skip


def run_one(name: str, layout: str, seed: int, trials: int, work: Path) -> None:
    """Tune one convolution in one layout, and write what came of it."""
    from tunery.dialects import get_dialect

    ablation.switch_off_in_workers()
    task = task_of(CONVOLUTIONS[name], layout, get_dialect("metaschedule").resolve_target("native", 0))
    request = Request(
        "blocked", seed=seed, budget=Budget(trials=trials), store=str(work / "store.db"), pretrained=False
    )
    report = tune_tasks(request, [task])
    [state], spend = report.job.tasks, report.job.spend
    row = {"convolution": name, "layout": layout, "seed": seed, "trials": trials, "best_s": state.best_s,
           "wall_s": spend.wall_s, "measured": spend.trials}  # fmt: skip
    (work / "row.json").write_text(json.dumps(row), encoding="utf-8")


def child(name: str, layout: str, seed: int, trials: int, scratch: Path) -> Row:
    """Run one search in a process of its own.

    Raises:
        WorkError: that failed, or nothing it tried was valid.
    """
    work = Path(tempfile.mkdtemp(dir=scratch))
    command = [__file__, "--one", name, layout, str(seed), "--trials", str(trials), "--work", str(work)]
    watch(command, work / "log", {ablation.SWITCHED_OFF: ablation.VARIANTS, "TUNERY_CACHE": str(scratch / "cache")})
    row: Row = json.loads((work / "row.json").read_text(encoding="utf-8"))
    if not row["best_s"]:
        raise WorkError(f"none of {row['measured']} trials gave a valid kernel")
    print(f"{name}, {layout}, seed {seed}: {milliseconds(row['best_s'])} ms, {row['wall_s']:.0f} s", flush=True)
    return row


def run(names: Sequence[str], trials: int, seeds: int, file: Path) -> int:
    """Run what the file does not hold yet, print all, and return the exit code."""
    kept, failed = Kept(file, __file__, trials=trials), list[str]()
    rows = kept.read()
    done = {(row["convolution"], row["layout"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="tunery-blocked-") as scratch:
        for seed in range(seeds):
            for name in names:
                for layout in LAYOUTS if seed % 2 == 0 else LAYOUTS[::-1]:
                    if (name, layout, seed) in done:
                        continue
                    try:
                        rows.append(kept.add(child(name, layout, seed, trials, Path(scratch))))
                    except WorkError as error:
                        failed.append(f"{name}, {layout}, seed {seed}: {str(error).strip().splitlines()[-1]}")
                        print(f"failed: {failed[-1]}", flush=True)
    print(table([row for row in rows if row["convolution"] in names]))
    print("\n".join([f"failed: {each}" for each in failed]), end="\n" if failed else "")
    return 1 if failed else 0


def table(rows: Sequence[Row]) -> str:
    """Return each convolution's latencies in both layouts, their ratio by seed, and the geometric mean."""
    shown = new_table(
        "convolution", *(f"#{layout} ms" for layout in LAYOUTS), "#GFLOP/s", "#blocked / last", "#by seed"
    )
    means = []
    for name, convolution in CONVOLUTIONS.items():
        found = {
            layout: {
                row["seed"]: float(row["best_s"])
                for row in rows
                if (row["convolution"], row["layout"]) == (name, layout)
            }
            for layout in LAYOUTS
        }
        ratios = [found[BLOCKED][seed] / last_s for seed, last_s in found[LAST].items() if seed in found[BLOCKED]]
        if not ratios:
            continue
        means.append(statistics.geometric_mean(ratios))
        latency_s = {layout: statistics.median(found[layout].values()) for layout in LAYOUTS}
        rates = (f"{convolution.flop / latency_s[layout] / 1e9:.0f}" for layout in LAYOUTS)
        shown.add_row(
            name, *(milliseconds(latency_s[layout]) for layout in LAYOUTS), ", ".join(rates), f"{means[-1]:.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )  # fmt: skip
    mean = statistics.geometric_mean(means) if means else math.nan
    return f"{as_text(shown)}\nblocked / last, geometric mean {mean:.2f}; below 1, blocks are faster"


def main() -> None:
    """Read what is asked for and run it, or one search in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--convolutions", default=",".join(CONVOLUTIONS))
    parser.add_argument("--json", default="out/blocked.jsonl")
    parser.add_argument("--one", nargs=3, metavar=("CONVOLUTION", "LAYOUT", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM imports it where it can, and both carry LLVM
    if options.one:
        end_with_parent()
        run_one(options.one[0], options.one[1], int(options.one[2]), options.trials, options.work)
        return
    names = options.convolutions.split(",")
    if unknown := sorted(set(names) - set(CONVOLUTIONS)):
        parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(CONVOLUTIONS)}")
    sys.exit(run(names, options.trials, options.seeds, Path(options.json)))


if __name__ == "__main__":
    main()
