"""What tests on TVM share: the dialect and this machine's target."""

import pytest

from tunery.dialects import Dialect, get_dialect
from tunery.domain import Target


@pytest.fixture(scope="session")
def dialect() -> Dialect:
    return get_dialect("metaschedule")


@pytest.fixture(scope="session")
def target(dialect: Dialect) -> Target:
    return dialect.resolve_target("native", 2)


@pytest.fixture
def no_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of like tasks: what is foreseen is searched."""
    from tunery.dialects.metaschedule.search import suggestions as foresight
    from tunery.dialects.metaschedule.search.winners import Winners

    monkeypatch.setattr(foresight, "shipped", lambda _: Winners(()))
