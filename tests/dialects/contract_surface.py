"""All that a dialect and what it makes may be called for, read from the contracts themselves."""

import inspect
from collections.abc import Iterator

from tunery.dialects import (
    Codegen,
    CompiledNetwork,
    CrossCompiler,
    Dialect,
    Kernel,
    NetworkCompiler,
    Proposer,
    RecordChecker,
    RecordWriter,
    Space,
    TaskSource,
)

CONTRACTS = (
    Dialect, TaskSource, Space, Codegen, CrossCompiler, NetworkCompiler, RecordChecker, RecordWriter, Proposer, Kernel,
    CompiledNetwork,
)  # fmt: skip
INNER = {"ability"}  # for messages alone


def surface() -> Iterator[tuple[str, str, str]]:
    """Yield contract, method and parameter of all that may be called; the parameter is empty for the call itself."""
    for contract in CONTRACTS:
        names = {**dict.fromkeys(inspect.get_annotations(contract)), **vars(contract)}
        for name in names:
            if (name.startswith("_") and name != "__call__") or name in INNER:
                continue
            yield contract.__name__, name, ""
            member = inspect.getattr_static(contract, name, None)
            if inspect.isfunction(member):
                parameters = list(inspect.signature(member).parameters.values())[1:]
                yield from ((contract.__name__, name, parameter.name) for parameter in parameters)
