"""What measures: candidates on a device, and what the machine does at most."""

from tunery.blobs import Blobs
from tunery.devices import open_device
from tunery.dialects import (
    Codegen,
    get_dialect,
)
from tunery.measuring.service import Measurer
from tunery.measuring.settings import FULL_LENGTH


class MeasurerHost(Measurer):
    """The measurer with settings that can cross a process border.

    `device` is the kind of the device that this worker opens, with the host's `cores`, and whose `slot` it keeps to.
    """

    def __init__(  # noqa: PLR0917 - settings cross a process border by name
        self,
        dialect: str,
        device: str,
        cores: tuple[int, ...],
        slot: tuple[int, ...],
        blobs: Blobs,
        full_length: bool = False,
    ) -> None:
        super().__init__(dialect, open_device(device, cores, slot), blobs, FULL_LENGTH if full_length else None)


class Peak:
    """Measures what the machine does at most."""

    def __init__(self, dialect: str) -> None:
        self._dialect = get_dialect(dialect)

    def flops(self, spec: str, threads: int) -> float | None:
        """Return the operations per second, None where the dialect cannot tell."""
        return Codegen.of(self._dialect).peak_flops(self._dialect.resolve_target(spec, threads))
