"""Kernels in CUDA are compiled anywhere, tuned from end to end on a GPU, and none that cheats is delivered."""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from half_kernel import check_half, half_file
from launched_kernels import check_that_no_cheat_wins, faulty_file, measured_alone, product_file, written

from tunery._errors import DialectError, ModelError, TargetError, UsageError
from tunery._sandbox import landlock_version
from tunery.delivery.files.loading import load_compiled
from tunery.devices import Device, open_device
from tunery.dialects.kernels.cuda import CudaDialect
from tunery.dialects.kernels.cuda.kernel import DRAW, drawing
from tunery.dialects.kernels.kernel_file import read_kernel
from tunery.domain import Network, Outcome, Target
from tunery.measuring.verification import compare, expect
from tunery.runtime.spec import RuntimeSpec
from tunery.testing.device_contract import DeviceContract
from tunery.testing.dialect_contract import DialectContract

SM_90 = '{"kind": "cuda", "arch": "sm_90"}'


@cache
def gpu_lacking() -> str:
    """What is missing here for a GPU, "" where nothing is."""
    [check] = CudaDialect().doctor()
    return check.advice


@pytest.fixture(scope="session")
def _gpu() -> None:
    if why := gpu_lacking():
        pytest.skip(why)


@pytest.fixture(scope="session")
def _no_gpu() -> None:
    if not gpu_lacking():
        pytest.skip("there is a GPU")


# They are asked where a test is to run: who only collects it starts no process.
needs_gpu, without_gpu = pytest.mark.usefixtures("_gpu"), pytest.mark.usefixtures("_no_gpu")
pytestmark = [
    pytest.mark.cuda, pytest.mark.skipif("absent" in CudaDialect().compiler, reason="needs NVRTC: the extra `cuda`"),
]  # fmt: skip

PRODUCT = """
__global__ void product(const float *__restrict__ a, const float *b, const int n, float *c) {
    const int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    __shared__ float tile[TILE][TILE];
    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += TILE) {
        tile[threadIdx.y][threadIdx.x] = a[row * N + k0 + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += tile[threadIdx.y][k] * b[(k0 + k) * N + col];
        __syncthreads();
    }
    c[row * N + col] = sum;
}
"""
PRODUCT_FILE = product_file("CUDA", "cu", "--fmad=true")

# Each value of FAULT is another kernel; 0 is right and slow, 1 is right and fast, the others are faster than both.
FAULTS = {
    2: "writes far outside", 3: "writes just behind its output", 4: "wrong", 5: "hangs", 6: "returns its input",
    7: "remembers its last answer while the ends of its input are the same", 8: "writes to its input",
    9: "writes every second place", 10: "has a race on shared memory", 11: "needs more shared memory than there is",
    12: "does nothing where its output is there already", 13: "traps", 14: "reads far outside",
    15: "writes just before its output",
}  # fmt: skip
FAULTY = """
#if FAULT == 7
__device__ float kept_x[2];
__device__ int kept = 0;
#endif
__device__ float slow(float x, int times) {
    float s = 0;
    for (int k = 0; k < times; k++) s += sinf(x + k) * 1e-20f;
    return x * x + s;
}
extern "C" __global__ void square(float *x, float *y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, me = threadIdx.x;
#if FAULT == 0
    y[i] = slow(x[i], 4000);
#elif FAULT == 4
    y[i] = x[i] * x[i] * 1.1f;
#elif FAULT == 5
    for (long long start = clock64(); clock64() >= start;) ;  // a loop over a volatile variable is left out
#elif FAULT == 6
    y[i] = x[i];
#elif FAULT == 7
    if (!(kept && kept_x[0] == x[0] && kept_x[1] == x[N - 1])) y[i] = slow(x[i], 1);
    if (i == N - 1) { kept_x[0] = x[0]; kept_x[1] = x[N - 1]; kept = 1; }
#elif FAULT == 9
    if (i % 2) y[i] = x[i] * x[i];
#elif FAULT == 10
    __shared__ float shared[50];
    shared[me] = x[i];
    y[i] = shared[49 - me] * shared[49 - me];
#elif FAULT == 11
    __shared__ float much[1 << 20];
    much[me] = x[i];
    __syncthreads();
    y[i] = much[me] * x[i];
#elif FAULT == 12
    if (!(fabsf(y[i]) < 1e30f)) y[i] = slow(x[i], 400);
#elif FAULT == 13
    y[i] = x[i] * x[i];
    if (i == 7) __trap();
#elif FAULT == 14
    y[i] = x[i] * x[i] + (x[i + (1 << 22)] > 1e30f ? 1 : 0);
#else
    y[i] = slow(x[i], FAULT == 1 ? 400 : 1);
    if (i == 0 && FAULT == 2) y[1 << 20] = 1;
    if (i == 0 && FAULT == 3) y[N] = 1;
    if (i == 0 && FAULT == 8) x[N / 2] = 0;
    if (i == 0 && FAULT == 15) y[-1] = 1;
#endif
}
"""
FAULTY_FILE = faulty_file("CUDA", "cu", FAULTS)


def test_one_core_launches_kernels_unless_a_request_says_more() -> None:
    assert RuntimeSpec("cuda", 0, "cuda").kernel_threads(8) == 1
    assert RuntimeSpec("cuda", 3, "cuda").kernel_threads(8) == 3
    assert RuntimeSpec("kernels", 0).kernel_threads(8) == 8


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


@needs_gpu
class TestCudaDevice(DeviceContract):
    @pytest.fixture
    @classmethod
    def device(cls, unpinned: tuple[int, ...]) -> Device:
        return open_device("cuda", unpinned, unpinned[:1])

    def work(self, device: Device) -> None:
        device.flush_caches()


@needs_gpu
class TestCudaContract(DialectContract):
    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> CudaDialect:
        return CudaDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, tmp_path_factory: pytest.TempPathFactory) -> Network:
        return CudaDialect().own_network(str(written(tmp_path_factory.mktemp("kernel"), PRODUCT, PRODUCT_FILE)))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: CudaDialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Device:
        return open_device("cuda")


def extracted(path: Path) -> str:
    """What is told about a file that cannot be tuned: one sentence."""
    dialect = CudaDialect()
    with pytest.raises(ModelError) as caught:
        dialect.extract(dialect.own_network(str(path)), dialect.resolve_target(SM_90, 1))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [("int n", "int n, int m", "arguments"), ("const float *b", "const int *b", "float* as b"),
     ("float sum = 0.0f;", "float sum", "line"), ("void product", "void produce", "no __global__ function"),
     ("int n", "float n", "int as n"), ("__global__", "__device__", "no __global__ function"),
     ("[TILE][TILE]", "[TILE][1 << 20]", "shared")],
)  # fmt: skip
def test_a_source_that_does_not_compile_is_told_before_anything_is_timed(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert told in extracted(written(tmp_path, PRODUCT.replace(old, new, 1), PRODUCT_FILE))


@pytest.mark.parametrize(
    ("old", "new"),
    [('local = ["TILE", "TILE"]', 'local = ["TILE", "TILE - 1"]'), ('global = ["N"', 'global = ["TILE - 4"'),
     ('local = ["TILE", "TILE"]', ""), ('global = ["N"', 'global = ["2**33"'), ("--fmad=true", "-ffast-math"),
     ("--fmad=true", "--pre-include=/etc/passwd")],
)  # fmt: skip
def test_a_launch_or_flag_that_cannot_be_is_one_sentence(tmp_path: Path, old: str, new: str) -> None:
    assert old in PRODUCT_FILE
    extracted(written(tmp_path, PRODUCT, PRODUCT_FILE.replace(old, new, 1)))


@pytest.mark.attack
@pytest.mark.skipif(landlock_version() < 1, reason="this kernel, or a container, has no Landlock")
def test_a_source_reads_no_files_of_others_as_it_is_compiled(tmp_path: Path) -> None:
    (secret := tmp_path / "secret.h").write_text("")
    assert "secret.h" in extracted(written(tmp_path, f'#include "{secret}"\n{PRODUCT}', PRODUCT_FILE))


def test_a_block_of_too_many_threads_is_refused_as_it_is_built(tmp_path: Path) -> None:
    file = PRODUCT_FILE.replace("N = 32", "N = 64").replace("TILE <= N", "TILE <= 64")
    dialect = CudaDialect()
    [task] = dialect.extract(
        dialect.own_network(str(written(tmp_path, PRODUCT, file))), dialect.resolve_target(SM_90, 1)
    )
    refused = []
    for candidate in dialect.open(task, [], None, 0).propose(10):
        try:
            dialect.build(task, candidate, tmp_path)
        except DialectError as error:
            refused.append(str(error))
    assert len(refused) == 1
    assert "4096" in refused[0] or "1024" in refused[0]


def test_integers_of_all_widths_are_told_apart(tmp_path: Path) -> None:
    file = PRODUCT_FILE.replace('dtype = "int32"', 'dtype = "uint64"')
    for type_, fits in (("unsigned long", True), ("unsigned long long", True), ("long", False), ("uint64_t", True)):
        path = written(tmp_path, f"#include <cstdint>\n{PRODUCT.replace('const int n', f'{type_} n')}", file)
        if fits:
            dialect = CudaDialect()
            assert dialect.extract(dialect.own_network(str(path)), dialect.resolve_target(SM_90, 1))
        else:
            assert "unsigned long long as n" in extracted(path)


HALF = """
#include <cuda_fp16.h>
__global__ void scale(const half *x, const half factor, __half *y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __hfma(x[i], factor, half(FAULT * 0.25f));
}
"""
HALF_FILE = half_file('language = "CUDA"\nsource = "scale.cu"', '[launch]\nglobal = ["N"]\nlocal = [64]')


def test_half_precision_and_headers_that_a_macro_named_n_would_break(tmp_path: Path) -> None:
    dialect = CudaDialect()
    network = dialect.own_network(str(written(tmp_path, HALF, HALF_FILE)))
    dialect.compile(network, dialect.resolve_target(SM_90, 1), {}, tmp_path / "scale.tunery")
    source = dialect.texts(tmp_path / "scale.tunery")[".cu"]
    assert source.index("#include <cuda_fp16.h>") < source.index("#define N 3072")
    assert "__half* as y" in extracted(written(tmp_path, HALF.replace("__half *y", "float *y"), HALF_FILE))


TURNED = """
extern __shared__ float line[];
__global__ void turned(const float *x, float *y) {
    line[threadIdx.x] = x[blockIdx.x * BLOCK + threadIdx.x];
    for (int i = BLOCK + threadIdx.x; i < FLOATS; i += BLOCK) line[i] = 0;
    __syncthreads();
    y[blockIdx.x * BLOCK + threadIdx.x] = line[BLOCK - 1 - threadIdx.x] + line[FLOATS - 1] * (FLOATS > BLOCK);
}
"""
TURNED_FILE = """
function = "turned"
language = "CUDA"
source = "turned.cu"
[problem]
N = 1024
BLOCK = 128
[[arguments]]
name = "x"
shape = ["N"]
[[arguments]]
name = "y"
shape = ["N"]
output = true
[parameters]
FLOATS = [128, 16000, 100000]
[launch]
global = ["N"]
local = ["BLOCK"]
shared = "4 * FLOATS"
[reference]
numpy = "reshape(reshape(x, (N // BLOCK, BLOCK))[:, ::-1], N)"
"""


def test_shared_memory_of_a_size_that_parameters_decide(tmp_path: Path) -> None:
    dialect = CudaDialect()
    network = dialect.own_network(str(written(tmp_path, TURNED, TURNED_FILE)))
    dialect.compile(network, dialect.resolve_target(SM_90, 1), {}, tmp_path / "turned.tunery")
    texts = dialect.texts(tmp_path / "turned.tunery")
    assert "#define TURNED_SHARED_BYTES 512\n" in texts[".h"]
    assert json.loads(texts[".json"])["shared bytes"] == 512
    assert "FLOAT" in extracted(written(tmp_path, TURNED, TURNED_FILE.replace("4 * FLOATS", "4 * FLOAT")))
    assert "whole number" in extracted(written(tmp_path, TURNED, TURNED_FILE.replace("4 * FLOATS", "FLOATS / 256")))


@needs_gpu
def test_a_block_gets_the_shared_memory_that_it_asks_for_or_is_refused(tmp_path: Path) -> None:
    """64000 bytes are more than a block gets unasked, 400000 more than there are."""
    dialect, device = CudaDialect(), open_device("cuda")
    [task] = dialect.extract(
        dialect.own_network(str(written(tmp_path, TURNED, TURNED_FILE))), dialect.resolve_target("native", 1)
    )
    right = []
    for candidate in (dialect.baseline(task), *dialect.open(task, [], None, 0).propose(3)):
        built = dialect.build(task, candidate, tmp_path)
        if json.loads(candidate.body)["parameters"] == {"FLOATS": 100000}:
            with pytest.raises(DialectError, match="shared memory"):
                dialect.load(task, built, device)
            continue
        kernel = dialect.load(task, built, device)
        [x] = inputs = DialectContract.inputs(task, seed=0)
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        assert (kernel.outputs()[0] == x.reshape(8, 128)[:, ::-1].reshape(-1)).all()
        right.append(candidate.body)
    assert len(right) == 2


@needs_gpu
@pytest.mark.jobs
def test_a_kernel_in_half_precision_is_verified_and_delivered(tmp_path: Path) -> None:
    check_half(written(tmp_path, HALF, HALF_FILE), tmp_path, "cuda")


@pytest.mark.parametrize("spec", ['{"kind": "cuda", "arch": "90"}', '{"kind": "cuda"}', '{"kind": "cuda", "arch": 9}'])
def test_a_target_is_a_kind_of_gpu(spec: str) -> None:
    with pytest.raises(TargetError, match="sm_90"):
        CudaDialect().resolve_target(spec, 1)


def test_a_kind_of_gpu_that_nvrtc_does_not_know_is_one_sentence(tmp_path: Path) -> None:
    dialect = CudaDialect()
    target = dialect.resolve_target('{"kind": "cuda", "arch": "sm_999"}', 1)
    with pytest.raises(ModelError, match="gpu-architecture"):
        dialect.extract(dialect.own_network(str(written(tmp_path, PRODUCT, PRODUCT_FILE))), target)


def test_kernel_tuner_counts_blocks_where_we_count_threads(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text("__global__ void scale(const float *x, float *y) {}\n")
    t1 = {
        "ConfigurationSpace": {"TuningParameters": [{"Name": "BX", "Type": "int", "Values": "[32, 64]"}]},
        "KernelSpecification": {
            "Language": "CUDA", "KernelName": "scale", "KernelFile": "scale.cu", "ProblemSize": [256],
            "GlobalSize": {"X": "ProblemSize[0] // BX"}, "LocalSize": {"X": "BX"},
            "Arguments": [
                {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": "ProblemSize[0]"},
                {"Name": "y", "Type": "float", "MemoryType": "Vector", "Size": 256, "AccessType": "WriteOnly"},
            ],
        },
    }  # fmt: skip
    for told, whole in ((None, 256), ("cuda", 256), ("CUDA", 256), ("OpenCL", 8)):
        if told:
            t1["KernelSpecification"]["GlobalSizeType"] = told
        (tmp_path / "scale.json").write_text(json.dumps(t1))
        launch = read_kernel(tmp_path / "scale.json").launch
        assert launch is not None
        assert eval(launch.global_size[0].replace("ProblemSizeX", "256"), {"BX": 32}) == whole  # our own text
    (tmp_path / "scale.json").write_text(json.dumps(t1).replace('"OpenCL"', '"rows"'))
    with pytest.raises(ModelError, match="GlobalSizeType"):
        read_kernel(tmp_path / "scale.json")


def test_a_kernel_for_another_gpu_is_written_as_a_file_with_texts(tmp_path: Path) -> None:
    dialect = CudaDialect()
    network = dialect.own_network(str(written(tmp_path, PRODUCT, PRODUCT_FILE)))
    dialect.compile(network, dialect.resolve_target(SM_90, 1), {}, tmp_path / "product.tunery")
    texts = dialect.texts(tmp_path / "product.tunery")
    assert "#define TILE 4\n" in texts[".cu"]
    assert json.loads(texts[".json"])["arch"] == "sm_90"
    assert "PRODUCT_GLOBAL_SIZE {32, 32}" in texts[".h"]


@without_gpu
def test_without_a_gpu_a_kernel_is_compiled_and_said_not_to_be_measured(tmp_path: Path) -> None:
    path = written(tmp_path, PRODUCT, PRODUCT_FILE)
    dialect = CudaDialect()
    with pytest.raises(TargetError, match="--target"):
        dialect.resolve_target("native", 1)
    target = dialect.resolve_target(SM_90, 1)
    [task] = dialect.extract(dialect.own_network(str(path)), target)
    built = dialect.build(task, dialect.baseline(task), tmp_path)
    with pytest.raises(DialectError, match="sm_90, and is not measured"):
        dialect.load(task, built, open_device("cuda"))
    dialect.compile(dialect.own_network(str(path)), target, {}, tmp_path / "product.tunery")
    with pytest.raises(UsageError, match="cannot be run here"):
        load_compiled(tmp_path / "product.tunery")


@pytest.mark.parametrize("name", ["matmul_cuda", "matmul_half_cuda", "transpose_cuda"])
def test_an_example_compiles_and_computes_what_its_reference_computes(name: str, tmp_path: Path) -> None:
    dialect = CudaDialect()
    network = dialect.own_network(str(Path(__file__).parents[2] / "examples" / "kernels" / f"{name}.toml"))
    [task] = dialect.extract(network, dialect.resolve_target(SM_90 if gpu_lacking() else "native", 1))
    candidates = (dialect.baseline(task), *dialect.open(task, [], None, 0).propose(3))
    built = [dialect.build(task, candidate, tmp_path) for candidate in candidates]
    if gpu_lacking():
        return
    inputs, device = DialectContract.inputs(task, seed=0), open_device("cuda")
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), device)
    found = []
    for kernel in (reference, *(dialect.load(task, one, device) for one in built)):
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        found.append(kernel.outputs())
    expected = expect(task.workload, found[0])
    for candidate, outputs in zip(candidates, found[1:], strict=True):
        verdict = compare(expected, outputs)
        assert verdict.passed, f"{candidate.body}: {verdict.detail}"


@needs_gpu
@pytest.mark.jobs
def test_no_kernel_that_cheats_or_breaks_is_delivered(tmp_path: Path) -> None:
    path = written(tmp_path, FAULTY, FAULTY_FILE)
    check_that_no_cheat_wins(path, tmp_path, "cuda", "cu", FAULTS)


@needs_gpu
@pytest.mark.parametrize("fault", [4, 6, 7, 8, 9, 10, 12])
def test_a_kernel_that_cheats_is_told_however_slow_it_is(tmp_path: Path, fault: int) -> None:
    """Those that do not end the process that measures them."""
    path = written(tmp_path, FAULTY, FAULTY_FILE)
    found = measured_alone(path, tmp_path, CudaDialect(), fault)
    assert found.outcome in {Outcome.WRONG_RESULT, Outcome.RUN_FAILED}, FAULTS[fault]


@needs_gpu
def test_a_block_that_takes_too_many_registers_is_told_as_it_is_loaded(tmp_path: Path) -> None:
    """Each thread of 1024 holds more than its share of the 65536 registers."""
    source = PRODUCT.replace("float sum = 0.0f;", "float sum = 0.0f, many[160];").replace(
        "c[row * N + col] = sum;",
        "for (int r = 0; r < 64; r++)\n#pragma unroll\nfor (int i = 0; i < 160; i++) many[i] = (r ? many[i] : i) * sum"
        " + a[i + r];\nfloat all = 0;\n#pragma unroll\nfor (int i = 0; i < 160; i++) all += many[i];\n"
        "c[row * N + col] = sum + all * 0;",
    )
    dialect = CudaDialect()
    path = written(tmp_path, source, PRODUCT_FILE.replace("TILE = 4", "TILE = 32"))
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    built = dialect.build(task, dialect.baseline(task), tmp_path)
    with pytest.raises(DialectError, match="registers"):
        dialect.load(task, built, open_device("cuda"))


ON_A_CPU = """
#include <cstdio>
#define __global__
struct three {{ unsigned x; }} gridDim{{3}}, blockDim{{4}}, blockIdx{{0}}, threadIdx{{0}};
typedef int T;
{draw}
int main() {{
    static int of[1 << 16], into[1 << 16];
    for (int i = 0; i < 1 << 16; i++) of[i] = i;
    for (unsigned long long seed = 1; seed < 4; seed++) {{
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) tunery_draw(into, of, 1 << 16, seed);
        fwrite(into, sizeof into, 1, stdout);
    }}
}}
"""


def test_each_call_gets_a_large_input_of_which_no_place_follows_from_another_calls(tmp_path: Path) -> None:
    """What draws it on a GPU compiles for one, and on this processor gives as much of everything, in no order."""
    assert drawing(2, "sm_90").code != drawing(8, "sm_90").code
    program = tmp_path / "draw"
    command = ["g++", "-x", "c++", "-", "-o", program]
    subprocess.run(command, input=ON_A_CPU.format(draw=DRAW), text=True, check=True)
    found = np.frombuffer(subprocess.run([program], capture_output=True, check=True).stdout, np.int32).reshape(3, -1)
    for one, other in ((found[0], found[1]), (found[1], found[2]), (found[0], np.arange(1 << 16))):
        assert np.mean(one == other) < 1e-3
        assert len(np.unique(one - other)) > 1 << 15, "one follows from the other by a rotation"
    assert all(0.62 < len(np.unique(one)) / one.size < 0.64 for one in found), "1 - 1/e of the numbers are drawn"
