"""A real dialect in one file: products of matrices in C, built by gcc; it knows no networks, features or suggestions.

A candidate is how much gcc optimizes and how the loops are tiled. As an installed plug-in it is found by the entry
point `gcc = gcc_dialect:GccDialect`.
"""

import ctypes
import hashlib
import itertools
import json
import subprocess
import time

import numpy as np

from tunery._errors import DialectError, TargetError
from tunery.dialects import Built, Codegen, Dialect, Kernel, Proposer, Space
from tunery.domain import Candidate, Origin, Target, Task, TensorSpec, Workload, canonical_json, digest

LEVELS, TILES = ("-O0", "-O1", "-O3"), (0, 8, 16, 48)
DEFAULT = {"level": "-O0", "tile": 0}
SOURCE = """
#define MIN(a, b) ((a) < (b) ? (a) : (b))
void run(const float *x, const float *w, float *out) {
    for (int i = 0; i < N * M; i++) out[i] = 0;
    for (int k0 = 0; k0 < K; k0 += TILE)
        for (int i = 0; i < N; i++)
            for (int k = k0; k < MIN(k0 + TILE, K); k++)
                for (int j = 0; j < M; j++) out[i * M + j] += x[i * K + k] * w[k * M + j];
}
"""


def product(n, m, k, target, weight=1):
    """Return the task of a product of matrices."""
    program = canonical_json({"op": "product", "sizes": [n, m, k]})
    shapes = (("x", (n, k)), ("w", (k, m)), ("out", (n, m)))
    specs = tuple(TensorSpec(name, shape, "float32") for name, shape in shapes)
    return Task(Workload(digest(program), "product", "matmul", program, specs, 1, 2.0 * n * m * k), target, weight)


class GccDialect(Dialect, Space, Codegen):
    name = "gcc"

    @property
    def compiler(self):
        done = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True)
        return f"gcc {done.stdout.strip()}"

    def resolve_target(self, spec, threads):
        try:
            config = {"kind": "gcc"} if spec == "native" else json.loads(spec)
        except ValueError:
            config = None
        if config != {"kind": "gcc"}:
            raise TargetError(f'unknown target {spec!r}; use native or {{"kind": "gcc"}}')
        return Target(self.name, config, threads)

    def open(self, task, history, cost_model, seed, *, warm_start=False, generic_only_reason=None):
        return GccProposer(task, history, seed)

    def build(self, task, candidate, directory):
        body = _parse(candidate.body)
        n, m, k = json.loads(task.workload.program)["sizes"]
        path = directory / f"{candidate.key}.so"
        sizes = [f"-DN={n}", f"-DM={m}", f"-DK={k}", f"-DTILE={body['tile'] or k}"]
        command = ["gcc", "-x", "c", body["level"], *sizes, "-shared", "-fPIC", "-o", str(path), "-"]
        done = subprocess.run(command, input=SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            path.unlink(missing_ok=True)
            raise DialectError(f"gcc refuses {candidate.body}: {done.stderr[:200]}")
        return Built(candidate.key, path, hashlib.sha256(path.read_bytes()).hexdigest())

    def load(self, task, built, device):
        if device.kind != "cpu":
            raise DialectError(f"{built.path} does not run on a device of kind {device.kind}")
        try:
            found = hashlib.sha256(built.path.read_bytes()).hexdigest()
        except OSError as error:
            raise DialectError(f"{built.path} cannot be read: {error}") from error
        if found != built.manifest:
            raise DialectError(f"{built.path} is not what gcc wrote")
        return GccKernel(task, built.path)

    def reference(self, task):
        return _candidate(task, DEFAULT, Origin.PLANTED)

    def baseline(self, task):
        return _candidate(task, DEFAULT, Origin.BASELINE)


class GccProposer(Proposer):
    """Goes through all candidates in an order of the seed's."""

    def __init__(self, task, history, seed):
        bodies = [{"level": level, "tile": tile} for level, tile in itertools.product(LEVELS, TILES)]
        order = np.random.default_rng(seed).permutation(len(bodies))
        seen = {told.candidate.key for told in history}
        found = [_candidate(task, bodies[i], Origin.SEARCH) for i in order if bodies[i] != DEFAULT]
        self._left = [candidate for candidate in found if candidate.key not in seen]

    def propose(self, n):
        found, self._left = self._left[:n], self._left[n:]
        return found

    def observe(self, results):
        seen = {told.candidate.key for told in results}
        self._left = [candidate for candidate in self._left if candidate.key not in seen]


class GccKernel(Kernel):
    def __init__(self, task, path):
        self._run = ctypes.CDLL(str(path)).run
        self._specs, self._inputs = task.workload.output_specs, []
        self._outputs = [np.zeros(spec.shape, spec.dtype) for spec in self._specs]

    def bind(self, inputs):
        self._inputs = [np.ascontiguousarray(array).copy() for array in inputs]
        self._pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*self._inputs, *self._outputs)]

    def poison(self):
        for array in self._outputs:
            array.fill(np.nan)

    def run(self):
        self._run(*self._pointers)

    def time(self, calls):
        started = time.perf_counter()
        for _ in range(calls):
            self._run(*self._pointers)
        return time.perf_counter() - started

    def outputs(self):
        return [array.copy() for array in self._outputs]


def _candidate(task, body, origin):
    text = canonical_json(body)
    return Candidate(digest(task.workload.key, text), task.key, text, origin)


def _parse(text):
    try:
        body = json.loads(text)
        known = body["level"] in LEVELS and body["tile"] in TILES
    except (ValueError, KeyError, TypeError) as error:
        raise DialectError(f"{text[:200]!r} is no candidate: {error}") from error
    if not known:
        raise DialectError(f"{text[:200]!r} is no candidate")
    return body
