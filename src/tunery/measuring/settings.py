"""Every number that decides how a measurement is taken, in one place."""

from dataclasses import asdict, dataclass, field

from tunery._errors import UsageError
from tunery.domain import canonical_json, digest
from tunery.domain.request import Trimming
from tunery.measuring.racing import Rule

VERSION = 7


@dataclass(frozen=True, slots=True)
class MeasuringSettings:
    """How candidates are measured; `key` names it in a record's provenance, so timings are compared like with like. A
    timed sample lasts at least `least_sample_s` and `overhead_factor` times the clock's overhead: shorter kernels are
    called in a loop. With `cache` "network" kernels run back to back, as an operator does whose input its predecessor
    has just written, and in the finals find their weights at another place in memory each time; with "warm" these stay
    where they are; with "cold" the caches are emptied before every call, and calls are timed one by one. While nothing
    is known of warm-up runs, one is evidence enough to abandon when it is both `far` times and `far_s` seconds slower
    than the incumbent. `retries` bounds the repeats of contaminated samples in a race, and of contaminated rounds in
    the finals. In the finals a candidate stops after `final_s` seconds of samples, or once all are `hopeless` times
    slower than the fastest (but not before `final_least` of them): an untuned program may take a second for each."""

    rule: Rule = field(default_factory=Rule)
    cache: str = "network"
    least_sample_s: float = 100e-6
    overhead_factor: float = 20.0
    max_calls: int = 10_000
    far: float = 5.0
    far_s: float = 2e-3
    retries: int = 5
    final_s: float = 1.0
    final_least: int = 3
    hopeless: float = 2.0
    settle_s: float = 0.2
    untimed_below_s: float = 10e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cache not in {"network", "warm", "cold"}:
            raise UsageError(f"cache mode {self.cache!r} is unknown; use network, warm or cold")

    @property
    def key(self) -> str:
        return f"v{VERSION}-{self.cache}-{digest(canonical_json(asdict(self)))}"


FULL_LENGTH = MeasuringSettings(rule=Rule(error=1e-300, precision=0.0), far=1e9)
"""Every candidate is sampled to the caps, however slow it is: what abandoning is compared with."""


def settings_for(trimming: Trimming) -> MeasuringSettings:
    return MeasuringSettings() if trimming.abandon else FULL_LENGTH
