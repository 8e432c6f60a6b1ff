"""These tests need the emulated machine: `make test-arm` makes it, and says where it is."""

import os
from pathlib import Path

import pytest

PLACE = os.environ.get("TUNERY_TEST_ARM", "")
collect_ignore_glob = [] if PLACE else ["test_*.py"]


@pytest.fixture(scope="session")
def machine() -> Path:
    return Path(PLACE)
