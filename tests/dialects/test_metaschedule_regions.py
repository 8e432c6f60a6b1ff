"""Parallel regions of compiled code: from any threads at once, after a fork, and each task once."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunery.devices import open_device
from tunery.dialects import Kernel
from tunery.dialects.metaschedule import MetaScheduleDialect, loading
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.regions import estimate_regions
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants.program import space_of
from tunery.measuring.inputs import make_inputs
from tunery.models import prepare

NATIVE = Path(loading.__path__[0], "native")
HARNESS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXTENT = 37, ROUNDS = 2000 };

static int turn(int task, group *group, void *data) {
  int step = (EXTENT + group->tasks - 1) / group->tasks, from = task * step, until = from + step;
  for (int at = from; at < until && at < EXTENT; ++at) ((long *)data)[at] += at;
  return 0;
}

static void *rounds(void *data) {
  long sums[EXTENT] = {0}, *wrong = data;
  for (int round = 0; round < ROUNDS; ++round) {
    if (round % 3) tunery_region(EXTENT, round % 2 ? 1000 : 1000000);
    if (__TVMBackendParallelLaunch(turn, sums, 0)) ++*wrong;
  }
  for (int at = 0; at < EXTENT; ++at) *wrong += sums[at] != (long)at * ROUNDS;
  return NULL;
}

int main(void) {
  any threads = {1, 0, 3}, nothing;
  pthread_t thread[3];
  long wrong[4] = {0};
  int status = 0;
  __tvm_ffi_tunery_threads(NULL, &threads, 1, &nothing);
  for (int at = 0; at < 3; ++at) pthread_create(&thread[at], NULL, rounds, &wrong[at]);
  rounds(&wrong[3]);
  for (int at = 0; at < 3; ++at) pthread_join(thread[at], NULL);
#if !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__ // a fork may find their locks held
  pid_t child = fork();
  if (!child) {
    rounds(&wrong[3]);
    exit(wrong[3] != 0);
  }
  waitpid(child, &status, 0);
#endif
  rounds(&wrong[3]);
  any alone = {1, 0, 1};
  for (int again = 0; again < 20; ++again) { // their threads end, and others are started
    __tvm_ffi_tunery_threads(NULL, &alone, 1, &nothing);
    wrong[3] += atomic_load(&shared)->started != 0;
    __tvm_ffi_tunery_threads(NULL, &threads, 1, &nothing);
    rounds(&wrong[3]);
  }
  float from[19 * 21], to[21 * 20];
  for (int at = 0; at < 19 * 21; ++at) from[at] = (float)at;
  for (int rows = 1; rows <= 19; ++rows)
    for (int columns = 1; columns <= 21; ++columns) {
      memset(to, 0, sizeof to);
      tunery_transpose(to, 20, from, 21, rows, columns);
      for (int column = 0; column < 21; ++column)
        for (int row = 0; row < 20; ++row)
          wrong[3] += to[column * 20 + row] != (row < rows && column < columns ? from[row * 21 + column] : 0);
    }
  printf("%ld %d", wrong[0] + wrong[1] + wrong[2] + wrong[3], status);
  return 0;
}
"""


def test_the_shipped_code_is_of_its_source() -> None:
    digest = hashlib.sha256((NATIVE / "support.c").read_bytes()).hexdigest()
    assert (NATIVE / "support.ll").read_text().startswith(f"; {digest} "), "run tools/make_support.py"


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
@pytest.mark.parametrize("check", ["-fsanitize=thread", "-fsanitize=address", "-fsanitize=undefined", "-O2"])
def test_every_task_is_done_once(tmp_path: Path, check: str) -> None:
    source, program = tmp_path / "harness.c", tmp_path / "harness"
    source.write_text((NATIVE / "support.c").read_text().replace('"PAUSE"', '""') + HARNESS)
    command = ["gcc", "-std=gnu11", "-O1", "-g", "-w", check, str(source), "-o", str(program), "-lpthread"]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0 0", 0), done.stderr[-3000:]


@pytest.mark.tvm
def test_the_threads_of_a_kernel_end_with_the_last_that_uses_its_library(tmp_path: Path) -> None:
    dialect, device = MetaScheduleDialect(), open_device("cpu")
    network = prepare("zoo:ds-cnn", {}, tmp_path)
    task = next(task for task in dialect.extract(network, dialect.resolve_target("native", 2)) if task.tunable)
    [candidate] = SurrogateProposer(task, space_of(task), [], None, 0).propose(1)
    built, inputs = dialect.build(task, candidate, tmp_path), make_inputs(task.workload.input_specs, 0)

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208

    def run(path: Path) -> Kernel:
        kernel = dialect.load(task, replace(built, path=path), device)
        kernel.bind(inputs)
        for _ in range(50):
            kernel.run()
        return kernel

    before = threads()
    for number in range(5):
        path = tmp_path / f"copy{number}"
        shutil.copy(built.path, path)
        kernel, other = run(path), run(path)
        assert threads() == before + 1
        del other
        assert threads() == before + 1
        del kernel
        assert threads() == before


@pytest.mark.parametrize(("rows", "parallel"), [(4, False), (4096, True)])
def test_small_work_stays_on_its_caller(rows: int, parallel: bool) -> None:
    te: Any = tvm.te
    source = te.placeholder((rows, 64), name="source")
    program = te.create_prim_func([source, te.compute((rows, 64), lambda i, j: source[i, j] + 1.0, name="more")])
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": program}))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("more"))[0])
    text = str(estimate_regions(schedule.mod))
    assert ("T.parallel" in text, "tunery_region" in text) == (parallel, parallel)
