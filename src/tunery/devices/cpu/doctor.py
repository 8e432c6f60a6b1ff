"""Whether this machine's CPU can be measured on."""

import os
from collections.abc import Iterator

from tunery._processor import quota_cores
from tunery._sandbox import lacking
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import Check, CheckState

_QUIET_LOAD = 0.5


def all_checks() -> Iterator[Check]:
    yield cores(len(usable_cores()), quota_cores())
    yield load(os.getloadavg()[0])
    yield confinement()


def cores(usable: int, quota: float | None) -> Check:
    found = f"{usable} of {os.cpu_count()} usable" + (f", a quota of {quota:g}" if quota is not None else "")
    if quota is not None and quota < usable:
        count = max(int(quota + 0.01), 1)
        found += f", so networks run with {count} thread{'s' if count > 1 else ''}"
        advice = f"the quota disturbs timings: use --threads {count}"
        return Check("cores", CheckState.WARN, found, advice)
    if usable < 2:
        advice = "building and measuring share one core, which makes tuning slow"
        return Check("cores", CheckState.WARN, found, advice)
    return Check("cores", CheckState.OK, found)


def load(average: float) -> Check:
    found = f"{average:.2f} over the last minute"
    if average > _QUIET_LOAD * (os.cpu_count() or 1):
        advice = "others use this machine: measuring takes longer, end what you can"
        return Check("load", CheckState.WARN, found, advice)
    return Check("load", CheckState.OK, found)


def confinement() -> Check:
    if not (parts := lacking()):
        return Check("sandbox", CheckState.OK, "Landlock and seccomp confine kernels and programs of others")
    found = f"this system lacks {' and '.join(parts)}"
    return Check("sandbox", CheckState.WARN, found, "run only your own kernels and programs here, or take Linux 5.13")
