"""A dialect without a compiler, on which the whole system runs end to end in seconds.

A network is named by its source, `fake:NAME[?option=value&...]`; the options script everything that happens and travel
inside each workload's program, so they hold in every process. NAME is only a name: networks with the same options share
their tasks. Computations are real NumPy arrays; latencies are virtual (`Kernel.time` returns them without waiting)
unless `real=1`. A candidate is a config (tile_x, tile_y, unroll) of a finite space and has an index in it.

Options of the network:

    option         default     meaning
    tasks          3           number of tunable tasks
    frozen         0           number of further tasks with nothing to tune
    ops            (all four)  operators, in turn: matmul, gather, elementwise, argmax (two outputs, one of integers)
    weights        1           call sites, in turn, such as 4,2,1
    fault_tasks    (all)       numbers of the tasks that the faults below apply to, such as 0,2
    unsupported    0           1: extract raises DialectError
    extract_dies   0           1: extract dies of SIGSEGV
    compile_fails  0           1: compile raises DialectError
    extract_s      0           wall seconds of extract
    compile_s      0           wall seconds of compile

Options of its tasks:

    option         default     meaning
    size           8           scale of the arrays' dimensions
    seed           0           of landscape, noise and of who gets which fault
    space          16x16x8     configs per axis
    best_us        100         fastest healthy latency of task 0 on one thread; task i is i+1 times slower
    spread         20          slowest over fastest config
    baseline       8           the default schedule's latency over the fastest
    levels         200         distinct latencies in the space; fewer are more ties
    noise          0.01        relative sigma of a sample
    burst          0           share of windows of 8 samples in which other load slows everything
    burst_factor   3           ... by this factor
    drift          0           relative slowdown per 1,000 samples of the process
    exhaust        0           the proposer knows no more than this many candidates (0: the whole space)
    real           0           1: kernels take their latency in wall time
    spin           0           1: durations are CPU seconds of computing instead of wall seconds of sleep
    propose_s, build_s, load_s, run_s   0   wall seconds of one call (build and load: of one candidate)
    memory_mib     512         what a candidate that eats memory eats
    some_share     0.5         share of inputs on which a `some` candidate is wrong
    absurd         0           share of configs that the dialect rejects before a build
    propose_dies   0           1: a search of more than the generic space dies of SIGSEGV when it proposes
    baseline_fault (none)      one fault for the default schedule
    reference_fault (none)     one fault for the reference

Faults, each an option whose value is a share with a point (`segfault=0.05`) or indices (`segfault=3,17`):

    refuse, build_crash, build_hang   the build raises DialectError, dies of SIGSEGV, never ends
    fail, segfault, hang, hang_gil    the run raises, dies of SIGSEGV, never ends, never ends and keeps the GIL
    eat                               the run takes `memory_mib` of memory for as long as the kernel lives
    one_off, all_nan, constant        one element off; NaN (integers: minimum) everywhere; one value everywhere
    partial                           only the first half of each output is written
    some, negative                    wrong on some inputs (by content); wrong where the first input holds a negative
    infinite                          wrong where an input is not finite
    zero_time, nan_time               right results, and a clock that says 0 or NaN

Candidates with wrong results look ten times faster than the fastest healthy one.
"""

from tunery.testing.fake_dialect._compiled import FakeCompiledNetwork
from tunery.testing.fake_dialect._dialect import FakeDialect
from tunery.testing.fake_dialect._kernel import FakeKernel
from tunery.testing.fake_dialect._script import FAULTS, WRONG, fake_network
from tunery.testing.fake_dialect._search import FakeProposer

__all__ = ["FAULTS", "WRONG", "FakeCompiledNetwork", "FakeDialect", "FakeKernel", "FakeProposer", "fake_network"]
