"""Kernels in OpenCL are tuned from end to end on PoCL, and none that cheats or breaks is ever delivered."""

import errno
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from half_kernel import check_half, half_file
from launched_kernels import check_that_no_cheat_wins, faulty_file, measured_alone, product_file, written

from tunery._errors import DialectError, ModelError, TargetError
from tunery._sandbox import lacking, landlock_version
from tunery.devices import Device, open_device
from tunery.dialects import Kernel
from tunery.dialects.kernels.opencl import OpenClDialect
from tunery.domain import Network, Outcome, Target
from tunery.testing.device_contract import DeviceContract
from tunery.testing.dialect_contract import DialectContract

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module", autouse=True)
def _needs_opencl() -> None:
    """Skip where something is missing; who only collects the tests starts no process."""
    [check] = OpenClDialect().doctor()
    if check.advice:
        pytest.skip(check.advice)


PRODUCT = """
__kernel void product(__global const float *a, __global const float *b, int n, __global float *c) {
    const int col = get_global_id(0), row = get_global_id(1);
    __local float tile[TILE][TILE];
    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += TILE) {
        tile[get_local_id(1)][get_local_id(0)] = a[row * N + k0 + get_local_id(0)];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < TILE; k++) sum += tile[get_local_id(1)][k] * b[(k0 + k) * N + col];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * N + col] = sum;
}
"""
PRODUCT_FILE = product_file("OpenCL", "cl", "-cl-mad-enable")

# Each value of FAULT is another kernel; 0 is right and slow, 1 is right and fast, the others are faster than both.
FAULTS = {
    2: "writes far outside", 3: "writes just behind its output", 4: "wrong", 5: "hangs", 6: "returns its input",
    7: "remembers its last answer while the ends of its input are the same", 8: "writes to its input",
    9: "writes every second place", 10: "has a race on local memory", 11: "needs more local memory than there is",
    12: "does nothing where its output is there already",
}  # fmt: skip
FAULTY = """
#if FAULT == 7
__global float kept_x[2];
__global int kept = 0;
#endif
float slow(float x, int times) {
    float s = 0;
    for (int k = 0; k < times; k++) s += sin(x + k) * 1e-20f;
    return x * x + s;
}
__kernel void square(__global float *x, __global float *y) {
    const int i = get_global_id(0), me = get_local_id(0);
#if FAULT == 0
    y[i] = slow(x[i], 60);
#elif FAULT == 4
    y[i] = x[i] * x[i] * 1.1f;
#elif FAULT == 5
    volatile int forever = 1;
    while (forever) ;
#elif FAULT == 6
    y[i] = x[i];
#elif FAULT == 7
    if (!(kept && kept_x[0] == x[0] && kept_x[1] == x[N - 1])) y[i] = slow(x[i], 1);
    if (i == N - 1) { kept_x[0] = x[0]; kept_x[1] = x[N - 1]; kept = 1; }
#elif FAULT == 9
    if (i % 2) y[i] = x[i] * x[i];
#elif FAULT == 10
    __local float shared[50];
    shared[me] = x[i];
    y[i] = shared[49 - me] * shared[49 - me];
#elif FAULT == 11
    __local float much[1 << 24];
    much[me] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    y[i] = much[me] * x[i];
#elif FAULT == 12
    if (!(fabs(y[i]) < 1e30f)) y[i] = slow(x[i], 8);
#else
    y[i] = slow(x[i], FAULT == 1 ? 8 : 1);
    if (i == 0 && FAULT == 2) y[1 << 20] = 1;
    if (i == 0 && FAULT == 3) y[N] = 1;
    if (i == 0 && FAULT == 8) x[N / 2] = 0;
#endif
}
"""
FAULTY_FILE = faulty_file("OpenCL", "cl", FAULTS, 'flags = ["-cl-std=CL2.0"]')


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNERY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def unpinned() -> Iterator[tuple[int, ...]]:
    """The cores of this process, which it has again afterwards."""
    cores = os.sched_getaffinity(0)
    yield tuple(sorted(cores))
    os.sched_setaffinity(0, cores)


class TestOpenClDevice(DeviceContract):
    @pytest.fixture
    @classmethod
    def device(cls, unpinned: tuple[int, ...]) -> Device:
        return open_device("opencl", unpinned, unpinned[:1])

    def work(self, device: Device) -> None:
        device.flush_caches()


class TestOpenClContract(DialectContract):
    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> OpenClDialect:
        return OpenClDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, tmp_path_factory: pytest.TempPathFactory) -> Network:
        return OpenClDialect().own_network(str(written(tmp_path_factory.mktemp("kernel"), PRODUCT, PRODUCT_FILE)))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: OpenClDialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Device:
        return open_device("opencl")


@pytest.mark.parametrize(
    ("old", "new"), [("int n", "int n, int m"), ("const float *b", "const int *b"), ("float sum = 0.0f;", "float sum"),
                     ("void product", "void produce"), ("int n", "float n")],
)  # fmt: skip
def test_a_source_that_does_not_compile_is_told_before_anything_is_timed(tmp_path: Path, old: str, new: str) -> None:
    dialect = OpenClDialect()
    path = written(tmp_path, PRODUCT.replace(old, new, 1), PRODUCT_FILE)
    with pytest.raises(ModelError, match="OpenCL") as caught:
        dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [('local = ["TILE", "TILE"]', 'local = ["TILE", "TILE - 1"]'), ('global = ["N"', 'global = ["TILE - 4"'),
     ('global = ["N"', 'global = ["N / 7"'), ('local = ["TILE", "TILE"]', 'local = ["N", "N * 1024"]'),
     ("-cl-mad-enable", "-ffast-math")],
)  # fmt: skip
def test_a_launch_or_flag_that_cannot_be_is_one_sentence(tmp_path: Path, old: str, new: str) -> None:
    dialect = OpenClDialect()
    assert old in PRODUCT_FILE
    path = written(tmp_path, PRODUCT, PRODUCT_FILE.replace(old, new, 1))
    with pytest.raises(ModelError) as caught:
        dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    assert "\n" not in str(caught.value)


def test_a_work_group_that_the_device_cannot_hold_is_refused_as_it_is_built(tmp_path: Path) -> None:
    dialect = OpenClDialect()
    [task] = dialect.extract(
        dialect.own_network(str(written(tmp_path, PRODUCT, PRODUCT_FILE))), dialect.resolve_target("native", 1)
    )
    bodies = [one.body for one in dialect.open(task, [], None, 0).propose(10)]
    assert len(bodies) == 4, "the default is left out, and so is what the restriction refuses"
    with pytest.raises(TargetError):
        dialect.resolve_target('{"kind": "opencl", "device": "another one"}', 1)


@pytest.mark.slow
@pytest.mark.jobs
def test_no_kernel_that_cheats_or_breaks_is_delivered(tmp_path: Path) -> None:
    path = written(tmp_path, FAULTY, FAULTY_FILE)
    check_that_no_cheat_wins(path, tmp_path, "opencl", "cl", FAULTS)


@pytest.mark.attack
@pytest.mark.slow
@pytest.mark.parametrize("fault", [3, 4, 6, 7, 8, 9, 10, 12])
def test_a_kernel_that_cheats_is_told_however_slow_it_is(tmp_path: Path, fault: int) -> None:
    """Those that do not end the process that measures them."""
    path = written(tmp_path, FAULTY, FAULTY_FILE)
    found = measured_alone(path, tmp_path, OpenClDialect(), fault)
    assert found.outcome in {Outcome.WRONG_RESULT, Outcome.RUN_FAILED}, FAULTS[fault]


@pytest.mark.jobs
def test_a_kernel_in_half_precision_is_verified_and_delivered(tmp_path: Path) -> None:
    """As every device of OpenCL stores it; few compute in it."""
    source = """
__kernel void scale(__global const half *x, float factor, __global half *y) {
    const int i = get_global_id(0);
    vstore_half(vload_half(i, x) * factor + FAULT * 0.25f, i, y);
}
"""
    launch = '[launch]\nglobal = ["N"]\nlocal = [64]'
    file = half_file('language = "OpenCL"\nsource = "scale.cl"', launch, factor="float32")
    check_half(written(tmp_path, source, file), tmp_path, "opencl")


def test_a_damaged_built_kernel_is_refused(tmp_path: Path) -> None:
    dialect = OpenClDialect()
    [task] = dialect.extract(
        dialect.own_network(str(written(tmp_path, PRODUCT, PRODUCT_FILE))), dialect.resolve_target("native", 1)
    )
    built = dialect.build(task, dialect.baseline(task), tmp_path)
    built.path.write_bytes(built.path.read_bytes()[:-100])
    with pytest.raises(DialectError):
        dialect.load(task, built, open_device("opencl"))
    with pytest.raises(DialectError, match="cpu"):
        dialect.load(task, dialect.build(task, dialect.baseline(task), tmp_path), open_device("cpu"))


SQUARE_FILE = faulty_file("OpenCL", "cl", {})


def run_once(path: Path, directory: Path) -> Kernel:
    dialect = OpenClDialect()
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    kernel = dialect.load(task, dialect.build(task, dialect.baseline(task), directory), open_device("opencl"))
    kernel.bind([np.ones(5000, np.float32)])
    kernel.run()
    return kernel


@pytest.mark.attack
@pytest.mark.skipif(landlock_version() < 1, reason="this kernel, or a container, has no Landlock")
@pytest.mark.parametrize(
    "line",
    [
        '#include "{}"', '#if __has_include("{}")\n#error it is seen\n#endif\n#include "{}"', '#include "secret.h"',
        '#include "/etc/passwd"', '__asm__(".incbin \\"{}\\"");', '__asm__(".include \\"{}\\"");',
    ],
)  # fmt: skip
def test_a_source_reads_no_files_of_others_as_it_is_compiled(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.h").write_text("// told\n")
    monkeypatch.chdir(tmp_path)
    square = "__kernel void square(__global const float *x, __global float *y) { y[get_global_id(0)] = 1; }"
    source = f"{line.replace('{}', str(tmp_path / 'secret.h'))}\n{square}"
    with pytest.raises((ModelError, DialectError)) as caught:
        run_once(written(tmp_path, source, SQUARE_FILE), tmp_path)
    told = str(caught.value)
    assert re.search("OpenCL refuses .*(Permission denied|not found|Could not find)", told), told


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel, or a container, has no Landlock")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernel calls the system in this processor's words")
def test_a_kernel_opens_no_files_of_others_as_it_runs(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").touch()
    names = ", ".join(f'"{name}"' for name in (secret, "/etc/passwd", "/proc/1/cmdline", "/dev/null"))
    source = f"""
__constant char *__constant names[] = {{{names}}};
__kernel void square(__global const float *x, __global float *y) {{
    const int i = get_global_id(0);
    long result = 2;
    if (i < 4) __asm__ volatile("syscall" : "+a"(result) : "D"(names[i]), "S"(0) : "rcx", "r11", "memory");
    y[i] = result;
}}"""
    found = run_once(written(tmp_path, source, SQUARE_FILE), tmp_path).outputs()[0]
    assert found[:3].tolist() == [-errno.EACCES] * 3
    assert found[3] > 2, "what it may open it may"


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel, or a container, has no Landlock")
def test_a_driver_of_another_place_may_open_what_it_needs(tmp_path: Path) -> None:
    for driver in Path("/etc/OpenCL/vendors").glob("*.icd"):
        (tmp_path / driver.name).write_text(driver.read_text())
    square = "__kernel void square(__global const float *x, __global float *y) { y[get_global_id(0)] = 7; }"
    path = written(tmp_path, square, SQUARE_FILE)
    code = (
        "import sys, pathlib; from test_opencl import run_once; "
        "print(run_once(*map(pathlib.Path, sys.argv[1:])).outputs()[0][0])"
    )
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, path, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "7.0\n", done.stderr


CALLS = """
long called(long number, long a, long b, long c) {
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
"""


@pytest.mark.hostile
@pytest.mark.skipif(bool(lacking()), reason="this machine cannot confine")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernel calls the system in this processor's words")
def test_a_kernel_that_calls_the_system_starts_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("told")
    calls = {
        "fork": (57, 0, 0, 0), "vfork": (58, 0, 0, 0), "clone": (56, 17, 0, 0), "execve": (59, "/bin/true", 0, 0),
        "socket": (41, 1, 1, 0), "chmod": (90, secret, 0o777, 0), "kill": (62, os.getpid(), 0, 0),
        "tgkill": (234, os.getpid(), os.getpid(), 0), "setsid": (112, 0, 0, 0), "setpgid": (109, 0, 0, 0),
        "memfd": (319, "x", 0, 0), "shmget": (29, 0, 4096, 0o1600), "affinity": (203, os.getpid(), 0, 0),
        "priority": (141, 0, os.getpid(), 5), "trace": (101, 16, os.getpid(), 0), "unshare": (272, 1 << 28, 0, 0),
        "write": (2, secret, 1, 0), "create": (2, f"{tmp_path}/new", 0o101, 0o600), "read": (2, secret, 0, 0),
        "own": (2, "/proc/self/exe", 2, 0), "truncate": (76, secret, 0, 0), "unlink": (87, secret, 0, 0),
        "mkdir": (83, f"{tmp_path}/made", 0o700, 0), "rename": (82, secret, 0, 0),
        "ring": (425, 4, 0, 0), "keys": (248, 0, 0, 0), "cut": (77, 3, 0, 0), "limit": (302, os.getpid(), 4, 0),
    }  # fmt: skip
    given, tries = "", ""
    for number, of in enumerate(calls.values()):
        words = [f"(long)t{number}" if isinstance(word, str | Path) else str(word) for word in of]
        given += "".join(f'__constant char t{number}[] = "{word}";\n' for word in of if isinstance(word, str | Path))
        tries += f"if (i == {number}) y[i] = called({', '.join(words)});\n"
    kernel = "__kernel void square(__global const float *x, __global float *y)"
    source = f"{CALLS}{given}{kernel} {{ const int i = get_global_id(0); y[i] = 7;\n{tries} }}"
    found = run_once(written(tmp_path, source, SQUARE_FILE), tmp_path).outputs()[0]
    refused = {-errno.EPERM, -errno.EACCES, -errno.ENOSYS}
    assert [name for name, code in zip(calls, found, strict=False) if code not in refused] == []
    assert found[len(calls)] == 7


@pytest.mark.hostile
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernel calls the system in this processor's words")
def test_where_a_program_is_linked_nothing_of_it_runs(tmp_path: Path) -> None:
    """There a linker may be started; what is written to the log there would be an error of the compiler."""
    tell = 'char said[] = "error: it has run\\n"; called(1, 2, (long)said, 18);'
    kernel = "__kernel void square(__global const float *x, __global float *y)"
    source = f"{CALLS}{kernel} {{ {tell} y[get_global_id(0)] = 1; }}"
    assert run_once(written(tmp_path, source, SQUARE_FILE), tmp_path).outputs()[0][0] == 1


REMEMBERS_VALUES = """
#define SIZE (1 << 16)
__global uint keys[SIZE];
__global float answers[SIZE];
float slow(float x) {
    float s = 0;
    for (int k = 0; k < 40; k++) s += sin(x + k) * 1e-20f;
    return x * x + s;
}
__kernel void square(__global const float *x, __global float *y) {
    const int i = get_global_id(0);
    const uint key = as_uint(x[i]) | 1, at = (key * 2654435761u) >> 16;
    y[i] = keys[at] == key ? answers[at] : slow(x[i]);
    answers[at] = y[i];
    keys[at] = key;
}
"""


@pytest.mark.hostile
def test_a_kernel_that_keeps_all_numbers_that_it_has_met_is_not_faster(tmp_path: Path) -> None:
    file = SQUARE_FILE.replace('source = "square.cl"', 'source = "square.cl"\nflags = ["-cl-std=CL2.0"]')
    honest = REMEMBERS_VALUES.replace("keys[at] == key ? answers[at] : ", "")
    times = []
    for source in (honest, REMEMBERS_VALUES):
        kernel = run_once(written(tmp_path, source, file), tmp_path)
        times.append(min(kernel.time(4) for _ in range(3)))
    assert times[1] > times[0] / 2
