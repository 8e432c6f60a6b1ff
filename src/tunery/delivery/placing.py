"""Which nodes of a compiled network run in ONNX Runtime: those that compute something else, and parts that lose."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from tunery._errors import DialectError, EngineError
from tunery.delivery.comparing.compare import SEED, Expected
from tunery.delivery.judging import Judged, is_right, judge
from tunery.delivery.linking import LinkedNetwork, Linker
from tunery.dialects import GraphNode
from tunery.domain import SEGMENT, Task
from tunery.engines import Role
from tunery.runtime.importing import ImportedModel

_ROUNDS = 5
_DEADLINE_S, _LONGEST_S = 300.0, 120.0
_AT_FAULT = "with it in place the compiled network computes something else"
_FASTER = "faster there, as timed"
_FAMILIES = {
    "conv2d depthwise conv1d conv3d conv": "Conv ConvTranspose QLinearConv",
    "matmul": "MatMul Gemm Einsum Attention QLinearMatMul",
    "pool": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool",
    "softmax": "Softmax LogSoftmax",
    "norm": "LayerNormalization InstanceNormalization GroupNormalization",
    "gather": "Gather GatherND GatherElements",
    "resize": "Resize Upsample",
}
"""Kinds of tasks, and the operators that they compute."""
_OPERATORS = {kind: frozenset(names.split()) for kinds, names in _FAMILIES.items() for kind in kinds.split()}
_FOLLOWERS = frozenset(
    {"Add", "BatchNormalization", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "PRelu"}
    | {"Relu", "Sigmoid", "Sub", "Tanh"}
)
"""Operators that are done on the way in what comes before them, if it is in the same place."""
_CALL_S, _BYTES_PER_S = 20e-6, 5e9
"""What a hand-over takes: the call, and copies or transposes of what crosses the border."""
_LEAST_GAIN = 0.03
_MOST_ENDS = 150


def labels_of(nodes: Sequence[GraphNode], tasks: Sequence[Task]) -> list[str]:
    """Return the labels of the nodes that compute tasks, with what is done on the way in them."""
    at_work = [at for task in tasks for at in _nodes_of(nodes, task)]
    return list(dict.fromkeys(node.label for at in at_work for node in nodes[at : _with_followers(nodes, at) + 1]))


async def mended(linker: Linker, made: LinkedNetwork, judged: Judged, theirs: Expected) -> tuple[LinkedNetwork, Judged]:
    """Return a network with the operators at fault in ONNX Runtime, and what it is like; or the one that was given.
    First each operator is tried on what ONNX Runtime gives it. If all are right so, the first node is looked for up to
    which the network must be left to it. What helps is stored. What was an accident is right the second time."""
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
    Found by halves, each half compiled. Nothing if it is right with all of them; None if no node is found."""
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


def parts_to_hand_over(
    nodes: Sequence[GraphNode],
    tasks: Sequence[Task],
    kernels: Mapping[str, float],
    theirs: Mapping[str, float],
    elsewhere: Collection[str] = (),
) -> list[str]:
    """Return the labels of nodes that would gain by running in ONNX Runtime, in parts that are worth their borders.
    `kernels` is what kernels of ours take in one execution of the network, by workload; `theirs` what ONNX Runtime's
    nodes take, by label, with what was fused to them; it runs those `elsewhere` already. A part is a stretch of nodes
    in their order, so nothing outside it waits between two of its nodes. Empty where a stretch gains less than
    `_LEAST_GAIN` of our time."""
    ours = _ours(nodes, tasks, kernels, theirs, elsewhere)
    gains = [mine - theirs.get(node.label, 0.0) for node, mine in zip(nodes, ours, strict=True)]
    stretches = list(_best_stretches(nodes, gains))
    if sum(gain for gain, _, _ in stretches) < _LEAST_GAIN * sum(ours):
        return []
    stretches = [(gain, first, _with_followers(nodes, last)) for gain, first, last in stretches]
    chosen = list(dict.fromkeys(node.label for _, first, last in stretches for node in nodes[first : last + 1]))
    return chosen if len({*chosen, *elsewhere}) < len(nodes) else []


def _ours(
    nodes: Sequence[GraphNode],
    tasks: Sequence[Task],
    kernels: Mapping[str, float],
    theirs: Mapping[str, float],
    elsewhere: Collection[str],
) -> list[float]:
    """Return what each node takes with our kernels, in seconds: a kernel is told from its task's arguments, the time of
    others is spread over the remaining nodes as ONNX Runtime's is."""
    taken = [theirs.get(node.label, 0.0) if node.label in elsewhere else 0.0 for node in nodes]
    matched = {at for at, node in enumerate(nodes) if node.label in elsewhere}
    left_s = sum(seconds for name, seconds in kernels.items() if not name.startswith(SEGMENT))
    for task in tasks:
        seconds = kernels.get(task.workload.key, 0.0)
        alike = [at for at in _nodes_of(nodes, task) if nodes[at].label not in elsewhere]
        if alike and seconds:
            left_s -= seconds
            matched.update(alike)
            for at in alike:
                taken[at] += seconds / len(alike)
    rest = [at for at in range(len(nodes)) if at not in matched]
    total_s = sum(theirs.get(nodes[at].label, 0.0) for at in rest)
    for at in rest:
        taken[at] = left_s * theirs.get(nodes[at].label, 0.0) / total_s if total_s else 0.0
    return taken


def _nodes_of(nodes: Sequence[GraphNode], task: Task) -> list[int]:
    operators = _OPERATORS.get(task.workload.kind, frozenset())
    return [at for at, node in enumerate(nodes) if node.operator in operators and _fits(node, task)]


def _fits(node: GraphNode, task: Task) -> bool:
    sizes = [spec.size for spec in task.workload.arguments]
    for size in (*(one.elements for one in node.reads[:2]), *(one.elements for one in node.makes[:1])):
        if size not in sizes:
            return False
        sizes.remove(size)
    return True


def _best_stretches(nodes: Sequence[GraphNode], gains: Sequence[float]) -> Iterator[tuple[float, int, int]]:
    """Yield disjoint stretches (gain, first, last) that together gain most, less what their borders take."""
    losing = [at for at, gain in enumerate(gains) if gain > 0]
    ends = sorted(sorted(losing, key=lambda at: -gains[at])[:_MOST_ENDS])
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for one in node.reads:
            readers.setdefault(one.name, []).append(at)
    total = [0.0]
    for gain in gains:
        total.append(total[-1] + gain)
    best: list[tuple[float, int, int]] = [(0.0, -1, -1)]  # by how many of the ends are used: gain, first and before
    for upto, last in enumerate(ends):
        options = [(best[upto][0], -1, upto)]
        for at in range(upto + 1):
            whole = total[last + 1] - total[ends[at]] - _border_s(nodes, readers, ends[at], last)
            options.append((best[at][0] + whole, ends[at], at))
        best.append(max(options))
    upto = len(ends)
    while upto > 0:
        _, first, before = best[upto]
        if first >= 0:
            yield best[upto][0] - best[before][0], first, ends[upto - 1]
        upto = before


def _with_followers(nodes: Sequence[GraphNode], last: int) -> int:
    made = {one.name for one in nodes[last].makes}
    while last + 1 < len(nodes) and nodes[last + 1].operator in _FOLLOWERS:
        if not made.intersection(one.name for one in nodes[last + 1].reads):
            break
        last += 1
        made = {one.name for one in nodes[last].makes}
    return last


def _border_s(nodes: Sequence[GraphNode], readers: Mapping[str, list[int]], first: int, last: int) -> float:
    made = {one.name: one for node in nodes[first : last + 1] for one in node.makes}
    read = {one.name: one for node in nodes[first : last + 1] for one in node.reads if not one.constant}
    crossing = [one for name, one in read.items() if name not in made]
    crossing += [
        one for name, one in made.items() if any(not first <= at <= last for at in readers.get(name, [len(nodes)]))
    ]
    return _CALL_S + sum(one.size_bytes for one in crossing) / _BYTES_PER_S


async def divided(
    linker: Linker, made: LinkedNetwork, judged: Judged, theirs: Expected
) -> tuple[LinkedNetwork, Judged]:
    """Return the network with the parts in ONNX Runtime that lose, as long as that is faster: further ones where it
    still loses with those of a round. Nothing is stored: tuning may make these parts faster."""
    imported = await linker.work.model()
    try:
        nodes = await linker.nodes(imported.network)
        for _ in range(_ROUNDS):
            found = parts_to_hand_over(nodes, imported.tasks, judged.kernels, judged.nodes, imported.elsewhere)
            if not judged.slower or not found:
                break
            imported = await linker.placed(imported, {**dict.fromkeys(found, _FASTER), **imported.elsewhere})
            again = await linker.compile(imported)
            verdict = await judge(linker.work, again, theirs)
            speeds = [one.speed.ratio if one.speed else 0.0 for one in (judged, verdict)]
            if verdict.wrong or speeds[1] < speeds[0]:
                break
            made, judged = again, verdict
    except (DialectError, EngineError):
        pass
    return made, judged
