"""What a job may spend, and on which task it should be spent next."""

from tunery.budgets.allocation import Allocator, Standing
from tunery.budgets.meter import Meter, Plan, check_effort, plan

__all__ = ["Allocator", "Meter", "Plan", "Standing", "check_effort", "plan"]
