"""What a job may spend, what it costs, and on which task it should be spent next.

meter       a budget as limits, and what is left of them
prices      what machine time and energy cost
power       how much energy work takes
gain        how much faster a task may still become
allocation  which task is next
trimming    which candidates are not worth building
failing     which will probably not build or run
outlook     what more spending would buy
"""

from tunery.budgets.allocation import Allocator, Chooser, Cost, RoundRobin, Standing, Unit, unit_of
from tunery.budgets.failing import LIKELY, FailureModel
from tunery.budgets.meter import Meter, Plan, check_effort, plan
from tunery.budgets.outlook import outlook, reaching
from tunery.budgets.power import Power
from tunery.budgets.prices import Prices, load_prices
from tunery.budgets.trimming import NONE, Audit, CandidateFilter, Sorted, Trimming

__all__ = [
    "LIKELY", "NONE", "Allocator", "Audit", "CandidateFilter", "Chooser", "Cost", "FailureModel", "Meter", "Plan",
    "Power", "Prices", "RoundRobin", "Sorted", "Standing", "Trimming", "Unit",
    "check_effort", "load_prices", "outlook", "plan", "reaching", "unit_of",
]  # fmt: skip
