"""What tells one runtime's workers from another's."""

from dataclasses import dataclass, replace
from typing import Self

from tunery.devices import device_class
from tunery.dialects import get_dialect
from tunery.domain import HERE
from tunery.domain.request import Request
from tunery.runtime import thread_count


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """What jobs share workers by. A `dialect`'s kernels run with so many `threads` on a `device` of that kind, at the
    host `on` ("": this one). Measurements of `full_length` are not given up where a candidate is slow."""

    dialect: str
    threads: int = 1
    device: str = "cpu"
    on: str = ""
    full_length: bool = False

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the spec of a request's workers; the `threads` of another host may be 0: all that it has."""
        device = get_dialect(request.dialect).device
        spec = cls(request.dialect, request.threads, device, request.on, not request.trimming.abandon)
        return spec if spec.on else replace(spec, threads=spec.kernel_threads())

    def kernel_threads(self, granted: int | None = None) -> int:
        """Return the thread count as `thread_count`, but 0 means one where a core only launches kernels."""
        return thread_count(self.threads or int(not device_class(self.device).uses_host_cores), granted)

    @property
    def label(self) -> str:
        return f"@{self.dialect}/{self.threads}{'/full' if self.full_length else ''}{self.on and f'/{self.on}'}"

    def resource(self, role: str, host: str = HERE) -> str:
        return f"{host}/{role}{self.label}"
