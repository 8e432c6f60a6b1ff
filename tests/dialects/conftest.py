"""What tests on TVM share: the dialect and this machine's target."""

from collections.abc import Iterator

import pytest

from tunery.dialects import Dialect, get_dialect
from tunery.domain import Target


@pytest.fixture(scope="session")
def dialect() -> Dialect:
    return get_dialect("metaschedule")


@pytest.fixture(scope="session")
def target(dialect: Dialect) -> Target:
    return dialect.resolve_target("native", 2)


@pytest.fixture(autouse=True)
def no_rule_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A rule that fails on a network leaves the file right, and is seen here."""
    yield
    said = [one.getMessage() for when in ("setup", "call") for one in caplog.get_records(when)]
    assert not [one for one in said if one.startswith("the rule")]
