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
         "the request's threads is 'two', but should be a whole number"),
        (Request, {"model": "fake:x", "budget": {"trials": 1.5}},
         "the request's budget.trials is 1.5, but should be a whole number"),
        (Request, {"threads": 1}, "the request's model is missing"),
        (ShareRequest, {"priority": None}, "the share request's priority is None, but should be a whole number"),
        (Request, {"model": 5}, "the request's model is 5, but should be text"),
        (Request, {"model": "fake:x", "trust": "maybe"}, "the request's trust is 'maybe', but should be true or false"),
        (Request, {"model": "fake:x", "shapes": [1]}, "the request's shapes is [1], but should be an object"),
        (Request, {"model": "fake:x", "budget": {"hours": 1}},
         "a budget is an object with the keys currency, joules, money, seconds, trials"),
        (ShareRequest, {"weight": "x"}, "the share request's weight is 'x', but should be a number"),
        (ShareRequest, {"rank": 1}, "a share request is an object with the keys owner, priority, weight"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_it_should_be(kind: type[Any], data: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_as(kind, data)
    assert str(caught.value) == said
