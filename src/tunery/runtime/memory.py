"""How much memory a worker may take: a part of what the machine, or the control group around us, grants."""

from tunery.devices.cpu.placement import granted_bytes
from tunery.engines import Role

_LEAST = 512 << 20
_PARTS = {
    Role.PREPARER: (2, 12 << 30),
    Role.IMPORTER: (2, 12 << 30),
    Role.MEASURER: (2, 16 << 30),
    Role.TRAINER: (2, 8 << 30),
    Role.PROPOSER: (4, 8 << 30),
    Role.BUILDER: (4, 8 << 30),
}
"""By role: which part of all memory one worker may take, and how much at most."""


def worker_bytes(role: Role, granted: int | None = None) -> int:
    """Return the address space that a worker of `role` may take above what it starts with.

    One worker that takes all it may leaves the rest of the machine alive; several at once may together exceed the
    memory, and then the kernel ends them first (`engines.local`). `granted` is this process's memory in bytes.
    """
    part, most = _PARTS[role]
    return max(_LEAST, min(most, (granted_bytes() if granted is None else granted) // part))
