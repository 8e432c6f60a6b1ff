"""What can be known of a job before it is queued."""

from tunery._errors import UsageError
from tunery.budgets import check_effort, load_prices
from tunery.dialects import check_dialect
from tunery.jobs._request import MOST_PRIORITY, Claim, Request
from tunery.jobs.opening import thread_count
from tunery.scheduler import LEAST_WEIGHT, MOST_WEIGHT


def check(request: Request, claim: Claim) -> None:
    """Check what can be known of a job before it is queued.

    Raises:
        UsageError: nobody can run it; the message says why.
    """
    check_effort(request.effort)
    thread_count(request.threads)
    check_dialect(request.dialect)
    limits = (request.budget.seconds, request.budget.trials, request.budget.money, request.budget.joules)
    if any(limit is not None and not limit > 0 for limit in limits):
        raise UsageError(f"budget {request.budget} has a limit that is not positive; write for example 10min")
    load_prices(request.prices).check(request.budget)
    if not 0 <= claim.priority <= MOST_PRIORITY:
        raise UsageError(f"priority {claim.priority} is not between 0 and {MOST_PRIORITY}")
    if not LEAST_WEIGHT <= claim.weight <= MOST_WEIGHT:
        raise UsageError(f"weight {claim.weight} is not between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}")


def check_model(model: str) -> None:
    """Check what the name of a model tells by itself.

    Raises:
        UsageError: there is no such file, or the zoo has no such network.
    """
    if not model.startswith("fake:"):
        from tunery.frontends import check as check_name  # loads what reads models

        check_name(model)
