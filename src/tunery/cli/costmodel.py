"""`tunery costmodel`: collect records, train a model on them, and see how good it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console.commands import Only, Result, command, width
from tunery.domain.request import Request

if TYPE_CHECKING:
    from tunery.costmodels.registry import Version
    from tunery.costmodels.training.evaluation import EvaluationRow
    from tunery.costmodels.training.train import Training
    from tunery.tuning.collect import CollectReport

HoldOut = Annotated[
    str, typer.Option("--hold-out", metavar="NETS", help="Networks that no model may see, joined by commas.")
]
AnyCompiler = Annotated[
    bool, typer.Option("--any-compiler", help="Take in records made by other compiler versions too.")
]
Data = Annotated[str, typer.Option("--data", metavar="FILE", help="A dataset file instead of the store.")]


@command("costmodel collect", "costmodel collect --networks all --tasks 300 --budget 60min")
def collect(
    *,
    networks: Annotated[
        str, typer.Option("--networks", metavar="NETS", help="Models joined by commas; all: the whole zoo.")
    ] = "all",
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="How many tasks at most, spread over kinds.")] = 300,
    per_task: Annotated[int, typer.Option("--per-task", min=1, help="How many candidates of each task.")] = 100,
    only: Annotated[
        str, typer.Option("--only", metavar="KINDS", help="Operators of these kinds, joined by commas: softmax,norm.")
    ] = "",
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Sample all to the end: teaches more, but `tune` does not count these as known."),
    ] = False,
    hold_out: HoldOut = "",
    budget: Annotated[
        str, typer.Option("--budget", help="Time to measure (the import is not counted) or trials: 30min, 5000trials.")
    ] = "30min",
    request: Annotated[Request, Only("target", "store", "threads", "seed", "dialect")],
    verbose: bool = False,
) -> Result:
    """Measure diverse candidates of many tasks, briefly; given again, the same command goes on where it was."""
    from tunery.cli.console.live import Interrupt, LiveLine
    from tunery.domain import Budget
    from tunery.domain.request import Progress, Trimming
    from tunery.reports.data import collect_data
    from tunery.service.session import collect as collect_records

    models, held = _models(networks), _models(hold_out) if hold_out else []
    request = replace(request, budget=Budget.parse(budget))
    if whole:
        request = replace(request, trimming=Trimming(abandon=False))
    with LiveLine(verbose=verbose) as live, Interrupt(live.close) as interrupt:

        def show(progress: Progress) -> None:
            interrupt.begun = interrupt.begun or bool(progress.job_id)
            if not interrupt.event.is_set():
                live.show(progress)

        report = collect_records(
            request, [m for m in models if m not in held], tasks=tasks, per_task=per_task, hold_out=held,
            kinds=_names(only), on_progress=show, stop=interrupt.event,
        )  # fmt: skip
    return Result(collect_data(report), _collected(report), interrupt.exit_code or 0)


def _collected(report: "CollectReport") -> Iterator[str]:
    yield (
        f"{report.candidates} candidates of {report.tasks} tasks in {report.wall_s:.0f} s "
        f"({report.per_second:.1f} a second); {report.left} tasks to come"
    )
    yield f"outcomes: {_counts(report.outcomes)}"
    yield f"kinds: {_counts(report.kinds)}"
    for name, why in report.failed.items():
        yield f"left out: {name}: {why}"


@command("costmodel train", "costmodel train --time 10min --hold-out resnet18,mobilenet_v2")
def train(
    *,
    time: Annotated[str, typer.Option("--time", help="How long to search, such as 10min.")] = "10min",
    hold_out: HoldOut = "",
    data: Data = "",
    any_compiler: AnyCompiler = False,
    request: Annotated[Request, Only("store", "threads", "seed", "dialect")],
    verbose: bool = False,
) -> Result:
    """Search model families and their parameters, judge the best on networks it has not seen, and register it."""
    from tunery.cli.console.live import LiveLine
    from tunery.costmodels.training.train import open_table
    from tunery.costmodels.training.train import train as train_model
    from tunery.devices.cpu.facts import usable_cores
    from tunery.domain import Budget

    seconds = Budget.parse(time, least={}).seconds  # no job
    if seconds is None:
        raise UsageError(f"--time {time!r} is not a time; write for example 10min")
    with LiveLine(verbose=verbose) as live:
        table = open_table(
            request.store, request.dialect, Path(data) if data else None, lambda text: live.say(text, phase="features"),
            any_compiler=any_compiler,
        )  # fmt: skip
        done = train_model(
            table, seconds, hold_out=_names(hold_out), threads=request.threads or len(usable_cores()),
            seed=request.seed, notify=lambda text: live.say(text, phase="training"),
        )  # fmt: skip
    data_of = _card(done.card) | {
        "left_out": done.left_out, "compared": done.appraisal.pairs, "remarks": done.appraisal.remarks,
        "in_use": done.used,
    }  # fmt: skip
    return Result(data_of, _trained(done))


def _trained(done: "Training") -> Iterator[str]:
    card = done.card
    yield (f"{card.data['candidates']} candidates of {card.data['tasks']} tasks; {done.search.tried} recipes tried in "
        f"{done.search.seconds:.0f} s; best: {done.search.recipe.family}")  # fmt: skip
    for reason, count in done.left_out.items():
        if count:
            yield f"left out: {count} candidates {reason}"
    yield "on networks that were held out:"
    yield _table(done.appraisal.rows)
    for pair in done.appraisal.pairs:
        yield (f"NDCG@8 less that of the model {pair.rival}, {pair.tasks} tasks: {pair.mean:+.3f} (95 % interval "
            f"{pair.low:+.3f} to {pair.high:+.3f})")  # fmt: skip
    yield from done.appraisal.remarks
    yield f"version {card.version} written to {card.path}"
    if done.used:
        yield "it passed its gate and is in use from now on"
    elif card.passed:
        yield f"it passed its gate, but is not used: {done.unused}"
    else:
        yield f"not used: {done.unused}"


@command("costmodel list", "costmodel list --json")
def list_() -> Result:
    """List the models that were trained here, and say which is in use."""
    from tunery._settings import models_directory
    from tunery.costmodels.registry import damaged, shipped_targets, versions
    from tunery.reports.format import as_text, new_table

    found, broken = versions(), damaged()
    states = _states(found)
    rows = [_card(card) | {"in_use": states[card.path] == "in use"} for card in found]
    data = {"directory": models_directory(), "versions": rows, "damaged": broken}
    if not found:
        none = "none" if broken else "none trained yet"
        return Result(data, [*broken, f"{none} in {models_directory()}; the model that ships with tunery is used"])
    table = new_table("dialect", "#version", "target", "#candidates", "#tasks", "#NDCG@8", "#Kendall", "state")
    for card in found:
        best = card.overall
        table.add_row(
            card.dialect, str(card.version), card.target, str(card.data.get("candidates", "-")),
            str(card.data.get("tasks", "-")), f"{best.get('ndcg8', float('nan')):.3f}",
            f"{best.get('kendall', float('nan')):.3f}",
            states[card.path],
        )  # fmt: skip
    lines = [*broken, as_text(table, width())]
    own = {(card.dialect, card.target) for card in found if states[card.path] == "in use"}
    for dialect, target in shipped_targets():
        if (dialect, target) not in own:
            lines.append(f"the model that ships with tunery is used for {dialect} on {target}")
    return Result(data, lines)


@command("costmodel evaluate", "costmodel evaluate 3 --store other.db")
def evaluate(
    name: Annotated[
        str, typer.Argument(metavar="[VERSION|FILE]", help="A version, a model file; else the one in use.")
    ] = "",
    *,
    data: Data = "",
    any_compiler: AnyCompiler = False,
    target: Annotated[
        str, typer.Option("--target", help="The model in use for it: native, a name, or JSON; else for the dataset's.")
    ] = "",
    request: Annotated[Request, Only("store", "threads", "dialect")],
    verbose: bool = False,
) -> Result:
    """Judge a model on the records of a store, per operator kind and device."""
    from tunery.cli.console.live import LiveLine
    from tunery.costmodels.training.train import judge, open_table
    from tunery.devices.cpu.facts import usable_cores
    from tunery.dialects import get_dialect

    with LiveLine(verbose=verbose) as live:
        table = open_table(
            request.store, request.dialect, Path(data) if data else None, lambda text: live.say(text, phase="features"),
            any_compiler=any_compiler,
        )  # fmt: skip
    resolved = (
        get_dialect(table.dialect).resolve_target(target, request.threads or len(usable_cores())) if target else None
    )
    label, rows, unseen, groups = judge(table, name, resolved)
    seen = "it was trained on none of these" if unseen else "it may have been trained on some of these"
    said = f"{label} on {len(table.only(groups))} candidates of {len(groups)} of the {len(table.groups)} tasks ({seen})"
    shown = {"model": label, "unseen": unseen, "rows": [_row(row) for row in rows], "left_out": table.left_out}
    return Result(shown, [said, _table(rows)])


def _models(text: str) -> list[str]:
    from tunery.models import zoo

    if text == "all":
        return [f"zoo:{entry.name}" for entry in zoo.names()]
    known = {entry.name for entry in zoo.names()}
    return [f"zoo:{name}" if name.partition("@")[0] in known else name for name in _names(text)]


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _table(rows: "Sequence[EvaluationRow]") -> str:
    from tunery.reports.format import as_text, new_table

    table = new_table("kind", "device", "ranking", "#tasks", "#NDCG@8", "#regret of 1", "#regret of 8", "#Kendall")
    for row in rows:
        q = row.quality
        table.add_row(row.kind, row.device[:8], row.ranking, str(q.tasks), f"{q.ndcg8:.3f}", f"{q.regret1:.3f}",
                      f"{q.regret8:.3f}", f"{q.kendall:.3f}")  # fmt: skip
    return f"{as_text(table, width())}\n{_LEGEND}"


_LEGEND = """NDCG@8: how fast the first eight of a ranking are, 1 where no eight are faster
regret: the share of speed that is lost where only the first, or the first eight, are measured"""


def _row(row: "EvaluationRow") -> dict[str, Any]:
    from tunery.reports.data import plain

    data: dict[str, Any] = plain(row)
    quality: dict[str, Any] = data.pop("quality")
    return data | quality


def _card(card: "Version") -> dict[str, Any]:
    from tunery.reports.data import plain

    data: dict[str, Any] = plain(card)
    data["data"].pop("workloads", None)  # a thousand keys, for programs
    return data


def _states(cards: "Sequence[Version]") -> dict[str, str]:
    """Return, by the path of its file, what becomes of each model; the latest of those that may be used is."""
    from tunery.dialects import get_dialect

    states, used = {}, dict[tuple[str, str], str]()
    for card in cards:
        try:
            fits = card.of_compiler(get_dialect(card.dialect).compiler)
        except UsageError:  # a dialect that is not installed here
            fits = False
        states[card.path] = "failed its gate" if not card.passed else "older" if fits else "of another compiler version"
        if card.passed and fits:
            used[card.dialect, card.target] = card.path
    return states | dict.fromkeys(used.values(), "in use")


def _counts(counts: Mapping[str, int]) -> str:
    ordered: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ordered) or "none"
