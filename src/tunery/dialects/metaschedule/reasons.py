"""What an error of TVM's says, in one line."""

from tunery._errors import DialectError

_LENGTH = 200
_PROGRAM = ("#", "@", "class ", "def ")


class OtherKindError(DialectError):
    """A rule is for programs of another kind: nothing is missing, so nobody needs to hear of it."""


def reason_of(error: Exception) -> str:
    """Return an error's kind and the last line of its text that is prose: TVM prints whole programs around it. An error
    of our own is one line already and is returned as it is."""
    if isinstance(error, DialectError):
        return str(error)
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    prose = [line for line in lines if not line.startswith((" ", "\t", *_PROGRAM))]
    last = (prose or lines or [""])[-1].strip()
    return f"{type(error).__name__}: {last.removeprefix('Error message: ')}"[:_LENGTH]
