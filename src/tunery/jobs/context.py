"""What the parts of a job share."""

from dataclasses import dataclass, field

from tunery.domain import Provenance
from tunery.jobs.account import Account
from tunery.jobs.runtime import Runtime
from tunery.jobs.services import FeatureRow
from tunery.store import Store


@dataclass
class Context:
    """One job's means: what is done in its name is charged to it. `trials` are the candidates tried so far."""

    job_id: str
    runtime: Runtime
    store: Store
    provenance: Provenance
    seed: int
    account: Account
    rows: list[FeatureRow] = field(default_factory=list)
    cost_model: str | None = None
    model_version: int = 0
    trials: int = 0
    trials_in_flight: int = 0
