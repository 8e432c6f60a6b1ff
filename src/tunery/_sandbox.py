"""The one confinement of foreign code and of programs that read foreign files: Landlock and seccomp.

Landlock takes all files but those that the process needs, seccomp all system calls but those in a list. A confined
process opens no socket, sends no signal to another process, changes no file's mode, owner or times, shares no memory,
makes no namespace, and leaves neither its session nor its process group, which ends as a whole. Only programs that are
known to start others may do so. A kernel's process begins with this file, so it imports little.
"""

import ctypes
import os
import stat
import struct
import sys

TYPE_CHECKING = False  # what `typing` has
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")

_Path = str | os.PathLike[str]
_PROGRAM_FILES = ("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache")
SYSTEM = (
    *_PROGRAM_FILES, "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys",
    "/sys/devices/system", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
"""What programs and their libraries read of this system."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many there are, by the version of the interface; later ones have 16

_MACHINES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
"""By machine: its number in a filter, the column of its calls' numbers below, and the number of `seccomp` itself."""
CODE, FILES, PROGRAMS = range(3)
"""Groups of calls: what any code needs; to change files where it may; to start programs."""
_CALLS = {
    CODE: """
        read 0 63 write 1 64 readv 19 65 writev 20 66 pread64 17 67 pwrite64 18 68 lseek 8 62 close 3 57
        stat 4 - lstat 6 - fstat 5 80 newfstatat 262 79 statx 332 291 access 21 - faccessat 269 48
        faccessat2 439 439 readlink 89 - readlinkat 267 78 getdents64 217 61 getcwd 79 17 fadvise64 221 223
        mmap 9 222 munmap 11 215 mprotect 10 226 mremap 25 216 madvise 28 233 mincore 27 232 brk 12 214
        futex 202 98 futex_waitv 449 449 set_tid_address 218 96 set_robust_list 273 99 rseq 334 293 membarrier 324 283
        exit 60 93 exit_group 231 94 sched_yield 24 124 sched_getaffinity 204 123 sched_getparam 143 121
        sched_getscheduler 145 120 getpriority 140 141 getcpu 309 168 get_mempolicy 239 236 clock_gettime 228 113
        clock_getres 229 114 clock_nanosleep 230 115 nanosleep 35 101 gettimeofday 96 169 time 201 - times 100 153
        getrusage 98 165 getrlimit 97 163 getrandom 318 278 uname 63 160 sysinfo 99 179 getpid 39 172 getppid 110 173
        gettid 186 178 getuid 102 174 geteuid 107 175 getgid 104 176 getegid 108 177 rt_sigaction 13 134
        rt_sigprocmask 14 135
        rt_sigreturn 15 139 rt_sigsuspend 130 133 sigaltstack 131 132 restart_syscall 219 128 arch_prctl 158 -
        poll 7 - ppoll 271 73 select 23 - pselect6 270 72 seccomp 317 277
    """,
    FILES: """
        ftruncate 77 46 fallocate 285 47 mkdir 83 - mkdirat 258 34 unlink 87 - unlinkat 263 35 rmdir 84 - rename 82 -
        renameat 264 38 renameat2 316 276 link 86 - linkat 265 37 fsync 74 82 fdatasync 75 83 fstatfs 138 44
        statfs 137 43 umask 95 166 sendfile 40 71 copy_file_range 326 285
    """,
    PROGRAMS: """
        fork 57 - vfork 58 - execve 59 221 wait4 61 260 waitid 247 95 pipe 22 - pipe2 293 59 dup 32 23 dup2 33 -
        dup3 292 24 close_range 436 436 setrlimit 160 164 getpgrp 111 - getpgid 121 155 getsid 124 156 symlink 88 -
        symlinkat 266 36 epoll_create1 291 20 epoll_ctl 233 21 epoll_wait 232 - epoll_pwait 281 22 epoll_pwait2 441 441
        eventfd2 290 19
    """,
}
_CLONE, _CLONE3, _PRCTL, _FCNTL, _IOCTL, _PRLIMIT, _TGKILL, _SETPGID, _OPENAT, _OPEN = (
    (56, 220), (435, 435), (157, 167), (72, 25), (16, 29), (302, 261), (234, 131), (109, 154), (257, 56), (2, 1 << 30)
)  # fmt: skip
_THREAD, _NAMESPACES = 0x10000, 0x7E020000  # flags of `clone`
_ANY_WRITING, _CUTTING = os.O_WRONLY | os.O_RDWR, os.O_TRUNC
_NAMES_AND_CAPABILITIES = (15, 16, 23, 0x53564D41)  # of prctl: a thread's name, that of memory, what root may
_DESCRIPTORS_AND_LOCKS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)  # of fcntl; who gets a signal is not among them
_INHERITED_AND_TERMINAL = (0x5450, 0x5451, 0x5401)  # of ioctl
_ALLOW, _KILL, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026  # EPERM, ENOSYS
_LOAD, _EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06  # of the filter's machine
_Instruction = tuple[int, int, int, int]
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # where it finds them

_LIMITED = '{{ ulimit -t {cpu_s}; ulimit -v {kib}; ulimit -f {blocks}; }} 2>/dev/null; exec "$@"'
_LEADER = "read -r _; kill -9 0"
"""Leads a process group, and ends it when its input is closed, as it is where the process that started it is gone."""


def enter(readable: "Iterable[_Path]", writable: "Iterable[_Path]" = (), *groups: int) -> None:
    """Confine this process, which has no other threads yet, and all that it starts."""
    _confine((*SYSTEM, *readable), writable, groups)


def keep_to_files(readable: "Iterable[_Path]", writable: "Iterable[_Path]") -> None:
    """Confine this thread, and what it starts, to files: what needs calls of a device's own cannot be kept further."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    if (version := landlock_version()) > 0:
        _keep_to(libc, version, (*SYSTEM, *readable), writable)


def call_confined(
    call: "Callable[[], T]", readable: "Iterable[_Path]", writable: "Iterable[_Path]" = (), *groups: int,
    process_group: int = 0,
) -> "T":  # fmt: skip
    """Call something in a thread that is confined, with the processes that it starts.

    They read programs and these files: not even the system's settings.
    """
    from concurrent.futures import ThreadPoolExecutor

    allowed = (*_PROGRAM_FILES, *readable)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_confine, allowed, writable, groups, whole=False, process_group=process_group).result()
        return thread.submit(call).result()


def run(
    command: "Sequence[_Path]",
    readable: "Iterable[_Path]",
    writable: "Iterable[_Path]",
    *,
    text: str | None = None,
    environment: "Mapping[str, str] | None" = None,
    timeout_s: float | None = None,
    memory_bytes: int = 0,
    file_bytes: int = 0,
) -> "subprocess.CompletedProcess[str]":
    """Run a program that may start others, confined, within limits of CPU time, memory and size of files (0: none).

    Nothing that it has started outlives this call or this process.
    """
    import subprocess

    limited, pipe = [str(word) for word in command], subprocess.PIPE
    if memory_bytes and timeout_s:
        limits = _LIMITED.format(cpu_s=round(timeout_s), kib=memory_bytes >> 10, blocks=file_bytes >> 9)
        limited = ["/bin/sh", "-c", limits, "sh", *limited]
    with subprocess.Popen(["/bin/sh", "-c", _LEADER], stdin=pipe, process_group=0) as leader:

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                limited, stdin=subprocess.DEVNULL if text is None else pipe, stdout=pipe, stderr=pipe, text=True,
                errors="replace", env=environment, process_group=leader.pid,
            )  # fmt: skip

        with call_confined(start, readable, writable, FILES, PROGRAMS, process_group=leader.pid) as process:
            try:
                output, errors = process.communicate(text, timeout_s)
            finally:
                os.killpg(leader.pid, 9)
        return subprocess.CompletedProcess(limited, process.returncode, output, errors)


def lacking() -> tuple[str, ...]:
    """Return which parts of the confinement this machine's kernel, or a container around us, does not have."""
    parts = []
    if landlock_version() < 1:
        parts.append("Landlock, which keeps foreign code from files")
    libc, (_, _, seccomp) = ctypes.CDLL(None), _MACHINES.get(os.uname().machine, (0, 0, -1))
    action = struct.pack("I", _REFUSE & 0xFFFF0000)
    if seccomp < 0 or libc.syscall(seccomp, ctypes.c_uint(2), ctypes.c_uint(0), action):
        parts.append("seccomp, which keeps foreign code from system calls")
    return tuple(parts)


def landlock_version() -> int:
    """Return the version of Linux's Landlock here; below 1 there is none, and files are open to what is confined."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _confine(
    readable: "Iterable[_Path]", writable: "Iterable[_Path]", groups: "Sequence[int]", *, whole: bool = True,
    process_group: int = 0,
) -> None:  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # nothing that it starts has more rights
    if (version := landlock_version()) > 0:
        _keep_to(libc, version, readable, writable)
    if os.uname().machine in _MACHINES and sys.byteorder == "little":
        _filter(libc, _steps((CODE, *groups), process_group), whole=whole)


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


def _filter(libc: ctypes.CDLL, instructions: "Iterable[_Instruction]", *, whole: bool) -> None:
    """Have the kernel ask a filter about all system calls of this thread, or of all threads."""
    *_, seccomp = _MACHINES[os.uname().machine]
    program = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
    steps = ctypes.create_string_buffer(program)
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps))
    flags = 4 + whole  # without the kernel's own precautions against Spectre, which slow down; for all threads
    if libc.syscall(seccomp, ctypes.c_uint(1), ctypes.c_uint(flags), described):
        raise OSError(ctypes.get_errno(), "the kernel does not take the filter of system calls")


def _steps(groups: "Sequence[int]", process_group: int) -> "list[_Instruction]":
    """Return the filter: instruction, steps to skip where a test holds, and where it does not, operand."""
    machine, column, _ = _MACHINES[os.uname().machine]
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    words = " ".join(_CALLS[group] for group in groups).split()
    for number in words[column + 1 :: 3]:
        if number != "-":
            steps += [(_EQUAL, 0, 1, int(number)), (_RETURN, 0, 0, _ALLOW)]
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN)]  # libraries go on with `clone`

    def decide(call: tuple[int, int], number: int, *tests: "_Instruction") -> None:
        """Decide on a call by its argument of this number: what no test allows is refused."""
        read = (_LOAD, 0, 0, _ARGUMENTS + 8 * number)
        steps.extend([(_EQUAL, 0, len(tests) + 2, call[column]), read, *tests, (_RETURN, 0, 0, _REFUSE)])

    def among(*values: int) -> "list[_Instruction]":
        return [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]

    no_namespace = ((_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE))
    thread = () if PROGRAMS in groups else ((_ANY_BIT, 1, 0, _THREAD), (_RETURN, 0, 0, _REFUSE))
    decide(_CLONE, 0, *no_namespace, *thread, (_RETURN, 0, 0, _ALLOW))
    # Landlock before its version 3 lets a file be cut short that may be read only.
    not_cut_short = ((_AND, 0, 0, _ANY_WRITING | _CUTTING), (_EQUAL, 1, 0, _CUTTING), (_RETURN, 0, 0, _ALLOW))
    only_to_read = ((_ANY_BIT, 1, 0, _ANY_WRITING | _CUTTING | os.O_CREAT), (_RETURN, 0, 0, _ALLOW))
    opening = not_cut_short if FILES in groups else only_to_read
    decide(_OPENAT, 2, *opening)
    decide(_OPEN, 1, *opening)
    decide(_PRCTL, 0, *among(*_NAMES_AND_CAPABILITIES))
    decide(_FCNTL, 1, *among(*_DESCRIPTORS_AND_LOCKS))
    decide(_IOCTL, 1, *among(*_INHERITED_AND_TERMINAL))
    own = ((_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE))
    if PROGRAMS not in groups:
        decide(_TGKILL, 0, *among(os.getpid()))  # how it aborts
    if process_group:
        decide(_SETPGID, 0, *own, (_LOAD, 0, 0, _ARGUMENTS + 8), *among(process_group))
    only_read = ((_LOAD, 0, 0, _ARGUMENTS + 16), *own, (_LOAD, 0, 0, _ARGUMENTS + 20), *own)
    decide(_PRLIMIT, 0, *own, *(() if PROGRAMS in groups else only_read), (_RETURN, 0, 0, _ALLOW))
    return [*steps, (_RETURN, 0, 0, _REFUSE)]
