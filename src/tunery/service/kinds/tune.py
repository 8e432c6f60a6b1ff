"""The main job: fast, verified kernels for a network."""

from dataclasses import dataclass

from tunery.domain.request import Request
from tunery.service.kinds._base import JobKind
from tunery.service.kinds.compile import CompileOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(CompileOptions):
    """Where the network is compiled to once it is tuned ("": nowhere)."""

    output: str = ""

    def check(self, request: Request) -> None:
        """Raise UsageError where the file may not be written."""
        if self.output:
            CompileOptions.check(self, request)


TUNE = JobKind(name="tune", options=TuneOptions, run=None, long=True, several_dialects=True, asked=("output",))
