"""Functions of libraries that ours take the place of are those that we know."""

import pytest

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import replaceable

pytestmark = pytest.mark.tvm


def test_a_function_that_takes_something_else_is_not_replaced() -> None:
    import onnx

    assert replaceable(onnx.checker, "check_model", "model") is onnx.checker.check_model
    with pytest.raises(DialectError, match=r"check_model .* install"):
        replaceable(onnx.checker, "check_model", "graph")
    with pytest.raises(DialectError, match="install"):
        replaceable(onnx.checker, "no_such_check")
