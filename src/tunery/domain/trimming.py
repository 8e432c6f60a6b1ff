"""Which ways of saving a tuning job uses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trimming:
    """Which ways of saving are in use. Not a user's settings: studies compare them.

    `filter` drops candidates before they are built, `abandon` ends measurements early, `allocate` gives trials to the
    tasks that gain most; `audit_share` of what is built is taken at random from what the filter would drop.
    """

    filter: bool = True
    abandon: bool = True
    allocate: bool = True
    audit_share: float = 0.1


NONE = Trimming(filter=False, abandon=False, allocate=False)
"""Every candidate built, every measurement to its end, every task its equal share."""
