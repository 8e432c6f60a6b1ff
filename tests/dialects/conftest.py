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
