"""A cable between two namespaces that a test may cut, slow down or have lose packets.

It does the work of veth and `tc netem`, which not every kernel has: two TUN devices, and a thread between them.
"""

import fcntl
import os
import random
import select
import struct
import threading
import time
from heapq import heappop, heappush

_SET_NAME, _TUN, _NO_INFORMATION = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_MOST_BYTES = 1 << 16


class Cable:
    """Joins the new interfaces `near` and `far`; passes all at once to begin with."""

    def __init__(self, near: str, far: str) -> None:
        self._ends = [_tun(name) for name in (near, far)]
        self._wake, self._waker = os.pipe()
        self._delay_s, self._lost = 0.0, 0.0
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def shape(self, delay_s: float = 0.0, lost: float = 0.0) -> None:
        """Have each packet take so long, half as much more or less, and this share of them get lost."""
        self._delay_s, self._lost = delay_s, lost

    def close(self) -> None:
        """Take the interfaces away."""
        os.write(self._waker, b".")
        self._thread.join()
        for descriptor in (*self._ends, self._wake, self._waker):
            os.close(descriptor)

    def _run(self) -> None:
        others = dict(zip(self._ends, reversed(self._ends), strict=True))
        under_way: list[tuple[float, int, int, bytes]] = []
        sent = 0
        while True:
            wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready, _, _ = select.select([*self._ends, self._wake], [], [], wait_s)
            if self._wake in ready:
                return
            for end in ready:
                packet = os.read(end, _MOST_BYTES)
                if self._random.random() >= self._lost:
                    sent += 1
                    due_s = time.monotonic() + self._delay_s * self._random.uniform(0.5, 1.5)
                    heappush(under_way, (due_s, sent, others[end], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, packet = heappop(under_way)
                try:
                    os.write(end, packet)
                except OSError:  # the interface is down
                    continue


def _tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _SET_NAME, struct.pack("16sH22x", name.encode(), _TUN | _NO_INFORMATION))
    return descriptor
