"""The search for one task: candidates are bred and drafted by their decisions, and few of them are replayed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import DialectError
from tunery.costmodels.gaussian import LENGTHS, GaussianProcess
from tunery.dialects import Observation, Proposer
from tunery.dialects.metaschedule.features.features import FeatureCache, SteeringModel
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.search.breeding import Breeder
from tunery.dialects.metaschedule.search.genomes import Design, Gene, Genes, Genome
from tunery.dialects.metaschedule.search.limits import post_processed
from tunery.dialects.metaschedule.search.surrogate import Encoder
from tunery.dialects.metaschedule.variants.program import (
    DesignSpace,
    identify,
    program_key,
    replay,
    space_of,
    trace_body,
    variants,
)
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body, with_left_out, write_body
from tunery.domain import Candidate, Outcome, Task

Floats = npt.NDArray[np.float64]

_OPENING = 16  # replays more than usual while nothing is known
_ROUND = 10  # replays at a time: the draft learns from them before the next
_LEAST_LESSONS, _MOST_LESSONS = 8, 512  # a draft's cost grows with the cube of its lessons
_TRIES = 4
_BRED, _BRED_PER_REPLAY = 64, 16
_ELITE = 12
_RANDOM_SHARE = 16  # one candidate in so many is drawn at random, whatever the draft says
_EXPLORE, _EXPLOIT = 1.0, 0.3  # standard deviations of the draft added when choosing what to replay, and to propose
_BACKGROUND = 256
# Variances of the logarithm of a latency: of a full race, of an abandoned one (often a single sample), of what the cost
# model says at least, of what failed.
_RACED, _ABANDONED, _SCORED, _FAILED = 0.01, 0.09, 0.04, 0.25
_SLOWEST = 1.5  # logarithms below the fastest: how slow the slow ones are is not worth learning


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is known of a genome: its program's key, empty if it has none, and how it ended if it was measured."""

    key: str = ""
    latency_s: float | None = None
    abandoned: bool = False
    failed: bool = False


class SurrogateProposer(Proposer):
    """Breeds genomes, replays those that a draft finds most promising, and proposes the best of the replayed. The draft
    learns from latencies, and from the cost model's scores of whatever was replayed."""

    def __init__(
        self,
        task: Task,
        space: DesignSpace,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        features: FeatureCache | None = None,
    ) -> None:
        self.features = features or FeatureCache()
        self._task, self._space = task, space
        self._model = SteeringModel(self.features, task)
        self._designs = [Design(number, design.trace, space) for number, design in enumerate(space.designs)]
        # A resumed search must not repeat its own first steps.
        self._seed = 1 + (seed * 7919 + len(history) * 104729) % 2**30
        self._lessons: dict[Genome, Lesson] = {}
        self._proposed: set[str] = set()
        self._waiting: dict[str, Genome] = {}  # replayed, not yet proposed
        self._refused: dict[str, tuple[Genome, str]] = {}
        self._draft: GaussianProcess | None = None
        self.observe(history)
        if cost_model:
            self.learn(cost_model)

    @override
    def propose(self, n: int) -> list[Candidate]:
        if n <= 0:
            return []
        self._refit()
        left = n + (0 if not self._model.loaded else max(1, n // 8) if self._lessons else min(_OPENING, n))
        lucky = self._replay([self._breeder.drawn() for _ in range(-(-n // _RANDOM_SHARE))]) if self._draft else []
        left -= len(lucky)
        while left > 0:
            count = -(-left // -(-left // _ROUND))
            self._replay(self._bred(count))
            self._refit(again=True)
            left -= count
        for _ in range(_TRIES):
            if len(self._waiting) < n:
                self._replay(self._bred(n - len(self._waiting)))
        return self._chosen(n, lucky[: n // _RANDOM_SHARE])

    @override
    def refused(self) -> list[tuple[Candidate, str]]:
        taken, self._refused = self._refused, {}
        return [
            (Candidate(key, self._task.key, self._designs[genome.design].body(genome)), why)
            for key, (genome, why) in taken.items()
        ]

    # -- without measurements: what is replayed is chosen by the draft, what is best by the cost model alone -----------

    @property
    def designs(self) -> Genes:
        return Genes(self._designs)

    @property
    def outlines(self) -> list[tuple[Gene, ...]]:
        return [design.outline for design in self._designs]

    def explore(self, n: int) -> None:
        if n > 0:
            if self._draft is None:
                self._refit()
            self._replay(self._bred(n))
            self._refit(again=True)

    def ranked(self) -> list[Candidate]:
        """Return all that was replayed and not proposed yet, the highest score first."""
        return self._chosen(len(self._waiting), self._by_score())

    def _by_score(self) -> list[str]:
        keys = list(self._waiting)
        return [keys[i] for i in np.argsort(-np.nan_to_num(self._model.scores(keys)), kind="stable")]

    def _chosen(self, n: int, lucky: Sequence[str]) -> list[Candidate]:
        keys = list(lucky)
        others = [key for key in self._waiting if key not in keys]
        if self._draft and others:
            rows = self._encoder.rows([self._waiting[key] for key in others])
            others = [others[i] for i in self._draft.pick(rows, n - len(keys), _EXPLOIT)]
        keys = [*others[: n - len(keys)], *keys]
        chosen = []
        for key, score in zip(keys, self._model.scores(keys), strict=True):
            genome = self._waiting.pop(key)
            self._proposed.add(key)
            body = self._designs[genome.design].body(genome)
            chosen.append(Candidate(key, self._task.key, body, score=float(score) if np.isfinite(score) else None))
        return chosen

    # -- made when a draft is first wanted: winners are judged without one --------------------------------------------

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.designs)

    @cached_property
    def _bred_and_drawn(self) -> tuple[Breeder, Floats]:
        """The breeder, and what it has drawn first: the rows by which the draft knows how genomes vary."""
        breeder = Breeder(self.designs, self._task.workload.kind, self._seed)
        return breeder, self._encoder.rows([breeder.drawn() for _ in range(_BACKGROUND)])

    @property
    def _breeder(self) -> Breeder:
        return self._bred_and_drawn[0]

    @property
    def _background(self) -> Floats:
        return self._bred_and_drawn[1]

    # -- genomes to programs --------------------------------------------------------------------------------------

    def _bred(self, count: int) -> list[Genome]:
        """Return up to `count` genomes that were never replayed, by the draft if there is one."""
        found: dict[Genome, None] = {}
        wanted = _BRED + _BRED_PER_REPLAY * count if self._draft else count
        elite = self._elite() if self._draft else []
        for number in range(4 * wanted):
            genome = self._breeder.child(elite) if elite and number % 2 else self._breeder.drawn()
            genome = self._designs[genome.design].settled(genome)
            if genome not in self._lessons:
                found[genome] = None
            if len(found) == wanted:
                break
        genomes = list(found)
        if self._draft is None or not genomes:
            return genomes
        return [genomes[i] for i in self._draft.pick(self._encoder.rows(genomes), count, _EXPLORE)]

    def _replay(self, genomes: Sequence[Genome]) -> list[str]:
        """Replay new genomes, with features if there is a model for them, and return the keys of new programs."""
        schedules = {}
        for asked in genomes:
            design = self._designs[asked.design]
            genome = design.settled(asked)
            if genome in self._lessons:
                continue
            self._lessons[genome] = Lesson(failed=True)
            try:
                schedule, genome = design.apply(genome)
                if genome in self._lessons and self._lessons[genome].key:
                    continue
                why = post_processed(schedule, self._space)
            except Exception:  # noqa: BLE001, S112 - what cannot be applied is a lesson, and no candidate
                continue
            key = program_key(schedule.mod)
            if why:
                if key not in self._proposed:
                    self._proposed.add(key)
                    self._refused[key] = (genome, why)
                continue
            self._lessons[genome] = Lesson(key)
            if key not in self._proposed and key not in self._waiting:
                schedules[key] = schedule
                self._waiting[key] = genome
        if self._model.loaded:
            self._model.look(self._space.context, list(schedules.values()), list(schedules))
        return list(schedules)

    # -- lessons --------------------------------------------------------------------------------------------------

    def _refit(self, *, again: bool = False) -> None:
        genomes, targets, noise = self._known()
        if len(genomes) > _MOST_LESSONS:
            kept = most_telling(targets, _MOST_LESSONS)
            genomes, targets, noise = [genomes[i] for i in kept], targets[kept], noise[kept]
        if len(genomes) >= _LEAST_LESSONS:
            lengths = (self._draft.length,) if again and self._draft else LENGTHS
            self._draft = GaussianProcess(self._encoder.rows(genomes), targets, noise, self._background, lengths)

    def _elite(self) -> list[Genome]:
        genomes, targets, _ = self._known()
        return [genomes[i] for i in np.argsort(-targets, kind="stable")[:_ELITE]]

    def _known(self) -> tuple[list[Genome], Floats, Floats]:
        genomes = list(self._lessons)
        lessons = [self._lessons[genome] for genome in genomes]
        raced = np.array([-np.log(one.latency_s) if one.latency_s else np.nan for one in lessons], dtype=np.float64)
        scored = np.log(self._model.scores([one.key for one in lessons]))
        failed = np.array([one.failed for one in lessons], dtype=bool)
        noise = np.where([one.abandoned for one in lessons], _ABANDONED, _RACED)
        targets, noise = _blended(raced, noise, scored)
        if not np.isfinite(targets).any():
            return [], np.empty(0), np.empty(0)
        targets = np.where(failed & ~np.isfinite(targets), -np.inf, targets)
        targets = np.maximum(targets, np.nanmax(targets) - _SLOWEST)
        noise = np.where(failed, _FAILED, noise)
        kept = np.flatnonzero(np.isfinite(targets))
        return [genomes[i] for i in kept], targets[kept], noise[kept]

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        for told in results:
            key = told.candidate.key
            self._proposed.add(key)
            self._waiting.pop(key, None)
            genome = self._genome(told.candidate.body)
            if genome is None:
                continue
            lesson = self._lessons.get(genome, Lesson(key))
            if told.latency_s is not None and told.latency_s > 0:
                abandoned = told.outcome is not Outcome.OK
                self._lessons[genome] = replace(lesson, latency_s=told.latency_s, abandoned=abandoned)
            elif told.outcome is not Outcome.FILTERED:
                self._lessons[genome] = replace(lesson, failed=True)

    def _genome(self, body: str) -> Genome | None:
        """Return the genome of a body; None for another variant, or what earlier versions could propose."""
        try:
            name, trace = read_body(body)
        except DialectError:
            return None
        if trace is None or name != self._space.variant.name:
            return None
        found = (genome for design in self._designs if (genome := design.read(*trace)))
        return next(found, None)

    @override
    def learn(self, cost_model: str) -> None:
        self._model.load(cost_model)


def most_telling(targets: Floats, count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the best half of `count` lessons and of the latest of the others, in their order."""
    best = np.argsort(-targets, kind="stable")[: count // 2]
    others = np.setdiff1d(np.arange(len(targets)), best)
    return np.sort(np.concatenate([best, others[len(best) - count :]]))


def _blended(raced: Floats, noise: Floats, scored: Floats) -> tuple[Floats, Floats]:
    """Return the logarithms of speed that races and scores together suggest, and their variances; NaN if neither does.
    Scores are relative: they are moved to where the races are, and trusted as far as they agree with them."""
    both = np.isfinite(raced) & np.isfinite(scored)
    doubt = _SCORED
    if both.any():
        scored = scored + np.median(raced[both] - scored[both])
        doubt = max(_SCORED, (1.48 * float(np.median(np.abs(raced[both] - scored[both])))) ** 2)
    elif np.isfinite(raced).any():
        scored = np.full_like(scored, np.nan)
    weights = np.stack([np.isfinite(raced) / noise, np.isfinite(scored) / doubt])
    total = weights.sum(axis=0)
    known = total > 0
    sums = (weights * np.nan_to_num(np.stack([raced, scored]))).sum(axis=0)
    safe = np.where(known, total, 1.0)
    return np.where(known, sums / safe, np.nan), 1 / safe


class SingleProposer(Proposer):
    """For a task without a decision: the schedules of its variants, those of the last one first.

    A variant that fails is left out, and the candidates say why, unless it is the generic one. A `plain` one has
    that only.

    Raises:
        Exception: of whatever kind, where the generic program cannot be scheduled.
    """

    def __init__(
        self,
        task: Task,
        names: Iterable[str],
        history: Sequence[Observation],
        *,
        generic_only_reason: str | None = None,
    ) -> None:
        known = {told.candidate.key for told in history}
        found, left_out = dict[str, Candidate](), dict[str, str]()
        for name in reversed(list(names)):
            if generic_only_reason is not None and name != GENERIC:
                left_out[name] = generic_only_reason
                continue
            try:
                mine = _scheduled(task, space_of(task, name))
            except Exception as error:
                if name == GENERIC:
                    raise
                left_out[name] = reason_of(error)
                continue
            for candidate in mine:
                found.setdefault(candidate.key, candidate)
        self._left = [with_left_out(one, left_out) for key, one in found.items() if key not in known]

    @override
    def propose(self, n: int) -> list[Candidate]:
        chosen, self._left = self._left[:n], self._left[n:]
        return chosen

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        known = {told.candidate.key for told in results}
        self._left = [candidate for candidate in self._left if candidate.key not in known]


class TileProposer(Proposer):
    """Proposes the designs of variants from register tiles, those first that are predicted to be the fastest."""

    def __init__(self, task: Task, names: Sequence[str], history: Sequence[Observation] = ()) -> None:
        self._task = task
        self._bodies = [write_body(name, design) for name in names for design in variants(task).found[name].tiles]
        self._known = {told.candidate.key for told in history}

    @override
    def propose(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        while self._bodies and len(chosen) < n:
            candidate = identify(self._task, self._bodies.pop(0))
            if candidate.key not in self._known:
                chosen.append(candidate)
        self._known.update(candidate.key for candidate in chosen)
        return chosen

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        self._known.update(told.candidate.key for told in results)


def _scheduled(task: Task, space: DesignSpace) -> list[Candidate]:
    bodies = [trace_body(design.trace, space) for design in space.designs]
    return [Candidate(program_key(replay(space, body).mod), task.key, body) for body in bodies]
