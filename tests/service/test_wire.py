"""What a client sends wrongly is told in a sentence."""

from typing import Any

import pytest

from tunery._errors import UsageError
from tunery.domain.request import Request, ShareRequest
from tunery.service._wire import read_as


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (Request, {"model": "fake:x", "threads": "two"},
         "the request's threads is 'two', but should be a valid integer"),
        (Request, {"model": "fake:x", "budget": {"trials": 1.5}},
         "the request's budget.trials is 1.5, but should be a valid integer"),
        (Request, {"threads": 1}, "the request's model is missing"),
        (ShareRequest, {"priority": None}, "the share request's priority is None, but should be a valid integer"),
        (ShareRequest, {"rank": 1}, "a share request is an object with the keys owner, priority, weight"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_it_should_be(kind: type[Any], data: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_as(kind, data)
    assert str(caught.value) == said
