"""Programs as data: workloads to IRModules, candidates to scheduled modules, and their identities."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import meta_schedule, open_target, tvm, tvm_ffi
from tunery.dialects.metaschedule.constructs import check_body
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.variant import (
    GENERIC,
    Variant,
    Variants,
    generic,
    read_body,
    variants_of,
    write_body,
)
from tunery.domain import Candidate, Origin, Target, Task

UNSCHEDULED = ""
"""Body of the candidate that is the program as it came: the untuned baseline."""
REORDERED = "reordered"
"""Body of the reference: see `reordered`."""

_SPATIAL, _REDUCED = 0, 2  # TVM's IterVar types


def program_key(module: Any) -> str:
    """Return the structural hash of an IRModule as 16 hex digits; equal across processes."""
    return f"{tvm_ffi.structural_hash(module) & 0xFFFFFFFFFFFFFFFF:016x}"


def normalised(function: Any) -> Any:
    function = function.with_attr("global_symbol", "main")
    for noise in ("op_pattern",):
        function = function.without_attr(noise)
    return tvm.IRModule({"main": function})


def tvm_target(target: Target) -> Any:
    return open_target(target.config)


@dataclass(frozen=True)
class DesignSpace:
    """A parsed task, ready to generate from and to replay on."""

    module: Any
    target: Any
    context: Any
    variant: Variant

    @cached_property
    def designs(self) -> tuple[Any, ...]:
        """The design space: generated (post-order application of MetaSchedule's rules) when it is first asked for."""
        try:
            return tuple(self.context.generate_design_space())
        except Exception as error:
            raise _no_space(error) from error

    @property
    def postprocessors(self) -> list[Any]:
        """The target's post-processing; weights that were packed for the program are laid out no other way."""
        layout = meta_schedule.postproc.RewriteLayout
        all_of_them = self.context.space_generator.postprocs
        return [post for post in all_of_them if not (self.variant.packed and isinstance(post, layout))]

    @property
    def tunable(self) -> bool:
        """Whether any design leaves a sampled decision open. MetaSchedule's own rules sample how far to unroll a
        program that reduces, and nothing of one block without: the designs of these, which take a quarter of an import,
        need not be generated to tell."""
        kinds = _loop_kinds(self.module) if self.variant.design is None else []
        if any(_REDUCED in each for each in kinds) and all(each <= {_SPATIAL, _REDUCED} for each in kinds):
            return True
        if kinds == [{_SPATIAL}]:
            return False
        return any(str(inst.kind.name).startswith("Sample") for d in self.designs for inst in d.trace.insts)


def _loop_kinds(module: Any) -> list[set[int]]:
    schedule = tvm.s_tir.Schedule(module)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        return [{int(variable.iter_type) for variable in schedule.get(block).iter_vars} for block in blocks]
    except Exception:  # noqa: BLE001 - an unusual program
        return []


def open_space(module: Any, target: Any) -> DesignSpace:
    return open_variant(generic(module, target), target)


def open_variant(variant: Variant, target: Any, *, strategy: Any = "replay-trace", seed: int = 1) -> DesignSpace:
    if variant.written is not None:
        return DesignSpace(variant.module, target, None, variant)
    try:
        context = meta_schedule.TuneContext(
            mod=variant.module,
            target=target,
            space_generator=_generator(variant),
            search_strategy=strategy,
            num_threads=1,
            rand_state=seed,
            task_name="main",
            logger=_quiet(),
        )
    except Exception as error:
        raise _no_space(error) from error
    return DesignSpace(variant.module, target, context, variant)


def _no_space(error: Exception) -> DialectError:
    return DialectError(f"MetaSchedule has no design space for this program: {reason_of(error)}")


def _generator(variant: Variant) -> Any:
    if variant.design is None:
        return "post-order-apply"
    return meta_schedule.space_generator.ScheduleFn(variant.design, sch_rules=[])


def parsed(workload_key: str, program: str) -> Any:
    """Return a workload's module. TVM's upgrade from older versions, which takes ten times as long, is left out: keys
    say the version."""
    module = tvm_ffi.serialization.from_json_graph_str(program)
    key = program_key(tvm.IRModule({"main": module["main"]}))  # without what its network was lowered without
    if key != workload_key:
        raise DialectError(
            f"the program of workload {workload_key} has the key {key}: it is not what the store says it is; "
            "name another store with --store, and import nothing there from whom this program came from"
        )
    return module


def identify(task: Task, body: str) -> Candidate:
    return Candidate(program_key(replay(space_for(task, body), body).mod), task.key, body)


@lru_cache(maxsize=256)
def _variants(workload_key: str, program: str, target_json: str) -> Variants:
    return variants_of(parsed(workload_key, program), open_target(json.loads(target_json)))


@lru_cache(maxsize=256)
def _space(workload_key: str, program: str, target_json: str, name: str) -> DesignSpace:
    variants = _variants(workload_key, program, target_json).found
    if name not in variants:
        raise DialectError(f"this workload has no variant {name}")
    return open_variant(variants[name], open_target(json.loads(target_json)))


def variants(task: Task) -> Variants:
    """Return what the task may be computed by; found once per process."""
    return _variants(task.workload.key, task.workload.program, json.dumps(dict(task.target.config)))


def tiled(task: Task) -> list[str]:
    """Return the variants whose programs are written from the numbers of a design, the most promising first."""
    return [name for name, variant in variants(task).found.items() if variant.written is not None]


def space_of(task: Task, variant: str = GENERIC) -> DesignSpace:
    """Return the parsed task; parsed once per process."""
    return _space(task.workload.key, task.workload.program, json.dumps(dict(task.target.config)), variant)


def space_for(task: Task, body: str) -> DesignSpace:
    return space_of(task, read_body(body)[0])


def trace_body(trace: Any, space: DesignSpace) -> str:
    """Serialise a trace without its post-processing, which is applied again on replay. (A layout rewrite's index map
    cannot be written as JSON, so post-processing must not be part of the body.)"""
    database = meta_schedule.database.MemoryDatabase()
    workload = database.commit_workload(space.module)
    simple = trace.simplified(remove_postproc=True)
    record = meta_schedule.database.TuningRecord(simple, workload, [1.0], space.target, [])
    return write_body(space.variant.name, record.as_json()[0])


def replay(space: DesignSpace, body: str) -> Any:
    check_body(body)
    schedule = tvm.s_tir.Schedule(space.module)
    if body == UNSCHEDULED:
        return schedule
    if body == REORDERED:
        return reordered(space.module)
    name, trace = read_body(body)
    if name != space.variant.name:
        raise DialectError(f"the candidate is of variant {name}, not {space.variant.name}")
    if space.variant.written is not None:
        return tvm.s_tir.Schedule(space.variant.written(trace))
    try:
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
        accepted = post_process(schedule, space)
    except Exception as error:
        raise DialectError(f"the trace does not replay on this program: {reason_of(error)}") from error
    if not accepted:
        raise DialectError("the trace replays to a program that breaks a limit of the target")
    return schedule


def post_process(schedule: Any, space: DesignSpace) -> bool:
    """Apply the target's post-processing, marked as such in the trace; False if the program breaks a limit."""
    schedule.enter_postproc()
    return all(post.apply(schedule) for post in space.postprocessors)


def scheduled_module(task: Task, candidate: Candidate) -> Any:
    module = replay(space_for(task, candidate.body), candidate.body).mod
    check_key(module, candidate)
    return module


def check_key(module: Any, candidate: Candidate) -> None:
    if program_key(module) != candidate.key:
        raise DialectError(f"candidate {candidate.key} replays to another program; was it made by another TVM version?")


def unscheduled(task: Task) -> Candidate:
    return Candidate(program_key(space_of(task).module), task.key, UNSCHEDULED, Origin.BASELINE)


def reference(task: Task) -> Candidate:
    module = space_of(task).module
    plain = unscheduled(task)
    try:
        key = program_key(reordered(module).mod)
    except Exception:  # noqa: BLE001 - an unusual program is its own reference
        return plain
    return plain if key == plain.key else Candidate(key, task.key, REORDERED)


def reordered(module: Any) -> Any:
    """Return a schedule whose reductions run outside the last spatial loop, each sum in its old order. Every output is
    the same sum in the same order, bit for bit, but the inner loop walks along memory: a matrix product of 128x512x2048
    takes 13 ms where the naive loops take 0.6 s or more."""
    schedule = tvm.s_tir.Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
        reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCED]
        spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
        if reduced and spatial and len(reduced) + len(spatial) == len(loops):
            schedule.decompose_reduction(block, loops[0])
            schedule.reorder(*reduced, spatial[-1])
    return schedule


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("tunery.metaschedule")
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
