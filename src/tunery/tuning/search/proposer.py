"""One task's proposer in its worker: opened again where that was started anew, and given each new cost model."""

from collections.abc import Sequence

from tunery._errors import DialectError, EngineError
from tunery.dialects import Observation
from tunery.domain import Task
from tunery.engines import Role
from tunery.runtime.services import Proposal
from tunery.tuning.calls import stage
from tunery.tuning.context import Context
from tunery.tuning.learning import Learning
from tunery.tuning.search.events import NewsAsked, ProposerOpening, Tell
from tunery.tuning.search.state import SearchState

PROPOSE_DEADLINE_S = 180.0


class TaskProposer:
    """Asks `worker` for candidates of a task, and tells it what is new in the search's state."""

    def __init__(self, task: Task, worker: str, learning: Learning) -> None:
        self._task, self._worker, self._learning = task, worker, learning
        self._opened: tuple[int, int] | None = None  # the worker's generation, the model's version

    async def propose(self, payer: Context, state: SearchState, count: int) -> Proposal:
        """Return about `count` candidates, in a stage that `payer` is charged for."""
        try:
            async with stage(payer, self._task, "propose", Role.PROPOSER, count, self._worker) as grant:
                await self._open_if_needed(payer, state)
                proposal: Proposal = await payer.runtime.call(
                    self._worker, "propose", self._task.key, count, _told(state.handle(NewsAsked())),
                    deadline_s=PROPOSE_DEADLINE_S,
                )  # fmt: skip
        except (EngineError, DialectError):
            self._opened = None
            raise
        await payer.charge(self._task.key, "propose", "", grant, len(proposal.candidates))
        return proposal

    async def _open_if_needed(self, payer: Context, state: SearchState) -> None:
        runtime, learning = payer.runtime, self._learning
        generation = runtime.engine.generation(self._worker)
        if self._opened is None or self._opened[0] != generation:
            history = _told(state.handle(ProposerOpening()))
            rows: Sequence[bytes] = await runtime.call(
                self._worker, "open", self._task, history, learning.model, payer.seed, learning.warm_start,
                state.generic_only_reason, deadline_s=PROPOSE_DEADLINE_S,
            )  # fmt: skip
            for told, row in zip(history, rows, strict=True):
                learning.add(self._task.key, told, row)
            self._opened = (runtime.engine.generation(self._worker), learning.version)
        elif self._opened[1] != learning.version and learning.model:
            await runtime.call(self._worker, "learn", learning.model, deadline_s=PROPOSE_DEADLINE_S)
            self._opened = (generation, learning.version)


def _told(decision: object) -> list[Observation]:
    assert isinstance(decision, Tell)
    return list(decision.results)
