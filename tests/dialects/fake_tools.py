"""What the tests of the fake dialect share."""

from collections.abc import Sequence
from pathlib import Path

from tunery.devices import open_device
from tunery.dialects import Array
from tunery.domain import Task
from tunery.testing.dialect_contract import DialectContract
from tunery.testing.fake_dialect import FakeDialect, FakeKernel, fake_network


def tasks_of(options: str, threads: int = 1, spec: str = "native") -> list[Task]:
    dialect = FakeDialect()
    return dialect.extract(fake_network(f"fake:test?{options}"), dialect.resolve_target(spec, threads))


def kernel_of(task: Task, index: int, directory: Path, dialect: FakeDialect | None = None) -> FakeKernel:
    dialect = dialect or FakeDialect()
    return dialect.load(task, dialect.build(task, dialect.candidate(task, index), directory), open_device("cpu"))


def inputs_of(task: Task, seed: int = 0) -> list[Array]:
    return DialectContract.inputs(task, seed)


def outputs_of(kernel: FakeKernel, inputs: Sequence[Array]) -> list[Array]:
    kernel.bind(inputs)
    kernel.poison()
    kernel.run()
    return kernel.outputs()


def right(task: Task, inputs: Sequence[Array], directory: Path) -> list[Array]:
    dialect = FakeDialect()
    return outputs_of(
        dialect.load(task, dialect.build(task, dialect.reference(task), directory), open_device("cpu")), inputs
    )
