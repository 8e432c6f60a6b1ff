"""What the parts of a job share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tunery.domain import Candidate, Measurement, Provenance, Record
from tunery.domain.request import Trimming
from tunery.runtime.runtime import Reservation, Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.learning import Learning


@dataclass
class Context:
    """One job's means: what is done in its name is charged to it.

    `trials` are the candidates tried on its tasks while it ran, at most `most_trials` (None: no limit), whichever job
    paid for them. `cut_off` says that it is to wait for nobody any more.
    """

    job_id: str
    runtime: Runtime
    store: AsyncStore
    provenance: Provenance
    seed: int
    account: Account
    learning: Learning
    trimming: Trimming = field(default_factory=Trimming)
    trials: int = 0
    trials_in_flight: int = 0
    most_trials: int | None = None
    cut_off: Callable[[], bool] = lambda: False

    @property
    def takes_part(self) -> bool:
        """Whether what another job tries counts for this one too: its own trials, on their way, come first."""
        return self.most_trials is None or self.trials + self.trials_in_flight < self.most_trials

    def record(self, candidate: Candidate, measurement: Measurement) -> Record:
        return Record(candidate, measurement, self.provenance, self.job_id, self.runtime.measured_on)

    def bill(
        self,
        task_key: str,
        stage: str,
        outcome: str,
        used: Reservation,
        count: int = 1,
        *,
        device: bool = False,
        helped: bool = False,
    ) -> PricedCharge:
        """Return the bill for all of what was used; `device` says whether its share of the device was held meanwhile.

        `helped` says that it went into a candidate that was its task's best when it was measured.
        """
        device_s = used.wall_s * used.share if device else 0.0
        one = Charge(
            self.job_id, task_key, stage, outcome, used.wall_s, used.core_s, device_s,
            count=max(count, 1), helped=helped, host=used.host,
        )  # fmt: skip
        return PricedCharge(one, used.wall_s * used.cores)

    async def charge(self, task_key: str, stage: str, outcome: str, grant: Reservation, count: int) -> None:
        await self.account.post([self.bill(task_key, stage, outcome, grant, count)])
