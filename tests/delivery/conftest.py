"""What tests of delivery share."""

from collections.abc import Callable

import pytest

from tunery.delivery import compile as compiling
from tunery.delivery import judging

Winner = Callable[..., None]


@pytest.fixture
def let_win(monkeypatch: pytest.MonkeyPatch) -> Winner:
    """Script which of `tunery` and `onnxruntime` wins when a compiled file is judged: each time, or time by time."""

    def choose(*winners: str) -> None:
        left = list(winners)

        async def timed(*_: object) -> list[tuple[float, float]]:
            winner = left.pop(0) if len(left) > 1 else left[0]
            return 3 * [(1e-6, 1e-3) if winner == "tunery" else (1e-3, 1e-6)]

        monkeypatch.setattr(judging, "time_in_turns", timed)
        monkeypatch.setattr(compiling, "judge_once", judging.judge)

    return choose
