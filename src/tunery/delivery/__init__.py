"""From records to answers: the ladder of choices, loading compiled networks, and whole-network comparison."""

from tunery.delivery.ladder import Known, choose
from tunery.delivery.loading import load_compiled

__all__ = ["Known", "choose", "load_compiled"]
