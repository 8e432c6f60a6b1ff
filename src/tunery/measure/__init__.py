"""Measuring: short, precise, verified, and never fooled (docs/measurement.md states the rules)."""

from tunery.measure.cgroups import quota_cores
from tunery.measure.device import this_device
from tunery.measure.inputs import make_inputs, size_bytes
from tunery.measure.placement import granted_cores, pin, slots, usable_cores
from tunery.measure.racing import Rule, Verdict, decide
from tunery.measure.selection import finalists, winner
from tunery.measure.service import Measurer
from tunery.measure.settings import FULL_LENGTH, Settings
from tunery.measure.unmeasured import Unmeasured

__all__ = [
    "FULL_LENGTH", "Measurer", "Rule", "Settings", "Unmeasured", "Verdict", "decide", "finalists", "granted_cores",
    "make_inputs", "pin", "quota_cores", "size_bytes", "slots", "this_device", "usable_cores", "winner",
]  # fmt: skip
