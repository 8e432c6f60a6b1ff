"""The contract a compiler plug-in fulfils; `tunery.testing` has its test-suite and, with `fake`, its smallest example.

A plug-in is one class: `Dialect`, which says who it is, and beside it each capability it has. Each of them may be
missing:

    TaskSource       a network's tasks
    Space            candidates of a task: a search, suggestions without one, features for a cost model
    Codegen          a candidate's kernel
    CrossCompiler    code for machines of other kinds
    NetworkCompiler  a whole network's file
    RecordChecker    what may be taken in from another store
    RecordWriter     records in formats of other programs

To be tuned, a task needs `Space` and `Codegen`; where it comes from does not matter. A method that is not abstract has
a default that is right for a dialect without that ability.

A dialect is created once per worker process and may keep state there (parsed programs, loaded libraries). All its
arguments and results are plain data, so any method can run in any process; only `Proposer`, `Kernel` and
`CompiledNetwork` objects stay where they were made.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from tunery._archive import Archive, ArchiveWriter
from tunery._errors import DialectError, ModelError, UsageError
from tunery.costmodels.columns import FeatureRows, Layout
from tunery.devices import Device
from tunery.dialects._artifacts import Built
from tunery.dialects._loaded import Compiled, CompiledNetwork, Kernel
from tunery.dialects._search import Observation, Proposer, Suggestions
from tunery.domain import Candidate, Check, DeviceDescription, Environment, Network, Record, Target, Task, Workload


class Dialect(ABC):
    """Who a compiler is: its name, its version, what it generates code for, and what its processes are like."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """The distributions that the compiler comes in, for `tunery version`."""
    requirements: ClassVar[tuple[str, ...]] = ()
    """What `tunery dialects install` puts, pinned, into a virtual environment for this dialect; (): it needs none."""
    device: ClassVar[str] = "cpu"
    """The kind of device that its kernels run on."""
    runs_users_code: ClassVar[bool] = False
    """Whether its candidates are programs that users wrote: then no process runs those of two jobs."""
    scripted: ClassVar[bool] = False
    """Whether it does what a model's name says, for tests: accounts of a service cannot use it."""

    @property
    @abstractmethod
    def compiler(self) -> str:
        """Name and version of the compiler: part of every record's provenance."""

    @abstractmethod
    def resolve_target(self, spec: str, threads: int) -> Target:
        """Turn `native`, a name or a JSON object into a target.

        Raises:
            TargetError: unknown or incomplete; the message names what would be accepted.
        """

    def family(self, config: Mapping[str, Any]) -> str:
        """Return the family of processors that a target's description is for: cost models are shared within one."""
        return str(config.get("kind") or self.name)

    def environment(self) -> Environment:
        """Return in which kind of process this dialect works; it must not import the compiler to know."""
        return Environment()

    def doctor(self) -> Iterable[Check]:
        """Look at whether the compiler and what it needs are there, and say what to do about what is not.

        Called in a process that must not import the compiler: it is looked at from outside, or in a child.
        """
        return ()


class Capability(ABC):
    """Something that a dialect can do or not; `ability` says what, after "cannot"."""

    ability: ClassVar[str]

    @classmethod
    def of(cls, dialect: Dialect) -> Self:
        """Return the dialect as one with this capability.

        Raises:
            UsageError: it does not have it.
        """
        if isinstance(dialect, cls):
            return dialect
        raise UsageError(f"the dialect {dialect.name} cannot {cls.ability}; choose another one")


class TaskSource(Capability):
    """Finds tasks in networks."""

    ability = "take tasks from networks"

    @abstractmethod
    def extract(self, network: Network, target: Target) -> list[Task]:
        """Return the network's unique tasks with their weights, heaviest work first.

        Raises:
            DialectError: the network holds an operator the compiler cannot import.
        """

    def elsewhere(self, network: Network, target: Target) -> Mapping[str, str]:  # noqa: ARG002 - for those that split
        """Return which nodes of the network the compiler leaves to ONNX Runtime, with the reasons."""
        return {}

    def own_network(self, source: str) -> Network:
        """Return a network of the dialect's own: `source` begins with its name and a colon, or is a file of its kind.

        All that `extract` needs is in what is returned, for it works on other hosts, too. Called in a process that need
        not have the compiler.

        Raises:
            ModelError: there is no such network.
        """
        raise ModelError(f"{source!r} is no network; name a model file, or write ./{source} if this is one")


class Space(Capability):
    """Knows the candidates of a task."""

    ability = "search for candidates"

    @abstractmethod
    def open(
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        warm_start: bool = False,
        generic_only_reason: str | None = None,
    ) -> Proposer:
        """Start or resume the search for a task; what is in `history` is not proposed again.

        A `warm_start` search may use what the dialect knows of other tasks. With a `generic_only_reason` it keeps to
        the compiler's own space of the task's own program, for that reason: a search of more has crashed.
        """

    def suggest(
        self,
        task: Task,
        n: int,
        cost_model: str,
        seed: int,
        transfer_states: Sequence[str] = (),  # noqa: ARG002 - for those that learn from other tasks
        *,
        several_fallbacks: bool = False,  # noqa: ARG002 - for those that know any
    ) -> Suggestions:
        """Return candidates of a task that will not be searched: what `n` looks with the cost model find.

        `transfer_states` are those of tasks that were looked at before, in any process. One fallback is of use should
        the candidates fail; `several_fallbacks` are where a few candidates are going to be measured.
        """
        return Suggestions(tuple(self.open(task, (), cost_model, seed).propose(n)))

    def identify(self, task: Task, body: str) -> Candidate:  # noqa: ARG002 - for those that take such
        """Return the candidate that a body from elsewhere describes, with a key that is computed from what it is.

        No code of it runs.

        Raises:
            DialectError: it is no body of this task, or does not consist of known constructs.
        """
        raise DialectError(f"candidates of {task.workload.name} are not taken from elsewhere")

    def reject(self, task: Task, candidate: Candidate) -> str | None:  # noqa: ARG002 - what most dialects do
        """Return why a candidate is not worth a build, for a reason that can be seen without one; None where it is.

        Meant for what cannot win: a working set that no cache holds, a loop unrolled beyond reason. It must be cheap
        beside a build, and it must not raise.
        """
        return None

    def parameters(self, task: Task, candidate: Candidate) -> Mapping[str, str | float]:  # noqa: ARG002 - where any
        """Return what a candidate chooses, by the names that its author gave; nothing where a user knows no names."""
        return {}

    def count(self, task: Task) -> int | None:  # noqa: ARG002 - what most dialects do
        """Return how many candidates a task has, with the compiler's default; None where that is not known."""
        return None

    def layout(self) -> Layout | None:
        """Return what the columns of `features` are, None where there are none. Rows, models and datasets name it."""
        return None

    def features(self, task: Task, candidates: Sequence[Candidate]) -> FeatureRows | None:  # noqa: ARG002
        """Return one row of cost-model features per candidate, all of `layout`; NaN where none can be computed.

        None: the dialect has no features, and its searches do without a cost model.
        """
        return None

    def buffer_store_features(
        self,
        task: Task,  # noqa: ARG002 - for those that have such
        candidates: Sequence[Candidate],  # noqa: ARG002
    ) -> list[npt.NDArray[np.float32]] | None:
        """Return the `(n, w)` features of each candidate's stores to buffers, whose `fold` is its row; None: none."""
        return None

    def forget(self, task: Task) -> None:
        """Drop what was kept for a task: nobody searches it any more in this process. It may be opened again."""

    def calibration_tasks(self, target: Target) -> Mapping[str, Task]:  # noqa: ARG002 - for those that have some
        """Return tunable tasks of known kinds (`compute`: bound by the processor, `memory`: by memory), if it has any.

        A device is calibrated with their candidates: small programs, for one slot's threads.
        """
        return {}


class Codegen(Capability):
    """Makes kernels of candidates."""

    ability = "build candidates"

    @abstractmethod
    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        """Compile a candidate to one file in `directory`, from what `build_part` left there if it did.

        The file is known by its content alone afterwards: its name, and what else is in the directory, is lost.

        Raises:
            DialectError: the compiler refuses it.
        """

    @abstractmethod
    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        """Load a built candidate into this process, to run on a device that was opened here.

        Its file may have got another name.

        Raises:
            DialectError: the file is missing or damaged, or was not built for the task; or the device is of a kind that
                it cannot run on.
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


class CrossCompiler(Capability):
    """Makes code for devices of other kinds of machines than the one that it runs on: all of it is told by a target."""

    ability = "make code for other kinds of machines"

    @abstractmethod
    def resolve_target_of(self, spec: str, threads: int, device: DeviceDescription) -> Target:
        """As `Dialect.resolve_target`, for a device of another host: `native` is what its facts say that it is.

        Raises:
            TargetError: as there, or no code is made for such a device, or the target needs what it lacks.
        """


class NetworkCompiler(Capability):
    """Makes one file of a whole network."""

    ability = "compile networks"

    @abstractmethod
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),
    ) -> Compiled:
        """Build the whole network to a loadable file; `chosen` maps a workload key to the candidate to use.

        A candidate that cannot be used is refused, or the coverage says that the default was used instead. `parts` maps
        a workload key to what `build_part` made of its candidate.

        Raises:
            DialectError: the network does not compile; nothing is left at `output`.
        """

    @abstractmethod
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        """Load a part of what `compile` wrote; `threads` overrides the thread count it was tuned for.

        A signature was checked for the open file: what is loaded is what its manifest says, and nothing else is read.

        Raises:
            UsageError or DialectError: it is of other versions, or for other machines.
            Exception: any other says that it is damaged.
        """

    def differing(
        self,
        network: Network,  # noqa: ARG002 - for those that can tell
        target: Target,  # noqa: ARG002
        inputs: Sequence[npt.NDArray[np.generic]],  # noqa: ARG002
    ) -> Mapping[str, str]:
        """Return which nodes the compiler computes otherwise than ONNX Runtime on such inputs, and how, by label.

        Asked of a network whose outputs differ; nodes that run there already are not among them.

        Raises:
            DialectError: its nodes cannot be tried one by one.
        """
        return {}

    def texts(self, path: Path) -> Mapping[str, str]:  # noqa: ARG002 - for those with such
        """Return what of a file that `compile` wrote is text for people and compilers, by a file name's ending."""
        return {}

    def build_part(self, task: Task, candidate: Candidate, directory: Path) -> Built | None:  # noqa: ARG002 - for those with parts
        """Write to `directory` what spares `compile` (and `build`) this candidate's code generation, if there is such.

        Raises:
            DialectError: the compiler refuses it.
        """
        return None

    def bundle(
        self,
        archive: Archive,
        directory: Path,  # noqa: ARG002 - for those that can
        runtime: Path | None = None,  # noqa: ARG002
    ) -> None:
        """Write a compiled network, all its parts, with all that runs it without Python.

        `directory` is empty. With `runtime` it is for machines of another kind,
        whose libraries, or wheels with them, are in that directory.

        Raises:
            UsageError: the file is damaged or for other machines, or libraries are missing.
            DialectError: this network, or no network of the dialect, runs without Python.
        """
        raise DialectError(
            f"{archive.path} holds a network that runs from Python only; load it with tunery.load_compiled"
        )

    def combine(self, parts: Sequence[Archive], writer: ArchiveWriter) -> list[dict[str, Any]]:  # noqa: ARG002 - for those that can
        """Write the members of several parts to one new file; return what its manifest says of each.

        Each is for another processor: what the file is loaded as is the best that the processor can run. Or each is for
        other shapes of its inputs.

        Raises:
            UsageError: they are not of one network.
            DialectError: this dialect's files are for any processor, or for one only.
        """
        raise DialectError(f"{parts[0].path} is not for one kind of processor; use it as it is")


class RecordChecker(Capability):
    """Judges records of another store, of which nothing is believed."""

    ability = "check records from elsewhere"

    @abstractmethod
    def check_workload(self, workload: Workload) -> None:
        """Check a workload from elsewhere; no code of it runs.

        Its key and its arguments must be its program's, and its program must consist of known constructs: no call of a
        function outside it, no source code.

        Raises:
            DialectError: one of these does not hold; the message says which.
        """

    @abstractmethod
    def check_body(self, body: str) -> None:
        """Check that the body of a candidate from elsewhere consists of known constructs; no code of it runs.

        Raises:
            DialectError: it does not.
        """


class RecordWriter(Capability):
    """Tells other programs what was measured."""

    ability = "write records in the format of another program"
    formats: ClassVar[tuple[str, ...]]
    """The names of the formats that it writes."""

    @abstractmethod
    def write_records(self, task: Task, records: Sequence[Record], device: str, format_name: str) -> str:
        """Return the text of a file with what was measured of a task's candidates on the device of that name.

        The same records give the same text. Of a candidate that was measured often its last finals count, else its
        fastest race.

        Raises:
            UsageError: it does not know the format; the message names those that it knows.
        """
