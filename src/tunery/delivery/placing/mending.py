"""A compiled network that computes something else: the operators at fault are found, and run in ONNX Runtime."""

import time
from collections.abc import Mapping

from tunery._errors import DialectError, EngineError
from tunery.delivery.comparing.compare import SEED, Expected
from tunery.delivery.linking import LinkedNetwork, Linker
from tunery.delivery.placing.judging import Judged, is_right, judge
from tunery.engines import Role
from tunery.runtime.importing import ImportedModel

_ROUNDS = 5
_DEADLINE_S = 300.0
_LONGEST_S = 120.0
_AT_FAULT = "with it in place the compiled network computes something else"


async def mended(linker: Linker, made: LinkedNetwork, judged: Judged, theirs: Expected) -> tuple[LinkedNetwork, Judged]:
    """Return a network with the operators at fault in ONNX Runtime, and what it is like; or the one that was given.

    First each operator is tried on what ONNX Runtime gives it. If all are right so, it is the compiler's work on
    several of them: then the first node is looked for up to which the network must be left to ONNX Runtime. What helps
    is stored, so that nobody tunes these operators. What was an accident is right the second time.
    """
    imported, began, tried, first = await linker.work.model(), time.monotonic(), made, judged
    for _ in range(_ROUNDS):
        try:
            found = await _differing(linker, imported, judged.number, theirs.given) or await _first_fault(
                linker, imported, theirs.only(judged.number), began
            )
            if found is None:
                break
            if found:
                imported = await linker.placed(imported, {**imported.elsewhere, **found})
                tried = await linker.compile(imported)
            verdict = await judge(linker.work, tried, theirs)
        except (DialectError, EngineError):
            break
        judged = verdict
        if not verdict.wrong:
            if tried is not made:
                await linker.work.settle(imported)
            return tried, verdict
    return made, first


async def _differing(linker: Linker, imported: ImportedModel, number: int, given: str) -> Mapping[str, str]:
    work, about = linker.work, (imported.network, imported.target, SEED, number, given)
    try:
        async with work.stage("check", Role.IMPORTER) as grant:
            found: dict[str, str] = await work.runtime.call(grant.worker, "differing", *about, deadline_s=_DEADLINE_S)
    except (DialectError, EngineError):  # they cannot be tried
        return {}
    return found


async def _first_fault(
    linker: Linker, imported: ImportedModel, theirs: Expected, began: float
) -> Mapping[str, str] | None:
    """Return the first node that makes the network wrong if all after it run in ONNX Runtime, and all before it do not.

    Found by halves, each half compiled. Nothing if it is right with all of them; None if no node is found.
    """
    nodes = await linker.nodes(imported.network)
    native = [node.label for node in nodes if node.label not in imported.elsewhere]

    async def is_right_with(count: int) -> bool:
        others = dict.fromkeys(native[count:], _AT_FAULT)
        placed = await linker.placed(imported, {**imported.elsewhere, **others})
        made = await linker.compile(placed, filled=False)
        return await is_right(linker.work, made, theirs)

    right, wrong = 0, len(native)  # with so many of the first nodes compiled it is right, or wrong
    while wrong - right > 1:
        if time.monotonic() - began > _LONGEST_S:
            return None
        count = (right + wrong) // 2
        if await is_right_with(count):
            right = count
        else:
            wrong = count
    if not native:
        return None
    if wrong == len(native) and await is_right_with(wrong):
        return {}
    return {native[right]: _AT_FAULT}
