"""In which kind of process a dialect's workers live, and one look at whether something is as it should be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from tunery.domain.keys import canonical_json, digest


@dataclass(frozen=True)
class Environment:
    """What a worker's process is made with, before its service is created.

    `python` is the interpreter of a virtual environment in which tunery is installed; "" is this process's own.
    `preload` are modules that are imported once, in the process that workers are forked from: they may start no thread.
    `measuring_preload` are those of a worker that only runs what others have compiled, in its host's own Python, which
    need not have the compiler.
    `variables` are set before anything is imported, `thread_variables` in each worker to the number of its threads.
    `forbidden` are modules that these workers may not import; `libraries` those that a worker which needs a forbidden
    module may not import in turn (`counterpart`).
    """

    python: str = ""
    preload: tuple[str, ...] = ()
    measuring_preload: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    thread_variables: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Identity of the process that workers are forked from: those with one key share it."""
        made = [self.python, list(self.preload), dict(self.variables), list(self.forbidden)]
        return digest(canonical_json(made))

    def counterpart(self) -> "Environment":
        """Return the environment of a worker that imports what is forbidden here, and never the `libraries`."""
        return Environment(forbidden=self.libraries)

    def measuring(self) -> "Environment":
        """Return the environment of a worker that only runs what others have compiled."""
        return self if self.measuring_preload is None else replace(self, python="", preload=self.measuring_preload)

    def preloading(self, *modules: str) -> "Environment":
        return replace(self, preload=(*self.preload, *modules))


class CheckState(StrEnum):
    """How a check ended; what is absent is needed for something that nobody has asked for yet."""

    OK = "ok"
    ABSENT = "absent"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found; `advice` is empty where there is nothing to do."""

    name: str
    state: CheckState
    found: str
    advice: str = ""
