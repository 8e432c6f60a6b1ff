"""A service that dies in the ways that a worker does which may take no more memory, or is ended from outside."""

import os
import signal


class Dying:
    def abort_for_memory(self) -> None:
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    def be_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def be_killed_when_full(self) -> None:
        held = bytearray(160 << 20)
        for page in range(0, len(held), 4096):
            held[page] = 1
        os.kill(os.getpid(), signal.SIGKILL)
