"""Room for the addresses that the driver of a GPU takes, in a process whose addresses are limited."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for_addresses() -> Iterator[None]:
    """The driver takes some addresses for all memory of the GPU and of the host, and hardly any memory: the process's
    limit is higher by as much afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    before = _address_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        limit = soft + max(0, _address_bytes() - before)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _address_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().vms)
