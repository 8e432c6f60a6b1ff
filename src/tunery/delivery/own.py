"""What nobody tuned of a user's own kernels: their default parameters, delivered only if they are right."""

from collections.abc import Sequence
from dataclasses import replace

from tunery._errors import CrashError, LostWorkerError, TuneryError, WorkError
from tunery.delivery.ladder import KnownTask
from tunery.domain import Candidate
from tunery.engines import Role
from tunery.runtime.services import CheckedBody
from tunery.tuning.calls import BUILD_DEADLINE_S
from tunery.tuning.work import Work

_DEADLINE_S = 120.0
_RIGHT = "its default parameters, which give what its reference gives; `tunery tune` finds faster ones"


async def with_right_defaults(work: Work, known: Sequence[KnownTask]) -> tuple[KnownTask, ...]:
    """There is no ONNX Runtime to compare a user's own kernels with: each that would run with its default is compared
    alone. Where the device is absent, nothing can be run."""
    return tuple([each if each.choice.candidate else await _checked(work, each) for each in known])


async def _checked(work: Work, each: KnownTask) -> KnownTask:
    device = await work.runtime.device()
    if device.absent:
        return replace(each, refused=f"nothing of it was verified: {device.absent}")
    runtime, name = work.runtime, each.task.workload.name
    there = runtime.pools.on(Role.BUILDER, [runtime.measure_host])
    if not there:
        unused = f" ({'; '.join(map(str, each.skipped))})" if each.skipped else ""
        raise WorkError(
            f"the default parameters of {name} cannot be verified on {work.request.on}, and no record of it is used"
            f"{unused}; tune it first"
        )
    try:
        async with work.stage("build", Role.BUILDER, each.task.workload.kind, there[0]) as grant:
            found: tuple[Candidate, Candidate] = await runtime.call(
                grant.worker, "baselines", each.task, deadline_s=BUILD_DEADLINE_S
            )
            checked: CheckedBody = await runtime.call(
                grant.worker, "check", each.task, found[1], deadline_s=_DEADLINE_S
            )
    except LostWorkerError:  # it is not the kernel's fault
        raise
    except CrashError as error:
        raise WorkError(f"the default parameters of {name} crash: {str(error).partition(';')[0]}; mend it") from error
    except TuneryError as error:
        raise WorkError(f"the default parameters of {name} do not work: {error}; mend the kernel") from error
    if not checked.verdict.deliverable:
        raise WorkError(
            f"the default parameters of {name} differ from its reference ({checked.verdict.detail}); mend the kernel, "
            "the parameters or the reference"
        )
    if checked.part is not None:
        runtime.hold(checked.part.blob)  # others may have the same code in use
        runtime.discard(checked.part)
    return replace(each, refused=_RIGHT)
