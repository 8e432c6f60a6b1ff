"""Several programs for one workload: the search may choose by measurement which of them computes it. The generic
variant is the workload's own program. An alternative takes the same arguments, some of them (constants: weights)
transformed beforehand; its candidates name it in their bodies."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects import Observation, Proposer
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.preparing import POOLS, TILES
from tunery.dialects.metaschedule.reasons import OtherKindError, reason_of
from tunery.dialects.metaschedule.tiles import winograd
from tunery.dialects.metaschedule.tiles.depthwise import (
    depthwise_of,
    fits_strip,
    lanes_for,
    strip_designs,
    strip_program,
)
from tunery.dialects.metaschedule.tiles.designs import TileDesign, designs_of, fits_tile, registers_of, vector_of
from tunery.dialects.metaschedule.tiles.products import product_of
from tunery.dialects.metaschedule.tiles.program import packed_shape, program_of
from tunery.dialects.metaschedule.variants import (
    concatenations,
    dots,
    nibbles,
    place_sums,
    rows,
    transposes,
)
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.domain import Candidate

GENERIC = "generic"
CHANNELS_LAST = "channels-last"
REMARK = "tunery.left_out"
"""Attribute of a workload's module: which rules for whole networks its own does without, and why, as JSON."""


@dataclass(frozen=True)
class Variant:
    """One program for a workload. `transforms` names the transformation of each argument (by index) that is not passed
    as it is; `design` writes the design space (None: MetaSchedule's own rules); `slack` is how many times the usual
    tolerance its rounding may need; `packed` says that its weights lie as it reads them."""

    name: str
    module: Any
    transforms: Mapping[int, str] = field(default_factory=dict)
    design: Callable[[Any], list[Any]] | None = None
    slack: float = 1.0
    packed: bool = False
    tiles: Sequence[Sequence[int]] = ()
    written: Callable[[Sequence[int]], Any] | None = None


@dataclass(frozen=True)
class Variants:
    """A workload's variants by name, the generic one first; `left_out` says why others do not apply. It also says, as
    `channels-last`, why the workload is a convolution of another layout, and by name which rules for whole networks
    failed."""

    found: Mapping[str, Variant]
    left_out: Mapping[str, str]


def variants_of(module: Any, target: Any) -> Variants:
    """Return every variant known for a one-function module. What is meant for programs of its kind and cannot be
    written for it is left out, with the reason."""
    left_out = dict[str, str]()
    if remark := module.get_attr(REMARK):
        left_out.update(_remarks(str(remark)))
        module = tvm.IRModule({"main": module["main"]})  # keys know nothing of the remark
    found = {GENERIC: generic(module, target)}
    for name, make in _ALTERNATIVES.items():
        try:
            variant = make(module, target)
        except OtherKindError:
            continue
        except Exception as error:  # noqa: BLE001 - a rule that cannot handle a program must not cost the program
            left_out[name] = reason_of(error)
            continue
        if variant is not None:
            found[name] = variant
    return Variants(found, left_out)


def generic(module: Any, target: Any) -> Variant:
    """Return a workload's own program as a variant; one of products of 4 bits is scheduled by us alone. MetaSchedule's
    own rules have 81 designs for its four reductions, which took 15 s to prepare."""
    design = nibbles.designs(module, target)
    return Variant(GENERIC, module, design=design, packed=design is not None)


def _remarks(text: str) -> dict[str, str]:
    """Return what a network was lowered without; stores keep programs of earlier versions, which say it of one rule."""
    return dict(json.loads(text)) if text.startswith("{") else {CHANNELS_LAST: text}


def _winograd(module: Any, target: Any) -> Variant:
    one = winograd.winograd_of(module)
    lanes = vector_of(winograd.products_of(one, 1), target)
    designs = winograd.square_designs(one, target, int(target.attrs["num-cores"]))
    transforms = {one.parts.weight: winograd.transform_of(one, lanes)}
    return _written(
        Variant(winograd.NAME, module, transforms, slack=winograd.SLACK), designs, target, fits_tile,
        lambda design: winograd.square_program(one, design, lanes),
    )  # fmt: skip


def _written(
    variant: Variant, designs: Sequence[TileDesign], target: Any, fits_in: Callable[[TileDesign, int], bool],
    program: Callable[[TileDesign], Any],
) -> Variant:  # fmt: skip
    """Return a variant whose programs are written from the numbers of a design."""

    def written(numbers: Sequence[int]) -> Any:
        design = TileDesign(*numbers)
        if min(numbers) < 1 or not fits_in(design, registers_of(target)):
            raise DialectError(f"a tile of {design.rows} x {design.vectors} does not fit this target")
        return program(design)

    return replace(variant, tiles=[astuple(design) for design in designs], written=written)


def _dots(module: Any, target: Any) -> Variant | None:
    packed = dots.rewrite(module, target)
    return Variant(dots.NAME, packed.module, packed.transforms, dots.designs(packed.module, target)) if packed else None


def _own_space(name: str, designs: Any, module: Any, target: Any) -> Variant | None:
    design = designs(module, lanes_of(target))
    return design and Variant(name, module, design=design)


def _pools(module: Any, target: Any) -> Variant | None:
    found = place_sums.pool_lengths(module, lanes_of(target))
    designs = [TileDesign(1, length, 1, 1) for length in found]
    return _written(
        Variant(POOLS, module), designs, target, lambda design, _: design.vectors in found,
        lambda design: place_sums.pool_program(module, design.vectors),
    ) if found else None  # fmt: skip


def _concatenation(module: Any, target: Any) -> Variant | None:
    parts = concatenations.rewrite(module, lanes_of(target))
    return parts and Variant(concatenations.NAME, parts, design=_as_it_is)


def _rows(module: Any, target: Any) -> Variant | None:
    program = rows.rewrite(module, lanes_of(target))
    return program and Variant(rows.NAME, program, design=rows.designs)


def _transposes(module: Any, target: Any) -> Variant:  # noqa: ARG001 - as the others
    return Variant(transposes.NAME, transposes.rewrite(module), design=_as_it_is)


def _tiles(module: Any, target: Any) -> Variant | None:
    threads = int(target.attrs["num-cores"])
    try:
        product = product_of(module)
    except OtherKindError:
        convolution = depthwise_of(module)
        lanes = lanes_for(convolution, target)
        return _written(
            Variant(TILES, module), strip_designs(convolution, target, threads), target,
            partial(fits_strip, convolution), lambda design: strip_program(convolution, design, lanes),
        )  # fmt: skip
    lanes = vector_of(product, target)
    shape = packed_shape(product, lanes)
    transforms = {product.parts.weight: f"{TILES}{shape[0]}x{product.groups}x{lanes}"} if product.constant else {}
    return _written(
        Variant(TILES, module, transforms), designs_of(product, target, threads), target, fits_tile,
        lambda design: program_of(product, design, lanes),
    )  # fmt: skip


def _as_it_is(schedule: Any) -> list[Any]:
    return [schedule]


_ALTERNATIVES: Mapping[str, Callable[[Any, Any], Variant | None]] = {
    winograd.NAME: _winograd,
    dots.NAME: _dots,
    place_sums.NAME: partial(_own_space, place_sums.NAME, place_sums.designs),
    POOLS: _pools,
    concatenations.NAME: _concatenation,
    rows.NAME: _rows,
    transposes.NAME: _transposes,
    TILES: _tiles,
    transposes.SHUFFLES: partial(_own_space, transposes.SHUFFLES, transposes.shuffle_designs),
}


def write_body(variant: str, trace: Sequence[Any]) -> str:
    data = trace if variant == GENERIC else {"expression": variant, "trace": trace}
    return json.dumps(data, separators=(",", ":"))


def read_body(body: str) -> tuple[str, Any]:
    """Return a body's variant and its trace as JSON data, None for programs that a body names by a word or nothing."""
    try:
        data = json.loads(body) if body.startswith(("[", "{")) else None
        return (str(data["expression"]), data["trace"]) if isinstance(data, dict) else (GENERIC, data)
    except (ValueError, KeyError, RecursionError) as error:
        raise DialectError(f"this is not a candidate's body: {error}") from error


def with_left_out(candidate: Candidate, left_out: Mapping[str, str]) -> Candidate:
    """Return the candidate with a body that says which variants its search did without, and why; itself if none."""
    if not left_out:
        return candidate
    name, trace = read_body(candidate.body)
    data = {"expression": name, "trace": trace, "left_out": dict(left_out)}
    return replace(candidate, body=json.dumps(data, separators=(",", ":")))


def read_left_out(body: str) -> dict[str, str]:
    return dict(json.loads(body).get("left_out", {})) if body.startswith("{") else {}


class ReducedProposer(Proposer):
    """A search without some variants that the workload has; its candidates say which, and why."""

    def __init__(self, search: Proposer, left_out: Mapping[str, str]) -> None:
        self._search, self._left_out = search, left_out

    @override
    def propose(self, n: int) -> list[Candidate]:
        return [with_left_out(candidate, self._left_out) for candidate in self._search.propose(n)]

    @override
    def refused(self) -> list[tuple[Candidate, str]]:
        return self._search.refused()

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        self._search.observe(results)

    @override
    def learn(self, cost_model: str) -> None:
        self._search.learn(cost_model)
