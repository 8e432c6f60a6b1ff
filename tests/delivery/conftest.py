"""What tests of delivery share."""

from collections.abc import Callable

import pytest

from tunery.delivery import fallback

Winner = Callable[[str], None]


@pytest.fixture
def let_win(monkeypatch: pytest.MonkeyPatch) -> Winner:
    """Script which of `tunery` and `onnxruntime` is faster when a compiled file is judged."""

    def choose(winner: str) -> None:
        async def timed(_: object) -> dict[str, list[float]]:
            return {label: [1e-6 if label == winner else 1e-3] for label in ("tunery", "onnxruntime")}

        monkeypatch.setattr(fallback, "time_in_turns", timed)

    return choose
