"""`python benchmarks/study.py NAME`: the evaluations of prior work, and the suite of networks, re-run on this machine.

`make study-NAME` runs one with its usual options; each goes on where it was interrupted.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery._outputs import check_output
from tunery.cli.app import Program
from tunery.cli.console import options
from tunery.cli.console.commands import Json, Verbose, emit, output_path, remark, say
from tunery.domain import Budget
from tunery.domain.request import DEFAULT_DIALECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from studies import Options, StudyReport
    from tunery.domain.request import BenchReport, Request


class Part(StrEnum):
    """What of the scheduling study is done."""

    REAL = "real"
    SIMULATED = "simulated"
    BOTH = "both"


app = typer.Typer(
    cls=Program, help="Re-run an evaluation on this machine.", no_args_is_help=False, add_completion=False
)
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Write the data as JSON, and plots, to this directory.")]
Quick = Annotated[bool, typer.Option("--quick", help="A version of a minute or two that shows the same effect.")]
Networks = Annotated[
    list[str] | None, typer.Option("--network", metavar="MODEL", help="What to tune; repeat it for several.")
]
Repeats = Annotated[int, typer.Option("--repeats", min=1, max=100, help="How often each run is repeated.")]


Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the search.")]
Threads = Annotated[int, typer.Option("--threads", min=0, max=65_536, help="Threads of a kernel; 0: all usable cores.")]
Dialect = Annotated[str, typer.Option("--dialect", metavar="NAME", help="A compiler: see `tunery dialects`.")]


def conduct(
    run: "Callable[[Options], StudyReport]", out: str, quick: bool, repeats: int, seed: int, as_json: bool
) -> None:
    """Run a study with the common options and show what it found; a claim that was missed is printed as missed."""

    from studies import Options, place, pyplot, write
    from tunery.cli.console.live import Interrupt
    from tunery.reports.data import plain

    if out:  # a missing library, or no place, is said before the work, not after it
        pyplot()
        place(Path(out))
    try:
        with Interrupt(lambda: None):  # asyncio's own would wait for the end of a measurement
            report = run(Options(Path(out) if out else None, quick, repeats, seed, remark))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command goes on where a long study was") from None
    files = write(report, Path(out)) if out else []
    if as_json:
        found = {"study": report.name, "claims": dict(report.claims), **report.data, "files": files}
        emit(plain(found))
        return
    say(report.text)
    for claim, met in report.claims.items():
        say(f"{'?' if met is None else 'met' if met else 'MISSED':<6}  {claim}")
    for file in files:
        say(f"written {file}")


@app.command("scheduling", epilog="Example: python benchmarks/study.py scheduling --part real --quick --out study")
def scheduling(
    *,
    part: Annotated[Part, typer.Option("--part", help="Jobs on this machine, or simulated mixes of them.")] = Part.BOTH,
    out: Out = "",
    quick: Quick = False,
    repeats: Repeats = 3,
    seed: Seed = 0,
    json: Json = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Several jobs at once under every strategy: real ones here, and many simulated mixes."""
    from functools import partial

    from studies import scheduling as study

    chosen = study.PARTS if part is Part.BOTH else [part.value]
    conduct(partial(study.run, parts=chosen), out, quick, repeats, seed, json)


@app.command("measurement", epilog="Example: python benchmarks/study.py measurement --quick --out study")
def measurement(
    *,
    out: Out = "",
    quick: Quick = False,
    repeats: Repeats = 3,
    seed: Seed = 0,
    json: Json = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """What a measurement costs and whom it names: stock, fixed, raced, in parallel, under load."""
    from studies.measurement import run

    conduct(run, out, quick, repeats, seed, json)


@app.command("zero-shot", epilog="Example: python benchmarks/study.py zero-shot --quick --out study")
def zero_shot(
    *,
    network: Networks = None,
    data: Annotated[
        str,
        typer.Option("--data", metavar="FILE", help="Compare MetaSchedule's own model and one of ours, trained on it."),
    ] = "",
    out: Out = "",
    quick: Quick = False,
    repeats: Repeats = 3,
    seed: Seed = 0,
    json: Json = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Networks the cost model has not seen: without a measurement, with a few, and fully tuned."""
    from functools import partial

    from studies.zeroshot import run

    chosen = partial(run, data=Path(data) if data else None, networks=tuple(network or ()))
    conduct(chosen, out, quick, repeats, seed, json)


@app.command("trimming", epilog="Example: python benchmarks/study.py trimming --quick --out study")
def trimming(
    *,
    network: Networks = None,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials for each task, in the mean.")] = 64,
    stock: Annotated[
        str, typer.Option("--stock", metavar="FILE", help="Draw the curves of stock from this file of its study, too.")
    ] = "",
    threads: Threads = 0,
    dialect: Dialect = DEFAULT_DIALECT,
    out: Out = "",
    quick: Quick = False,
    repeats: Repeats = 3,
    seed: Seed = 0,
    json: Json = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """What the filter, abandonment and allocation save, each alone and together, to equal quality."""
    from functools import partial

    from studies.trimming import run

    chosen = partial(run, networks=tuple(network or ()), trials=trials, dialect=dialect, threads=threads, stock=stock)
    conduct(chosen, out, quick, repeats, seed, json)


@app.command("stock", epilog="Example: python benchmarks/study.py stock --network zoo:bert-small --out study")
def stock(
    *,
    network: Networks = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Stock's trials for each task, in the mean.")] = 64,
    budget: Annotated[
        str, typer.Option("--budget", metavar="2min", help="Ours; without it a tenth of stock's time, at least 1min.")
    ] = "",
    threads: Threads = 0,
    out: Out = "",
    quick: Quick = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="How often ours is repeated.")] = 1,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Stock's convolutions channels last, too: no default of TVM's.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """How long until a network is as fast as stock MetaSchedule's last: resumable, an hour or two in all.

    Nothing else may use the machine meanwhile: stock gives up candidates whose workers need long to start.
    """
    from functools import partial

    from studies.stock import run

    limit = Budget.parse(budget) if budget else Budget()
    if limit != Budget(seconds=limit.seconds):
        raise UsageError(f"--budget {budget!r} is not a time; write for example 90s or 2min")
    chosen = partial(
        run, networks=tuple(network or ()), trials=trials, budget_s=limit.seconds, threads=threads,
        channels_last=channels_last,
    )  # fmt: skip
    conduct(chosen, out, quick, repeats, seed, json)


@app.command("suite", epilog="Example: python benchmarks/study.py suite --budget 30s --threads 2 -o suite.json")
def suite(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="Which networks of the zoo: cpu.")] = "cpu",
    *,
    budget: Annotated[list[str] | None, typer.Option("--budget", help="What each may cost.")] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The results; what it holds is not run again.")
    ] = "",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600.0, help="How long to measure each of them.")
    ] = 10.0,
    target: Annotated[str, typer.Option("--target", help="What to generate code for.")] = "native",
    store: options.StoreUrl = "",
    threads: Annotated[str, typer.Option("--threads", help="Threads of a kernel, several as 1,2; 0: all.")] = "",
    dialect: Dialect = DEFAULT_DIALECT,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Tune many networks (--budget for each) and time them beside ONNX Runtime, and torch where it is installed.

    Stock MetaSchedule takes part where the study `stock` has finished a network.
    """
    from studies.stock import finished
    from studies.suite import SUITE, SuitePlan, networks_of, run_suite
    from studies.suite_text import suite_text

    from tunery.cli import bench
    from tunery.cli.tune import watched
    from tunery.runtime import thread_count
    from tunery.service.session import Session

    request = options.make_request(target=target, store=store, dialect=dialect, budget=budget)

    file = output_path(output or f"bench-{name}.json", f"bench-{name}.json")
    check_output(file, SUITE)
    resolved = tuple(dict.fromkeys(thread_count(count) for count in thread_counts(threads) or (0,)))
    plan = SuitePlan(networks_of(name), resolved, seconds, file)
    stopped: list[int] = []

    def tune(one: "Request") -> bool:
        with Session(one.store) as session:
            _, exit_code = watched(session, one, verbose=verbose)
        stopped.extend([] if exit_code is None else [exit_code])
        return exit_code is None

    def stock(one: "Request") -> Path | None:
        return finished(one.model, one.threads)

    def timed(one: "Request", against: "Sequence[str]", seconds: float, others: "Mapping[str, Path]") -> "BenchReport":
        with Session(one.store) as session:
            return bench.compared_with(session, one, tuple(against), seconds, None, verbose=verbose, others=others)

    chosen = tune if request.budget != Budget() else None
    results = run_suite(plan, request, chosen, remark, timed=timed, stock=stock)
    if json:
        emit(results)
    else:
        say(f"{suite_text(results)}\nwritten to {file}")
    if stopped:
        raise typer.Exit(stopped[0])
    if any("error" in run for run in results["runs"].values()):
        raise typer.Exit(1)


def thread_counts(text: str) -> tuple[int, ...]:
    """Read thread counts such as `1,2`; "" gives none.

    Raises:
        UsageError: one is not a whole number.
    """
    try:
        counts = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        counts = (-1,)
    if any(count < 0 for count in counts):
        raise UsageError(f"--threads {text!r} is not a number of threads; write for example 2, or 1,2")
    return counts


if __name__ == "__main__":
    app()
