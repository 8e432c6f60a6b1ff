"""What can be known of a job before it is queued."""

import math

from tunery._errors import UsageError
from tunery.accounting.meter import check_effort
from tunery.accounting.prices import load_prices
from tunery.dialects import check_dialect, named_dialect
from tunery.domain import MOST
from tunery.domain.closed_target import check_target
from tunery.domain.request import MOST_PRIORITY, MOST_SHAPES, Request, ShareRequest
from tunery.runtime.spec import RuntimeSpec
from tunery.scheduling import LEAST_WEIGHT, MOST_WEIGHT
from tunery.service.kinds import KINDS, options_of

_LARGEST_SEED, _LONGEST_LATENCY_S = 2**31 - 1, 1e6
_LONGEST_TEXT, _LONGEST_NAME, _LONGEST_OWNER = 1 << 16, 512, 128
_MOST_DIMENSIONS, _LARGEST_EXTENT = 32, 2**31 - 1


def check(request: Request, claim: ShareRequest) -> None:
    check_limits(request)
    options_of(request)
    check_dialects(request)
    if not request.on:  # else its host says how many cores it has
        for one in request.each_dialect:
            RuntimeSpec.of(one)
    if len(claim.owner) > _LONGEST_OWNER or not (claim.owner.isprintable() or not claim.owner):
        raise UsageError(f"the owner's name has more than {_LONGEST_OWNER} characters, or some that cannot be printed")
    if not 0 <= claim.priority <= MOST_PRIORITY:
        raise UsageError(f"priority {claim.priority} is not between 0 and {MOST_PRIORITY}")
    if not LEAST_WEIGHT <= claim.weight <= MOST_WEIGHT:
        raise UsageError(f"weight {claim.weight} is not between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}")


def check_dialects(request: Request) -> None:
    for name in filter(None, request.dialects):
        check_dialect(name)
    if len(request.dialects) == 1:
        return
    if len(set(request.dialects)) < len(request.dialects) or not all(request.dialects):
        raise UsageError(f"the dialects {request.dialect!r:.60} are not names joined by commas, each of them once")
    if not KINDS[request.kind].several_dialects:
        raise UsageError(
            f"a job of the kind {request.kind} is of one dialect; name one of {', '.join(request.dialects)}"
        )
    if request.more_shapes:
        raise UsageError("a file is for several shapes, or the fastest of several dialects; name one --dialect")
    if request.on:
        raise UsageError(f"several dialects are compared on this machine; name one --dialect for host {request.on}")


def check_limits(request: Request) -> None:
    check_effort(request.effort)
    limits = {kind: getattr(request.budget, kind) for kind in MOST}
    if any(limit is not None and not 0 < limit <= MOST[kind] for kind, limit in limits.items()):
        raise UsageError(
            "the budget has a limit that is not positive and finite, or too large to limit; write for example 10min"
        )
    if request.latency_target_s is not None and not 0 < request.latency_target_s <= _LONGEST_LATENCY_S:
        raise UsageError(f"a latency target of {request.latency_target_s:g} s cannot be met; write for example 12ms")
    if not 0 <= request.seed <= _LARGEST_SEED:
        raise UsageError(f"the seed is not between 0 and {_LARGEST_SEED}")
    check_target(request.target)
    for name, text in (("model", request.model), ("target", request.target), ("price sheet", request.prices)):
        _check_text(name, text)
    _check_name(request.model)
    if len(request.more_shapes) >= MOST_SHAPES:
        raise UsageError(f"a request has at most {MOST_SHAPES} bindings of shapes; give --shape fewer values")
    if request.more_shapes and named_dialect(request.model):
        raise UsageError(f"{request.model[:60]!r} has no shapes to choose from; leave out --shape")
    for shapes in (request.shapes, *request.more_shapes):
        for name, shape in shapes.items():
            _check_shape(name, shape)
    load_prices(request.prices).check(request.budget)


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    _check_text("name of an input", name)
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=1) < 1 or max(shape, default=1) > _LARGEST_EXTENT:
        raise UsageError(
            f"the shape of {name[:60]!r} has more than {_MOST_DIMENSIONS} sizes, or one that is not between 1 and "
            f"{_LARGEST_EXTENT}; write for example 1x3x224x224"
        )
    if math.prod(shape) > _LARGEST_EXTENT:
        raise UsageError(f"the shape of {name[:60]!r} has more than {_LARGEST_EXTENT} elements; write a smaller one")


def _check_text(name: str, text: str) -> None:
    if len(text) > _LONGEST_TEXT or "\0" in text:
        raise UsageError(f"the {name} is longer than {_LONGEST_TEXT} characters, or has one that nothing can keep")


def _check_name(model: str) -> None:
    """Refuse what a record's network cannot be called; a file's name is made fit where it is read. What follows a
    question mark are a source's options, which are no part of the name."""
    if named_dialect(model) and (len(model.partition("?")[0]) > _LONGEST_NAME or not model.isprintable()):
        raise UsageError(
            f"the model's name {model[:60]!r} has more than {_LONGEST_NAME} characters, or some that cannot be "
            "printed; name it in plain text"
        )


def check_model(model: str) -> None:
    if named_dialect(model) is None:
        from tunery.models import check as check_name  # loads what reads models

        check_name(model)
