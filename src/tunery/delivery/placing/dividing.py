"""A network that is slower than ONNX Runtime: the parts that lose are handed over, and what that gives is measured."""

from tunery._errors import DialectError, EngineError
from tunery.delivery.comparing.compare import Expected
from tunery.delivery.linking import CompiledModel, Linker
from tunery.delivery.placing.judging import Judged, judge
from tunery.delivery.placing.parts import parts_to_hand_over

_FASTER = "faster there, as timed"


async def divided(
    linker: Linker, made: CompiledModel, judged: Judged, theirs: Expected
) -> tuple[CompiledModel, Judged]:
    """Return the network with the parts in ONNX Runtime that lose, and what it is like, if that is faster.

    Else what was given. Nothing is stored: tuning may make these parts faster.
    """
    work, imported = linker.work, await linker.work.model()
    try:
        nodes = await linker.nodes(imported.network)
        found = parts_to_hand_over(nodes, imported.tasks, judged.kernels, judged.nodes)
        if not found:
            return made, judged
        placed = await linker.placed(imported, {**dict.fromkeys(found, _FASTER), **imported.elsewhere})
        again = await linker.compile(placed)
        verdict = await judge(work, again, theirs)
    except (DialectError, EngineError):
        return made, judged
    speeds = [one.speed.ratio if one.speed else 0.0 for one in (judged, verdict)]
    return (made, judged) if verdict.wrong or speeds[1] < speeds[0] else (again, verdict)
