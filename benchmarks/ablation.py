"""What each rule and each saving contributes: the same tasks with equal trials, each of them off in turn.

Every arm is a normal job on a cold store, in a process of its own whose workers are forked with the one thing switched
off; there is no setting for it, a constant of the module that has the rule is replaced. What an arm found is timed by
its own finals, alone on the machine. The order of the arms turns with the seed. One line of JSON is kept for each
finished (task, arm, seed) in --json; run it again to go on. What is gone from the code is said before the run; an arm
that fails is named at the end, and tried again next time.

    python benchmarks/ablation.py [--trials 64] [--seeds 3] [--tasks conv3x3,dense] [--arms Winograd,draft] [--json FILE]
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from tunery._errors import WorkError
from tunery._report import as_text, milliseconds, new_table
from tunery.budgets import Trimming
from tunery.domain import Budget, Task
from tunery.jobs import Request, extract
from tunery.jobs.session import tune_tasks
from tunery.studies._children import end_with_parent, watch

ROOM = "tunery.dialects.metaschedule"
# Network and the elements of its arguments in ascending order: they are the same in any layout.
TASKS = {
    "conv3x3": ("zoo:resnet18", (64, 36864, 200704, 200704)),
    "conv1x1": ("zoo:mobilenet_v2", (576, 18816, 55296, 112896)),
    "depthwise": ("zoo:mobilenet_v2", (144, 1296, 451584, 451584)),
    "dense": ("zoo:bert-small", (2048, 65536, 262144, 1048576)),
    "batch-matmul": ("zoo:bert-small", (65536, 65536, 131072)),
    "softmax": ("zoo:bert-small", (131072, 131072)),
    "layer-norm": ("zoo:bert-small", (512, 512, 65536, 65536)),
}
CONVS = ("conv3x3", "conv1x1", "depthwise")
WEIGHTS = (*CONVS, "dense")
ALL_ON = "all on"


@dataclass(frozen=True)
class Arm:
    """One thing that is off: by a constant in the workers, or by what a request can say.

    `tasks` are those it can matter to; `lowering` says that it changes the tasks themselves; `touches` names what
    `patch` replaces, by module and name.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    constants: tuple[tuple[str, str, object], ...] = ()
    patch: Callable[[], None] | None = None
    touches: tuple[tuple[str, str], ...] = ()
    changed: Callable[[Request], Request] = lambda request: request
    lowering: bool = False


def _keep_imported_layout() -> None:
    lowering = import_module(f"{ROOM}.lowering")
    passes = lowering._passes
    lowering._passes = lambda **_: passes(channels_last=False)  # type: ignore[attr-defined]


def _c_library() -> None:
    sys.modules[f"{ROOM}.vector_math"] = ModuleType("vector_math")  # its rules are registered when it is imported


def _blind_to_warm_ups() -> None:
    noise = import_module("tunery.measure.noise")
    noise.Noise.learn_cold = lambda *_: None  # type: ignore[attr-defined]


def _untrimmed(**off: bool) -> Callable[[Request], Request]:
    return lambda request: replace(request, trimming=replace(Trimming(), **off))  # type: ignore[arg-type]


ARMS = {
    ALL_ON: Arm(),
    "vector-sized channel tiles": Arm(CONVS, ((f"{ROOM}.breeding", "_BIASED_SHARE", 0.0),)),
    "Winograd": Arm(("conv3x3",), ((f"{ROOM}.winograd", "TILES", ()),)),
    "free weight layouts": Arm(WEIGHTS, ((f"{ROOM}.lowering", "_PREPACK_MIN_ELEMENTS", math.inf),), lowering=True),
    "channels last": Arm(CONVS, patch=_keep_imported_layout, touches=((f"{ROOM}.lowering", "_passes"),), lowering=True),
    "vector exp and erf": Arm(("softmax",), patch=_c_library, touches=((f"{ROOM}.vector_math", "exponential"),)),
    "code size": Arm(constants=((f"{ROOM}.limits", "LARGEST", math.inf),)),
    "unswitching": Arm(CONVS, ((f"{ROOM}.target", "_OPTIONS", ()),), lowering=True),
    "LLVM level 2": Arm(constants=((f"{ROOM}.target", "_OPT_LEVEL", 3),), lowering=True),
    "draft": Arm(constants=((f"{ROOM}.proposer", "_LEAST_LESSONS", math.inf),)),
    "shipped cost model": Arm(changed=lambda request: replace(request, pretrained=False)),
    "filter": Arm(changed=_untrimmed(filter=False)),
    "abandonment": Arm(changed=_untrimmed(abandon=False)),
    "warm-up as evidence": Arm(patch=_blind_to_warm_ups, touches=(("tunery.measure.noise", "Noise.learn_cold"),)),
}
_SWITCHED_OFF = "TUNERY_BENCH_ABLATION"


def switch_off(arm: Arm) -> None:
    """Switch it off in this process, from which the workers are forked."""
    if arm.patch:
        arm.patch()
    import_module("tunery.workers.preload")
    for module, name, value in arm.constants:
        setattr(import_module(module), name, value)


def missing(arms: Sequence[str]) -> list[str]:
    """Return what these arms replace and no module has any more: replaced all the same, it would switch nothing off."""
    gone = []
    for arm in (ARMS[name] for name in arms):
        for module, name in (*arm.touches, *((module, name) for module, name, _ in arm.constants)):
            try:
                attrgetter(name)(import_module(module))
            except (ImportError, AttributeError):
                gone.append(f"{module}.{name}")
    return gone


def main() -> None:
    """Run what is not known yet and print all, or run one arm in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--arms", default=",".join(name for name in ARMS if name != ALL_ON))
    parser.add_argument("--json", default="out/ablation.jsonl")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "ARM", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        end_with_parent()
        run_one(options.one[0], options.one[1], int(options.one[2]), options.trials, Path(options.work))
        return
    names = [ALL_ON, *options.arms.split(",")]
    for given, known in ((names, ARMS), (options.tasks.split(","), TASKS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(known)}")
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM imports it where it can, and both carry LLVM
    if gone := missing(names):
        parser.error(f"{', '.join(gone)} is gone: say in ARMS what to replace now")
    sys.exit(run(names, options.tasks.split(","), options.trials, options.seeds, Path(options.json)))


def run(arms: Sequence[str], tasks: Sequence[str], trials: int, seeds: int, file: Path) -> int:
    """Run what the file does not hold yet, print the table and what failed, and return the exit code."""
    file.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="tunery-ablation-") as scratch:
        for seed in range(seeds):
            turned = [*arms[seed % len(arms) :], *arms[: seed % len(arms)]]
            for task in tasks:
                for arm in (name for name in turned if task in ARMS[name].tasks):
                    if why := run_missing(task, arm, seed, trials, file, Path(scratch)):
                        failed.append(f"{label(task, arm, seed)}: {why}")
                        print(f"failed: {failed[-1]}", flush=True)
    print(table(read(file, trials)))
    if failed:
        print("\n".join([f"failed: {len(failed)}, not in the table; the same command tries them again", *failed]))
    return 1 if failed else 0


def label(task: str, arm: str, seed: int) -> str:
    """Return how a run is called."""
    return f"{task}, {'nothing' if arm == ALL_ON else arm} off, seed {seed}"


def run_missing(task: str, arm: str, seed: int, trials: int, file: Path, scratch: Path) -> str:
    """Run one arm in a child process unless the file has it, and add its line; return why that failed, or ""."""
    if any((row["task"], row["arm"], row["seed"]) == (task, arm, seed) for row in read(file, trials)):
        return ""
    work = Path(tempfile.mkdtemp(dir=scratch))
    command = [__file__, "--one", task, arm, str(seed), "--trials", str(trials), "--work", str(work)]
    environment = {_SWITCHED_OFF: arm, "TUNERY_CACHE": str(scratch / "cache")}
    try:
        watch(command, work / "log", environment)
    except WorkError as error:
        return str(error).strip().splitlines()[-1]
    row = json.loads((work / "row.json").read_text(encoding="utf-8"))
    if not row["best_s"]:
        return f"none of {row['measured']} trials gave a valid kernel"
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    print(f"{label(task, arm, seed)}: {milliseconds(row['best_s'])} ms, {row['wall_s']:.0f} s", flush=True)
    return ""


def run_one(name: str, arm: str, seed: int, trials: int, work: Path) -> None:
    """Tune one task with one thing off, and write what it took: the job alone, without the import."""
    from tunery.jobs import opening

    opening.PRELOAD["metaschedule"] = "ablation"  # this file: the workers are forked from a process that imports it
    how, base = ARMS[arm], Request("ablation", seed=seed, budget=Budget(trials=trials), store=str(work / "store.db"))
    tasks = work.parent / f"tasks-{TASKS[name][0].removeprefix('zoo:')}-{arm if how.lowering else ALL_ON}.db"
    task = find(extract(replace(base, model=TASKS[name][0], store=str(tasks))).tasks, TASKS[name][1])
    report = tune_tasks(how.changed(base), [task])
    [state], spend = report.job.tasks, report.job.spend
    row = {"task": name, "arm": arm, "seed": seed, "trials": trials, "best_s": state.best_s, "wall_s": spend.wall_s,
           "core_s": spend.core_s, "device_s": spend.device_s, "measured": spend.trials,
           "outcomes": dict(state.outcomes), "target": asdict(task.target)}  # fmt: skip
    (work / "row.json").write_text(json.dumps(row), encoding="utf-8")


def find(tasks: Sequence[Task], elements: tuple[int, ...]) -> Task:
    """Return the tunable task whose arguments have so many elements."""
    for task in tasks:
        if tuple(sorted(math.prod(spec.shape) for spec in task.workload.arguments)) == elements and task.tunable:
            return task
    raise SystemExit(f"no tunable task has arguments of {elements} elements")


def read(file: Path, trials: int) -> list[dict[str, object]]:
    """Return the rows with so many trials."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row["trials"] == trials and row["best_s"]]


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return, for each task and arm, median and range of the latency, and what is worse without it."""
    shown = new_table("task", "off", "#seeds", "#best ms", "#range", "#latency x", "#wall x", "#CPU x", "#kernels x")
    means: dict[str, list[float]] = {}
    for task in TASKS:
        of = {arm: [row for row in rows if (row["task"], row["arm"]) == (task, arm)] for arm in ARMS}
        for arm, mine in of.items():
            if not mine or not of[ALL_ON]:
                continue
            best = sorted(float(row["best_s"]) for row in mine)  # type: ignore[arg-type]
            times = [median(mine, key) / median(of[ALL_ON], key) for key in ("best_s", "wall_s", "core_s", "device_s")]
            means.setdefault(arm, []).append(times[0])
            shown.add_row(
                task, arm if arm != ALL_ON else "nothing", str(len(mine)), milliseconds(statistics.median(best)),
                f"{milliseconds(best[0])} to {milliseconds(best[-1])}", *(f"{each:.2f}" for each in times),
            )  # fmt: skip
    lines = [f"{arm} off: {statistics.geometric_mean(found):.2f} x the latency over {len(found)} tasks"
             for arm, found in means.items() if arm != ALL_ON]  # fmt: skip
    note = "x: median over the seeds with it off, over that with all on; above 1 it is worth something"
    return "\n".join([as_text(shown), note, *lines])


def median(rows: Sequence[dict[str, object]], key: str) -> float:
    """Return the median of a number of the rows."""
    return statistics.median(float(row[key]) for row in rows)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
elif os.environ.get(_SWITCHED_OFF):
    switch_off(ARMS[os.environ[_SWITCHED_OFF]])
