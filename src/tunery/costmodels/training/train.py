"""Training a cost model from a store or a dataset file, and judging one that is there."""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels import CostModel, Group, Table, device_columns, for_device, load_cost_model
from tunery.costmodels.boosted import check_rows
from tunery.costmodels.dataset import columns_of
from tunery.costmodels.registry import (
    WORKLOAD_DIGITS,
    Version,
    check_directory,
    generator,
    new_card,
    register,
    shipped,
    starting,
    version,
)
from tunery.costmodels.training.automl import Search, fit, search, voting
from tunery.costmodels.training.evaluation import (
    IN_USE,
    LEAST_TASKS,
    EvaluationRow,
    Gate,
    Paired,
    Ranker,
    evaluate,
    gate,
    hold_out_networks,
    paired,
    random_ranker,
)
from tunery.costmodels.training.replay import load
from tunery.dialects import get_dialect
from tunery.domain import Target
from tunery.domain.request import Request
from tunery.runtime.extraction import extract_many

Notify = Callable[[str], None]
_TEST_SHARE = 0.2
_LEAST_NETWORKS = 4


@dataclass(frozen=True)
class Appraisal:
    """A model judged on networks it has not seen: rows of metrics, differences from rivals, the verdict. `remarks` say
    which comparisons were left out or not on even terms, and why."""

    rows: tuple[EvaluationRow, ...]
    pairs: tuple[Paired, ...]
    gate: Gate
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Training:
    """What training gave. `unused` says why jobs on this machine do not start from it; "": from now on they do."""

    card: Version
    appraisal: Appraisal
    search: Search
    left_out: dict[str, int]
    unused: str

    @property
    def used(self) -> bool:
        return not self.unused


class Judgement(NamedTuple):
    """A model's name, its rows beside random, on which groups; `unseen` says whether it has learned from none of
    them."""

    model: str
    rows: list[EvaluationRow]
    unseen: bool
    groups: tuple[Group, ...]


def open_table(
    store: str, dialect: str, data: Path | None, notify: Notify = lambda _: None, *, any_compiler: bool = False
) -> Table:
    if data is None:
        return load(store, dialect, notify, any_compiler=any_compiler)
    from tunery.costmodels.training.parquet import read_parquet

    table = read_parquet(data)
    installed = get_dialect(table.dialect).compiler
    made_by = {table.compiler, *(group.compiler for group in table)}
    foreign = sorted(name for name in made_by if generator(name) != generator(installed))
    if foreign and not any_compiler:
        raise UsageError(
            f"{data} holds candidates made by another compiler ({', '.join(foreign)}; installed is {installed}); "
            "take them in with --any-compiler, or export a dataset of this version"
        )
    return table


def train(
    table: Table,
    seconds: float,
    *,
    hold_out: Sequence[str] = (),
    threads: int = 1,
    seed: int = 0,
    most: int = 400,
    notify: Notify = lambda _: None,
) -> Training:
    """Search the best recipe for about `seconds`, judge it on networks it has not seen, and register the model. With
    `hold_out` no model ever sees those networks. Without, a fifth of the networks is drawn to judge the recipe by, and
    the registered model is then trained on all."""
    check_rows([group.gains for group in table])
    chosen = tuple(hold_out) or _drawn(table, seed)
    known = {name for group in table for name in group.networks}
    for name in hold_out:
        if name not in known:
            raise UsageError(f"no candidate in the dataset is of network {name!r}; it holds {', '.join(sorted(known))}")
    table = _owned(table, chosen, notify)
    learn, judge = hold_out_networks(table.groups, chosen)
    if not learn or not judge:
        raise UsageError(
            "holding out whole networks leaves nothing to train on; collect from more networks, or "
            "run `tunery zoo extract` for those of imported records first"
        )
    check_directory()
    dialect = get_dialect(table.dialect)
    installed, here = dialect.compiler, dialect.family(dialect.resolve_target("native", 1).config)
    found = search(learn, seconds, threads=threads, seed=seed, most=most, notify=notify)
    notify("judging on held-out networks")
    recipe = voting(found.recipe)
    model = fit(learn, recipe, threads=threads)
    current = starting(
        table.dialect, table.target, compiler=installed, vector_bits=_vector_bits(judge), layout=str(table.layout)
    )
    appraisal = appraise(model, judge, current, seed)
    final = model if hold_out else fit(table.groups, recipe, threads=threads)
    # Registered before anything else is tried with it: the search took long.
    card = register(_card(table, learn if hold_out else table.groups, found, appraisal, hold_out), final)
    notify(f"version {card.version} written to {card.path}")
    unused = _unused(card, installed, here)
    return Training(card, appraisal, found, dict(table.left_out), unused)


def _owned(table: Table, networks: Sequence[str], notify: Notify) -> Table:
    """Mark all that networks of the zoo hold as theirs: whoever tuned one network and exported its records does not say
    which other networks have the same operators."""
    from tunery.models import zoo  # loads what reads models

    known = {entry.name for entry in zoo.names()}
    wanted = [name for name in networks if name in known]
    if not wanted:
        return table
    notify("reading the held-out networks, for what of the dataset is theirs")
    with tempfile.TemporaryDirectory(prefix="tunery-held-out-") as scratch:
        request = Request("", store=str(Path(scratch, "tasks.db")), dialect=table.dialect)
        found = extract_many(request, [f"zoo:{name}" for name in wanted]).models
    owners: dict[str, set[str]] = {}
    for name, one in zip(wanted, found, strict=True):
        if one.failure:
            notify(f"{name} cannot be read, so only what the dataset says is its: {one.failure}")
        for task in one.tasks:
            owners.setdefault(task.workload.key, set()).add(name)
    return table.only(
        replace(group, networks=tuple(sorted({*group.networks, *owners.get(group.workload_key, ())})))
        for group in table
    )


def appraise(
    model: CostModel,
    judge: Sequence[Group],
    current: tuple[Version, str] | None,
    seed: int = 0,
) -> Appraisal:
    """The model in use is compared on those tasks only that it has not learned from either, and has rows only if these
    are all."""
    chosen: dict[str, Ranker] = {"model": _ranker(model), "random": random_ranker(seed)}
    fair: dict[str, list[Group]] = {}
    remarks: list[str] = []
    if current is not None:
        card, text = current
        unseen = [group for group in judge if not card.saw(group)]
        try:
            ranker = _ranker(_as_there(text, judge))
            ranker(judge[0])
        except UsageError as error:
            remarks.append(f"the model in use ({card.name}) was not compared: {error}")
        else:
            chosen[IN_USE], fair[IN_USE] = ranker, unseen
            if len(unseen) < max(LEAST_TASKS, len(judge)):
                remarks.append(_seen(card, len(unseen), len(judge)))
    # A rival's rows are beside ours only if it has learned from none of these tasks either.
    rows = evaluate(judge, {name: each for name, each in chosen.items() if len(fair.get(name, judge)) == len(judge)})
    pairs = [
        paired(groups, chosen["model"], chosen[name], name)
        for name, groups in fair.items()
        if len(groups) >= LEAST_TASKS
    ]
    return Appraisal(tuple(rows), tuple(pairs), gate(rows, pairs), tuple(remarks))


def judge(
    table: Table, name: str, target: Target | None = None, *, seed: int = 0, all_groups: bool = False
) -> Judgement:
    """Judge a registered version, a model file, or the model in use for a target (by default of the dataset's
    processors), on what it has not learned from, and on everything where it may have seen all, or with `all_groups`."""
    wanted = get_dialect(table.dialect).family(target.config) if target else table.target
    if name:
        card, read = version(name, table.dialect)
        model = _as_there(read.dumps(), table.groups)
    else:
        bits, compiler = _vector_bits(table.groups), get_dialect(table.dialect).compiler
        found = starting(table.dialect, wanted, compiler=compiler, vector_bits=bits, layout=str(table.layout))
        if found is None:
            raise UsageError(f"there is no cost model of {table.dialect} for {wanted}; run `tunery costmodel train`")
        card, model = found[0], _as_there(found[1], table.groups)
    fair = tuple(group for group in table if not card.saw(group))
    groups = table.groups if all_groups or not fair else fair
    chosen: dict[str, Ranker] = {"model": _ranker(model), "random": random_ranker(seed)}
    ships = shipped(table.dialect, wanted, _vector_bits(groups))
    if card.version and ships is not None and not any(ships[0].saw(group) for group in groups):
        chosen["shipped"] = _ranker(_as_there(ships[1], groups))
    return Judgement(card.name, evaluate(groups, chosen), len(groups) == len(fair), groups)


def _seen(card: Version, unseen: int, tasks: int) -> str:
    if unseen >= LEAST_TASKS:
        return (
            f"the model in use ({card.name}) was compared on {unseen} of the {tasks} tasks, and is not in the table: "
            "it may have learned from the others"
        )
    return (
        f"the model in use ({card.name}) was not compared: it may have learned from all but {unseen} of the {tasks} "
        f"tasks, and {LEAST_TASKS} are needed"
    )


def facts(table: Table) -> dict[str, object]:
    return {
        "digest": table.digest,
        "candidates": len(table),
        "tasks": len(table.groups),
        "failed": int(sum(np.isinf(group.latencies).sum() for group in table)),
        "devices": list(table.devices),
        "networks": sorted({name for group in table for name in group.networks}),
        "workloads": sorted({group.workload_key[:WORKLOAD_DIGITS] for group in table}),
        "kinds": {kind: sum(len(g.keys) for g in table if g.kind == kind) for kind in sorted({g.kind for g in table})},
    }


def _as_there(text: str, groups: Sequence[Group]) -> CostModel:
    return load_cost_model(for_device(text, _columns(groups)))


def _vector_bits(groups: Sequence[Group]) -> float:
    return float(_columns(groups)[0])


def _columns(groups: Sequence[Group]) -> npt.NDArray[np.float32]:
    counts: Counter[str] = Counter()
    columns: dict[str, npt.NDArray[np.float32]] = {}
    for group in groups:
        own = columns_of(group)
        if not np.isnan(own).all():
            counts[group.device] += len(group.keys)
            columns[group.device] = own
    return columns[counts.most_common(1)[0][0]] if counts else device_columns(None)


def _ranker(model: CostModel) -> Ranker:
    return lambda group: model.predict(group.inputs)


def _drawn(table: Table, seed: int) -> tuple[str, ...]:
    names = sorted({name for group in table for name in group.networks})
    if len(names) < _LEAST_NETWORKS:
        raise UsageError(
            f"the candidates are of {len(names)} networks, and {_LEAST_NETWORKS} are needed to hold some out; collect "
            "from more networks, or name one with --hold-out"
        )
    count = max(1, round(_TEST_SHARE * len(names)))
    return tuple(names[i] for i in np.random.default_rng(seed).permutation(len(names))[:count])


def _card(
    table: Table, learned: Sequence[Group], found: Search, appraisal: Appraisal, hold_out: Sequence[str]
) -> Version:
    return new_card(
        dialect=table.dialect,
        compiler=table.compiler,
        target=table.target,
        recipe=asdict(voting(found.recipe))
        | {"tried": found.tried, "search_s": found.seconds, "inner_ndcg8": found.score},
        data={**facts(table), "workloads": facts(table.only(learned))["workloads"]},
        metrics=tuple(plain(row) for row in appraisal.rows),
        passed=appraisal.gate.passed,
        reasons=appraisal.gate.reasons,
        held_out=tuple(sorted(hold_out)),
        layout=str(table.layout),
    )


def _unused(card: Version, installed: str, here: str) -> str:
    if not card.passed:
        return "; ".join(card.reasons)
    if not card.of_compiler(installed):
        return f"it is of another compiler version ({card.compiler})"
    return "" if card.target == here else f"it is for other processors ({card.target}) than this machine's ({here})"


def plain(row: EvaluationRow) -> dict[str, object]:
    return {"kind": row.kind, "device": row.device, "ranking": row.ranking, **asdict(row.quality)}
