"""What each rule and each saving contributes: the same tasks with equal trials, each of them off in turn.

Every arm is a normal job on a cold store, in a process of its own whose workers are forked with the one thing switched
off; there is no setting for it, a constant of the module that has the rule is replaced. What an arm found is timed by
its own finals, alone on the machine but minutes apart from the arm it is compared with, and the machine's speed moves
by some per cent meanwhile; the order of the arms turns with the seed. So an arm is called told apart only where a
two-sided sign test over all its pairs of task and seed gives p <= 0.05, for which it takes six pairs at least. Of so
many arms one may still be told apart by luck.

One line of JSON is kept for each finished (task, arm, seed) in --json; run it again to go on, with the same code on the
same device: other rows are not used. What is gone from the code is said before the run; an arm that fails is named at
the end, and tried again next time.

    python benchmarks/ablation.py [--trials 64] [--seeds 3] [--tasks conv3x3,dense] [--arms Winograd] [--json FILE]
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from rows import Kept, Row
from studies._children import end_with_parent, watch

from tunery._errors import WorkError
from tunery.domain import Budget, Task
from tunery.domain.request import Request, Trimming
from tunery.reports.format import as_text, milliseconds, new_table
from tunery.service.session import extract, tune_tasks

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
    "narrow": ("zoo:mobilenet_v2", (24, 2304, 75264, 301056)),
    "mean": ("zoo:efficientnet_b0", (144, 451584)),
}
_SPECIAL = ("narrow", "mean")  # one variant each is for these; the others are for what matters to all
GENERAL = tuple(name for name in TASKS if name not in _SPECIAL)
CONVS = ("conv3x3", "conv1x1", "depthwise")
WEIGHTS = (*CONVS, "dense")
ALL_ON, VARIANTS, STOCK_LAYOUT = "all on", "all expressions", "channels last and all expressions"


@dataclass(frozen=True)
class Arm:
    """One thing that is off: by a constant in the workers, or by what a request can say.

    `tasks` are those it can matter to; `lowering` says that it changes the tasks themselves; `touches` names what
    `patch` replaces, by module and name. `beside` names the arm it is compared with by task, where that is not all on:
    what also ends another thing is compared with that thing off.
    """

    tasks: tuple[str, ...] = GENERAL
    constants: tuple[tuple[str, str, object], ...] = ()
    patch: Callable[[], None] | None = None
    touches: tuple[tuple[str, str], ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    changed: Callable[[Request], Request] = lambda request: request
    lowering: bool = False


def _keep_imported_layout() -> None:
    lowering = import_module(f"{ROOM}.importing.lowering")
    passes = lowering._passes
    lowering._passes = lambda left_out, **_: passes(left_out, channels_last=False)  # type: ignore[attr-defined]


def _c_library() -> None:
    sys.modules[f"{ROOM}.codegen.vector_math"] = ModuleType(
        "vector_math"
    )  # its rules are registered when it is imported


def _drop(kind: str) -> None:
    variants = import_module(f"{ROOM}.variants.variant")
    known = {name: make for name, make in variants._ALTERNATIVES.items() if not name.startswith(kind)}
    variants._ALTERNATIVES = known  # type: ignore[attr-defined]


def _without(kind: str, tasks: tuple[str, ...]) -> Arm:
    """Return the arm without the variants whose names begin so."""
    return Arm(tasks, patch=partial(_drop, kind), touches=((f"{ROOM}.variants.variant", "_ALTERNATIVES"),))


def _stock_layout() -> None:
    _keep_imported_layout()
    _drop("")


def _blind_to_warm_ups() -> None:
    noise = import_module("tunery.measuring.noise")
    noise.Noise.learn_cold = lambda *_: None


def _untrimmed(**off: bool) -> Callable[[Request], Request]:
    return lambda request: replace(request, trimming=replace(Trimming(), **off))


# Winograd needs weights in a layout of its own choice, and channels last.
_NO_WINOGRAD = {"conv3x3": "Winograd"}
ARMS = {
    ALL_ON: Arm(),
    "vector-sized channel tiles": Arm(CONVS, ((f"{ROOM}.search.breeding", "_BIASED_SHARE", 0.0),)),
    "Winograd": _without("winograd", ("conv3x3",)),
    "tiles in registers": _without("tiles", ("narrow", "depthwise")),
    "sums over places": _without("place-sums", ("mean",)),
    "rows at once": _without("rows", ("softmax", "layer-norm")),
    VARIANTS: _without("", ()),  # this and the next for other benchmarks
    STOCK_LAYOUT: Arm(
        (),
        patch=_stock_layout,
        touches=((f"{ROOM}.importing.lowering", "_passes"), (f"{ROOM}.variants.variant", "_ALTERNATIVES")),
    ),
    "free weight layouts": Arm(
        WEIGHTS,
        ((f"{ROOM}.importing.lowering", "_PREPACK_MIN_ELEMENTS", math.inf),),
        beside=_NO_WINOGRAD,
        lowering=True,
    ),
    "channels last": Arm(
        CONVS,
        patch=_keep_imported_layout,
        touches=((f"{ROOM}.importing.lowering", "_passes"),),
        beside=_NO_WINOGRAD,
        lowering=True,
    ),
    "vector exp and erf": Arm(
        ("softmax",), patch=_c_library, touches=((f"{ROOM}.codegen.vector_math", "exponential"),)
    ),
    "code size": Arm(constants=((f"{ROOM}.search.limits", "LARGEST", math.inf),)),
    "unswitching": Arm(CONVS, ((f"{ROOM}.target", "_UNSWITCH", False),), lowering=True),
    "LLVM level 2": Arm(constants=((f"{ROOM}.target", "_OPT_LEVEL", 3),), lowering=True),
    "draft": Arm(constants=((f"{ROOM}.search.proposer", "_LEAST_LESSONS", math.inf),)),
    "shipped cost model": Arm(changed=lambda request: replace(request, pretrained=False)),
    "filter": Arm(changed=_untrimmed(filter=False)),
    "abandonment": Arm(changed=_untrimmed(abandon=False)),
    "warm-up as evidence": Arm(patch=_blind_to_warm_ups, touches=(("tunery.measuring.noise", "Noise.learn_cold"),)),
}
SWITCHED_OFF = "TUNERY_BENCH_ABLATION"


def switch_off(arm: Arm) -> None:
    """Switch it off in this process, from which the workers are forked."""
    if arm.patch:
        arm.patch()
    import_module(f"{ROOM}.preload")
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
    names = options.arms.split(",")
    for given, known in ((names, ARMS), (options.tasks.split(","), TASKS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(known)}")
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM imports it where it can, and both carry LLVM
    if gone := missing(sorted({arm for task in TASKS for arm in needed(task, names)})):
        parser.error(f"{', '.join(gone)} is gone: say in ARMS what to replace now")
    sys.exit(run(names, options.tasks.split(","), options.trials, options.seeds, Path(options.json)))


def run(arms: Sequence[str], tasks: Sequence[str], trials: int, seeds: int, file: Path) -> int:
    """Run `arms`, and what they are compared with, as far as the file does not hold it yet.

    Prints the table and what failed, and returns the exit code.
    """
    kept, failed = Kept(file, __file__, trials=trials), list[str]()
    rows = kept.read()
    done = {(row["task"], row["arm"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="tunery-ablation-") as scratch:
        for seed in range(seeds):
            for task in tasks:
                names = needed(task, arms)
                for arm in (*names[seed % len(names) :], *names[: seed % len(names)]):
                    if (task, arm, seed) in done:
                        continue
                    try:
                        rows.append(kept.add(run_child(task, arm, seed, trials, Path(scratch))))
                    except WorkError as error:
                        failed.append(f"{label(task, arm, seed)}: {str(error).strip().splitlines()[-1]}")
                        print(f"failed: {failed[-1]}", flush=True)
    print(table(rows))
    if failed:
        print("\n".join([f"failed: {len(failed)}, not in the table; the same command tries them again", *failed]))
    return 1 if failed else 0


def needed(task: str, arms: Sequence[str]) -> list[str]:
    """Return those of the arms that can matter to a task, after what they are compared with."""
    mine = [arm for arm in arms if task in ARMS[arm].tasks]
    return list(dict.fromkeys([ALL_ON, *(compared_with(arm, task) for arm in mine), *mine]))


def compared_with(arm: str, task: str) -> str:
    """Return the arm whose runs of a task an arm's are compared with."""
    return ARMS[arm].beside.get(task, ALL_ON)


def label(task: str, arm: str, seed: int) -> str:
    """Return how a run is called."""
    return f"{task}, {_off(arm)} off, seed {seed}"


def run_child(task: str, arm: str, seed: int, trials: int, scratch: Path) -> Row:
    """Run one arm in a child process.

    Raises:
        WorkError: that failed, or nothing it tried was valid.
    """
    work = Path(tempfile.mkdtemp(dir=scratch))
    command = [__file__, "--one", task, arm, str(seed), "--trials", str(trials), "--work", str(work)]
    environment = {SWITCHED_OFF: arm, "TUNERY_CACHE": str(scratch / "cache")}
    watch(command, work / "log", environment)
    row: Row = json.loads((work / "row.json").read_text(encoding="utf-8"))
    if not row["best_s"]:
        raise WorkError(f"none of {row['measured']} trials gave a valid kernel")
    print(f"{label(task, arm, seed)}: {milliseconds(row['best_s'])} ms, {row['wall_s']:.0f} s", flush=True)
    return row


def switch_off_in_workers() -> None:
    """Have workers forked from a process that imports this file: it switches its arm off there."""
    from tunery.dialects import metaschedule

    metaschedule.ENVIRONMENT = replace(metaschedule.ENVIRONMENT, preload=("ablation",))


def run_one(name: str, arm: str, seed: int, trials: int, work: Path) -> None:
    """Tune one task with one thing off, and write what it took: the job alone, without the import."""
    switch_off_in_workers()
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


def table(rows: Sequence[Row]) -> str:
    """Return, for each task and arm, median and range of the latency, and what is worse without it."""
    shown = new_table("task", "off", "beside", "#seeds", "#best ms", "#range", "#latency x", "#by seed", "#wall x",
                      "#CPU x", "#kernels x")  # fmt: skip
    found: dict[str, list[dict[int, float]]] = {}
    for task in TASKS:
        of = {arm: [row for row in rows if (row["task"], row["arm"]) == (task, arm)] for arm in ARMS}
        for arm, mine in of.items():
            base = compared_with(arm, task)
            latency = ratios(mine, of[base], "best_s")
            if not latency:
                continue
            found.setdefault(arm, []).append(latency)
            best = sorted(float(row["best_s"]) for row in mine)
            others = (statistics.median(ratios(mine, of[base], key).values()) for key in _COSTS)
            shown.add_row(
                task, _off(arm), "" if arm == ALL_ON else _off(base), str(len(latency)),
                milliseconds(statistics.median(best)), f"{milliseconds(best[0])} to {milliseconds(best[-1])}",
                f"{statistics.median(latency.values()):.2f}", "" if arm == ALL_ON else span(latency),
                *(f"{each:.2f}" for each in others),
            )  # fmt: skip
    return "\n".join([as_text(shown), _NOTE, *(_overall(arm, of) for arm, of in found.items() if arm != ALL_ON)])


_COSTS = ("wall_s", "core_s", "device_s")
_TOLD_APART = 0.05
_NOTE = f"""x: with it off over what stands under "beside" with the same seed; median over seeds, above 1 it is worth it
told apart: a two-sided sign test over all pairs of task and seed gives p <= {_TOLD_APART}"""


def _off(arm: str) -> str:
    return "nothing" if arm == ALL_ON else arm


def _overall(arm: str, tasks: Sequence[Mapping[int, float]]) -> str:
    """Return an arm's ratio over its tasks: the geometric mean of medians, and the range of each seed's own mean.

    Whether it is told apart from 1 is judged over all pairs of task and seed.
    """
    mean = statistics.geometric_mean(statistics.median(task.values()) for task in tasks)
    seeds = set(tasks[0]).intersection(*tasks)
    by_seed = {seed: statistics.geometric_mean(task[seed] for task in tasks) for seed in seeds}
    text = f"{arm} off: {mean:.2f} x the latency over {len(tasks)} tasks"
    above, pairs, p = sign_test([ratio for task in tasks for ratio in task.values()])
    verdict = "told apart" if p <= _TOLD_APART else "not told apart"
    return f"{text} ({span(by_seed) or 'no seed has all'}), slower in {above} of {pairs} pairs, p = {p:.2g}: {verdict}"


def ratios(mine: Sequence[Row], base: Sequence[Row], key: str) -> dict[int, float]:
    """Return a number of one arm over that of another, by the seeds that both have."""
    theirs = {row["seed"]: row[key] for row in base}
    return {row["seed"]: row[key] / theirs[row["seed"]] for row in mine if row["seed"] in theirs}


def span(by_seed: Mapping[int, float]) -> str:
    """Return the range of ratios, "" if there are none."""
    return f"{min(by_seed.values()):.2f} to {max(by_seed.values()):.2f}" if by_seed else ""


def sign_test(found: Sequence[float]) -> tuple[int, int, float]:
    """Return how many ratios are above 1, of how many that are not 1, and how likely so uneven a split is by luck."""
    # By hand: SciPy's tests cannot be imported where torch is kept out, as it is here.
    above, pairs = sum(ratio > 1 for ratio in found), sum(ratio != 1 for ratio in found)
    tail = sum(math.comb(pairs, number) for number in range(min(above, pairs - above) + 1)) / 2**pairs
    return above, pairs, min(2 * tail, 1.0)


if __name__ == "__main__":
    main()
elif os.environ.get(SWITCHED_OFF):
    switch_off(ARMS[os.environ[SWITCHED_OFF]])
