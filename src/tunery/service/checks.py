"""What can be known of a job before it is queued."""

import math

from tunery._errors import UsageError
from tunery.accounting.meter import check_effort
from tunery.accounting.prices import load_prices
from tunery.dialects import check_dialect
from tunery.domain.request import MOST_PRIORITY, Request, ShareRequest
from tunery.runtime.opening import thread_count
from tunery.scheduling import LEAST_WEIGHT, MOST_WEIGHT
from tunery.service.verbs import TUNE, options_of


def check(request: Request, claim: ShareRequest) -> None:
    """Check what can be known of a job before it is queued.

    Raises:
        UsageError: nobody can run it; the message says why.
    """
    check_limits(request)
    if request.kind != TUNE:
        options_of(request)
    elif request.options:
        raise UsageError(f"a job that tunes has no option {sorted(request.options)[0]!r}")
    thread_count(request.threads)
    check_dialect(request.dialect)
    if not 0 <= claim.priority <= MOST_PRIORITY:
        raise UsageError(f"priority {claim.priority} is not between 0 and {MOST_PRIORITY}")
    if not LEAST_WEIGHT <= claim.weight <= MOST_WEIGHT:
        raise UsageError(f"weight {claim.weight} is not between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}")


def check_limits(request: Request) -> None:
    """Check a request's effort, limits and latency target, however it was made.

    Raises:
        UsageError: the effort is unknown, a limit is not positive or has no end, or the price sheet is another
            currency's.
    """
    check_effort(request.effort)
    budget, target_s = request.budget, request.latency_target_s
    limits = (budget.seconds, budget.trials, budget.money, budget.joules)
    if any(limit is not None and not 0 < limit < math.inf for limit in limits):
        raise UsageError(f"budget {budget} has a limit that is not positive and finite; write for example 10min")
    if target_s is not None and not 0 < target_s < math.inf:
        raise UsageError(f"a latency target of {target_s:g} s cannot be met; write for example 12ms")
    load_prices(request.prices).check(budget)


def check_model(model: str) -> None:
    """Check what the name of a model tells by itself.

    Raises:
        UsageError: there is no such file, or the zoo has no such network.
    """
    if not model.startswith("fake:"):
        from tunery.models import check as check_name  # loads what reads models

        check_name(model)
