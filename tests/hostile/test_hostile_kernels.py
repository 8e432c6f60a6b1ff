"""What a kernel, or a program that reads foreign files, tries in order to leave its confinement."""

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from attack_tools import places
from daemon_tools import wait_until
from square_kernel import square_file

from tunery._sandbox import FILES, PROGRAMS, lacking, run
from tunery.dialects.kernels.buffers import ArgumentSets, GuardedArray
from tunery.dialects.kernels.process import LIBRARY, KernelProcess

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(bool(lacking()), reason=f"this machine lacks {', '.join(lacking())}"),
]

# Each answers 1 where it succeeds. What cannot be done on every machine, even without confinement, is not required to.
SECCOMP = (
    "connect", "udp", "chmod", "utimensat", "limit", "affinity", "scheduler", "priority", "shared_memory", "fork",
    "session", "execute", "memory_file", "owner", "semaphores", "queue", "pipe", "watch", "timer", "event",
    "terminal", "signal_by_file", "clock", "old_calls", "other_calls",
)  # fmt: skip
LANDLOCK = ("read", "list", "environment", "open_file")
EITHER = (
    "signal", "abstract", "all_signals", "tcp", "cut", "trace", "memory_of_another", "write", "create", "remove",
    "posix_memory",
)  # fmt: skip
PERHAPS = (
    "attribute", "namespace", "ring", "keys", "faults", "program_in_kernel", "counters", "mount", "root", "compare",
)  # fmt: skip
ALL = (*SECCOMP, *LANDLOCK, *EITHER, *PERHAPS)
ATTACKS = """
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

static int opens(int kind, int type, void *address, int size) {
    int wire = socket(kind, type, 0);
    int done = wire >= 0 && (type == SOCK_DGRAM ? sendto(wire, "x", 1, 0, address, size) == 1
                                                 : !connect(wire, address, size));
    close(wire);
    return done;
}
static struct sockaddr_in loopback = {.sin_family = AF_INET};
int a_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    return opens(AF_UNIX, SOCK_STREAM, &address, sizeof address);
}
int a_udp(void) {
    loopback.sin_port = htons(9), loopback.sin_addr.s_addr = htonl(0x7F000001);
    return opens(AF_INET, SOCK_DGRAM, &loopback, sizeof loopback);
}
int a_tcp(void) {
    loopback.sin_port = htons(PORT), loopback.sin_addr.s_addr = htonl(0x7F000001);
    return opens(AF_INET, SOCK_STREAM, &loopback, sizeof loopback);
}
int a_chmod(void) { return !chmod(SECRET, 0777); }
int a_owner(void) { return !chown(SECRET, -1, -1); }
int a_utimensat(void) { return !utimensat(AT_FDCWD, SECRET, 0, 0); }
int a_attribute(void) { return !setxattr(SECRET, "user.told", "x", 1, 0); }
int a_limit(void) {
    struct rlimit limit = {64, 64};
    return !prlimit(VICTIM, RLIMIT_CORE, &limit, 0);
}
int a_affinity(void) {
    cpu_set_t cores;
    return !sched_getaffinity(0, sizeof cores, &cores) && !sched_setaffinity(VICTIM, sizeof cores, &cores);
}
int a_scheduler(void) {
    struct sched_param parameter = {0};
    return !sched_setscheduler(VICTIM, SCHED_BATCH, &parameter);
}
int a_priority(void) { return !setpriority(PRIO_PROCESS, VICTIM, 5); }
int a_shared_memory(void) {
    int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    if (segment >= 0) shmctl(segment, IPC_RMID, 0);
    return segment >= 0;
}
int a_fork(void) {
    int child = fork();
    if (!child) _exit(0);
    return child > 0 && waitpid(child, 0, 0) == child;
}
int a_session(void) { return setsid() >= 0 || setpgid(0, 0) == 0; }
int a_execute(void) {
    char *words[] = {"/bin/true", 0};
    int child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), status = 1;
    if (!child) { execve(words[0], words, 0); _exit(1); }
    return child > 0 && waitpid(child, &status, 0) == child && !status;
}
int a_namespace(void) { return !unshare(CLONE_NEWUSER); }
int a_memory_file(void) { return memfd_create("x", 0) >= 0; }
int a_ring(void) { return syscall(SYS_io_uring_setup, 4, (char[256]){0}) >= 0; }
int a_keys(void) { return syscall(SYS_add_key, "user", "x", "y", 1, -3) >= 0; }
int a_abstract(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, ABSTRACT, sizeof ABSTRACT - 1);
    return opens(AF_UNIX, SOCK_STREAM, &address, sizeof address.sun_family + sizeof ABSTRACT);
}
int a_semaphores(void) {
    int made = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
    if (made >= 0) semctl(made, 0, IPC_RMID);
    return made >= 0;
}
int a_queue(void) {
    int made = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (made >= 0) msgctl(made, IPC_RMID, 0);
    return made >= 0;
}
int a_pipe(void) { int ends[2]; return !pipe2(ends, 0); }
int a_watch(void) { return inotify_init1(0) >= 0; }
int a_timer(void) { return timerfd_create(CLOCK_MONOTONIC, 0) >= 0; }
int a_event(void) { return eventfd(0, 0) >= 0; }
int a_terminal(void) { return ioctl(0, TIOCSTI, "x") == 0 || errno != EPERM; }
int a_all_signals(void) { return !syscall(SYS_rt_sigqueueinfo, VICTIM, 0, (int[32]){0, 0, SI_QUEUE}); }
int a_signal_by_file(void) { return !fcntl(0, F_SETOWN, VICTIM) || !fcntl(0, F_SETSIG, SIGKILL) || errno != EPERM; }
int a_clock(void) { struct timex x = {0}; return adjtimex(&x) >= 0; }  // it only asks, and may not even do so
int a_old_calls(void) { return syscall(SYS_personality, 0xFFFFFFFF) >= 0; }
int a_other_calls(void) {  // those of x32, and what no kernel has
    errno = 0;
    syscall(0x40000000 | SYS_getpid);
    return errno != EPERM;
}
int a_environment(void) {
    char place[64];
    sprintf(place, "/proc/%d/environ", VICTIM);
    return open(place, O_RDONLY) >= 0;
}
int a_posix_memory(void) {
    int made = shm_open("/tunery-attack", O_CREAT | O_RDWR, 0600);
    if (made >= 0) shm_unlink("/tunery-attack");
    return made >= 0;
}
int a_open_file(void) {  // of another process, by its descriptor
    char place[64];
    sprintf(place, "/proc/%d/fd/0", VICTIM);
    int process = syscall(SYS_pidfd_open, VICTIM, 0);
    return open(place, O_RDONLY) >= 0 || syscall(SYS_pidfd_getfd, process, 0, 0) >= 0;
}
int a_faults(void) { return syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY) >= 0; }
int a_program_in_kernel(void) { return syscall(SYS_bpf, 0, (char[128]){0}, 128) >= 0; }
int a_counters(void) { return syscall(SYS_perf_event_open, (char[128]){1, 0, 0, 0, 128}, 0, -1, -1, 0) >= 0; }
int a_mount(void) { return !unshare(CLONE_NEWNS); }
int a_root(void) { return !chroot("/proc/self"); }
int a_compare(void) { return syscall(SYS_kcmp, VICTIM, VICTIM, 0, 0, 0) >= 0; }
int a_read(void) { return fopen(SECRET, "r") != 0; }
int a_write(void) { return fopen(SECRET, "a") != 0; }
int a_create(void) { return open(SECRET ".new", O_CREAT | O_WRONLY, 0600) >= 0; }
int a_list(void) { return opendir(DIRECTORY) != 0; }
int a_remove(void) {  // it asks for the right to write a directory, however the call is named
    int here = open(DIRECTORY, O_RDONLY | O_DIRECTORY);
    return here >= 0 && openat(here, "made", O_CREAT | O_WRONLY, 0600) >= 0;
}
int a_cut(void) { return !truncate(SECRET, 1); }
int a_signal(void) { return !kill(VICTIM, 0) || !syscall(SYS_tgkill, VICTIM, VICTIM, 0); }
int a_trace(void) { return !ptrace(PTRACE_SEIZE, VICTIM, 0, 0); }  // which ends with this process
int a_memory_of_another(void) {
    char byte;
    struct iovec mine = {&byte, 1}, other = {(void *)ADDRESS, 1};
    return process_vm_readv(VICTIM, &mine, 1, &other, 1, 0) == 1;
}
"""
ENTRY = """
void tunery_run(float **p, const long *strides, long count, long calls) {
    float *y = p[0], cut = 0;
    %s
    for (int file = 0; file < 64; file++) cut += !ftruncate(file, 0);
    y[%d] = cut;
}
"""
CHILD = """
import ctypes, os, sys, types
from tunery import _sandbox
library, without, groups, *names = sys.argv[1:]
if "seccomp" in without:
    os.uname = lambda: types.SimpleNamespace(machine="unknown")
if "landlock" in without:
    _sandbox.landlock_version = lambda: 0
attacks = ctypes.CDLL(library)
if without != "seccomp and landlock":
    _sandbox.enter([library], (), *map(int, groups))
print(*[name for name in names if getattr(attacks, "a_" + name)() == 1])
"""


@dataclass(frozen=True)
class Surroundings:
    """What is there to be attacked: a listening socket, a file, another process of this user."""

    library: Path

    def succeed(self, without: str = "", groups: str = "") -> set[str]:
        command = [sys.executable, "-c", CHILD, self.library, without, groups, *ALL]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture(name="around", scope="module")
def _around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    place = tmp_path_factory.mktemp("around")
    (place / "secret").write_text("told")
    with (
        socket.socket(socket.AF_UNIX) as listening, socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as unnamed, subprocess.Popen(["sleep", "600"]) as victim,
    ):  # fmt: skip
        unnamed.bind(f"\0tunery-{os.getpid()}")
        unnamed.listen(64)
        listening.bind(str(place / "socket"))
        listening.listen(64)
        readable = next(m for m in Path(f"/proc/{victim.pid}/maps").read_text().splitlines() if " r" in m)
        values = {
            "SOCKET": f'"{place}/socket"', "SECRET": f'"{place}/secret"', "DIRECTORY": f'"{place}"',
            "ABSTRACT": f'"tunery-{os.getpid()}"', "VICTIM": victim.pid,
            "PORT": port.getsockname()[1], "ADDRESS": f"0x{readable.split('-')[0]}L",
        }  # fmt: skip
        defined = "".join(f"#define {name} {value}\n" for name, value in values.items())
        tries = "".join(f"y[{number}] = a_{name}();" for number, name in enumerate(ALL))
        library = place / "attacks.so"
        command = ["gcc", "-x", "c", "-", "-shared", "-fPIC", "-w", "-D_GNU_SOURCE", "-o", str(library)]
        subprocess.run(command, input=f"{defined}{ATTACKS}{ENTRY % (tries, len(ALL))}", text=True, check=True)
        yield Surroundings(library)
        victim.kill()


def test_no_attack_succeeds_and_without_its_part_of_the_confinement_it_does(around: Surroundings) -> None:
    assert around.succeed() == set()
    anybodys = around.succeed("seccomp and landlock")
    assert {*SECCOMP, *LANDLOCK, *EITHER} <= anybodys, "the attacks are none"
    assert {*SECCOMP} <= around.succeed("seccomp") <= {*SECCOMP, *PERHAPS}
    assert {*LANDLOCK} == around.succeed("landlock")


def test_a_program_that_may_start_others_and_write_its_files_can_do_no_more(around: Surroundings) -> None:
    """So are gcc, PoCL's compiler and linker, IREE's tools, and what reads torch's programs."""
    assert around.succeed(groups=f"{FILES}{PROGRAMS}") == {"fork", "execute", "pipe", "event"}
    assert around.succeed(groups=f"{FILES}") == set()


def test_a_kernels_process_is_so_confined(around: Surroundings) -> None:
    """Memory that it shares with ours and cut short would end ours, at its next look, by a signal."""
    array = GuardedArray("y", (len(ALL) + 1,), "float32")
    process = KernelProcess(LIBRARY, [around.library], 1, [array], ArgumentSets([]))
    try:
        array.put(np.nan)
        process.run()
        answers = array.array.tolist()
    finally:
        process.close()
    assert [name for name, answer in zip((*ALL, "cut_shared"), answers, strict=True) if answer != 0] == []
    with pytest.raises(PermissionError):
        os.ftruncate(array.shared[0], 0)


ORPHAN = """
import os, pathlib, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        for leave in (os.setsid, lambda: os.setpgid(0, 0)):
            try: leave()
            except OSError: pass
        os.close(1), os.close(2)
        pathlib.Path(sys.argv[1], "part").write_text(str(os.getpid()))
        pathlib.Path(sys.argv[1], "part").rename(pathlib.Path(sys.argv[1], "orphan"))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(os.path.join(sys.argv[1], "orphan")): time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_nothing_that_a_confined_program_has_started_outlives_it(seconds: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, str(tmp_path), seconds]
    with nullcontext() if seconds == "0" else pytest.raises(subprocess.TimeoutExpired):
        run(command, [sys.prefix, sys.base_prefix], [tmp_path], timeout_s=5.0)
    wait_until(lambda: _is_gone(int((tmp_path / "orphan").read_text())))


def test_a_confined_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; from tunery._sandbox import run; run(sys.argv[2:], [sys.prefix, sys.base_prefix], sys.argv[1:2])"
    )
    command = [sys.executable, "-c", code, str(tmp_path), sys.executable, "-c", ORPHAN, str(tmp_path), "600"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as starter:
        wait_until((tmp_path / "orphan").exists)
        starter.kill()
    wait_until(lambda: _is_gone(int((tmp_path / "orphan").read_text())))


HANGS = """
import sys
from tunery.dialects.kernels.buffers import ArgumentSets
from tunery.dialects.kernels.process import LIBRARY, KernelProcess
process = KernelProcess(LIBRARY, sys.argv[1:], 1, [], ArgumentSets([]))
print("ready", flush=True)
process.run()
"""


def test_a_kernel_ends_with_the_process_that_measures_it(tmp_path: Path) -> None:
    library = tmp_path / "hangs.so"
    code = "void tunery_run(void **p, const long *s, long n, long c) { for (volatile int i = 1; i;) ; }"
    subprocess.run(["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", library], input=code, text=True, check=True)
    command = [sys.executable, "-c", HANGS, str(library)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout is not None
        measuring.stdout.readline()
        started = psutil.Process(measuring.pid).children(recursive=True)
        assert len(started) == 2
        measuring.kill()
    wait_until(lambda: all(_is_gone(one.pid) for one in started))


LACKING = """
import os, struct, sys
from tunery import _sandbox
call = {"Landlock": 444, "seccomp": 317}[sys.argv[1]]
os.environ.pop("TUNERY_UNCONFINED_KERNELS", None)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000)]
_sandbox.ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
_sandbox._filter(_sandbox.ctypes.CDLL(None), steps, whole=True)
os.execv(sys.executable, [sys.executable, "-P", "-m", "tunery", *sys.argv[2:]])
"""
KERNEL = {
    "kernel": {
        "description": square_file('source = "square.c"', 4, "[parameters]\nONE = [1]"),
        "files": {"square.c": "void square(const float *x, float *y) { y[0] = x[0]; }"},
    },
    "candidate": {"parameters": {"ONE": 1}},
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names calls by their numbers")
@pytest.mark.parametrize("part", ["Landlock", "seccomp"])
def test_what_the_machines_kernel_lacks_is_said_and_no_accounts_kernel_is_run(part: str, tmp_path: Path) -> None:
    """The kernel answers such a call as one does that does not know it."""
    environment = places(tmp_path) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    begin = [sys.executable, "-c", LACKING, part]
    doctor = subprocess.run([*begin, "doctor"], env=environment, capture_output=True, text=True, check=False)
    assert f"lacks {part}" in next(line for line in doctor.stdout.splitlines() if "sandbox" in line)
    command = [*begin, "serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s.db"), "--json"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as served:
        try:
            assert served.stdout is not None
            ready = json.loads("".join(iter(served.stdout.readline, "}\n")) + "}")
            headers = {"Authorization": f"Bearer {ready['token']}"}
            answer = httpx.post(f"{ready['url']}/v1/measurements", json=KERNEL, headers=headers, timeout=60)
        finally:
            served.terminate()
            said = served.communicate(timeout=60)[1]
    assert f"lacks {part}" in said
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (403, "confinement")
