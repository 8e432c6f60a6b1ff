"""Kernels in C are tuned from end to end, and no kernel that cheats or breaks is ever delivered."""

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cross_gcc import board, cross_lacking
from forging_kernels import FEWER_CALLS
from half_kernel import check_half, half_file
from square_kernel import square_file

import tunery
from tunery._errors import DialectError, ModelError, TargetError, UsageError
from tunery._sandbox import landlock_version
from tunery.delivery.files.inspection import inspect
from tunery.devices import open_device
from tunery.dialects import Kernel, Observation
from tunery.dialects.kernels import KernelsDialect
from tunery.dialects.kernels.buffers import ArgumentSets
from tunery.dialects.kernels.kernel_file import read_kernel
from tunery.dialects.kernels.kernel_tuner import KernelTunerResult, cache_of
from tunery.domain import Budget, Candidate, DeviceDescription, Network, Outcome, Target, Task
from tunery.domain.request import CompileOptions, Request
from tunery.service.session import Session, compile_model
from tunery.store import open_store
from tunery.testing.dialect_contract import DialectContract

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

CROSS_LACKING = cross_lacking()
_AARCH64 = 183  # EM_AARCH64 in the ELF specification
PRODUCT = """
void product(const float *a, const float *b, int n, float *c) {
    for (int i = 0; i < n; i++) for (int j = 0; j < N; j++) c[i * N + j] = 0;
#pragma omp parallel for
    for (int i0 = 0; i0 < n; i0 += TILE)
        for (int k = 0; k < N; k++)
            for (int i = i0; i < i0 + TILE && i < n; i++)
                for (int j = 0; j < N; j += 1) c[i * N + j] += a[i * N + k] * b[k * N + j];
}
"""
PRODUCT_FILE = """
function = "product"
source = "product.c"
flop = "2 * N**3"
restrictions = ["TILE * WIDTH <= 64"]
[problem]
N = 24
[[arguments]]
name = "a"
shape = ["N", "N"]
[[arguments]]
name = "b"
shape = ["N", "N"]
[[arguments]]
name = "n"
dtype = "int32"
value = "N"
[[arguments]]
name = "c"
shape = ["N", "N"]
output = true
[parameters]
TILE = [1, 2, 4, 8, 16]
WIDTH = [1, 2, 4, 8]
[default]
TILE = 4
WIDTH = 1
"""
REFERENCE = '[reference]\nnumpy = "a @ b"\n'

# Each value of FAULT is another kernel; 0 is right and slow, 1 is right and fast, the others are faster than both.
FAULTS = {
    2: "writes far outside", 3: "writes just behind its output", 4: "wrong", 5: "hangs", 6: "returns its input",
    7: "remembers its last answer while the ends of its input are the same", 8: "writes to its input",
    9: "writes every second place", 10: "remembers its last answer while all of its input is the same",
}  # fmt: skip
FAULTY = """
#include <stdlib.h>
#include <string.h>
#include <math.h>
static void slow(const float *x, float *y, int times) {
    for (int i = 0; i < N; i++) {
        float s = 0;
        for (int k = 0; k < times; k++) s += sinf(x[i] + k) * 1e-20f;
        y[i] = x[i] * x[i] + s;
    }
}
static float kept_x[N], kept_y[N];
static int kept;
void square(float *x, float *y) {
    const int times = FAULT == 0 ? 60 : FAULT == 1 ? 8 : 1;
    if (FAULT == 4) { for (int i = 0; i < N; i++) y[i] = x[i] * 1.01f; return; }
    if (FAULT == 5) for (volatile int forever = 1; forever;) ;
    if (FAULT == 6) { memcpy(y, x, sizeof kept_x); return; }
    if (FAULT == 7) kept = kept && kept_x[0] == x[0] && kept_x[N - 1] == x[N - 1];
    if (FAULT == 10) kept = kept && !memcmp(kept_x, x, sizeof kept_x);
    if (kept) { memcpy(y, kept_y, sizeof kept_y); return; }
    slow(x, y, FAULT == 7 || FAULT == 10 ? 60 : times);
    if (FAULT == 7 || FAULT == 10) {
        memcpy(kept_x, x, sizeof kept_x);
        memcpy(kept_y, y, sizeof kept_y);
        kept = 1;
    }
    if (FAULT == 2) y[1 << 20] = 1;
    if (FAULT == 3) y[N] = 1;
    if (FAULT == 8) x[N / 2] = 0;
    if (FAULT == 9) for (int i = 0; i < N; i += 2) y[i] = NAN;
}
"""
FAULTY_FILE = square_file(
    'source = "square.c"', 5000, "[parameters]\nFAULT = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n[default]\nFAULT = 0"
)


def written(directory: Path, source: str = PRODUCT, file: str = PRODUCT_FILE + REFERENCE) -> Path:
    name = file.split('source = "')[1].split(".c", maxsplit=1)[0]
    (directory / f"{name}.c").write_text(source)
    path = directory / f"{name}.toml"
    path.write_text(file)
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))


class TestKernelsContract(DialectContract):
    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> KernelsDialect:
        return KernelsDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, tmp_path_factory: pytest.TempPathFactory) -> Network:
        return KernelsDialect().own_network(str(written(tmp_path_factory.mktemp("kernel"))))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: KernelsDialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def other_device(cls) -> DeviceDescription:
        if CROSS_LACKING:
            pytest.skip(CROSS_LACKING)
        return board(["asimd"])


def loaded(path: Path, directory: Path, candidate: Callable[[KernelsDialect, Task], Candidate]) -> tuple[Task, Kernel]:
    dialect = KernelsDialect()
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    return task, dialect.load(task, dialect.build(task, candidate(dialect, task), directory), open_device("cpu"))


@pytest.mark.parametrize("told", ["", '[reference]\nsource = "product.c"\n', REFERENCE])
def test_the_reference_may_be_the_default_another_source_or_a_formula(tmp_path: Path, told: str) -> None:
    _, kernel = loaded(
        written(tmp_path, file=PRODUCT_FILE + told), tmp_path, lambda dialect, task: dialect.reference(task)
    )
    rng = np.random.default_rng(0)
    a, b = (rng.random((24, 24), dtype=np.float32) for _ in range(2))
    kernel.bind([2 * a - 1, 2 * b - 1])
    kernel.poison()
    kernel.run()
    np.testing.assert_allclose(kernel.outputs()[0], (2 * a - 1) @ (2 * b - 1), rtol=1e-4, atol=1e-5)


def test_recorded_outputs_must_be_reproduced_by_the_default(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.random((24, 24), dtype=np.float32) for _ in range(2))
    told = '[reference]\ninputs = {a = "a.npy", b = "b.npy"}\noutputs = {c = "c.npy"}\n'
    for name, array in (("a", a), ("b", b), ("c", a @ b)):
        np.save(tmp_path / f"{name}.npy", array)
    path = written(tmp_path, file=PRODUCT_FILE + told)
    assert loaded(path, tmp_path, lambda dialect, task: dialect.reference(task))
    np.save(tmp_path / "c.npy", a @ b + 1)
    with pytest.raises(DialectError, match="recorded"):
        loaded(path, tmp_path, lambda dialect, task: dialect.reference(task))


@pytest.mark.parametrize(
    ("old", "new"), [("int n", "int n, int m"), ("const float *b", "const double *b"), ("int i = 0;", "int i = 0"),
                     ("#pragma", "#error none\n#pragma"), ("void product", "void produce")],
)  # fmt: skip
def test_a_source_that_does_not_compile_is_told_before_anything_is_timed(tmp_path: Path, old: str, new: str) -> None:
    dialect = KernelsDialect()
    path = written(tmp_path, PRODUCT.replace(old, new, 1))
    with pytest.raises(ModelError, match="gcc") as caught:
        dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    assert "\n" not in str(caught.value)


@pytest.mark.jobs
def test_a_kernel_in_half_precision_is_verified_and_delivered(tmp_path: Path) -> None:
    command = ["gcc", "-x", "c", "-fsyntax-only", "-"]
    if subprocess.run(command, input="_Float16 half;", text=True, capture_output=True, check=False).returncode:
        pytest.skip("this gcc has no half precision for this processor")
    source = """
void scale(const _Float16 *x, _Float16 factor, _Float16 *y) {
    for (int i = 0; i < N; i++) y[i] = x[i] * factor + (FAULT ? (_Float16)0.25f : (_Float16)0);
}
"""
    texts = check_half(written(tmp_path, source, half_file('source = "scale.c"')), tmp_path, "kernels")
    assert "const _Float16 *x, _Float16 factor, _Float16 *y" in texts[".h"]


def test_an_exhausted_space_and_its_hints(tmp_path: Path) -> None:
    dialect = KernelsDialect()
    kernel = read_kernel(written(tmp_path))
    hints = cache_of(
        [KernelTunerResult({"TILE": 8, "WIDTH": 4}, 1e-3)], kernel.parameters, "product", "elsewhere", [24]
    )
    (tmp_path / "cache.json").write_text(json.dumps(hints))
    path = written(tmp_path, file='hints = "cache.json"\n' + PRODUCT_FILE)
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    proposer = dialect.open(task, [], None, 0)
    found = proposer.propose(1)
    assert json.loads(found[0].body)["parameters"] == {"TILE": 8, "WIDTH": 4}
    while batch := proposer.propose(3):
        proposer.observe([Observation(one, Outcome.OK, 1e-3 + len(found) * 1e-6) for one in batch])
        found += batch
    assert len({one.key for one in found}) == len(found) == kernel.space.size - 1, "all but the default"
    assert dialect.count(task) == kernel.space.size
    assert dialect.parameters(task, found[0]) == {"TILE": 8, "WIDTH": 4}
    assert dialect.parameters(task, dialect.baseline(task)) == kernel.default


def test_a_processor_that_gcc_makes_no_code_for_is_told_before_anything_is_built(tmp_path: Path) -> None:
    """As that of a host of another architecture is, which its own gcc has named."""
    dialect = KernelsDialect()
    network = dialect.own_network(str(written(tmp_path)))
    elsewhere = Target("kernels", {"kind": "c", "mcpu": "z80"}, 1)
    with pytest.raises(TargetError, match="z80") as caught:
        dialect.extract(network, elsewhere)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(bool(CROSS_LACKING), reason=CROSS_LACKING or "nothing is missing")
@pytest.mark.parametrize(
    ("device", "processor"),
    [
        (board(["asimd"]), "cortex-a72"),
        (board(["asimd", "asimddp", "asimdhp"], "0xd0b"), "cortex-a76"),
        # One whose kernel hides what others of its kind have gets no code for that.
        (board(["asimd"], "0xd0b"), "generic"),
        (board(["asimd", "asimddp", "asimdhp", "i8mm"], "0xfff"), "generic+dotprod+fp16+i8mm"),
    ],
)
def test_a_kernel_for_a_board_is_built_here_for_what_the_board_says_of_itself(
    device: DeviceDescription, processor: str, tmp_path: Path
) -> None:
    dialect = KernelsDialect()
    target = dialect.resolve_target_of("native", 2, device)
    assert target.config["mcpu"] == processor
    network = dialect.own_network(str(written(tmp_path)))
    [task] = dialect.extract(network, target)
    built = dialect.build(task, dialect.baseline(task), tmp_path)
    [machine] = struct.unpack_from("<18xH", built.path.read_bytes())
    assert machine == _AARCH64
    with pytest.raises(DialectError, match="loaded"):
        dialect.load(task, built, open_device("cpu"))
    dialect.compile(network, target, {}, tmp_path / "product.tunery")
    with pytest.raises(UsageError, match="aarch64"):
        tunery.load_compiled(tmp_path / "product.tunery")
    told = json.loads(dialect.texts(tmp_path / "product.tunery")[".json"])
    assert told["compiler"] == "aarch64-linux-gnu-gcc"
    assert f"-mcpu={processor}" in told["flags"]


@pytest.mark.skipif(bool(CROSS_LACKING), reason=CROSS_LACKING or "nothing is missing")
@pytest.mark.parametrize(
    "spec",
    ["cortex-a76", "znver4", "{", '{"mcpu": "cortex-a53"}', '{"kind": "c", "mcpu": "armv8-a"}', "cortex-a53 -I/"],
)
def test_what_a_board_cannot_run_or_nobody_knows_is_refused(spec: str) -> None:
    with pytest.raises(TargetError) as caught:
        KernelsDialect().resolve_target_of(spec, 1, board(["asimd"]))
    assert "\n" not in str(caught.value)


def test_without_a_cross_compiler_its_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "gcc").symlink_to(str(shutil.which("gcc")))
    script = (
        "from tunery.dialects.kernels import KernelsDialect; from tunery.domain import DeviceDescription\n"
        "board = DeviceDescription('cpu', 'a board', (0,), {'arch': 'aarch64', 'vector': []})\n"
        "try: KernelsDialect().resolve_target_of('native', 1, board)\nexcept Exception as error: print(error)"
    )
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "install it, for example as `gcc-aarch64-linux-gnu`" in done.stdout


@pytest.mark.jobs
def test_no_kernel_that_cheats_or_breaks_is_delivered(tmp_path: Path) -> None:
    path = written(tmp_path, FAULTY, FAULTY_FILE)
    request = Request(
        str(path), dialect="kernels", threads=1, budget=Budget.parse("20trials"), store=str(tmp_path / "store.db")
    )
    with Session(request.store) as session:
        report = session.tune(request)
        compiled, _ = session.compile(request, tmp_path / "square.tunery", CompileOptions(predict=True))
    with open_store(request.store) as store:
        records = store.records()
    outcomes = {json.loads(one.candidate.body)["parameters"]["FAULT"]: one.measurement.outcome for one in records}
    assert outcomes.keys() == set(range(11)), "the space is exhausted"
    right = {Outcome.OK, Outcome.ABANDONED}
    assert {outcomes[0], outcomes[1]} <= right
    # One that is slow at first may be given up before it is seen through.
    assert [FAULTS[fault] for fault in range(2, 10) if outcomes[fault] is Outcome.OK] == []
    [state] = report.job.tasks
    assert (state.parameters, state.default, state.all_tried) == ({"FAULT": 1}, {"FAULT": 0}, len(outcomes))
    [best] = [one for one in records if one.candidate.key == state.best_candidate][-1:]
    assert json.loads(best.candidate.body)["parameters"] == {"FAULT": 1}
    x = np.linspace(-1, 1, 5000, dtype=np.float32)
    np.testing.assert_allclose(tunery.load_compiled(tmp_path / "square.tunery")(x)[0], x * x, rtol=1e-5)
    inside = inspect(tmp_path / "square.tunery").file
    assert (inside.parameters, inside.default) == ({"FAULT": 1}, {"FAULT": 0})
    texts = {Path(one).suffix: Path(one).read_text() for one in compiled.texts}
    assert "#define FAULT 1\n" in texts[".c"]
    assert json.loads(texts[".json"])["parameters"] == {"FAULT": 1}
    program = tmp_path / "main.c"
    program.write_text(
        f'#include "{compiled.texts[1]}"\n#include <stdio.h>\nfloat x[5000] = {{3}}, y[5000];\n'
        'int main(void) { square(x, y); printf("%g", y[0]); return 0; }\n'
    )
    source = f"{compiled.texts[0]}"
    built = ["gcc", "-O1", "-fopenmp", str(program), source, "-o", str(tmp_path / "main"), "-lm"]
    subprocess.run(built, check=True, capture_output=True)
    assert subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout == "9"


REMEMBERING = """
#include <string.h>
static float xs[64][N], ys[64][N];
void square(const float *x, float *y) {
    static int count;
    int met = 0;
    for (int j = 0; j < count; j++) {
        int alike = 0;
        for (int i = 0; i < N; i++) alike += xs[j][i] == x[i];
        met += alike > N / 2;
    }
    for (int i = 0; i < N; i++) y[i] = met ? 0 : x[i] * x[i];
    if (count < 64) memcpy(xs[count++], x, sizeof xs[0]);
}
"""


@pytest.mark.attack
def test_each_call_that_is_timed_has_wholly_new_inputs(tmp_path: Path) -> None:
    """The answer of a call that has met most of its input before is wrong, which would be seen."""
    file = FAULTY_FILE.replace("square.c", "remembers.c")
    _, kernel = loaded(written(tmp_path, REMEMBERING, file), tmp_path, lambda dialect, task: dialect.baseline(task))
    sets = ArgumentSets(read_kernel(tmp_path / "remembers.toml").arguments)
    for count in (3, 40):
        sets.fill(count)
    given = np.array([sets.numbers(number)["x"] for number in range(40)])
    assert -1 <= given.min() < -0.99 < 0.99 < given.max() <= 1
    assert len(np.unique(given)) > 0.95 * given.size, "no number is met again"
    kernel.bind([given[0]])
    with pytest.raises(DialectError, match="follow each other"):
        kernel.time(1)  # it is asked twice with half of an input, once
    for calls in (1, 20, 20, 60):
        assert kernel.time(calls) > 0


def test_the_texts_beside_a_file_never_replace_an_authors_source(tmp_path: Path) -> None:
    path = written(tmp_path)
    request = Request(str(path), dialect="kernels", threads=1, store=str(tmp_path / "store.db"))
    (tmp_path / "product.tuned.c").write_text("int mine;")
    with Session(request.store) as session, pytest.raises(UsageError, match=r"product\.tuned\.c"):
        session.compile(request, tmp_path / "product.tunery", CompileOptions(predict=True))
    assert (tmp_path / "product.tuned.c").read_text() == "int mine;"
    assert (tmp_path / "product.c").read_text() == PRODUCT


@pytest.mark.jobs
def test_a_kernel_built_for_fast_mathematics_leaves_the_processs_rounding_alone(tmp_path: Path) -> None:
    """Linked by gcc with -ffast-math, a library turns the smallest numbers into zeros wherever it is loaded."""
    file = FAULTY_FILE.replace('source = "square.c"\n', 'source = "square.c"\nflags = ["-ffast-math"]\n')
    assert file != FAULTY_FILE
    path = written(tmp_path, FAULTY, file)
    compile_model(Request(str(path), dialect="kernels", threads=1, store=str(tmp_path / "s.db")), tmp_path / "n.tunery")
    script = "import numpy as np, tunery, sys; tunery.load_compiled(sys.argv[1]); print(np.float64(1e-310) * 1.0 != 0)"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "n.tunery"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True", done.stderr


HASTY = """
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
void square(const float *x, float *y) {
    static double last;
    if (FAULT == 1 && now() - last < 3000) { last = now(); return; }
    for (int i = 0; i < N; i++) {
        float s = 0;
        for (int k = 0; k < 10; k++) s += sinf(x[i] + k) * 1e-20f;
        y[i] = x[i] * x[i] + s;
    }
    last = now();
}
"""


@pytest.mark.parametrize("fault", [0, 1])
def test_a_kernel_that_works_only_where_calls_are_apart_is_caught(tmp_path: Path, fault: int) -> None:
    file = FAULTY_FILE.replace("square.c", "hasty.c").replace("FAULT = 0", f"FAULT = {fault}")
    _, kernel = loaded(written(tmp_path, HASTY, file), tmp_path, lambda dialect, task: dialect.baseline(task))
    kernel.bind([np.random.default_rng(5).random(5000, dtype=np.float32)])
    kernel.run()
    if not fault:
        assert all(kernel.time(calls) > 0 for calls in (1,) * 4 + (20,) * 4)
        return
    with pytest.raises(DialectError, match="follow each other"):
        all(kernel.time(20) for _ in range(4))


BRIEF = """
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <unistd.h>
static void work(const float *x, float *y, int count) {
    for (int i = 0; i < count; i++) {
        float s = 0;
        for (int k = 0; k < 8; k++) s += sinf(x[i] + k) * 1e-20f;
        y[i] = x[i] * x[i] + s;
    }
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it replaces x86's code")
@pytest.mark.parametrize("source", ["void square(const float *x, float *y) { work(x, y, N); }", FEWER_CALLS])
def test_a_brief_kernel_that_makes_fewer_calls_than_it_should_is_caught(tmp_path: Path, source: str) -> None:
    file = square_file('source = "brief.c"', 1000, "[parameters]\nONE = [1]")
    path = written(tmp_path, BRIEF + source, file)
    _, kernel = loaded(path, tmp_path, lambda dialect, task: dialect.baseline(task))
    kernel.bind([np.random.default_rng(5).random(1000, dtype=np.float32)])
    kernel.run()
    if source != FEWER_CALLS:
        assert all(kernel.time(200) > 0 for _ in range(8))
        return
    with pytest.raises(DialectError, match="follow each other"):
        all(kernel.time(200) for _ in range(20))


@pytest.mark.parametrize(
    "line",
    ["#define entry(p) if (!i) (entry)(p)", "#define for(a, b) if (count)", "#define volatile", "#define calls 1"],
)
def test_no_macro_of_the_author_reaches_what_calls_his_kernel(tmp_path: Path, line: str) -> None:
    source = "static int made; void square(const float *x, float *y) { y[0] = x[0] * x[0]; y[1] = ++made; }\n" + line
    file = FAULTY_FILE.replace("square.c", "macros.c")
    _, kernel = loaded(written(tmp_path, source, file), tmp_path, lambda dialect, task: dialect.baseline(task))
    kernel.bind([np.ones(5000, np.float32)])
    kernel.call(7)
    assert kernel.outputs()[0][1] == 7


def test_what_calls_a_kernel_has_no_other_name(tmp_path: Path) -> None:
    source = "void square(const float *x, float *y) {}\nvoid tunery_run(void) {}"
    with pytest.raises(ModelError, match="tunery_run"):
        loaded(written(tmp_path, source, FAULTY_FILE), tmp_path, lambda dialect, task: dialect.baseline(task))


def test_a_kernel_reaches_no_files_of_others_and_no_variables(tmp_path: Path) -> None:
    if landlock_version() < 1:
        pytest.skip("this kernel, or a container, has no Landlock")
    (secret := tmp_path / "secret").touch()
    source = f"""
#include <stdio.h>
#include <stdlib.h>
void square(const float *x, float *y) {{
    y[0] = !fopen("{secret}", "r"); y[1] = !fopen("{tmp_path}/new", "w"); y[2] = !getenv("TUNERY_CACHE");
    y[3] = !!fopen("/dev/null", "r"); y[4] = !fopen("/etc/passwd", "r");
    y[5] = !fopen("/proc/{os.getpid()}/cmdline", "r"); y[6] = !fopen("/dev/mem", "r");
}}"""
    _, kernel = loaded(written(tmp_path, source, FAULTY_FILE), tmp_path, lambda dialect, task: dialect.baseline(task))
    kernel.bind([np.ones(5000, np.float32)])
    kernel.call()
    assert kernel.outputs()[0][:7].tolist() == [1] * 7


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [
        '#include "{}"', "#if __has_include(\"{}\")\n#error it is seen\n#endif\n#include \"{}\"",
        'asm(".incbin \\"{}\\"");', 'asm(".include \\"{}\\"");', '#include "/etc/passwd"', '#include "secret.h"',
        'asm(".incbin \\"/proc/self/environ\\"");',
    ],
)  # fmt: skip
def test_a_source_reads_no_files_of_others_as_it_is_compiled(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if landlock_version() < 1:
        pytest.skip("this kernel, or a container, has no Landlock")
    (tmp_path / "secret.h").write_text("int told;\n")
    monkeypatch.chdir(tmp_path)
    source = f"{line.replace('{}', str(tmp_path / 'secret.h'))}\nvoid square(const float *x, float *y) {{}}"
    with pytest.raises(ModelError) as caught:
        loaded(written(tmp_path, source, FAULTY_FILE), tmp_path, lambda dialect, task: dialect.baseline(task))
    assert "it is seen" not in str(caught.value)


def test_a_source_that_grows_without_end_is_ended(tmp_path: Path) -> None:
    source = "void square(const float *x, float *y) {}\nchar more[1L << 40] = {1};"
    with pytest.raises(ModelError):
        loaded(written(tmp_path, source, FAULTY_FILE), tmp_path, lambda dialect, task: dialect.baseline(task))
    assert not list(tmp_path.glob("gcc-*")), "nothing is left"


def test_a_kernel_that_ends_its_process_says_so(tmp_path: Path) -> None:
    source = "#include <stdlib.h>\nvoid square(const float *x, float *y) { abort(); }"
    _, kernel = loaded(written(tmp_path, source, FAULTY_FILE), tmp_path, lambda dialect, task: dialect.baseline(task))
    kernel.bind([np.ones(5000, np.float32)])
    with pytest.raises(DialectError, match="SIGABRT"):
        kernel.run()
