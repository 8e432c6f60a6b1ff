"""An error of TVM's is told in one line, whatever it prints around it."""

import pytest

from tunery._errors import DialectError
from tunery.dialects.metaschedule.reasons import reason_of

_PROGRAM = """\
# from tvm.script import ir as I

@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((8,), "float32")):
        pass

# Metadata omitted. Use show_meta=True in script() method to show it."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError(f"An operator has no rule.\n{_PROGRAM}"), "ValueError: An operator has no rule."),
        (ValueError(f"The program is:\n{_PROGRAM}\nError message: no block 'C'"), "ValueError: no block 'C'"),
        (ValueError(_PROGRAM), "ValueError: # Metadata omitted. Use show_meta=True in script() method to show it."),
        (RuntimeError(), "RuntimeError: "),
        (KeyError("C"), "KeyError: 'C'"),
        (DialectError("a trace of another program"), "a trace of another program"),
    ],
)
def test_the_last_line_of_prose_is_told(error: Exception, told: str) -> None:
    assert reason_of(error) == told


def test_a_long_line_is_cut() -> None:
    assert len(reason_of(ValueError("x" * 1000))) == 200
