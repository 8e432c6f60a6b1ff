"""The inside of a worker: settle in, create the service, answer one call at a time."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import sys
import time
from typing import Any

from tunery._errors import DeviceLostError, EngineError
from tunery.blobs import BlobPlace, Blobs, open_blobs
from tunery.engines._loop import FrameReader, pack
from tunery.engines._payload import Signatures, error_to_data, signatures
from tunery.engines.local._process import own_cpu_s

LOG_LIMIT_BYTES = 4 << 20
"""A worker's log is emptied when it is longer than this after a call."""
_OOM_SCORE = "900"
_LOST = 75
"""The exit code of a worker whose device takes no more work from it."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(channel: socket.socket) -> int:
    frames = FrameReader(channel.fileno())
    if (first := frames.read()) is None:
        return 0
    header, body = first
    began = time.monotonic()
    try:
        _redirect_output(header["log"])
        _settle(header)
        methods = signatures(header["service"])
        service = methods.create(header["settings"], body, lambda: _blobs(header["blobs"]))
        _limit_memory(header["memory_bytes"])
        if header["confined"]:
            _confine(header["blobs"])
    except BaseException as error:  # noqa: BLE001 - whatever the constructor raises is the caller's answer
        _send(channel, pack({"do": "ready", "failed": True, **_usage(began)}, _error(error)))
        return 1
    _send(channel, pack({"do": "ready", **_usage(began)}))
    while (request := frames.read()) is not None:
        _answer(channel, methods, service, *request)
    return 0


def _send(channel: socket.socket, message: bytes) -> None:
    """Send by `write`, which a confined process may call."""
    left = memoryview(message)
    while left:
        left = left[os.write(channel.fileno(), left) :]


def _error(error: BaseException) -> bytes:
    return json.dumps(error_to_data(error)).encode()


def _blobs(place: dict[str, Any] | None) -> Blobs:
    if place is None:
        raise EngineError("the engine's blobs cannot be shared with other processes; give it those of a directory")
    return open_blobs(BlobPlace(**place))


def _confine(place: dict[str, Any]) -> None:
    from tunery._sandbox import FILES, enter, lacking

    if parts := lacking():
        raise EngineError(f"what other hosts build cannot be run here: this machine lacks {', '.join(parts)}")
    in_use = pathlib.Path(place["directory"], "leases", place["lease"])
    facts = ("/proc/pressure", "/sys/class", "/sys/devices")
    enter([*filter(None, sys.path), sys.prefix, sys.base_prefix, in_use, *facts], (), FILES)


def _answer(channel: socket.socket, methods: Signatures, service: object, header: dict[str, Any], body: bytes) -> None:
    began = time.monotonic()
    method = header["method"]
    failed = False
    try:
        arguments = methods.decode_arguments(method, header["count"], body)
        del body
        result = methods.encode_result(method, getattr(service, method)(*arguments))
    except DeviceLostError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the log is quoted as the reason
        os._exit(_LOST)  # its libraries are in no state to be taken apart
    except BaseException as error:  # noqa: BLE001 - a SystemExit in a method is its failure, not the worker's end
        result, failed = _error(error), True
    _trim_log()
    _send(channel, pack({"do": "answer", "failed": failed, **_usage(began)}, result))


def _usage(began: float) -> dict[str, float]:
    """Wall seconds since `began`, and CPU seconds of this process in all: the difference of two is a call's."""
    return {"wall_s": time.monotonic() - began, "cpu_s": own_cpu_s()}


def _settle(header: dict[str, Any]) -> None:
    """Take the place that the spec gives: import path, thread counts, processors and priority."""
    if header["path"] is not None:
        sys.path[:] = header["path"]
    for name, value in header["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    with contextlib.suppress(OSError):  # removed meanwhile
        os.chdir(header["directory"])
    os.environ |= dict.fromkeys((*_THREAD_VARIABLES, *header["thread_variables"]), str(header["threads"]))
    os.sched_setaffinity(0, header["cores"])
    if header["nice"]:
        os.nice(header["nice"])
    with contextlib.suppress(OSError):  # where memory runs out all the same, the kernel ends a worker, nobody else
        pathlib.Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # forked siblings would draw the same numbers


def _redirect_output(log: str) -> None:
    """Send what the service and its libraries print to the log, where it can neither block nor corrupt anything."""
    import faulthandler

    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # real files here, never replaced ones
    faulthandler.enable()  # a segmentation fault leaves the Python line it happened in


def _trim_log() -> None:
    with contextlib.suppress(OSError):
        if os.fstat(1).st_size > LOG_LIMIT_BYTES:
            os.ftruncate(1, 0)


def _limit_memory(memory_bytes: int | None) -> None:
    """Limit the address space to what is in use now, the service being there, plus `memory_bytes`."""
    if memory_bytes is None:
        return
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a kernel table, not a path of ours
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = in_use + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
