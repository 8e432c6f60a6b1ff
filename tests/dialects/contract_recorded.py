"""The contract suite on a dialect that notes what is called: methods, what they are given, attributes that are read.

`$CALLS` is the file that the notes are written to. To import this changes the fake dialect's classes.
"""

import inspect
import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from contract_mutants import Able, Base, Cold, Searching, TakesAPartForAnother
from contract_surface import CONTRACTS, surface

from tunery.dialects import CompiledNetwork, Kernel, Proposer
from tunery.testing.fake_dialect._compiled import FakeCompiledNetwork


class Notes:
    """What was called from outside; what a dialect calls of itself does not count."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str, str]] = set()
        self._depth = 0

    def method(self, contract: type, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that notes its calls, and which arguments were others than their defaults."""
        signature = inspect.signature(getattr(contract, name))

        @wraps(inner)
        def noted(*args: Any, **named: Any) -> Any:
            if not self._depth:
                self.calls.add((contract.__name__, name, ""))
                for parameter, value in list(signature.bind(*args, **named).arguments.items())[1:]:
                    default = signature.parameters[parameter].default
                    if value is not None and not (isinstance(value, type(default)) and value == default):
                        self.calls.add((contract.__name__, name, parameter))
            self._depth += 1
            try:
                return inner(*args, **named)
            finally:
                self._depth -= 1

        return noted

    def watch(self, plain: type, contracts: tuple[type, ...]) -> None:
        """Let a class note what of the contracts is used of its instances."""
        attributes: dict[str, str] = {}
        for contract in contracts:
            for owner, name, parameter in surface():
                if owner != contract.__name__ or parameter:
                    continue
                if inspect.isfunction(inspect.getattr_static(contract, name, None)):
                    setattr(plain, name, self.method(contract, name, getattr(plain, name)))
                else:
                    attributes[name] = owner

        def read(instance: object, name: str) -> Any:
            if name in attributes and not self._depth:
                self.calls.add((attributes[name], name, ""))
            return object.__getattribute__(instance, name)

        plain.__getattribute__ = read  # type: ignore[method-assign, assignment]


class Noted(TakesAPartForAnother):
    def compile(self, *args: Any, **named: Any) -> Any:
        return Able.compile(self, *args, **named)


NOTES = Notes()
NOTES.watch(Noted, tuple(one for one in CONTRACTS if issubclass(Noted, one)))
NOTES.watch(Searching, (Proposer,))
NOTES.watch(Cold, (Kernel,))
NOTES.watch(FakeCompiledNetwork, (CompiledNetwork,))


class TestNoted(Base):
    made = Noted


def teardown_module() -> None:
    Path(os.environ["CALLS"]).write_text(json.dumps(sorted(NOTES.calls)))
