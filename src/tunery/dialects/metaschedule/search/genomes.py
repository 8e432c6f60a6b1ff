"""Candidates as their decisions alone: drawn, changed and compared in microseconds, before anything is replayed."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.program import DesignSpace, trace_body
from tunery.dialects.metaschedule.variants.variant import read_body, write_body

TILE, CATEGORY, LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
INLINE, ROOT = -2, -1  # TVM's marks among compute locations; others count the first consumer's loops
_PROBES, _MOST_PROBES = 4, 12  # more where two rules fit what the first have shown
_REDUCTION_LEVELS = 2  # tiles of spatial axes have four


@dataclass(frozen=True, slots=True)
class Genome:
    """A design of a space, and one choice per sampling instruction of its trace: factors, or one number."""

    design: int
    choices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Gene:
    """What may be chosen at one sampling instruction. Of a tile, `extent` is the product of its `levels` factors,
    unless an earlier tile's factor decides that: `source` is that gene, the factor's place and the multiple. Of
    another, `values` are the choices; of a compute location, `loops` says whose factor (gene and place) is the extent
    of each loop, None where that is one."""

    kind: str
    levels: int = 1
    extent: int = 1
    innermost: int = 1
    values: tuple[int, ...] = ()
    source: tuple[int, int, int] | None = None
    loops: tuple[tuple[int, int] | None, ...] = ()


class Design:
    """One design of a space: its trace, with its sampling instructions as genes."""

    def __init__(self, number: int, trace: Any, space: DesignSpace) -> None:
        self._trace = trace.simplified(remove_postproc=True)
        self._insts = list(self._trace.insts)
        self._samples = [i for i, inst in enumerate(self._insts) if str(inst.kind.name).startswith("Sample")]
        self._number, self._space = number, space
        self._shortcuts: dict[tuple[tuple[int, int], ...], list[Any]] = {}
        self._loops: dict[int, tuple[int, int]] = {}  # consumers, and loops of the first, where a location is chosen
        kinds = [str(self._insts[at].kind.name) for at in self._samples]
        self._settles = kinds.count(LOCATION) == 1  # of several, each decides what the next one may be

    @cached_property
    def outline(self) -> tuple[Gene, ...]:
        """The genes without what a compute location may be, which takes as long to find as all else of them."""
        return self._find_outline()

    @cached_property
    def genes(self) -> tuple[Gene, ...]:
        return tuple(
            self._location(at) if gene.kind == LOCATION else gene
            for at, gene in zip(self._samples, self.outline, strict=True)
        )

    @cached_property
    def _written(self) -> list[Any]:
        written: list[Any] = read_body(trace_body(self._trace, self._space))[1][0]
        return written

    @cached_property
    def _plain(self) -> Any:
        return tvm.s_tir.Schedule(self._space.module, error_render_level="none")

    def settled(self, genome: Genome) -> Genome:
        """Return the genome as TVM reads it. For a compute location it takes the innermost loop up to the one asked for
        that runs more than once and is not a spatial loop inside a reduction."""
        genes = self.genes  # first: they tell whether it settles
        if not self._settles:
            return genome
        choices = list(genome.choices)
        for number, gene in enumerate(genes):
            if gene.kind == LOCATION and choices[number][0] >= 0:
                choices[number] = (self._loop(gene, choices, choices[number][0]),)
        return Genome(genome.design, tuple(choices))

    def _loop(self, gene: Gene, choices: Sequence[tuple[int, ...]], wanted: int) -> int:
        found, reducing = ROOT, False
        for place, loop in enumerate(gene.loops[: wanted + 1]):
            if loop is None or choices[loop[0]][loop[1]] == 1:
                continue
            reduced = self.genes[loop[0]].levels == _REDUCTION_LEVELS
            if reducing and not reduced:
                break
            reducing = reducing or reduced
            if place in gene.values:
                found = place
        return found

    def apply(self, genome: Genome) -> tuple[Any, Genome]:
        """Return the schedule with a settled genome's choices, without post-processing, and what TVM made of them."""
        schedule = self._plain.copy()
        places = tuple(
            (at, choice[0])
            for at, gene, choice in zip(self._samples, self.genes, genome.choices, strict=True)
            if gene.kind == LOCATION and self._settles
        )
        if places not in self._shortcuts:
            self._shortcuts[places] = self._shortcut(dict(places))
        decided = {
            self._insts[at]: list(choice) if gene.kind == TILE else choice[0]
            for at, gene, choice in zip(self._samples, self.genes, genome.choices, strict=True)
            if gene.kind != LOCATION or not self._settles
        }
        tvm.s_tir.schedule.Trace(self._shortcuts[places], decided).apply_to_schedule(schedule, True)
        if self._settles or not any(gene.kind == LOCATION for gene in self.genes):
            return schedule, genome
        return schedule, Genome(genome.design, tuple(self._decisions(schedule.trace)))

    def _shortcut(self, places: Mapping[int, int]) -> list[Any]:
        """Return the instructions with compute locations named, not sampled. On replay, TVM checks a sampled location
        against all others that were possible, which took 4.5 of the 5.5 ms of a convolution's trace."""
        make, kind = tvm.s_tir.schedule.Instruction, tvm.s_tir.schedule.InstructionKind.get
        done: list[Any] = []
        moved: dict[Any, int] = {}
        for at, inst in enumerate(self._insts):
            if at in places:
                block, target = inst.inputs[0], inst.outputs[0]
                moved[target] = places[at]
                if places[at] >= 0:
                    consumers = [tvm.s_tir.schedule.SBlockRV() for _ in range(self._loops[at][0])]
                    loops = [tvm.s_tir.schedule.LoopRV() for _ in range(self._loops[at][1])]
                    loops[places[at]] = target
                    done.append(make(kind("GetConsumers"), [block], [], consumers))
                    done.append(make(kind("GetLoops"), consumers[:1], [], loops))
            elif str(inst.kind.name) == "ComputeAt" and moved.get(inst.inputs[1], 0) < 0:
                if moved[inst.inputs[1]] == INLINE:
                    done.append(make(kind("ComputeInline"), inst.inputs[:1], [], []))
            else:
                done.append(inst)
        return done

    def body(self, genome: Genome) -> str:
        """Return the candidate's body: the same text as `trace_body` of the replayed trace."""
        decisions = [
            [at, list(choice) if gene.kind == TILE else choice[0]]
            for at, gene, choice in zip(self._samples, self.genes, genome.choices, strict=True)
        ]
        return write_body(self._space.variant.name, [self._written, decisions])

    def read(self, instructions: Sequence[Any], decisions: Sequence[Sequence[Any]]) -> Genome | None:
        if list(instructions) != self._written or [at for at, _ in decisions] != self._samples:
            return None
        choices = (tuple(value) if isinstance(value, list) else (value,) for _, value in decisions)
        return Genome(self._number, tuple(choices))

    # -- genes ----------------------------------------------------------------------------------------------------

    def _find_outline(self) -> tuple[Gene, ...]:
        tried = [self._decisions(self._trace)]
        if self._space.variant.design is not None:  # our own designs tile what earlier tiles left
            rng = random.Random(0)  # noqa: S311
            while len(tried) <= _PROBES or (len(tried) <= _MOST_PROBES and self._ambiguous(tried)):
                guess = {
                    self._insts[at]: list(rng.choice(tilings(math.prod(factors), len(factors), math.prod(factors))))
                    for at, factors in zip(self._samples, tried[-1], strict=True)
                }
                schedule = self._plain.copy()
                tvm.s_tir.schedule.Trace(self._insts[: self._samples[-1] + 1], guess).apply_to_schedule(schedule, True)
                tried.append(self._decisions(schedule.trace))
        return tuple(self._gene(number, tried) for number in range(len(self._samples)))

    def _decisions(self, trace: Any) -> list[tuple[int, ...]]:
        found = (trace.decisions[inst] for inst in trace.insts if str(inst.kind.name).startswith("Sample"))
        return [(int(v),) if isinstance(v, int) or not hasattr(v, "__len__") else tuple(map(int, v)) for v in found]

    def _ambiguous(self, tried: Sequence[Sequence[tuple[int, ...]]]) -> bool:
        """Return whether more than one rule explains the extents of a tile in all that was tried. An extent that never
        changed may still be a factor's that has not changed yet."""
        for number, factors in enumerate(tried[0]):
            steady = len({math.prod(one[number]) for one in tried}) == 1
            if len(factors) > 1 and len(_sources(number, tried)) + steady > 1:
                return True
        return False

    def _gene(self, number: int, tried: Sequence[Sequence[tuple[int, ...]]]) -> Gene:
        at = self._samples[number]
        inst = self._insts[at]
        if str(inst.kind.name) == CATEGORY:
            return Gene(CATEGORY, values=tuple(range(len(inst.attrs[0]))))
        if str(inst.kind.name) == LOCATION:
            return Gene(LOCATION)
        if str(inst.kind.name) != TILE:
            raise DialectError(f"a search cannot choose for {inst.kind.name}")
        extents = [math.prod(one[number]) for one in tried]
        levels, innermost = (int(value) for value in inst.attrs)
        if len(set(extents)) == 1:
            return Gene(TILE, levels, extents[0], innermost)
        if not (found := _sources(number, tried)):
            raise DialectError("the extent of a tile follows no rule that is known")
        return Gene(TILE, levels, max(extents), innermost, source=found[0])

    def _location(self, at: int) -> Gene:
        """Return the gene of a compute location; the possible ones are found by trying."""
        before = tvm.s_tir.Schedule(self._space.module, seed=1, error_render_level="none")
        made = [self._insts[i] for i in self._samples if i < at]
        decisions = {inst: self._trace.decisions[inst] for inst in made}
        tvm.s_tir.schedule.Trace(self._insts[:at], decisions).apply_to_schedule(before, True)
        twins = self._twins(before, at)
        block = twins[self._insts[at].inputs[0]]
        found = [INLINE] if _possible(before, lambda schedule: schedule.compute_inline(block)) else []
        found.append(ROOT)
        consumers = before.get_consumers(block)
        loops = before.get_loops(consumers[0]) if consumers else []
        self._loops[at] = len(consumers), len(loops)
        known = self._factors(before, twins, at)
        srefs = [before.get_sref(loop) for loop in loops]
        factors = [next((place for other, place in known if other.same_as(sref)), None) for sref in srefs]
        for place, loop in enumerate(loops):
            factor = factors[place]
            if factor is None and int(before.get(loop).extent) > 1:
                self._settles = False
            if _possible(before, lambda schedule, loop=loop: schedule.compute_at(block, loop, True)):  # type: ignore[misc]
                found.append(place)
        return Gene(LOCATION, values=tuple(found), loops=tuple(factors))

    def _factors(self, schedule: Any, twins: Mapping[Any, Any], at: int) -> list[tuple[Any, tuple[int, int]]]:
        """Return the loops of a schedule whose extents are factors of tiles, with the tile's gene and the place."""
        places = {
            out: (gene, place)
            for gene, sample in enumerate(self._samples)
            for place, out in enumerate(self._insts[sample].outputs)
        }
        found = []
        for inst in self._insts[:at]:
            if str(inst.kind.name) == "Split":
                for out, factor in zip(inst.outputs, inst.inputs[1:], strict=False):
                    with suppress(Exception):  # a loop that is no more
                        if factor in places:
                            found.append((schedule.get_sref(twins[out]), places[factor]))
        return found

    def _twins(self, schedule: Any, at: int) -> dict[Any, Any]:
        """Return what each output of the first instructions is called in a schedule they were applied to."""
        return {
            ours: theirs
            for mine, other in zip(self._insts[:at], schedule.trace.insts, strict=True)
            for ours, theirs in zip(mine.outputs, other.outputs, strict=True)
        }


class Genes(Sequence[tuple[Gene, ...]]):
    """The genes of several designs, each found when it is asked for."""

    def __init__(self, designs: Sequence[Design]) -> None:
        self._designs = designs

    def __len__(self) -> int:
        return len(self._designs)

    def __getitem__(self, number: Any) -> Any:
        return self._designs[number].genes


def _sources(number: int, tried: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, int, int]]:
    """Return the factors of earlier tiles (gene, place, multiple) that a tile's extent has followed in all of them.
    Factors of a tile that has but one form never change, and decide nothing."""
    extents = [math.prod(one[number]) for one in tried]
    found = []
    for gene in range(number):
        if all(math.prod(one[gene]) == 1 for one in tried):
            continue
        for place in range(len(tried[0][gene])):
            factors = [one[gene][place] for one in tried]
            times = extents[0] // factors[0]
            if times and all(extent == times * factor for extent, factor in zip(extents, factors, strict=True)):
                found.append((gene, place, times))
    return found


def _possible(schedule: Any, act: Callable[[Any], None]) -> bool:
    try:
        act(schedule.copy())
    except Exception:  # noqa: BLE001 - TVM says so with errors of many kinds
        return False
    return True


@lru_cache(maxsize=4096)
def tilings(extent: int, levels: int, innermost: int) -> tuple[tuple[int, ...], ...]:
    if levels == 1:
        return ((extent,),) if extent <= innermost else ()
    return tuple(
        (factor, *rest) for factor in divisors(extent) for rest in tilings(extent // factor, levels - 1, innermost)
    )


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))
