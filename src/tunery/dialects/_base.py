"""The contract a compiler plug-in fulfils; `tunery.dialects.contract` is its test-suite, `fake` its smallest example.

A dialect is created once per worker process and may keep state there (parsed programs, loaded libraries). All its
arguments and results are plain data, so any method can run in any process; only `Proposer` and `Kernel` objects stay
where they were made.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError, UsageError
from tunery.devices import ConstantBuffers, Device
from tunery.domain import Artifact, Candidate, Environment, Network, Outcome, Target, Task, TensorSpec, Workload

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a proposer hears of one candidate: `latency_s` is None where nothing was timed."""

    candidate: Candidate
    outcome: Outcome
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Candidates that a cost model thinks fast, and what they teach about like tasks, in words of the dialect's own.

    `rivals` are of another kind, which lost elsewhere: a measurement says whether they lose here, too, and where the
    candidates fail they are there. `origins` tells
    by the key which candidates are alike, for having come from the same place.
    """

    candidates: tuple[Candidate, ...]
    transfer_state: str = ""
    rivals: tuple[Candidate, ...] = ()
    origins: Mapping[str, int] = field(default_factory=dict)


class Proposer(ABC):
    """The search for one task. Stateful, and rebuilt from history when its process is lost."""

    @abstractmethod
    def propose(self, n: int) -> list[Candidate]:
        """Return up to `n` candidates that were neither proposed nor told before; an empty list means exhausted."""

    @abstractmethod
    def tell(self, results: Sequence[Observation]) -> None:
        """Take in outcomes, of any subset of what was proposed, in any order."""

    def refused(self) -> list[tuple[Candidate, str]]:
        """Return what the search found not worth a build since the last call, each with the reason, and proposed never.

        For what is seen while looking for proposals (`Dialect.reject` judges a proposed candidate); it is recorded.
        """
        return []

    def learn(self, cost_model: str) -> None:  # noqa: B027 - a dialect without a cost model ignores it
        """Use this cost model (its serialised form) from now on."""


class Kernel(ABC):
    """A loaded candidate with its own argument buffers.

    `slack` is how many times the usual tolerance its rounding may need, for an algorithm that does not merely reorder
    sums; `traits` are facts about the implementation that its records should state.
    """

    slack: float = 1.0
    traits: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def bind(self, inputs: Sequence[Array]) -> None:
        """Copy the inputs (the workload's input specs, in order) to the device and allocate outputs if needed."""

    @abstractmethod
    def poison(self) -> None:
        """Overwrite the outputs with a value no right answer holds: NaN for floats, the type's minimum for integers."""

    @abstractmethod
    def run(self) -> None:
        """Execute once and wait for the end."""

    def use_cold_constants(self, buffers: ConstantBuffers) -> None:  # noqa: B027 - a kernel may have no constants
        """Let each call that `time` makes from now on read the network's constants from a buffer of its own."""

    @abstractmethod
    def time(self, calls: int) -> float:
        """Return the seconds `calls` back-to-back executions took, by the device's best clock."""

    @abstractmethod
    def outputs(self) -> list[Array]:
        """Return copies of the outputs."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled network on disk and which tasks are covered by which candidate (None: the compiler's default).

    `left_out` says, by workload, what the search that found a candidate did without, and why.
    """

    path: str
    coverage: Mapping[str, str | None]
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class CompiledNetwork(ABC):
    """A compiled network loaded into this process."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int

    def __repr__(self) -> str:
        """Return what it takes and gives."""
        sides = (
            ", ".join(f"{one.name}: {one.dtype}{list(one.shape)}" for one in of) for of in (self.inputs, self.outputs)
        )
        return f"<compiled network: {' -> '.join(sides)}; threads={self.threads}>"

    @abstractmethod
    def __call__(self, *arrays: Array) -> list[Array]:
        """Run once on NumPy arrays, one per input in order; return the outputs.

        Raises:
            UsageError: wrong number, shape or dtype of inputs.
        """

    @abstractmethod
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        """Return the seconds `calls` back-to-back executions took."""

    def profile(self, arrays: Sequence[Array], calls: int) -> Mapping[str, float]:  # noqa: ARG002 - see below
        """Return the median seconds that kernels take in one execution, summed over their calls.

        By the key of the workload that a kernel computes; by its name where it is none's, as a copy. Time between
        kernels is not in it. Empty where the compiler cannot tell.
        """
        return {}

    def checked(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return `arrays` if they fit the inputs.

        Raises:
            UsageError: they do not; the message names the first that does not.
        """
        if len(arrays) != len(self.inputs):
            raise UsageError(f"the network takes {len(self.inputs)} inputs, not {len(arrays)}")
        for spec, array in zip(self.inputs, arrays, strict=True):
            if not isinstance(array, np.ndarray | np.generic):
                raise UsageError(f"input {spec.name!r} must be a NumPy array, not {type(array).__name__}")
            if tuple(array.shape) != spec.shape or str(array.dtype) != spec.dtype:
                raise UsageError(
                    f"input {spec.name!r} must be {spec.dtype}{list(spec.shape)}, not {array.dtype}{list(array.shape)}"
                )
        return arrays


class Dialect(ABC):
    """One compiler."""

    name: str

    @property
    @abstractmethod
    def compiler(self) -> str:
        """Name and version of the compiler: part of every record's provenance."""

    def environment(self) -> Environment:
        """Return in which kind of process this dialect works; it must not import the compiler to know."""
        return Environment()

    @abstractmethod
    def resolve_target(self, spec: str, threads: int) -> Target:
        """Turn `native`, a name or a JSON object into a target.

        Raises:
            TargetError: unknown or incomplete; the message names what would be accepted.
        """

    @abstractmethod
    def extract(self, network: Network, target: Target) -> list[Task]:
        """Return the network's unique tasks with their weights, heaviest work first.

        Raises:
            DialectError: the network holds an operator the compiler cannot import.
        """

    @abstractmethod
    def open(
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        warm_start: bool = False,
        plain: str = "",
    ) -> Proposer:
        """Start or resume the search for a task; what is in `history` is not proposed again.

        A `warm_start` search may use what the dialect knows of other tasks. A `plain` one keeps to the compiler's own
        space of the task's own program; `plain` says why, and so do its candidates if they went without something.
        """

    def suggest(
        self,
        task: Task,
        n: int,
        cost_model: str,
        seed: int,
        lessons: Sequence[str] = (),  # noqa: ARG002 - for those that learn
        *,
        rivals: bool = False,  # noqa: ARG002 - for those that know any
    ) -> Suggestions:
        """Return candidates of a task that will not be searched: what `n` looks with the cost model find.

        `lessons` are those of tasks that were looked at before, in any process. Several `rivals` are wanted where a few
        are going to be measured; one is of use otherwise, should the candidates fail.
        """
        return Suggestions(tuple(self.open(task, (), cost_model, seed).propose(n)))

    @abstractmethod
    def build(self, task: Task, candidate: Candidate, directory: Path) -> Artifact:
        """Compile a candidate to a file in `directory`.

        Raises:
            DialectError: the compiler refuses it.
        """

    def build_part(self, task: Task, candidate: Candidate, directory: Path) -> None:  # noqa: B027 - for those that can
        """Leave in `directory` what spares `build` and `compile` this candidate's code generation, if there is such.

        Raises:
            DialectError: the compiler refuses it.
        """

    @abstractmethod
    def load(self, task: Task, artifact: Artifact, device: Device) -> Kernel:
        """Load a built candidate into this process, to run on a device that was opened here.

        Raises:
            DialectError: the artifact is another candidate's, or the device is of a kind that it cannot run on.
        """

    @abstractmethod
    def reference(self, task: Task) -> Candidate:
        """Return a program whose outputs are right: the unscheduled one, or one that computes the same bits faster.

        Every program that is measured is compared with it, the baseline first.
        """

    @abstractmethod
    def baseline(self, task: Task) -> Candidate:
        """Return what the compiler uses when nothing was tuned; it is always measured and may win."""

    def peak_flops(self, target: Target) -> float | None:  # noqa: ARG002 - for those that can tell
        """Return how many float32 operations this machine does in a second at most, on the target's threads: measured.

        None: the dialect cannot tell.
        """
        return None

    def calibration_tasks(self, target: Target) -> Mapping[str, Task]:  # noqa: ARG002 - for those that have some
        """Return tunable tasks of known kinds (`compute`: bound by the processor, `memory`: by memory), if it has any.

        A device is calibrated with their candidates: small programs, for one slot's threads.
        """
        return {}

    @abstractmethod
    def features(self, task: Task, candidates: Sequence[Candidate]) -> npt.NDArray[np.float32]:
        """Return one row of cost-model features per candidate; a row of NaN where none can be computed."""

    def stores(self, task: Task, candidates: Sequence[Candidate]) -> list[npt.NDArray[np.float32]] | None:  # noqa: ARG002
        """Return the `(n, w)` features of each candidate's stores, whose `fold` is its row; None without such."""
        return None

    def reject(self, task: Task, candidate: Candidate) -> str:  # noqa: ARG002 - what most dialects do
        """Return why a candidate is not worth a build, for a reason that can be seen without one; "" where it is.

        Meant for what cannot win: a working set that no cache holds, a loop unrolled beyond reason. It must be cheap
        beside a build, and it must not raise.
        """
        return ""

    def forget(self, task: Task) -> None:  # noqa: B027 - for those that keep something
        """Drop what was kept for a task: nobody searches it any more in this process. It may be opened again."""

    def check_workload(self, workload: Workload) -> None:  # noqa: ARG002 - refused by those that cannot tell
        """Check a workload from elsewhere; no code of it runs.

        Its key and its arguments must be its program's, and its program must consist of known constructs: no call of a
        function outside it, no source code.

        Raises:
            DialectError: one of these does not hold; the message says which.
        """
        raise DialectError(f"the dialect {self.name} cannot check workloads from elsewhere")

    def check_body(self, body: str) -> None:  # noqa: ARG002 - as above
        """Check that the body of a candidate from elsewhere consists of known constructs; no code of it runs.

        Raises:
            DialectError: it does not.
        """
        raise DialectError(f"the dialect {self.name} cannot check candidates from elsewhere")

    def identify(self, task: Task, body: str) -> Candidate:  # noqa: ARG002 - as above
        """Return the candidate that a body from elsewhere describes, with a key that is computed from what it is.

        Raises:
            DialectError: it is no body of this task, or does not pass `check_body`.
        """
        raise DialectError(f"the dialect {self.name} cannot identify candidates from elsewhere")

    @abstractmethod
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Path | None = None,
    ) -> Compiled:
        """Build the whole network to a loadable file; `chosen` maps a workload key to the candidate to use.

        A candidate that cannot be used is refused, or the coverage says that the default was used instead. `parts` is a
        directory where `build_part` may have left something.

        Raises:
            DialectError: the network does not compile; nothing is left at `output`.
        """

    @abstractmethod
    def load_network(self, path: Path, threads: int | None = None) -> CompiledNetwork:
        """Load what `compile` wrote; `threads` overrides the thread count it was tuned for."""
