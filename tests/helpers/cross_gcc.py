"""Whether kernels in C can be built here for an ARM board."""

from collections.abc import Sequence

from tunery._errors import TargetError
from tunery.dialects.kernels import KernelsDialect
from tunery.domain import DeviceDescription


def board(vector: Sequence[str], model: str = "0xd08") -> DeviceDescription:
    """Return a board with a Cortex-A72, or another model, that has these instructions."""
    facts = {"arch": "aarch64", "vendor": "0x41", "model": model, "vector": list(vector)}
    return DeviceDescription("cpu", "a board", (0, 1, 2, 3), facts)


def cross_lacking() -> str:
    """Return what is missing, "" where nothing is."""
    try:
        KernelsDialect().resolve_target_of("native", 1, board(["asimd"]))
    except TargetError as error:
        return str(error)
    return ""
