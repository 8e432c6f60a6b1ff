"""Our search of kernels' configurations against random search and Kernel Tuner's, without a device.

    python benchmarks/kernel_search.py record examples/kernels/*.toml --out spaces
    python benchmarks/kernel_search.py replay spaces/*.json --out search.json --rivals PYTHON
    python benchmarks/kernel_search.py table search.json [others.json ...] [--markdown]

`record` exhausts kernels and writes Kernel Tuner caches; an interrupted run goes on. `replay` takes such caches, also
others': each strategy asks for configurations and is told their recorded times. PYTHON is the interpreter of an
environment with `kernel_tuner` and `pyatf`. `table` gives means and standard errors over the seeds of all files. The
score is that of the field (Willemsen et al., autotuning_methodology):
how far the mean of a strategy's best so far is from random search's expected best towards the optimum, over the
evaluations until random search is expected to have gone 95 % of the way from the median, at most 200: 0 is as random
search, 1 finds the optimum at once, below 0 is worse.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tunery._errors import TuneryError
from tunery.devices import open_device
from tunery.dialects.configurations.search import ConfigurationSearch
from tunery.dialects.configurations.space import ConfigurationSpace
from tunery.dialects.kernels import KernelsDialect
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.kernel_file import read_kernel
from tunery.dialects.kernels.kernel_tuner import KernelTunerResult, cache_of, read_results
from tunery.domain import Candidate, canonical_json
from tunery.reports.format import as_text, new_table
from tunery.testing.dialect_contract import DialectContract

STRATEGIES = (
    "pyatf:differential_evolution", "genetic_algorithm", "simulated_annealing", "diff_evo", "hybrid_vndx",
    "adaptive_tabu_greywolf",
)  # fmt: skip
RUN_S, REPEATS, CUT = 2e-3, 5, 0.95
MOST = 200  # evaluations; on large spaces random search comes that far only after more

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


class RecordedSpace:
    """The configurations of a cache, with their times; it is asked for nothing that is not in there."""

    def __init__(self, path: Path) -> None:
        plain = json.loads(path.read_text())
        self.name, self.path = path.stem, path
        self.results = {tuple(one.configuration.values()): one.latency_s for one in read_results(path)}
        parameters = {name: list(dict.fromkeys(key[i] for key in self.results))
                      for i, name in enumerate(plain["tune_params_keys"])}  # fmt: skip
        self.space = ConfigurationSpace({name: sorted(values, key=str) if isinstance(values[0], str) else sorted(values)
                                         for name, values in parameters.items()}, [])  # fmt: skip
        self.keys = {self.space.choices(dict(zip(parameters, key, strict=True))): key for key in self.results}
        self.times = sorted(one for one in self.results.values() if one is not None)

    @cached_property
    def baseline(self) -> list[float]:
        """What random search without repetition has found in expectation after 1, 2, ... evaluations."""
        total = len(self.results)
        values = np.array([*self.times, *([self.times[-1]] * (total - len(self.times)))])
        # P(the i-th best is the best of n drawn) = C(total-1-i, n-1) / C(total, n), from one i to the next.
        places = np.arange(total - 1)
        found = []
        for count in range(1, min(total, MOST) + 1):
            steps = np.maximum(total - places - count, 0) / np.maximum(total - 1 - places, 1)
            shares = count / total * np.concatenate([[1.0], np.cumprod(steps)])
            found.append(float(shares @ values))
        return found

    @cached_property
    def budget(self) -> int:
        """How many evaluations random search needs for 95 % of the way from the median to the optimum."""
        best, middle = self.times[0], statistics.median(self.times)
        wanted = middle - CUT * (middle - best)
        curve = self.baseline
        return max(8, next((i + 1 for i, value in enumerate(curve) if value <= wanted), len(curve)))

    def score(self, runs: Sequence[Sequence[float | None]]) -> float:
        """Return the score of the mean of a strategy's runs, each the times that it was told, in their order."""
        best, baseline = self.times[0], np.array(self.baseline[: self.budget])
        curves = []
        for evaluated in runs:
            told = [*evaluated[: self.budget], *([None] * (self.budget - len(evaluated)))]
            curves.append(np.minimum.accumulate([self.times[-1] if one is None else one for one in told]))
        reached = np.mean(curves, axis=0)
        return float(np.mean((baseline - reached) / np.maximum(baseline - best, 1e-12 * best)))


@app.command()
def record(
    kernels: list[Path],
    *,
    out: Annotated[Path, typer.Option("--out", help="Where the caches go.")],
    threads: Annotated[int, typer.Option("--threads", min=1)] = 1,
) -> None:
    """Exhaust kernels, one by one, and write a cache of each."""
    out.mkdir(exist_ok=True)
    for path in kernels:
        _record(path, out / f"{path.stem}.json", threads)


def _record(path: Path, cache: Path, threads: int) -> None:
    dialect, device, kernel = KernelsDialect(), open_device("cpu"), read_kernel(path)
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", threads))
    inputs = DialectContract.inputs(task, seed=0)
    found = {canonical_json(dict(one.configuration)): one for one in (read_results(cache) if cache.exists() else [])}
    assert kernel.space.size is not None, "a space that can be counted can be exhausted"
    for number in range(kernel.space.size):
        configuration = kernel.space.configuration(kernel.space.at(number))
        if canonical_json(configuration) in found:
            continue
        body = canonical_json({"parameters": configuration})
        with tempfile.TemporaryDirectory() as scratch:
            began = time.perf_counter()
            try:
                built = dialect.build(task, Candidate(f"{number:016x}", task.key, body), Path(scratch))
                compile_s = time.perf_counter() - began
                loaded = dialect.load(task, built, device)
                assert isinstance(loaded, BuiltKernel)
                loaded.bind(inputs)
                loaded.run()
                calls = max(1, math.ceil(RUN_S / loaded.call()))
                # Others use the machine as well: the least of some samples is the least disturbed one.
                latency_s = min(loaded.call(calls) / calls for _ in range(REPEATS))
                result = KernelTunerResult(configuration, latency_s, compile_s=compile_s)
            except TuneryError as error:
                result = KernelTunerResult(configuration, None, str(error)[:60])
        found[canonical_json(configuration)] = result
        if number % 16 == 15 or number == kernel.space.size - 1:
            plain = cache_of(found.values(), kernel.parameters, kernel.function, "a CPU", [1])
            cache.write_text(json.dumps(plain))
    typer.echo(f"{cache}: {len(found)} configurations")


@app.command()
def replay(
    caches: list[Path],
    *,
    out: Annotated[Path, typer.Option("--out", help="Where the scores go, as JSON.")],
    rivals: Annotated[str, typer.Option("--rivals", help="A Python with kernel_tuner and pyatf.")] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1)] = 10,
) -> None:
    """Replay all strategies on recorded spaces."""
    scores: dict[str, dict[str, list[float]]] = {}
    sizes: dict[str, dict[str, float]] = {}
    for path in caches:
        space = RecordedSpace(path)
        sizes[space.name] = {
            "configurations": len(space.results), "evaluations": space.budget,
            "median_over_best": statistics.median(space.times) / space.times[0],
        }  # fmt: skip
        arms: dict[str, Callable[[RecordedSpace, int], list[float | None]]] = {"tunery": _ours, "random": _random}
        for name, run in arms.items():
            began = time.process_time()
            scores.setdefault(name, {})[space.name] = [space.score([run(space, seed)]) for seed in range(seeds)]
            spent_s = (time.process_time() - began) / seeds / space.budget
            typer.echo(f"{space.name}, {name}: {spent_s * 1e3:.1f} ms of CPU per question", err=True)
        for name in STRATEGIES if rivals else ():
            told = _rival(rivals, space, name, seeds)
            if told is not None:
                scores.setdefault(name, {})[space.name] = [space.score([one]) for one in told]
        out.write_text(json.dumps({"spaces": sizes, "scores": scores}, indent=1) + "\n")
    table([out])


def _ours(space: RecordedSpace, seed: int) -> list[float | None]:
    search = ConfigurationSearch(space.space, seed, recorded=[key for key in space.keys if key is not None])
    told: list[float | None] = []
    while len(told) < space.budget and (asked := search.ask(1)):
        latency_s = space.results[space.keys[asked[0]]]
        search.tell(asked[0], latency_s)
        told.append(latency_s)
    return told


def _random(space: RecordedSpace, seed: int) -> list[float | None]:
    results = list(space.results.values())
    return [results[i] for i in np.random.default_rng(seed).permutation(len(results))[: space.budget]]


def _rival(python: str, space: RecordedSpace, strategy: str, seeds: int) -> list[list[float | None]] | None:
    child = Path(__file__).with_name("kernel_search_rival.py")
    command = [python, str(child), str(space.path.resolve()), strategy, str(space.budget), str(seeds)]
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, timeout=900, check=False)
    if done.returncode:
        typer.echo(f"{strategy} on {space.name}: {done.stderr.strip().splitlines()[-1:]}", err=True)
        return None
    told: list[list[float | None]] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


@app.command()
def table(
    files: list[Path],
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a page has it: a row for each space.")] = False,
) -> None:
    """Print the scores that `replay` wrote, of one or several files."""
    plain: list[dict[str, Any]] = [json.loads(path.read_text()) for path in files]
    spaces = {space: size for one in plain for space, size in one["spaces"].items()}
    scores: dict[str, dict[str, list[float]]] = {}
    for one in plain:
        for strategy, of in one["scores"].items():
            for space, found in of.items():
                scores.setdefault(strategy, {}).setdefault(space, []).extend(found)
    means = {name: statistics.fmean(statistics.fmean(of) for of in each.values()) for name, each in scores.items()}
    strategies = sorted(means, key=lambda name: -means[name])
    rows = [
        [space, str(size["evaluations"]), *(_cell(scores[name].get(space, [])) for name in strategies)]
        for space, size in spaces.items()
    ] + [["mean", "", *(f"{means[name]:.2f}" for name in strategies)]]
    head = ["recorded space", "evaluations", *strategies]
    if markdown:
        typer.echo("\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]))
        return
    shown = new_table(*head)
    for row in rows:
        shown.add_row(*row)
    typer.echo(as_text(shown, 200))


def _cell(scores: Sequence[float]) -> str:
    """Return the mean, its standard error and the number of seeds."""
    if len(scores) < 2:
        return f"{scores[0]:.2f}" if scores else "-"
    error = statistics.stdev(scores) / math.sqrt(len(scores))
    return f"{statistics.fmean(scores):.2f} ± {error:.2f} ({len(scores)})"


if __name__ == "__main__":
    sys.exit(app())
