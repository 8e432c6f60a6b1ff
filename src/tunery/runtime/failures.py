"""What a candidate's measurement says when its worker did not answer."""

from tunery._errors import CrashError, DeadlineError, EngineError
from tunery.domain import Measurement, Outcome


def failure(error: EngineError) -> Measurement:
    """Return the outcome of a candidate whose worker did not answer."""
    if isinstance(error, DeadlineError):
        return Measurement(Outcome.TIMEOUT, detail=str(error))
    if isinstance(error, CrashError):
        return Measurement(Outcome.CRASHED, detail=str(error))
    return Measurement(Outcome.RUN_FAILED, detail=str(error))
