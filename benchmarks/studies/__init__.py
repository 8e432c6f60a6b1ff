"""Each evaluation of the prior work, re-run on this system: one module per study, one function each.

A study takes `Options`, measures or simulates, and returns a `StudyReport`; `write` puts it into the directory the user
chose. Nothing it shows is stored from an earlier run.
"""

from studies._base import Options, StudyReport, place, pyplot, write

__all__ = ["Options", "StudyReport", "place", "pyplot", "write"]
