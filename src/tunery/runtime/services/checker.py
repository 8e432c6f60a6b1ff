"""What checks records of another store."""

from collections.abc import Sequence

from tunery._errors import DialectError, UsageError
from tunery.dialects import (
    RecordChecker,
    get_dialect,
)
from tunery.domain import (
    Workload,
)


class Checker:
    """Checks what another store says, in a process that a hostile program may take down without harm."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def workload(self, workload: Workload) -> str:
        """Return why a workload must not be taken in, "" where nothing speaks against it."""
        try:
            RecordChecker.of(self._dialect).check_workload(workload)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""

    def bodies(self, bodies: Sequence[str]) -> list[str]:
        return [self._body(body) for body in bodies]

    def _body(self, body: str) -> str:
        try:
            RecordChecker.of(self._dialect).check_body(body)
        except (DialectError, UsageError) as error:
            return str(error)
        return ""
