"""Take rights from this process for good: the network, and all files but those that it needs (Linux 5.13 and later).

What the kernel, or a container around us, does not permit is left out: this is a second wall, behind the check of what
is loaded. Every user's kernel starts with this file, so it imports little.
"""

import ctypes
import os
import stat
import struct

TYPE_CHECKING = False  # what `typing` has
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import ThreadPoolExecutor

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_NEW_USER, _NEW_NETWORK = 0x1000_0000, 0x4000_0000
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many there are, by the version of the interface; later ones have 16
_PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache")
SYSTEM = (
    *_PROGRAMS, "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys",
    "/sys/devices/system", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
"""What programs and their libraries read of this system."""
_Path = str | os.PathLike[str]


def enter(readable: "Iterable[_Path]", writable: "Iterable[_Path]") -> None:
    """Keep this thread, and all that it starts, from the network and from files outside of these directories."""
    libc = ctypes.CDLL(None, use_errno=True)
    _leave_network(libc)
    if (version := landlock_version()) > 0:
        _keep_to(libc, version, (*SYSTEM, *readable), writable)


def call_kept_to(call: "Callable[[], None]", readable: "Iterable[_Path]", writable: "Iterable[_Path]") -> None:
    """Call something in a thread that, with all processes that it starts, reads programs and these directories only.

    Not even the system's settings, and nothing that is imported first there.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        keep(thread, readable, writable)
        thread.submit(call).result()


def keep(thread: "ThreadPoolExecutor", readable: "Iterable[_Path]", writable: "Iterable[_Path]") -> None:
    libc, allowed = ctypes.CDLL(None, use_errno=True), (*_PROGRAMS, *readable)
    if (version := landlock_version()) > 0:
        thread.submit(_keep_to, libc, version, allowed, writable).result()


def landlock_version() -> int:
    """Return the version of Linux's Landlock here; below 1 there is none, and files are open to what is shut in."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _leave_network(libc: ctypes.CDLL) -> None:
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NETWORK):
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(descriptor, text.encode())
            os.close(descriptor)
        except OSError:
            return


def _keep_to(libc: ctypes.CDLL, version: int, readable: "Iterable[_Path]", writable: "Iterable[_Path]") -> None:
    """Restrict files by Landlock, and from its version 4 TCP, from 6 signals and abstract sockets of others."""
    every = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    fields = [every, *([0b11] if version >= 4 else []), *([0b11] if version >= 6 else [])]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return
    for path in readable:
        _allow(libc, ruleset, path, _READ & every)
    _allow(libc, ruleset, "/dev/null", (_READ | _WRITE_FILE | _TRUNCATE) & every)
    for path in writable:
        _allow(libc, ruleset, path, every)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: _Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    allowed = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & _OF_FILES
    libc.syscall(_ADD_RULE, ruleset, ctypes.c_int(1), struct.pack("=Qi", allowed, descriptor), ctypes.c_uint32(0))
    os.close(descriptor)
