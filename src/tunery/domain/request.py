"""What a user asks for, what they see while it runs, and what they get."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunery._errors import TuneryError
from tunery.domain import DEFAULT_KIND, SEGMENT, Budget, JobStatus, Network, Spend, Task

DEFAULT_DIALECT = "metaschedule"


@dataclass(frozen=True, slots=True)
class Trimming:
    """Which ways of saving are in use. Not a user's settings: studies compare them.

    `filter` drops candidates before they are built, `abandon` ends measurements early, `allocate` gives trials to the
    tasks that gain most; `audit_share` of what is built is taken at random from what the filter would drop.
    """

    filter: bool = True
    abandon: bool = True
    allocate: bool = True
    audit_share: float = 0.1


NO_TRIMMING = Trimming(filter=False, abandon=False, allocate=False)
"""Every candidate built, every measurement to its end, every task its equal share."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a model, a target and what it may cost.

    Attributes:
        model: An ONNX file, a `.pt2` file or `zoo:NAME`.
        shapes: The shapes of dynamic inputs by name; of a named dimension its size, as a shape of one number.
        target: `native`, a target's name or a JSON object.
        dialect: One dialect, or several joined by commas, of which the faster network counts.
        threads: The kernels' number of threads; 0 is all cores that affinity and quota grant, and one on a GPU.
        budget: What the job may cost.
        effort: `quick`, `standard` or `full`.
        store: A database's URL or a file's path.
        pretrained: Whether the search starts from the cost model that ships with tunery.
        prices: The file of a price sheet; "" is the user's own, or else the one that ships with tunery.
        latency_target_s: A network's latency (a sum over tasks) that is good enough.
        trimming: What is filtered and abandoned; for studies.
        kind: One of `service/kinds`.
        options: What a job of that kind is given beside the rest.
        trust: Whether a torch program may run code that it holds.
        on: The host whose device is measured on; "" is this one.
        more_shapes: Further shapes of the same model.
    """

    model: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    target: str = "native"
    dialect: str = DEFAULT_DIALECT
    threads: int = 0
    budget: Budget = field(default_factory=Budget)
    effort: str = "standard"
    store: str = ""
    seed: int = 0
    pretrained: bool = True
    prices: str = ""
    latency_target_s: float | None = None
    trimming: Trimming = field(default_factory=Trimming)
    kind: str = DEFAULT_KIND
    options: Mapping[str, Any] = field(default_factory=dict)
    trust: bool = False
    on: str = ""
    more_shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects that are tuned for: one, or those that `dialect` joins by commas."""
        return tuple(name.strip() for name in self.dialect.split(","))

    @property
    def each_dialect(self) -> "tuple[Request, ...]":
        return tuple(replace(self, dialect=name) for name in self.dialects)

    @property
    def each_shape(self) -> "tuple[Request, ...]":
        """The request for each of its bindings alone, the first one's first."""
        return tuple(replace(self, shapes=shapes, more_shapes=()) for shapes in (self.shapes, *self.more_shapes))


MOST_SHAPES = 16
MOST_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What a job may claim beside others: a share by its owner's `weight`, doubled by each step of `priority`, 0 to 10.

    Jobs of one owner share what the owner gets; those without one are the local user's.
    """

    owner: str = ""
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class FillPolicy:
    """How to fill what no record answers: the `few_shot` best predictions of a task are measured, within `seconds`."""

    few_shot: int = 0
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Progress:
    """One line's worth of a running job.

    `best_s` is the weighted sum of the tasks' best latencies so far, `baseline_s` of their untuned latencies (None
    until all are measured); `remaining_s` is the predicted time to finish; `current` says how far the phase is, or what
    it is busy with; `spend` is what was used so far, without the split by stage; `earlier_s` is the wall time that
    earlier runs of the job have used of its budget.
    """

    job_id: str
    phase: str
    elapsed_s: float
    remaining_s: float | None
    trials: int
    trials_planned: int | None
    best_s: float | None
    baseline_s: float | None
    current: str = ""
    spend: Spend | None = None
    earlier_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a finished or stopped job achieved; `job.tasks` holds each task's baseline, best and outcomes.

    `before_s` and `after_s` are weighted sums over tasks, in seconds for one execution of the network. `slots` is how
    many of its kernels the device has cores for at once, `calibrated_at` when it was found out how many of them may be
    measured so (None: never, so it was one at a time). `elsewhere` says by node of the network why ONNX Runtime runs
    it. A kernel has `threads` threads. `tasks` is empty where a service did the work. `compiled` is about the file that
    was asked for; None where there is none, and `undelivered` says why it could not be made.
    """

    job: JobStatus
    network: Network
    tasks: tuple[Task, ...]
    before_s: float | None
    after_s: float | None
    resumed: bool
    store: str
    slots: int = 1
    calibrated_at: float | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    compiled: "CompileReport | None" = None
    undelivered: TuneryError | None = None


CONTESTANTS = {
    "onnxruntime": "ONNX Runtime", "tunery": "tunery", "untuned": "untuned code", "torch": "torch eager",
    "torch-compiled": "torch compiled",
}  # fmt: skip
"""Who can take part in a comparison of whole networks: the name in commands and JSON, and the one for people."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Spread of a network's latency, in seconds."""

    median: float
    p10: float
    p90: float
    samples: int

    def covers(self, other: "Latency") -> bool:
        """Return whether the other's median lies between the 10th and 90th percentile."""
        return self.p10 <= other.median <= self.p90


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What a task contributes to a network: `latency_s` of one call as timed alone, None where nothing was measured.

    `inside_s` is what one call takes inside the network, None if not known. `size_bytes` is what all its arguments
    take, results included.
    """

    name: str
    workload: str
    kind: str
    weight: int
    flop: float
    latency_s: float | None
    size_bytes: int = 0
    inside_s: float | None = None

    @property
    def known_s(self) -> float | None:
        """What one call takes: alone where that was measured, else inside the network."""
        return self.latency_s or self.inside_s

    def inside(self, kernels: Mapping[str, float]) -> "TaskShare":
        """Return it with what a call takes inside the network, of which `kernels` are the times by workload."""
        inside_s = kernels[self.workload] / self.weight if self.workload in kernels else None
        return replace(self, inside_s=inside_s)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Whole-network latencies, measured interleaved with the same thread count.

    `latency_s` maps `tunery` and each rival (a key of `CONTESTANTS`) to its spread; `max_abs_error` is the
    largest deviation of tunery's outputs from ONNX Runtime's on the same inputs. `tasks_s` is the sum over the tasks by
    their calls, as timed alone or, where nothing was measured, inside the network; `kernels_s` is what all kernels take
    inside the network, `kernels` the same by workload (None and empty if not known): the network's time over
    `kernels_s` is dispatch and allocation. `wrong` names the other compiled files that compute something else than ONNX
    Runtime: their times say nothing. `absent` says why a rival could not take part. `batch_of_one` is the network's.
    """

    network: str
    threads: int
    latency_s: Mapping[str, Latency]
    max_abs_error: float
    tasks: tuple[TaskShare, ...] = ()
    tasks_s: float | None = None
    kernels_s: float | None = None
    wrong: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)
    batch_of_one: tuple[str, ...] = ()

    @property
    def elsewhere_s(self) -> float:
        """What ONNX Runtime takes of it, for the nodes that it runs."""
        return sum(seconds for name, seconds in self.kernels.items() if name.startswith(SEGMENT))

    @property
    def both_s(self) -> tuple[float, float]:
        """What the tasks take that were timed alone, by their calls: alone, and inside the network."""
        both = [(task.weight * task.latency_s, task.weight * task.inside_s)
                for task in self.tasks if task.latency_s and task.inside_s]  # fmt: skip
        return sum(alone_s for alone_s, _ in both), sum(inside_s for _, inside_s in both)

    @property
    def layouts_s(self) -> float:
        """What transposes, concatenations, slices and the like take, with what is fused to them, by their calls."""
        return sum(
            task.weight * (task.inside_s or task.latency_s or 0.0) for task in self.tasks if task.kind == "layout"
        )


GOES_ON = ": the same command with a larger --budget goes on"
"""What a job advises that did not reach all it could."""
MODEL_CHANGED = "the model's file has changed since it was read; this is about the network that was read"


@dataclass(frozen=True, slots=True)
class TargetReport:
    """A further target of a compile, as `CompileReport` says of the first; if not `kept`, it is not in the file."""

    target: str
    kept: bool
    max_abs_error: float | None
    latency_s: float | None
    onnxruntime_s: float | None


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """One of the bindings that a file was compiled for: the `shapes` of inputs by name, and how fast it is for them.

    `latency_s` and `onnxruntime_s` are as in `CompileReport`; `by_onnxruntime` says that this runs all of it.
    """

    shapes: Mapping[str, tuple[int, ...]]
    latency_s: float | None = None
    onnxruntime_s: float | None = None
    by_onnxruntime: bool = False


@dataclass(frozen=True, slots=True)
class DialectResult:
    """What one of several dialects made of a network: `latency_s` is its network's, None if `refused` says why not.

    If `by_onnxruntime`, its file would have been run by that, which is faster.
    """

    dialect: str
    latency_s: float | None = None
    by_onnxruntime: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A compiled network on disk, and what it is made of.

    Of a file for several targets all but `targets` and `further` is of the first; of a file for several shapes all but
    `shapes` is of them together.

    Attributes:
        coverage: By a task's name, its rung of the ladder and its candidate's key (None: the default).
        max_abs_error: The largest deviation of the outputs from ONNX Runtime's; None where there is no ONNX file.
        tasks: The network's tasks, with the latency that each is known to have.
        refused: By a task's name, why it has no prediction where one was asked for.
        measured: The number of candidates that were timed to compile it.
        untuned: The number of tasks that could be tuned, and were neither searched nor predicted.
        left_out: By a task's name, what the search that found its candidate did without, and why.
        elsewhere: By a node's name, why ONNX Runtime runs it.
        model_changed: Whether the model's file is no longer what was read.
        latency_s: The file's latency; None if it was not timed, or if ONNX Runtime runs the whole network.
        onnxruntime_s: ONNX Runtime's latency, timed beside it; None if it was not timed.
        texts: Files beside it, for people and their compilers.
        elsewhere_share: ONNX Runtime's share of the kernels' time, for the nodes that it runs.
        targets: The names of a file's several targets.
        further: The reports for the targets after the first.
        sources: By a task's name, where its candidate was measured, if not on this host.
        shapes: The latencies for each of several shapes.
        own_s: What the compiler's kernels took, where ONNX Runtime runs the whole network because it is faster.
        busy_ratio: How many times as fast as ONNX Runtime in one thread's CPU time, 0 if not known, where others used
            the machine; None where both were timed.
        dialect: Which of several dialects made the file.
        dialects: What each of several dialects came to.
    """

    network: str
    path: str
    size_bytes: int
    coverage: Mapping[str, tuple[str, str | None]]
    max_abs_error: float | None = None
    tasks: tuple[TaskShare, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    measured: int = 0
    untuned: int = 0
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    model_changed: bool = False
    latency_s: float | None = None
    onnxruntime_s: float | None = None
    texts: tuple[str, ...] = ()
    elsewhere_share: float = 0.0
    targets: tuple[str, ...] = ()
    further: tuple[TargetReport, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    shapes: tuple[ShapeResult, ...] = ()
    own_s: float | None = None
    busy_ratio: float | None = None
    dialect: str = ""
    dialects: tuple[DialectResult, ...] = ()

    def request_of(self, request: Request) -> Request:
        return replace(request, dialect=self.dialect) if self.dialect else request

    @property
    def no_kernels(self) -> bool:
        """Whether ONNX Runtime runs the whole network, so that the file has no kernel of the compiler."""
        return not self.coverage and bool(self.elsewhere)
