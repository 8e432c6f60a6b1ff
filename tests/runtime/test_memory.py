"""What a worker may take of the machine's memory, and what happens at the limit."""

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunery._errors import CrashError, ModelError
from tunery.domain.request import Request
from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.runtime import worker_bytes
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.service.session import extract

GIB = 1 << 30


@pytest.mark.parametrize("role", list(Role))
def test_no_worker_may_take_all_of_the_memory(role: Role) -> None:
    for granted in (2 * GIB, 8 * GIB, 64 * GIB, 4096 * GIB):
        assert 0 < worker_bytes(role, granted) <= min(granted / 2, 16 * GIB)


class Recording(LocalEngine):
    """Notes how workers are started."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self.specs: list[WorkerSpec] = []

    def start(self, spec: WorkerSpec) -> str:
        self.specs.append(spec)
        return super().start(spec)


def test_every_role_is_started_with_a_limit(tmp_path: Path) -> None:
    with Recording(tmp_path / "logs") as engine:
        Runtime(engine, RuntimeSpec("fake"), tmp_path)
        assert {spec.role for spec in engine.specs} == set(Role)
        assert all(spec.memory_bytes for spec in engine.specs)


@pytest.mark.jobs
@pytest.mark.parametrize(("death", "made"), [("abort_for_memory", 1), ("be_killed", 3), ("be_killed_when_full", 1)])
def test_a_call_that_ran_out_of_memory_is_not_made_again(death: str, made: int, tmp_path: Path) -> None:
    async def main() -> None:
        with LocalEngine(tmp_path / "logs") as engine:
            runtime = Runtime(engine, RuntimeSpec("fake"), tmp_path)
            worker = engine.start(WorkerSpec(Role.IMPORTER, "dying_services:Dying", memory_bytes=256 << 20))
            with pytest.raises(CrashError) as caught:
                await runtime.call(worker, death, deadline_s=60, tries=3)
            assert caught.value.out_of_memory == (made == 1)
            assert engine.generation(worker) == made

    asyncio.run(main())


@pytest.mark.tvm
def test_a_constant_that_is_larger_than_an_import_may_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([65536, 65536], "int64"), "shape")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [shape])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(made, str(tmp_path / "small.onnx"))
    assert (tmp_path / "small.onnx").stat().st_size < 300
    with pytest.raises(ModelError, match="needs more memory than the"):
        extract(Request(str(tmp_path / "small.onnx"), threads=1, store=str(tmp_path / "store.db")))


@pytest.mark.jobs
def test_an_import_does_not_wait_for_another_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        with LocalEngine(tmp_path / "logs") as engine:
            runtime = Runtime(engine, RuntimeSpec("fake"), tmp_path)
            for job in ("one", "two"):
                runtime.dispatch.submit(job)
            if runtime.granted < 2:
                pytest.skip("one core imports one model at a time")
            async with (
                runtime.stage("one", "prepare", Role.PREPARER) as first,
                asyncio.timeout(60),
                runtime.stage("two", "prepare", Role.PREPARER) as second,
            ):
                assert first.worker != second.worker
                assert await runtime.call(second.worker, "identify", "fake:other", {}, deadline_s=60)

    asyncio.run(main())
