"""Dialects that each ignore one parameter of the contract.

A parameter with a default is always that; one without stays what an instance was given first. As a plug-in of pytest,
this runs of each dialect's tests those that speak of the method, up to the first that fails.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from contract_mutants import Able, Base, Cold, Searching
from contract_surface import CONTRACTS, surface

from tunery.testing.fake_dialect._compiled import FakeCompiledNetwork

MADE_BY = {
    "Proposer": ("open", Searching),
    "Kernel": ("load", Cold),
    "CompiledNetwork": ("load_network", FakeCompiledNetwork),
}


def ignoring(contract: type, plain: type, name: str, parameter: str) -> type:
    """Return a subclass of which one method ignores one parameter."""
    signature, inner = inspect.signature(getattr(contract, name)), getattr(plain, name)

    @wraps(inner)
    def deaf(self: Any, *args: Any, **named: Any) -> Any:
        bound = signature.bind(self, *args, **named)
        if parameter in bound.arguments:
            declared = signature.parameters[parameter]
            default = {} if declared.kind is inspect.Parameter.VAR_KEYWORD else declared.default
            kept = vars(self).setdefault("_kept", [])
            kept.append(bound.arguments[parameter] if default is inspect.Parameter.empty else default)
            bound.arguments[parameter] = kept[0]
        return inner(*bound.args, **bound.kwargs)

    return type(f"Ignores{parameter}", (plain,), {name: deaf})


def making(method: str, made: type) -> type:
    """Return a dialect of which one method makes instances of this class."""
    inner: Callable[..., Any] = getattr(Able, method)

    @wraps(inner)
    def make(self: Able, *args: Any, **named: Any) -> Any:
        found = inner(self, *args, **named)
        found.__class__ = made
        return found

    return type(f"Makes{made.__name__}", (Able,), {method: make})


def mutant(owner: str, name: str, parameter: str) -> str:
    """Return what the class of tests of one parameter is called."""
    return f"Test{owner}_{name}_{parameter}"


def _plant() -> None:
    contracts = {contract.__name__: contract for contract in CONTRACTS}
    for owner, name, parameter in surface():
        if parameter:
            method, plain = MADE_BY.get(owner, ("", Able))
            made = ignoring(contracts[owner], plain, name, parameter)
            members = {"made": making(method, made) if method else made}
            called = mutant(owner, name, parameter)
            globals()[called] = type(called, (Base,), members)


_plant()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    methods = {mutant(owner, name, parameter): name for owner, name, parameter in surface() if parameter}
    methods |= {called: "" for called, name in methods.items() if name == "__call__"}  # nobody speaks of it
    sources = {item.originalname: inspect.getsource(item.function) for item in items}
    items[:] = [item for item in items if item.cls and methods[item.cls.__name__] in sources[item.originalname]]


_CAUGHT: set[type] = set()


def pytest_runtest_setup(item: pytest.Function) -> None:
    if item.cls in _CAUGHT:
        pytest.skip("caught already")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[Any]) -> Any:
    report: pytest.TestReport = yield
    if report.failed and item.cls:
        _CAUGHT.add(item.cls)
    return report
