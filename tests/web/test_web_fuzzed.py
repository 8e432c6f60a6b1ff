"""Whatever the description of the API allows, and what it does not: each answer is one that it declares."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
import schemathesis
from dashboard_site import Served, served
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from web_tools import PATIENCE_S

pytestmark = pytest.mark.hostile
_CASES = 12  # of an operation


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_each_answer_is_declared_and_none_is_an_error_of_the_service(
    site: Served, mode: schemathesis.GenerationMode, *, token: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = schemathesis.openapi.from_url(f"{site.url}/v1/openapi.json")
    headers = {"Authorization": f"Bearer {site.admin_token}"} if token else {}
    answers: dict[str, Counter[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events") or (operation.method, operation.path) == (
            "delete",
            "/v1/accounts/{name}",
        ):
            continue  # a stream that ends with its job; and what would end the account that asks

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=_CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def call(case: schemathesis.Case) -> None:
            answer = case.call(headers=headers, timeout=PATIENCE_S)
            answers.setdefault(f"{case.method} {case.path}", Counter())[answer.status_code] += 1
            assert answer.status_code < 500, (case.method, case.path, answer.text)
            described = schema.raw_schema["paths"][case.path][case.method.lower()]["responses"]
            assert str(answer.status_code) in described, (case.method, case.path, answer.status_code, answer.text)

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            call()
    with capsys.disabled():
        print(f"\n{mode.value}, {'with' if token else 'without'} a token")
        for name, counts in sorted(answers.items()):
            print(f"{name:60}", " ".join(f"{status}: {count}" for status, count in sorted(counts.items())))
    assert len(answers) > 20
