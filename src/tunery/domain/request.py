"""What a user asks for, what they see while it runs, and what they get."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from tunery._errors import TuneryError
from tunery.domain import DEFAULT_KIND, Budget, JobStatus, Network, Spend, Task

DEFAULT_DIALECT = "metaschedule"


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is asked for: the text of its help, and what commands and services need beside its type. `flags` are
    the command line's where they are not of the field's name; an `argument` has none. A `local` one is for this
    machine's user: a service takes it from no account."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    argument: bool = False
    local: bool = False


def options_in(cls: type) -> dict[str, tuple[Any, Option]]:
    hints = get_type_hints(cls, include_extras=True)
    found = {field.name: get_args(hints[field.name]) for field in fields(cls)}
    return {name: (args[0], args[1]) for name, args in found.items() if isinstance((*args, 0, 0)[1], Option)}


def asked(cls: type) -> tuple[str, ...]:
    return tuple(name for name, (_, option) in options_in(cls).items() if not option.local)


@dataclass(frozen=True, slots=True)
class Trimming:
    """Which ways of saving are in use. Not a user's settings: studies compare them. `filter` drops candidates before
    they are built, `abandon` ends measurements early, `allocate` gives trials to the tasks that gain most;
    `audit_share` of what is built is taken at random from what the filter would drop."""

    filter: bool = True
    abandon: bool = True
    allocate: bool = True
    audit_share: float = 0.1


NO_TRIMMING = Trimming(filter=False, abandon=False, allocate=False)
"""Every candidate built, every measurement to its end, every task its equal share."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a model, a target and what it may cost. A field without an `Option` is no user's setting.

    Attributes:
        shapes: By input; of a named dimension its size, as a shape of one number. `more_shapes` are further ones.
        dialect: Of several, the faster network counts.
        threads: 0 is one on a GPU.
        store: "" is the user's own, as with `prices`, or else the sheet that ships with tunery.
        pretrained: Whether the search starts from the cost model that ships with tunery.
        latency_target_s: As a sum over tasks.
        trimming: What is filtered and abandoned; for studies.
        kind: One of `service/kinds`.
        options: What a job of that kind is given beside the rest.
        on: "" is this host.
    """

    model: Annotated[
        str,
        Option(
            "An ONNX file, a saved torch program (.pt2), zoo:NAME, or a kernel file (.toml).",
            metavar="MODEL",
            argument=True,
        ),
    ]
    shapes: Annotated[
        Mapping[str, tuple[int, ...]],
        Option(
            "Shape of an input (x=1x3x224x224) or size of a dimension (batch=4); several by commas; repeatable.",
            ("--shape",),
            "NAME=SIZES",
        ),
    ] = field(default_factory=dict)
    target: Annotated[str, Option("What to generate code for: native, a name, or JSON.")] = "native"
    dialect: Annotated[
        str, Option("A compiler: see `tunery dialects`; tune and compile take several by commas.", metavar="NAME")
    ] = DEFAULT_DIALECT
    threads: Annotated[int, Option("Threads of a kernel; 0: all usable cores.", least=0, most=65_536)] = 0
    budget: Annotated[
        Budget, Option("What it may cost: 10min, 500trials, $2, 50kJ; several by commas, or repeated.")
    ] = field(default_factory=Budget)
    effort: Annotated[str, Option("Trials where there is no budget.", choices=("quick", "standard", "full"))] = (
        "standard"
    )
    store: Annotated[str, Option("Where records are kept: a file or a database URL.", local=True)] = ""
    seed: Annotated[int, Option("Seed of the search.", least=0, most=2**31 - 1)] = 0
    pretrained: bool = True
    prices: Annotated[str, Option("What the machine costs: a price sheet.", metavar="FILE", local=True)] = ""
    latency_target_s: Annotated[
        float | None,
        Option("A network latency that is good enough: stop there.", ("--latency-target",), "12ms", least=0, most=1e6),
    ] = None
    trimming: Trimming = field(default_factory=Trimming)
    kind: str = DEFAULT_KIND
    options: Mapping[str, Any] = field(default_factory=dict)
    trust: Annotated[bool, Option("Let a torch program (.pt2) run code that it holds.", local=True)] = False
    on: Annotated[str, Option("The host to measure on: see `tunery hosts`.", metavar="HOST", local=True)] = ""
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
        return tuple(replace(self, shapes=shapes, more_shapes=()) for shapes in (self.shapes, *self.more_shapes))

    def as_asked(self) -> dict[str, Any]:
        return {name: _encoded(getattr(self, name)) for name in ASKED}

    @classmethod
    def from_asked(cls, values: Mapping[str, Any], **more: Any) -> "Request":
        return cls(**{name: decoded(name, values[name]) for name in ASKED if name in values}, **more)


ASKED = ("kind", "more_shapes", *asked(Request))
"""The fields of a request that a service takes from accounts."""


def _encoded(value: object) -> Any:
    if isinstance(value, Budget):
        return "" if value.unlimited else str(value)
    if isinstance(value, Mapping):
        return {name: list(shape) for name, shape in value.items()}
    return [_encoded(one) for one in value] if isinstance(value, tuple) else value


def decoded(name: str, value: Any) -> Any:
    if name == "trimming":
        return Trimming(**value)
    if name == "budget":
        return Budget.parse(value) if value else Budget()
    if name == "shapes":
        return {key: tuple(shape) for key, shape in value.items()}
    return tuple(decoded("shapes", one) for one in value) if name == "more_shapes" else value


MOST_SHAPES = 16
MOST_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What a job may claim beside others: a share by its owner's `weight`, doubled by each step of `priority`, 0 to 10.
    Jobs of one owner share what the owner gets; those without one are the local user's."""

    owner: str = ""
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class FillPolicy:
    """How to fill what no record answers: the `few_shot` best predictions of a task are measured, within `seconds`.
    What is not predicted by `until` (monotonic seconds) is left out."""

    few_shot: int = 0
    seconds: float = math.inf
    until: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job is given beside its request; a kind that is given nothing has no more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(Options):
    """Whether operators without a record are predicted, or `few_shot` predictions of each measured first."""

    predict: Annotated[bool, Option("Predict and verify a schedule where there is no record.", ("--zero-shot",))] = (
        False
    )
    few_shot: Annotated[
        int, Option("Measure this many predictions of each task without a record.", least=0, most=64)
    ] = 0
    few_shot_seconds: Annotated[
        float | None,
        Option(
            "Measure no longer than this; heavy and uncertain tasks come first.",
            ("--few-shot-budget",),
            "TIME",
            least=0,
            most=1e6,
        ),
    ] = None

    @property
    def policy(self) -> FillPolicy | None:
        """How what no record answers is filled."""
        seconds = math.inf if self.few_shot_seconds is None else self.few_shot_seconds
        return FillPolicy(self.few_shot, seconds) if self.predict or self.few_shot else None


ONNXRUNTIME, NEEDED = ("auto", "never", "parts"), "needed"
"""What may be handed over to it; `needed` is what the compiler cannot have right, as for other processors' targets."""


GivenInputs = Annotated[
    str,
    Option(
        "Arrays (.npz) named like the inputs, or 0/NAME, 1/NAME for sets: for shapes, checks, timing.", metavar="FILE"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(QueryOptions):
    """How a network is compiled to a file, for the request's target and further `targets`. Where ONNX Runtime may run
    nothing, the file has the compiler's kernels alone, or there is none."""

    force: Annotated[bool, Option("Let the output replace a file of another kind.", local=True)] = False
    sign: Annotated[str, Option("Sign it with this private key.", metavar="KEY", local=True)] = ""
    any_shape: Annotated[bool, Option("Let ONNX Runtime run other shapes: the file holds the model too.")] = False
    onnxruntime: Annotated[
        str,
        Option(
            "What ONNX Runtime may run: what it runs faster (auto), not the whole network (parts), nothing (never).",
            choices=ONNXRUNTIME,
        ),
    ] = "auto"
    inputs: GivenInputs = ""
    targets: tuple[str, ...] = ()

    @property
    def key(self) -> Path | None:
        return Path(self.sign) if self.sign else None

    def for_service(self) -> dict[str, Any]:
        """Return what a service on the network is asked for: it signs nothing, and compiles for one target."""
        return {name: getattr(self, name) for name in asked(CompileOptions)}

    def for_further_target(self) -> "CompileOptions":
        return replace(self, targets=(), sign="", any_shape=False, onnxruntime=NEEDED)


FROM_RECORDS = CompileOptions()
"""Nothing is predicted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One line's worth of a running job. `best_s` is the weighted sum of the tasks' best latencies so far, `baseline_s`
    of their untuned latencies (None until all are measured); `remaining_s` is the predicted time to finish; `current`
    says how far the phase is, or what it is busy with; `spend` is what was used so far, without the split by stage;
    `earlier_s` is the wall time that earlier runs of the job have used of its budget; `reserve_s` of a budget of time
    are kept for compiling and comparing. `lost` tells of batches of trials in which none was timed, `waited` of waiting
    for others that measure."""

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
    reserve_s: float = 0.0
    lost: str = ""
    waited: str = ""


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a finished or stopped job achieved; `job.tasks` holds each task's baseline, best and outcomes. `before_s`
    and `after_s` are weighted sums over tasks, in seconds for one execution of the network. `slots` is how many of its
    kernels the device has cores for at once, `calibrated_at` when it was found out how many of them may be measured so
    (None: never, so it was one at a time). `elsewhere` says by node of the network why ONNX Runtime runs it. A kernel
    has `threads` threads. `tasks` is empty where a service did the work. `compiled` is about the file that was asked
    for; None where there is none, and `undelivered` says why it could not be made."""

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
    take, results included."""

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
    """Whole-network latencies, measured interleaved with the same thread count. `latency_s` maps `tunery` and each
    rival (a key of `CONTESTANTS`) to its spread; `max_abs_error` is the largest deviation of tunery's outputs from ONNX
    Runtime's on the same inputs. `tasks_s` is the sum over the tasks by their calls, as timed alone or, where nothing
    was measured, inside the network; `kernels_s` is what all kernels take inside the network, `kernels` the same by
    workload (None and empty if not known): the network's time over `kernels_s` is dispatch and allocation. `wrong`
    names the other compiled files that compute something else than ONNX Runtime: their times say nothing. `absent` says
    why a rival could not take part. `batch_of_one` is the network's. `verdict` is as a compilation's, None where ONNX
    Runtime took no part."""

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
    verdict: "Verdict | None" = None

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
class Speed:
    """How many times as fast as ONNX Runtime on as many threads: the median of turns, and its 95 % interval."""

    ratio: float
    low: float
    high: float
    turns: int
    threads: int = 0

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"({self.low:.2f} to {self.high:.2f}, {self.turns} turns{threads}, quiet)"


BUSY = "the machine was busy"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who runs a compiled network, and how it compares with ONNX Runtime. `onnxruntime_share` is of the kernels' time,
    1 where ONNX Runtime runs the whole network. `delivered` is the file's speed, None where ONNX Runtime is the file,
    or where nothing was judged: then `not_judged` says why. `native` is the speed of the compiler's kernels before any
    of them was handed over for being slower."""

    onnxruntime_share: float = 0.0
    delivered: Speed | None = None
    native: Speed | None = None
    not_judged: str = ""

    @property
    def by_onnxruntime(self) -> bool:
        """Whether it runs all of it: then there is nothing to compare."""
        return self.onnxruntime_share == 1.0

    @property
    def headline(self) -> str:
        """The one sentence about it, which every command, page and report has.

        >>> Verdict(0.08, Speed(1.31, 1.28, 1.35, 12)).headline
        'runs: tunery 92 %, ONNX Runtime 8 % of the time; 1.31 times as fast as ONNX Runtime (1.28 to 1.35, 12 turns, \
quiet)'
        """
        share = self.onnxruntime_share
        theirs = round(100 * share) if share in {0.0, 1.0} else min(max(round(100 * share), 1), 99)
        parts = [("tunery", 100 - theirs), ("ONNX Runtime", theirs)]
        said = [f"runs: {', '.join(f'{name} {part} %' for name, part in parts if part)} of the time"]
        if self.delivered is not None and not self.by_onnxruntime:
            said.append(f"{self.delivered.ratio:.2f} times as fast as ONNX Runtime {self.delivered}")
        if self.native not in {None, self.delivered}:
            said.append(f"tunery's kernels alone {self.native.ratio:.2f} times {self.native}")
        if self.not_judged and not (self.by_onnxruntime and self.not_judged == BUSY):
            said.append(f"not judged: {self.not_judged}")
        return "; ".join(said)


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
    `latency_s`, `onnxruntime_s` and `verdict` are as in `CompileReport`; `by_onnxruntime`: this runs all of it."""

    shapes: Mapping[str, tuple[int, ...]]
    latency_s: float | None = None
    onnxruntime_s: float | None = None
    by_onnxruntime: bool = False
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class DialectResult:
    """What one of several dialects made of a network: `latency_s` is its network's, None if `refused` says why not. If
    `by_onnxruntime`, its file would have been run by that, which is faster."""

    dialect: str
    latency_s: float | None = None
    by_onnxruntime: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A compiled network on disk, and what it is made of.

    Of a file for several targets all but `targets` and `further` is of the first; of a file for several shapes all but
    `shapes` is of them together. By a task's name `coverage` has its rung of the ladder and its candidate's key (None:
    the default), `refused` why no better design of it is in the file, `left_out` what its search did without, `sources`
    where its candidate was measured, if elsewhere. `max_abs_error` is None where there is no ONNX file, `latency_s` and
    `onnxruntime_s` where nothing was timed, or ONNX Runtime runs all. `measured` candidates were timed to compile it;
    `untuned` tasks were neither searched nor predicted. `elsewhere` says by node why ONNX Runtime runs it, `not_kept`
    which kinds of values the file computes otherwise than the model, `optimiser` what ONNX Runtime's changes of it.
    `native_s` is what the compiler's kernels took before any of them was handed over for being slower.
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
    targets: tuple[str, ...] = ()
    further: tuple[TargetReport, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    shapes: tuple[ShapeResult, ...] = ()
    verdict: Verdict | None = None
    native_s: float | None = None
    not_kept: tuple[str, ...] = ()
    optimiser: str = ""
    dialect: str = ""
    dialects: tuple[DialectResult, ...] = ()
    left_as_it_was: str = ""

    def request_of(self, request: Request) -> Request:
        return replace(request, dialect=self.dialect) if self.dialect else request

    @property
    def no_kernels(self) -> bool:
        """Whether ONNX Runtime runs the whole network, so that the file has no kernel of the compiler."""
        return not self.coverage and bool(self.elsewhere)
