"""What is refused of programs and traces from elsewhere, before TVM reads it; and that what is ours is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metaschedule_models import convolution_network, small_network

from tunery._errors import DialectError
from tunery.dialects import get_dialect
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import Candidate, Task

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def dialect() -> MetaScheduleDialect:
    found = get_dialect("metaschedule")
    assert isinstance(found, MetaScheduleDialect)
    return found


@pytest.fixture(scope="module")
def tasks(dialect: MetaScheduleDialect, tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    folder, target = tmp_path_factory.mktemp("networks"), dialect.resolve_target("native", 1)
    networks = [
        small_network(folder),
        convolution_network(folder, activation="silu", residual=True),
        convolution_network(folder, groups=32),
        convolution_network(folder, kernel=1, padding=0),
        convolution_network(folder, constant=False),
    ]
    return [task for network in networks for task in dialect.extract(network, target)]


@pytest.fixture(scope="module")
def conv(tasks: list[Task]) -> Task:
    return next(task for task in tasks if task.workload.kind == "conv2d")


def test_what_is_ours_is_accepted(dialect: MetaScheduleDialect, tasks: list[Task]) -> None:
    for task in tasks:
        proposed = dialect.open(task, (), None, 0).propose(24)
        dialect.check_workload(task.workload)
        for candidate in (*proposed, dialect.reference(task), dialect.baseline(task)):
            dialect.check_body(candidate.body)
        for candidate in proposed[:4]:
            assert dialect.identify(task, candidate.body).key == candidate.key


def spoilt(task: Task, change: Callable[[list[dict[str, Any]]], None]) -> Task:
    """The task with its program's nodes changed; its key is the new program's, where TVM reads it."""
    graph = json.loads(task.workload.program)
    change(graph["nodes"])
    return replace(task, workload=replace(task.workload, program=json.dumps(graph)))


def first(nodes: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(node for node in nodes if node["type"] == kind)


def add(nodes: list[dict[str, Any]], kind: str, data: Any) -> int:
    nodes.append({"type": kind, "data": data})
    return len(nodes) - 1


def call_system(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.Op")["data"] = "tirx.call_extern"


def call_packed(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.Op")["data"] = "tirx.tvm_call_packed"


def call_a_function_of_the_module(nodes: list[dict[str, Any]]) -> None:
    variable = next(i for i, node in enumerate(nodes) if node["type"] == "ir.GlobalVar")
    first(nodes, "ir.Call")["data"]["op"] = variable


def carry_a_library(nodes: list[dict[str, Any]]) -> None:
    add(nodes, "ffi.Module", "bytes of a shared object")


def carry_source(nodes: list[dict[str, Any]]) -> None:
    key, text = add(nodes, "ffi.String", "pragma_import_c"), add(nodes, "ffi.String", "void f() {}")
    nodes[first(nodes, "tirx.For")["data"]["annotations"]]["data"] = [key, text]


def name_a_rule(nodes: list[dict[str, Any]]) -> None:
    key, text = add(nodes, "ffi.String", "schedule_rule"), add(nodes, "ffi.String", "runtime.SystemLib")
    nodes[first(nodes, "s_tir.SBlock")["data"]["annotations"]]["data"] = [key, text]


def say_more_of_itself(nodes: list[dict[str, Any]]) -> None:
    key, text = add(nodes, "ffi.String", "tirx.c_source"), add(nodes, "ffi.String", "void f() {}")
    nodes[first(nodes, "tirx.PrimFunc")["data"]["attrs"]]["data"]["__dict__"] = add(nodes, "ffi.Map", [key, text])


def use_handles(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.PrimType")["data"]["dtype"] = "handle"


def use_a_scope(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "tirx.BufferType")["data"]["storage_scope"] = add(nodes, "ffi.String", "global.texture")


HOSTILE = (
    call_system,
    call_packed,
    call_a_function_of_the_module,
    carry_a_library,
    carry_source,
    name_a_rule,
    say_more_of_itself,
    use_handles,
    use_a_scope,
)


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_program_of_other_constructs_is_refused(
    dialect: MetaScheduleDialect, conv: Task, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    hostile = spoilt(conv, change)
    with pytest.raises(DialectError):
        dialect.check_workload(hostile.workload)


@pytest.mark.parametrize(
    "program", ["", "[]", "{}", '{"nodes": []}', '{"nodes": [{"type": "None"}], "root_index": 0}', "[" * 100_000]
)
def test_what_is_no_program_is_refused(dialect: MetaScheduleDialect, conv: Task, program: str) -> None:
    with pytest.raises(DialectError):
        dialect.check_workload(replace(conv.workload, program=program))


def test_a_name_that_stands_twice_is_refused(dialect: MetaScheduleDialect, conv: Task) -> None:
    twice = conv.workload.program.replace('"type":"ir.Op"', '"type":"ffi.Module","type":"ir.Op"')
    assert twice != conv.workload.program
    with pytest.raises(DialectError, match="twice"):
        dialect.check_workload(replace(conv.workload, program=twice))


def test_a_program_under_anothers_key_is_refused_also_when_it_is_read_from_the_store(
    dialect: MetaScheduleDialect, tasks: list[Task], conv: Task, tmp_path: Path
) -> None:
    other = next(task for task in tasks if task.workload.key != conv.workload.key)
    false = replace(conv, workload=replace(other.workload, key=conv.workload.key))
    with pytest.raises(DialectError, match=conv.workload.key):
        dialect.check_workload(false.workload)
    with pytest.raises(DialectError, match=conv.workload.key):
        dialect.reference(false)
    with pytest.raises(DialectError, match="arguments"):
        dialect.check_workload(replace(conv.workload, arguments=conv.workload.arguments[1:]))


def traced(task: Task, write: Callable[[Any, Any], None]) -> Candidate:
    """A candidate with a right key, made by schedule primitives that `write` calls."""
    import tvm

    from tunery.dialects.metaschedule.variants.program import post_process, program_key, space_of, trace_body

    space = space_of(task)
    schedule = tvm.s_tir.Schedule(space.module)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    write(schedule, block)
    body = trace_body(schedule.trace, space)
    assert post_process(schedule, space)
    return Candidate(program_key(schedule.mod), task.key, body)


def import_source(schedule: Any, block: Any) -> None:
    schedule.annotate(schedule.get_loops(block)[0], "pragma_import_c", "void f() {}")


def import_llvm(schedule: Any, block: Any) -> None:
    schedule.annotate(block, "pragma_import_llvm", "define void @f() { ret void }")


def change_a_type(schedule: Any, block: Any) -> None:
    schedule.unsafe_set_dtype(block, 0, "float64")


@pytest.mark.parametrize("write", [import_source, import_llvm, change_a_type], ids=lambda write: write.__name__)
def test_a_trace_with_source_or_an_unsafe_primitive_is_neither_built_nor_identified(
    dialect: MetaScheduleDialect, conv: Task, tmp_path: Path, write: Callable[[Any, Any], None]
) -> None:
    candidate = traced(conv, write)
    with pytest.raises(DialectError):
        dialect.check_body(candidate.body)
    with pytest.raises(DialectError):
        dialect.build(conv, candidate, tmp_path)
    with pytest.raises(DialectError):
        dialect.identify(conv, candidate.body)
    assert not list(tmp_path.iterdir())


def test_the_program_as_it_came_is_built_under_its_own_key_only(
    dialect: MetaScheduleDialect, conv: Task, tmp_path: Path
) -> None:
    with pytest.raises(DialectError, match="another program"):
        dialect.build(conv, replace(dialect.baseline(conv), key="0123456789abcdef"), tmp_path)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["b0", '"x"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=12,
)


@given(st.one_of(_values.map(json.dumps), st.text(max_size=40), st.lists(_values).map(lambda v: json.dumps([v, []]))))
@settings(max_examples=200, deadline=None)
def test_any_body_is_accepted_or_refused(body: str) -> None:
    from tunery.dialects.metaschedule.constructs import check_body

    try:
        check_body(body)
    except DialectError:
        return
    assert not body.startswith("{") or "trace" in json.loads(body)
