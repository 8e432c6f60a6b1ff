"""Whatever the description of the API allows, and what it does not: no call ends in an error of the service's own."""

import contextlib
from collections.abc import Iterator

import pytest
import schemathesis
from dashboard_site import Served, served
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from web_tools import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_no_call_fails_in_the_service(site: Served, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{site.url}/v1/openapi.json")
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):  # a stream that ends with its job
            continue

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def call(case: schemathesis.Case) -> None:
            asked.add((case.method, case.path))
            answer = case.call(headers={"Authorization": f"Bearer {site.admin_token}"}, timeout=PATIENCE_S)
            assert answer.status_code < 500, (case.method, case.path, answer.text)

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            call()
    assert len(asked) > 20
