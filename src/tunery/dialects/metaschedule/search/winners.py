"""What was fastest for tasks that were tuned before: for a like task it is a start that no model's guess matches. A
winner is kept as its genome with the extents it was found for, and fitted to the extents of another task. What ships
was tuned on one kind of device and is for devices with vectors of the same length (docs/decisions/009)."""

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import islice

from tunery.dialects.metaschedule.search.breeding import extent_of
from tunery.dialects.metaschedule.search.genomes import LOCATION, ROOT, TILE, Design, Gene, Genome, divisors
from tunery.dialects.metaschedule.variants.program import space_of, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body
from tunery.domain import Task, digest

Designs = Sequence[Sequence[Gene]]

_FORMAT = 1
_KEPT = 4  # genomes of a variant
_CLOSE = 1.1  # times the fastest: what is slower was no winner
_REACH = 6.0  # logarithms of extents, in all, beyond which a task is not like another
_WHOLE = (4, 8, 16, 32, 64)
_VOTERS, _VOTERS_REACH = 5, 1.0
_MOST_BEHIND = 4.0  # times: how far behind a loser was is not worth knowing


@dataclass(frozen=True, slots=True)
class TaskSignature:
    """Where a task lies among those that genomes can be taken over from: same structure, near extents."""

    structure: str
    extents: tuple[int, ...]

    def distance(self, other: "TaskSignature") -> float:
        """Return the sum of the differences of the extents' logarithms, infinite between different structures."""
        if self.structure != other.structure:
            return math.inf
        return sum(abs(math.log(x / y)) for x, y in zip(self.extents, other.extents, strict=True))


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest genomes of one variant of a task, at its place among that variant's. `home` is the task's place by
    its generic program; `behind` is the fastest's latency, in those of the fastest of all variants."""

    home: TaskSignature
    variant: str
    place: TaskSignature
    behind: float
    genomes: tuple[Genome, ...]


class Winners:
    """Winners of many tasks."""

    def __init__(self, winners: Iterable[Winner]) -> None:
        self._by_structure: dict[str, list[Winner]] = {}
        self._homes: dict[TaskSignature, dict[str, float]] = {}
        for winner in winners:
            self._by_structure.setdefault(winner.place.structure, []).append(winner)
            self._homes.setdefault(winner.home, {})[winner.variant] = winner.behind

    def near(self, place: TaskSignature, designs: Designs, count: int) -> dict[Genome, int]:
        """Return up to `count` genomes that won near a place, the nearest first, fitted to these designs. Each comes
        with the number of the task that it is of. Near ones of one task are mostly much alike. Those of tasks twice as
        far as `_REACH` are among them where there is a nearer one."""
        known = [
            (winner.place.distance(place), winner)
            for winner in self._by_structure.get(place.structure, ())
            if winner.behind < _CLOSE
        ]
        known.sort(key=lambda one: one[0])
        if not known or known[0][0] > _REACH:
            return {}
        found: dict[Genome, int] = {}
        for number, (distance, winner) in enumerate(known):
            if distance > 2 * _REACH or len(found) >= count:
                break
            for genome in winner.genomes:
                found.setdefault(fitted(genome, designs[genome.design]), number)
        return dict(islice(found.items(), count))

    def know(self, place: TaskSignature) -> bool:
        return any(
            winner.place == place and winner.behind < _CLOSE for winner in self._by_structure.get(place.structure, ())
        )

    def lead(self, home: TaskSignature, variant: str, other: str) -> float | None:
        """Return the expected logarithm of `other`'s latency over `variant`'s, None if no like task had both."""
        both = [
            (home.distance(place), behind[variant], behind[other])
            for place, behind in self._homes.items()
            if variant in behind and other in behind and place.structure == home.structure
        ]
        votes = [
            (math.exp(-distance / _VOTERS_REACH), math.log(min(b, _MOST_BEHIND) / min(a, _MOST_BEHIND)))
            for distance, a, b in sorted(both)[:_VOTERS]
        ]
        total = sum(weight for weight, _ in votes)
        return sum(weight * vote for weight, vote in votes) / total if total else None


def place_of(kind: str, variant: str, designs: Designs) -> TaskSignature:
    """Return the place of a task's variant: the structure says whether a genome of another can be fitted."""
    shape = tuple(tuple((gene.kind, gene.levels, gene.source) for gene in genes) for genes in designs)
    extents = tuple(gene.extent for genes in designs for gene in genes if gene.kind == TILE)
    return TaskSignature(digest(kind, variant, repr(shape)), extents)


def winners_of(task: Task, measured: Iterable[tuple[str, float]]) -> list[Winner]:
    """Return the winner of each variant of a tunable task, given the bodies and latencies of its candidates."""
    best: dict[str, list[tuple[float, Genome]]] = {}
    designs: dict[str, list[Design]] = {}

    def designs_of(name: str) -> list[Design]:
        if name not in designs:
            space = space_of(task, name)
            designs[name] = [Design(number, one.trace, space) for number, one in enumerate(space.designs)]
        return designs[name]

    def place(name: str) -> TaskSignature:
        return place_of(task.workload.kind, name, [design.genes for design in designs_of(name)])

    for body, latency_s in sorted(measured, key=lambda one: one[1]):
        name, trace = read_body(body) if body else (GENERIC, None)
        mine = best.setdefault(name, []) if trace is not None and name in variants(task).found else None
        if trace is None or mine is None or len(mine) == _KEPT or (mine and latency_s > _CLOSE * mine[0][0]):
            continue
        genome = next((found for design in designs_of(name) if (found := design.read(*trace))), None)
        if genome:
            mine.append((latency_s, genome))
    fastest = min((found[0][0] for found in best.values() if found), default=math.nan)
    return [
        Winner(place(GENERIC), name, place(name), round(found[0][0] / fastest, 3), tuple(genome for _, genome in found))
        for name, found in best.items()
        if found
    ]


@lru_cache(maxsize=1)
def shipped(lanes: int) -> Winners:
    """Return the winners that ship for vectors of so many floats; there may be none."""
    file = files("tunery.dialects.metaschedule") / "data" / f"winners-{32 * lanes}.json.gz"
    return Winners(loads(file.read_bytes()) if file.is_file() else ())


def dumps(winners: Iterable[Winner], card: Mapping[str, object]) -> bytes:
    whole = {"format": _FORMAT, **card, "winners": [_data(winner) for winner in winners]}
    return gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), 9, mtime=0)


def _data(winner: Winner) -> dict[str, object]:
    data = asdict(winner)
    return {"expression": data.pop("variant"), **data}  # as files of earlier versions call it


def loads(data: bytes) -> list[Winner]:
    whole = json.loads(gzip.decompress(data))
    if whole["format"] != _FORMAT:
        raise ValueError(f"winners of format {whole['format']}, not {_FORMAT}")
    return [
        Winner(
            _read_place(one["home"]),
            one["expression"],
            _read_place(one["place"]),
            one["behind"],
            tuple(Genome(each["design"], tuple(map(tuple, each["choices"]))) for each in one["genomes"]),
        )
        for one in whole["winners"]
    ]


def _read_place(data: Mapping[str, object]) -> TaskSignature:
    return TaskSignature(str(data["structure"]), tuple(data["extents"]))  # type: ignore[arg-type]


# -- genomes of other extents ------------------------------------------------------------------------------------------


def fitted(genome: Genome, genes: Sequence[Gene]) -> Genome:
    """Return a genome of another task with its tiles fitted to these extents, its other choices where they exist."""
    choices: list[tuple[int, ...]] = []
    for gene, choice in zip(genes, genome.choices, strict=True):
        if gene.kind == TILE:
            choices.append(fitted_tile(choice, extent_of(gene, choices), gene.innermost))
        elif choice[0] in gene.values:
            choices.append(choice)
        else:
            choices.append((ROOT if gene.kind == LOCATION else gene.values[-1],))
    return Genome(genome.design, tuple(choices))


def fitted_tile(factors: Sequence[int], extent: int, innermost: int) -> tuple[int, ...]:
    """Return factors of `extent` near the given ones, the inner ones first; the outermost takes what is left.

    Where the innermost is a whole number of vectors, so is the new one: of 48 floats in one operation the compiler
    makes eight times slower code than of 16.

    >>> fitted_tile((7, 1, 2, 4), 28, 64), fitted_tile((1, 1, 2, 64), 144, 64)
    ((7, 1, 1, 4), (3, 1, 3, 16))
    """
    left, inner = extent, []
    for place, factor in enumerate(reversed(factors[1:])):
        fitting = [d for d in divisors(left) if place or d <= innermost]
        if place == 0 and factor in _WHOLE:
            fitting = [d for d in fitting if d in _WHOLE] or fitting
        inner.append(min(fitting, key=lambda d: abs(math.log(d / factor))))
        left //= inner[-1]
    return (left, *reversed(inner))
