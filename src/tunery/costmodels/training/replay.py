"""From a store's records to what cost models are trained on: features are replayed in workers, and kept on disk."""

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import EngineError, UsageError
from tunery._outputs import replacing
from tunery._settings import cache_directory
from tunery.costmodels.columns import DEVICE_COLUMNS, FeatureRows, Layout, device_columns, with_task
from tunery.costmodels.dataset import Group, Table, without_devices
from tunery.costmodels.registry import generator
from tunery.devices import open_device, traits_of
from tunery.devices.cpu.facts import usable_cores
from tunery.dialects import Space, get_dialect
from tunery.domain import Candidate, Mode, Origin, Outcome, Record, Task, digest
from tunery.engines import Engine, Role, WorkerSpec
from tunery.measuring.settings import FULL_LENGTH
from tunery.runtime import worker_bytes, worker_environment
from tunery.runtime.opening import workplace
from tunery.runtime.record_checks import RecordChecks
from tunery.runtime.services import Block
from tunery.store import Store, open_store

Rows = npt.NDArray[np.float32]

_LEAST_CANDIDATES = 8
_LEAST_WHOLE = 0.25  # of as many as were raced: fewer are of a collection that was cut short
_CHUNK = 32
_DEADLINE_S = 120.0
_VERSION = 1  # of the kept features: raise it when what a row means changes
_RAN = (Outcome.OK, Outcome.ABANDONED)
_WRONG = (Outcome.RUN_FAILED, Outcome.WRONG_RESULT)
_Known = dict[str, tuple[Rows, Rows | None]]
"""Row and stores by candidate key; an empty row where they could not be computed."""
_Source = tuple[str, str]
"""A device's fingerprint, and what made the code."""
_Found = dict[str, tuple[Candidate, float, float]]


def load(
    store_url: str, dialect: str, notify: Callable[[str], None] = lambda _: None, *, any_compiler: bool = False
) -> Table:
    """Return all race records of a store that this compiler's code generator made, as a dataset. With `any_compiler`
    records of other versions are taken too, in groups of their own: their latencies are compared with one another only.
    Features are always those of this version. A candidate that ran wrong has an infinite latency; one that was not
    built, hung or crashed says nothing about speed and is left out."""
    compiled = get_dialect(dialect)
    compiler = compiled.compiler
    left_out: Counter[str] = Counter()
    work: list[tuple[Task, _Source, _Found]] = []
    families: Counter[str] = Counter()
    with open_store(store_url, create=False, keep=False) as store:
        place, facts = store.place, _facts(store)
        owners = {key: tuple(sorted({_base(name) for name in names})) for key, names in store.owners().items()}
        imported = store.imported_workloads()
        for task in store.tasks():
            if task.target.dialect == dialect:
                records = store.records(task.key, modes=[Mode.RACE, Mode.SHARED], imported=True)
                made = _sources(records, None if any_compiler else compiler, left_out)
                families[compiled.family(task.target.config)] += sum(len(found) for _, found in made)
                work += [(task, *one) for one in made]
    # Processors of another family have other instructions: a model of both would be a model of neither.
    usual = max(families, key=lambda name: families[name], default="")
    for task, _, found in work:
        if compiled.family(task.target.config) != usual:
            left_out[f"for targets other than {usual}"] += len(found)
    work = [one for one in work if compiled.family(one[0].target.config) == usual]
    groups: list[Group] = []
    layout = compiled.layout() if isinstance(compiled, Space) else None
    with workplace() as (engine, _):
        features, checks = Features(engine, dialect, compiler, layout), RecordChecks(engine)
        refused = {task.key for task, *_ in work if task.workload.key in imported and checks.workload(task)}
        for number, (task, source, found) in enumerate(work):
            if task.key in refused:
                left_out["of imported tasks whose programs are not what they say they are"] += len(found)
                continue
            columns = device_columns(traits_of(facts.get(source[0])))
            groups += _group(features, task, source, found, owners.get(task.workload.key, ()), columns, left_out)
            notify(f"features of {number + 1}/{len(work)} tasks")
    table = Table(without_devices(groups), dialect, compiler, usual, dict(left_out))
    _check(table, place)
    return table


def _facts(store: Store) -> dict[str, Mapping[str, Any]]:
    """Return what a store knows of its devices, by fingerprint, and this machine: earlier versions stored none."""
    here = open_device("cpu").describe()
    known = {device.fingerprint: device.facts for device in reversed(store.devices.find()) if not device.elsewhere}
    return {here.fingerprint: here.facts, **known}


def _base(network: str) -> str:
    """Return a network's name without its batch size: batches of one network are held out together."""
    return network.partition("@")[0]


def _sources(records: Sequence[Record], compiler: str | None, left_out: Counter[str]) -> list[tuple[_Source, _Found]]:
    raced: dict[_Source, _Found] = {}
    whole: dict[_Source, _Found] = {}
    for record in records:
        measurement, made_by = record.measurement, record.provenance.compiler
        if record.candidate.origin is not Origin.SEARCH:
            continue
        if compiler is not None and generator(made_by) != generator(compiler):
            left_out[f"made by another compiler ({made_by})"] += 1
            continue
        if measurement.outcome in _RAN and 0 < (measurement.latency_s or 0) < math.inf:
            latency_s = float(measurement.latency_s or 0)
        elif measurement.outcome in _WRONG:
            latency_s = math.inf
        else:
            left_out[f"without a latency ({measurement.outcome.value})"] += 1
            continue
        kept = whole if record.provenance.settings == FULL_LENGTH.key else raced
        found = kept.setdefault((record.provenance.device, generator(made_by)), {})
        found[record.candidate.key] = (record.candidate, latency_s, measurement.build_s)
    return [
        (source, _alike(raced.get(source, {}), whole.get(source, {}), left_out))
        for source in dict.fromkeys([*raced, *whole])
    ]


def _alike(raced: _Found, whole: _Found, left_out: Counter[str]) -> _Found:
    """Races end early, which is noise: where candidates that were sampled to the end are not too few, they teach more
    without those that were raced (docs/decisions/008)."""
    if len(whole) < max(_LEAST_CANDIDATES, _LEAST_WHOLE * len(raced)):
        return raced | whole
    left_out["raced, where others of the task were sampled to the end"] += len(raced.keys() - whole.keys())
    return whole


def _group(  # noqa: PLR0917 - the parts of one group
    features: "Features",
    task: Task,
    source: _Source,
    found: _Found,
    networks: tuple[str, ...],
    columns: Rows,
    left_out: Counter[str],
) -> list[Group]:
    if len(found) < _LEAST_CANDIDATES:
        left_out[f"of tasks with fewer than {_LEAST_CANDIDATES} candidates"] += len(found)
        return []
    candidates = [candidate for candidate, _, _ in found.values()]
    rows, stores = features.of(task, candidates)
    good: npt.NDArray[np.bool_] = np.logical_not(np.isnan(rows.values).all(axis=1))
    left_out["whose features cannot be computed"] += int((~good).sum())
    values = np.asarray([(latency, build) for _, latency, build in found.values()])[good]
    work = task.workload
    group = Group(
        task.key, work.key, work.name, work.kind, *source, networks,
        tuple(candidate.key for candidate, usable in zip(candidates, good, strict=True) if usable),
        with_task(rows[good], task).with_columns(DEVICE_COLUMNS, columns), values[:, 0], values[:, 1],
        tuple(each for each, usable in zip(stores, good, strict=True) if usable) if stores is not None else None,
    )  # fmt: skip
    if group.usable:
        return [group]
    left_out["of tasks whose candidates are all alike or all failed"] += len(group.keys)
    return []


def _check(table: Table, place: str) -> None:
    if table.groups:
        return
    reasons = "; ".join(f"{count} {why}" for why, count in sorted(table.left_out.items()) if count)
    if not reasons:
        raise UsageError(
            f"the store {place} holds no measured candidate of {table.dialect}; run `tunery costmodel collect` first"
        )
    raise UsageError(
        f"no candidate in {place} can teach a cost model: {reasons}; run `tunery costmodel collect`, or take other "
        "versions' records in with --any-compiler"
    )


class Features:
    """Features of measured candidates, computed once by workers and kept in the cache directory, one file a task."""

    def __init__(self, engine: Engine, dialect: str, compiler: str, layout: Layout | None) -> None:
        self._engine, self._layout = engine, layout
        self._directory = cache_directory() / "features" / digest(compiler, str(_VERSION), str(layout))
        spec = WorkerSpec(
            Role.PROPOSER, "tunery.runtime.services:Featurizer", {"dialect": dialect},
            memory_bytes=worker_bytes(Role.PROPOSER), environment=worker_environment(dialect),
        )  # fmt: skip
        self._workers = [spec] * max(1, min(len(usable_cores()), 8))
        self._started: list[str] = []

    def of(self, task: Task, candidates: Sequence[Candidate]) -> tuple[FeatureRows, list[Rows] | None]:
        path = self._directory / f"{task.key}.npz"
        known = _read(path)
        missing = [candidate for candidate in candidates if candidate.key not in known]
        if missing:
            workers = self._pool()
            size = min(_CHUNK, -(-len(missing) // len(workers)))  # all of them have something to do
            chunks = [missing[i : i + size] for i in range(0, len(missing), size)]
            with ThreadPoolExecutor(len(workers)) as pool:
                lanes = [chunks[i :: len(workers)] for i in range(len(workers))]
                for made in pool.map(lambda lane: self._lane(lane[0], task, lane[1]), zip(workers, lanes, strict=True)):
                    known |= made
            _write(path, known)
        found = [known[candidate.key] for candidate in candidates]
        assert self._layout is not None, "who has features has a layout"
        stores = [each for _, each in found if each is not None]
        layout = self._layout.of_fold(stores[0].shape[1]) if stores else self._layout
        empty = np.full(len(layout.columns), np.nan, np.float32)
        rows = FeatureRows(np.stack([row if len(row) else empty for row, _ in found]), layout)
        if not stores:
            return rows, None
        none = np.empty((0, stores[0].shape[1]), np.float32)
        return rows, [none if each is None else each for _, each in found]

    def _pool(self) -> list[str]:
        if not self._started:
            self._started = [self._engine.start(spec) for spec in self._workers]
        return self._started

    def _lane(self, worker: str, task: Task, chunks: Sequence[Sequence[Candidate]]) -> _Known:
        made: _Known = {}
        for chunk in chunks:
            made |= self._some(worker, task, chunk)
        return made

    def _some(self, worker: str, task: Task, candidates: Sequence[Candidate]) -> _Known:
        try:
            block = self._engine.call(worker, "features", task, candidates, deadline_s=_DEADLINE_S).result()
        except EngineError:
            if len(candidates) == 1:
                return {candidates[0].key: (np.empty(0, np.float32), None)}
            half = len(candidates) // 2
            return self._some(worker, task, candidates[:half]) | self._some(worker, task, candidates[half:])
        return _unpacked(block, candidates)


def _unpacked(block: Block, candidates: Sequence[Candidate]) -> _Known:
    rows = np.frombuffer(block.rows, np.float32).reshape(-1, block.width)
    stores: list[Rows | None] = [None] * len(candidates)
    if block.counts:
        flat = np.frombuffer(block.stores, np.float32).reshape(-1, block.store_width)
        stores = list(np.split(flat, np.cumsum(block.counts)[:-1]))
    return {c.key: (row, each) for c, row, each in zip(candidates, rows, stores, strict=True)}


def _read(path: Path) -> _Known:
    """Return what a file holds; nothing if it is not there or damaged: it can be computed again."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            parts = {name: data[name] for name in data.files}
        counts, ends = parts["counts"], np.cumsum(parts["counts"])
        known: _Known = {}
        for i, (key, row) in enumerate(zip(parts["keys"].tolist(), parts["rows"], strict=True)):
            stores = None if counts[i] < 0 else parts["stores"][ends[i] - counts[i] : ends[i]]
            known[str(key)] = (row, stores)
    except (OSError, EOFError, ValueError, KeyError, IndexError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return {}
    return known


def _write(path: Path, known: _Known) -> None:
    """Write in one step; a full disk only costs the cache. What failed is not kept: it may have been the machine."""
    kept = {key: pair for key, pair in known.items() if len(pair[0])}
    if not kept or any((stores is None) != (next(iter(kept.values()))[1] is None) for _, stores in kept.values()):
        return
    none = next(iter(kept.values()))[1] is None
    parts = {
        "keys": np.asarray(list(kept)),
        "rows": np.stack([row for row, _ in kept.values()]),
        "counts": np.asarray([-1 if stores is None else len(stores) for _, stores in kept.values()]),
        "stores": np.empty((0, 0), np.float32)
        if none
        else np.concatenate([s for _, s in kept.values() if s is not None]),
    }
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **parts)
