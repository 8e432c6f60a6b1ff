"""Gradient-boosted trees over feature rows, trained on latencies relative to each task's best. Most take a candidate's
stores folded to one row. Voters on stores see each store by itself, and a candidate's score is the sum over its stores,
as in Ansor's model (OSDI 2020); with another loss, and the task's columns."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import UsageError
from tunery.costmodels._base import CostModel
from tunery.costmodels.columns import FeatureRows, Layout, earlier_layout, without_stores
from tunery.costmodels.dataset import Dataset
from tunery.domain import digest

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Groups = Sequence[tuple[FeatureRows, Floats]]
"""Rows and gains of one task each."""

LEAST_ROWS = 16
_MORE = 60
_GRADES = 30
"""LightGBM's ranker takes whole labels up to 30."""

_STORE_LEAVES = 31
"""Of trees on stores; 63 do as well and take twice the room."""

_PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.1,
    "num_leaves": 31,
    "min_data_in_leaf": 8,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "max_bin": 63,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 43,
    "deterministic": True,
    "force_col_wise": True,  # else LightGBM times two ways of counting and takes the faster: not the same every time
    "feature_pre_filter": False,
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `parameters` go to LightGBM, `members` vote, and so do `store_members` where rows
    hold stores (only for `gain`). Family `gain` regresses best latency over latency; `log` the logarithm of it,
    centred in each task, so that only the order within tasks is learned; `rank` is LambdaMART (Burges 2010) on
    gains in 30 grades."""

    family: str = "gain"
    rounds: int = 120
    parameters: Mapping[str, float | int] = field(default_factory=dict)
    members: int = 1
    store_members: int = 0


@dataclass(frozen=True, slots=True)
class StoreVoters:
    """Trees of which a candidate's score is `mean`, that of what they learned from, and the sum over its stores."""

    boosters: tuple[Any, ...]
    mean: float

    @classmethod
    def train(cls, rows: FeatureRows, gains: Floats, recipe: Recipe, threads: int) -> "StoreVoters":
        """Train on rows that hold stores one by one: the squared error of the sum, the same slope for each store."""
        import lightgbm

        stores, owner = rows.stores()
        mean = float(gains.mean())

        def slope(predicted: Floats, _: Any) -> tuple[Floats, Floats]:
            error = mean + np.bincount(owner, weights=predicted, minlength=len(rows)) - gains
            return error[owner], np.ones(len(owner))

        data = lightgbm.Dataset(
            stores, np.zeros(len(stores)), params={"max_bin": _PARAMETERS["max_bin"], "verbosity": -1}
        )
        settings = {**parameters(recipe, threads), "num_leaves": _STORE_LEAVES, "objective": slope}
        boosters = [
            lightgbm.train({**settings, "seed": settings["seed"] + member}, data, recipe.rounds)
            for member in range(recipe.store_members)
        ]
        return cls(tuple(boosters), mean)

    def votes(self, rows: FeatureRows) -> Floats:
        stores, owner = rows.stores()
        if not len(stores):
            return np.full((len(self.boosters), len(rows)), self.mean)
        sums = [
            np.bincount(owner, weights=booster.predict(stores, num_threads=1), minlength=len(rows))
            for booster in self.boosters
        ]
        return np.asarray(self.mean + np.stack(sums), np.float64)


@dataclass(frozen=True, slots=True)
class Growth:
    """What trees after the first `trunk` of each voter were grown for: devices with vectors of `vector_bits`."""

    trunk: int
    vector_bits: float


class BoostedModel(CostModel):
    """LightGBM's trees on what a recipe says, and beside them a regression of the seconds a build takes. Some of the
    trees may have been grown for one kind of device (`growth`): `for_device` leaves them out for another."""

    def __init__(
        self,
        boosters: Sequence[Any],
        layout: Layout,
        *,
        build_booster: Any = None,
        family: str = "gain",
        device: Sequence[float] = (),
        growth: Growth | None = None,
        store_voters: StoreVoters | None = None,
    ) -> None:
        self._boosters, self._layout, self._build_booster = tuple(boosters), layout, build_booster
        self._family, self._device, self._growth = family, tuple(device), growth
        self._store_voters = store_voters

    @classmethod
    def fit(cls, dataset: Dataset, base: "BoostedModel | None" = None) -> "BoostedModel":
        """A task's labels are scaled to what `base` expects of its candidates: how good the best found so far is, is
        not known while a task is tuned, and only the order within a task is to be learned."""
        groups = list(dataset.groups().values())
        check_rows([gains for _, gains in groups])
        if base is None:
            return cls.train(groups, Recipe())
        return base.grown(groups, _MORE)

    @classmethod
    def train(cls, groups: Groups, recipe: Recipe, threads: int = 1) -> "BoostedModel":
        import lightgbm

        whole = FeatureRows.joined([rows for rows, _ in groups])
        layout = without_stores(whole.layout)
        data = lightgbm.Dataset(
            whole.pick(layout),
            np.concatenate([labels(gains, recipe.family) for _, gains in groups]),
            group=[len(gains) for _, gains in groups],
            params={"max_bin": _PARAMETERS["max_bin"], "feature_pre_filter": False, "verbosity": -1},
            free_raw_data=False,
        )
        settings = parameters(recipe, threads)
        boosters = [
            _trained({**settings, "seed": settings["seed"] + member}, data, recipe.rounds)
            for member in range(recipe.members)
        ]
        voters = None
        if recipe.store_members and recipe.family == "gain" and whole.has_stores:
            voters = StoreVoters.train(whole, np.concatenate([gains for _, gains in groups]), recipe, threads)
        return cls(boosters, layout, family=recipe.family, store_voters=voters)

    def grown(
        self, groups: Groups, rounds: int, parameters_: Mapping[str, float | int] | None = None
    ) -> "BoostedModel":
        """Return this model with `rounds` more trees, grown on what groups of (rows, gains) say beyond it."""
        import lightgbm

        y = []
        for rows, gains in groups:
            wanted = labels(gains, self._family)
            if self._family == "gain":
                wanted = wanted * _scale(self.predict(rows), gains)
            elif self._family == "log":
                wanted = wanted + float(np.mean(np.log(np.maximum(self.predict(rows), 1e-9)) - wanted))
            y.append(self._left(rows, wanted))
        rows_ = self._known(FeatureRows.joined([rows for rows, _ in groups]))
        sizes = [len(gains) for _, gains in groups]
        boosters = []
        for number, booster in enumerate(self._boosters):
            data = lightgbm.Dataset(rows_, np.concatenate(y), group=sizes)
            settings = parameters(Recipe(self._family, parameters=parameters_ or {}), 1)
            more = {**settings, "seed": settings["seed"] + number}
            boosters.append(_trained(more, data, rounds, booster))
        return self._with(boosters=boosters)

    def grown_for(self, vector_bits: float, trunk: int) -> "BoostedModel":
        if trunk < 1 or (self._growth and self._growth.vector_bits != vector_bits):
            raise ValueError("a model has trees for every device, and grows for one kind of device only")
        growth = Growth(min(trunk, self._growth.trunk) if self._growth else trunk, vector_bits)
        return self._with(growth=growth)

    @property
    def rounds(self) -> int:
        return min(int(booster.num_trees()) for booster in self._boosters)

    def with_build_cost(self, rows: FeatureRows, build_s: Floats) -> "BoostedModel":
        import lightgbm

        data = lightgbm.Dataset(self._known(rows), np.log(np.maximum(build_s, 1e-3)))
        booster = lightgbm.train(parameters(Recipe(), 1), data, num_boost_round=Recipe().rounds)
        return self._with(build_booster=booster)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "BoostedModel":
        check_trees(data)
        import lightgbm

        try:
            build, device = data["build_booster"], [float(value) for value in data["device"]]
            growth = Growth(**data["growth"]) if data.get("growth") else None
            boosters = [_read(str(text)) for text in data["boosters"]]
            build_booster = _read(str(build)) if build else None
            voters = None
            if data.get("stores"):
                texts, mean = data["stores"]["boosters"], float(data["stores"]["mean"])
                voters = StoreVoters(tuple(_read(str(text)) for text in texts), mean)
            layout = layout_of(data)
            if layout is None:
                raise ValueError("it does not name its rows: an earlier tunery wrote it")
            if len(layout.columns) != (known := int(boosters[0].num_feature())):
                raise ValueError(f"its trees know {known} columns, and its layout {layout} has {len(layout.columns)}")
            return cls(
                boosters, layout, build_booster=build_booster, family=str(data["objective"]), device=device,
                growth=growth, store_voters=voters,
            )  # fmt: skip
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(str(error)) from error

    @override
    def predict(self, rows: FeatureRows) -> Floats:
        return np.asarray(self._votes(rows).mean(axis=0))

    @override
    def uncertainty(self, rows: FeatureRows) -> Floats:
        return np.asarray(self._votes(rows).std(axis=0))

    @override
    def build_cost(self, rows: FeatureRows) -> Floats:
        if self._build_booster is None:
            return super().build_cost(rows)
        return _raw(self._build_booster, self._known(rows))

    @override
    def dumps(self) -> str:
        data: dict[str, Any] = {
            "family": "boosted",
            "layout": asdict(self._layout),
            "objective": self._family,
            "boosters": [_text(booster) for booster in self._boosters],
            "build_booster": _text(self._build_booster) if self._build_booster else None,
            "device": self._device,
            "growth": asdict(self._growth) if self._growth else None,
        }
        if self._store_voters:
            texts = [_text(booster) for booster in self._store_voters.boosters]
            data["stores"] = {"boosters": texts, "mean": self._store_voters.mean}
        return json.dumps(data | {"digest": trees_digest(data)})

    def _with(self, **changed: Any) -> "BoostedModel":
        parts = {
            "boosters": self._boosters, "layout": self._layout, "build_booster": self._build_booster,
            "family": self._family, "device": self._device, "growth": self._growth, "store_voters": self._store_voters,
        }  # fmt: skip
        return BoostedModel(**{**parts, **changed})

    def _votes(self, rows: FeatureRows) -> Floats:
        known = self._known(rows)
        votes = np.stack([_positive(_raw(booster, known), self._family) for booster in self._boosters])
        if self._store_voters is None or not rows.has_stores:
            return votes
        return np.concatenate([votes, self._store_voters.votes(rows)])

    def _left(self, rows: FeatureRows, wanted: Floats) -> Floats:
        if self._store_voters is None or not rows.has_stores:
            return wanted
        others, mine = self._store_voters.votes(rows), len(self._boosters)
        return np.asarray(((mine + len(others)) * wanted - others.sum(axis=0)) / mine)

    def _known(self, rows: FeatureRows) -> Rows:
        return rows.pick(self._layout, self._device)


def _raw(booster: Any, rows: Rows) -> Floats:
    return np.asarray(booster.predict(rows, num_threads=1), dtype=np.float64) if len(rows) else np.empty(0)


# A model that learns on grows one voter of several, and is written and read again each time: what has not changed is
# neither put into words nor read again (docs/decisions/004).
_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@lru_cache(maxsize=6)  # megabytes each: a model has four, and learns on by a new one
def _read(text: str) -> Any:
    """Return the trees that a text holds; nobody may change them."""
    import lightgbm

    booster = lightgbm.Booster(model_str=text)
    _texts[booster] = text
    return booster


def _text(booster: Any) -> str:
    if booster not in _texts:
        _texts[booster] = booster.model_to_string()
    return _texts[booster]


def _trained(settings: Mapping[str, Any], data: Any, rounds: int, start: Any = None) -> Any:
    import lightgbm

    # Not as LightGBM would leave it, with its data; written and read again, which LightGBM does otherwise, too.
    grown = lightgbm.train(dict(settings), data, rounds, init_model=start, keep_training_booster=True)
    return _read(grown.model_to_string())


def layout_of(data: Mapping[str, Any]) -> Layout | None:
    if named := data.get("layout"):
        return Layout.read(named)
    found = re.search(r"^max_feature_idx=(\d+)$", str([*data.get("boosters", ()), ""][0]), re.MULTILINE)
    return earlier_layout(int(found[1]) + 1) if found else None


def check_trees(data: Mapping[str, Any]) -> None:
    """Check that a model's trees are those that were written: LightGBM does not refuse a damaged text, it aborts."""
    if not data["boosters"]:
        raise ValueError("it has no trees")
    if "digest" not in data:
        raise ValueError("it has no digest of its trees: an earlier tunery wrote it")
    if data["digest"] != trees_digest(data):
        raise ValueError("its trees are not as they were written")


def trees_digest(data: Mapping[str, Any]) -> str:
    growth = data.get("growth")
    whom = [json.dumps(growth, sort_keys=True)] if growth else []
    whom += [json.dumps(data["layout"])] if data.get("layout") else []
    stores = data.get("stores")
    voters = [*map(str, stores["boosters"]), str(stores["mean"])] if stores else []
    return digest(str(data["objective"]), *map(str, data["boosters"]), str(data["build_booster"]), *whom, *voters)


def trimmed(data: Mapping[str, Any]) -> dict[str, Any]:
    import lightgbm

    check_trees(data)
    trunk = int(data["growth"]["trunk"])
    boosters = [lightgbm.Booster(model_str=str(text)) for text in data["boosters"]]
    kept = [booster.model_to_string(num_iteration=trunk) for booster in boosters]
    rest = {**data, "boosters": kept, "growth": None}
    return rest | {"digest": trees_digest(rest)}


def parameters(recipe: Recipe, threads: int) -> dict[str, Any]:
    settings = {**_PARAMETERS, "num_threads": threads, "objective": "regression", **recipe.parameters}
    if recipe.family == "rank":
        ranked = {"objective": "lambdarank", "label_gain": list(range(_GRADES + 1)), "lambdarank_truncation_level": 20}
        settings |= ranked
    return settings


def labels(gains: Floats, family: str) -> Floats:
    """Return what a family learns, from gains in [0, 1] of one task; higher is faster in each.

    >>> labels(np.array([1.0, 0.5, 0.0]), "rank").tolist()
    [30.0, 15.0, 0.0]
    """
    if family == "gain":
        return gains
    if family == "rank":
        return np.floor(_GRADES * gains)
    finite = gains > 0
    logs = np.log(np.where(finite, gains, 1.0))
    worst = float(logs.min()) - 0.5  # a failed candidate is worse than the slowest, by no matter how much
    logs = np.where(finite, logs, worst)
    return np.asarray(logs - logs.mean())


def check_rows(found: Sequence[Floats]) -> None:
    y = np.concatenate(found) if found else np.empty(0)
    if len(y) < LEAST_ROWS or np.ptp(y) == 0:
        raise UsageError(f"{len(y)} candidates are too few, or too alike, to train a cost model; measure more")


def _positive(raw: Floats, family: str) -> Floats:
    """Return scores of one scale: a search that takes scores as weights needs them positive."""
    if family == "log":
        return np.exp(np.clip(raw, -30, 30))
    if family == "rank":
        return np.asarray(1 / (1 + np.exp(-np.clip(raw, -30, 30))))
    return raw


def _scale(expected: Floats, gains: Floats) -> float:
    share = float(expected @ gains) / max(float(gains @ gains), 1e-12)
    return min(max(share, 0.05), 1.0)


def for_device(text: str, columns: npt.NDArray[np.float32]) -> str:
    """Trees that were grown for vectors of another width are left out; else the trees are not read, which takes
    longer."""
    data, device = json.loads(text), [float(value) for value in columns]
    if not fits(data, device[0]):
        data = trimmed(data)
    return json.dumps(data | {"device": device})


def fits(model: Mapping[str, Any], vector_bits: float) -> bool:
    growth = model.get("growth")
    return not growth or bool(growth["vector_bits"] == vector_bits)


@lru_cache(maxsize=2)
def load_cost_model(text: str) -> CostModel:
    """Read a model written by `dumps`, once for all who ask: it takes 0.1 s. Data only: nothing in it is executed."""

    try:
        data = json.loads(text)
        if data["family"] == "boosted":
            return BoostedModel.from_data(data)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is not a cost model ({error}); train one anew") from error
    raise UsageError(f"unknown cost model family {data['family']!r}; it was written by a newer tunery")


Row = tuple[str, str, npt.NDArray[np.float32], float]
"""Task, candidate, features, latency in seconds (inf: it failed)."""

_HELD = 4  # of the newest rows every so many-th is what old and new are judged by, before it is learned
_LEAST_PAIRS = 12


class OnlineTrainer:
    """Holds what was measured. The hold-out rolls: what the next model is judged by, the one after it learns."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._dataset = layout, Dataset(layout)
        self._current: CostModel | None = None

    def learn(self, rows: Sequence[Row], base: str | None) -> str | None:
        """Return a model trained on top of `base` if it beats the current one on some rows it did not see. Without
        enough held-out pairs to tell, the new model is taken: it has seen more."""
        held, taught = rows[_HELD - 1 :: _HELD], [row for i, row in enumerate(rows) if (i + 1) % _HELD]
        for row in taught:
            self._dataset.add(*row)
        start = load_cost_model(base) if base else None
        if self._current is None:
            self._current = start
        try:
            fresh = BoostedModel.fit(self._dataset, start if isinstance(start, BoostedModel) else None)
        except UsageError:
            return None
        finally:
            for row in held:
                self._dataset.add(*row)
        if self._current is not None:
            before, pairs = ordered(self._current, held, self._layout)
            if pairs >= _LEAST_PAIRS and ordered(fresh, held, self._layout)[0] < before:
                return None
        self._current = fresh
        return fresh.dumps()


def ordered(model: CostModel, rows: Sequence[Row], layout: Layout) -> tuple[float, int]:
    right, count = 0.0, 0
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row[0], []).append(row)
    for ones in by_task.values():
        scores = model.predict(FeatureRows(np.stack([features for _, _, features, _ in ones]), layout))
        latencies = [latency for _, _, _, latency in ones]
        for i, first in enumerate(latencies):
            for j in range(i):
                if first != latencies[j]:
                    count += 1
                    better = scores[i] - scores[j] if first < latencies[j] else scores[j] - scores[i]
                    right += 1.0 if better > 0 else 0.5 if better == 0 else 0.0
    return (right / count if count else 0.0), count
