"""What tests of delivery share."""

from collections.abc import Callable

import pytest

from tunery.delivery.placing import judging

Winner = Callable[[str], None]


@pytest.fixture
def let_win(monkeypatch: pytest.MonkeyPatch) -> Winner:
    """Script which of `tunery` and `onnxruntime` is faster when a compiled file is judged."""

    def choose(winner: str) -> None:
        async def timed(_: object) -> list[tuple[float, float]]:
            return [(1e-6, 1e-3) if winner == "tunery" else (1e-3, 1e-6)]

        monkeypatch.setattr(judging, "time_in_turns", timed)

    return choose
