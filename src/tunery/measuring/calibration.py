"""What sharing a device costs, from timings of reference kernels alone and beside others: pure."""

from collections.abc import Mapping, Sequence
from statistics import median

from tunery.domain import Calibration, SharingPoint, Task
from tunery.measuring.degree import BOUND
from tunery.measuring.inputs import size_bytes

COMPUTE, MEMORY = "compute", "memory"
TAU_LOSS = 0.03
"""How far Kendall's tau between shared and isolated timings may fall under that of two isolated passes."""
_PAYS = 1.1


def degrees_to_try(slots: int) -> list[int]:
    found = [2**power for power in range(1, slots.bit_length()) if 2**power < slots]
    return [*found, slots] if slots > 1 else []


def agreement(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    from scipy.stats import kendalltau  # not in a worker that keeps torch out: it asks whether arrays are tensors

    keys = sorted(first.keys() & second.keys())
    if len(keys) < 2:
        return float("nan")
    return float(kendalltau([first[key] for key in keys], [second[key] for key in keys]).statistic)


def deviations(shared: Mapping[str, float], alone: Mapping[str, float]) -> list[float]:
    """Return by which share each candidate took longer beside others than alone."""
    return [shared[key] / alone[key] - 1 for key in sorted(shared.keys() & alone.keys()) if alone[key] > 0]


def point(kind: str, degree: int, shared: Mapping[str, float], alone: Mapping[str, float], gain: float) -> SharingPoint:
    found = deviations(shared, alone)
    return SharingPoint(kind, degree, median(found) if found else float("inf"), agreement(shared, alone), gain)


def chosen_degree(points: Sequence[SharingPoint], kind: str, isolated_tau: float) -> int:
    """Return the largest degree up to which sharing neither distorts timings nor ranks, and pays; 1 if none does."""
    best, gain = 1, 1.0
    for one in sorted((p for p in points if p.kind == kind), key=lambda p: p.degree):
        if one.deviation > BOUND or not one.tau >= isolated_tau - TAU_LOSS or one.gain < gain * _PAYS:
            break
        best, gain = one.degree, one.gain
    return best


def bound_of(task: Task, calibration: Calibration) -> str:
    """Say whether the processor or its memory is what a task waits for, by the device's own rates (roofline)."""
    moved = size_bytes(task.workload.arguments)
    ridge = calibration.flop_per_s / calibration.bytes_per_s if calibration.bytes_per_s > 0 else 0.0
    return COMPUTE if task.workload.flop >= ridge * moved else MEMORY


def starting_degree(task: Task, calibration: Calibration | None) -> int:
    return calibration.degrees.get(bound_of(task, calibration), 1) if calibration else 1
