"""From records to answers: the ladder of choices, loading compiled networks, and whole-network comparison."""

from tunery.delivery.ladder import Known, choose
from tunery.delivery.loading import load_compiled
from tunery.delivery.publishing import publish

__all__ = ["Known", "choose", "load_compiled", "publish"]
