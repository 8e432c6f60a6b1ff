"""From records to answers: the ladder of choices, loading compiled networks, and whole-network comparison."""

from tunery.delivery.ladder import KnownTask, choose
from tunery.delivery.loading import load_compiled

__all__ = ["KnownTask", "choose", "load_compiled"]
