"""The Python face: a chain of immutable steps, each of which offers only what can come next."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from tunery._errors import UsageError
from tunery._extras import compiler_parts, pip_install
from tunery.domain.request import DEFAULT_DIALECT

if TYPE_CHECKING:
    from tunery.dialects import CompiledNetwork
    from tunery.domain.request import BenchReport, CompileReport, Progress, Request, TuneReport
    from tunery.service.session import Session
    from tunery.web.client import ServiceClient, There


class StepError(UsageError, AttributeError):
    """A step of the chain was called on the wrong one; the message names the step that comes first."""


class _Step:
    """Answers a step that is not to be had here with what is to be done first."""

    if not TYPE_CHECKING:  # a type checker shall see that the method is not there

        def __getattr__(self, name: str) -> NoReturn:
            """Explain the order of the chain."""
            here = type(self).__name__
            if name in _WHERE:
                raise StepError(f"{here} has no step {name!r}: write {_WHERE[name]}")
            raise AttributeError(f"{here!r} object has no attribute {name!r}")


_CHAIN = 'tunery.load(MODEL).on("native").within("10min").tune()'
_WHERE = {
    "on": f"{_CHAIN}, with on() once, right after load()",
    "within": f"{_CHAIN}, with within() once, after on()",
    "tune": f"{_CHAIN}, with tune() after on()",
    "report": f"{_CHAIN}.report()",
    "compile": f"{_CHAIN}.compile()",
    "benchmark": f"{_CHAIN}.compile().benchmark()",
}


@dataclass(frozen=True)
class Model(_Step):
    """A model and the shapes of its dynamic inputs: `more_shapes` are further ones.

    What is done to it is done at the `service`, if it has one.
    """

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    trust: bool = False
    service: "ServiceClient | None" = None
    more_shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()

    def on(self, target: str = "native", threads: int = 0, *, dialect: str = DEFAULT_DIALECT) -> "Placed":
        """Say what to tune for: `target` is `native`, a name or a JSON object; `threads` 0 means all usable cores."""
        if not isinstance(threads, int) or threads < 0:
            raise UsageError(f"threads={threads!r} is no number of threads; write 0 for all cores, or 1 and more")
        return Placed(self, target, threads, dialect)


@dataclass(frozen=True)
class Placed(_Step):
    """A model and its target."""

    model: Model
    target: str
    threads: int
    dialect: str

    def within(self, budget: str = "", *, latency_target: str = "") -> "Planned":
        """Say what it may cost, for example `10min`, `500trials` or `1h,2000trials`, and what is good enough.

        Tuning ends once finals hold a latency of the network within `latency_target`, for example `12ms`.

        Raises:
            BudgetError: one of them is malformed, or neither is given.
        """
        from tunery.domain import Budget, parse_latency

        if budget or not latency_target:
            Budget.parse(budget)
        return Planned(self, budget, "standard", parse_latency(latency_target) if latency_target else None)

    def tune(self, **more: object) -> "Tuned":
        """Tune with as many trials as the effort `standard` gives; see `Planned.tune`."""
        return Planned(self, "", "standard").tune(**more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Planned(_Step):
    """A model, its target, its budget, and the network's latency that is good enough, in seconds (None: none is)."""

    placed: Placed
    budget: str
    effort: str
    latency_target_s: float | None = None

    def tune(
        self,
        *,
        effort: str = "",
        store: str | os.PathLike[str] = "",
        seed: int = 0,
        inputs: str | os.PathLike[str] = "",
        on_progress: "Callable[[Progress], None] | None" = None,
    ) -> "Tuned":
        """Tune, keep every measurement in the store, and return what was reached; an unfinished equal job goes on.

        `effort` is `quick`, `standard` or `full`; `store` a path or URL ("": the user's own store); `on_progress` is
        called after every batch. The arrays in `inputs`, an .npz file, bind shapes that are free; `compile` uses them.

        Raises:
            UsageError: the model, shapes, target, effort or store are wrong.
            WorkError: the model cannot be imported.
        """
        from tunery.dialects import file_dialect
        from tunery.domain import Budget
        from tunery.domain.request import Request

        if not isinstance(seed, int) or seed < 0:
            raise UsageError(f"seed={seed!r} is no seed; write a whole number, 0 or more")

        given, shapes = os.fspath(inputs), dict(self.placed.model.shapes)
        if given:
            from tunery.measuring.inputs import shapes_in

            shapes = {**shapes_in(given), **shapes}
        request = Request(
            model=self.placed.model.source,
            shapes=shapes,
            more_shapes=self.placed.model.more_shapes,
            target=self.placed.target,
            dialect=(file_dialect(self.placed.model.source) if self.placed.dialect == DEFAULT_DIALECT else None)
            or self.placed.dialect,
            threads=self.placed.threads,
            budget=Budget.parse(self.budget) if self.budget else Budget(),
            effort=effort or self.effort,
            store=os.fspath(store),
            seed=seed,
            latency_target_s=self.latency_target_s,
            trust=self.placed.model.trust,
            options={"inputs": given} if given else {},
        )
        service = self.placed.model.service
        with _verbs(service, request.store, "tuning") as verbs:
            return Tuned(request, verbs.tune(request, on_progress or _ignore), service)


@dataclass(frozen=True, repr=False)
class Tuned(_Step):
    """What tuning reached; its records are in the store, which is the service's where one did it."""

    request: "Request"
    result: "TuneReport"
    service: "ServiceClient | None" = None

    def report(self) -> str:
        """Return a table: each task untuned and tuned, the totals, where it is stored and how to use it."""
        from tunery.reports.text import tune_text

        return tune_text(self.result, self.request)

    def __str__(self) -> str:
        """Return the report."""
        return self.report()

    def _repr_html_(self) -> str:
        """Return the report, and the job's page beneath it, for a notebook."""
        from tunery.reports.job import job_view, view_of
        from tunery.reports.page import notebook

        if self.service is not None:
            # Measurements stay at the service: there is no curve.
            return notebook(view_of(self.result.job, (), ()), self.report())
        from tunery.store import open_store

        with open_store(self.request.store, create=False, keep=False) as store:
            return notebook(job_view(store, self.result.job.job_id), self.report())

    def __repr__(self) -> str:
        return f"<Tuned {self.result.network.name}, job {self.result.job.job_id}>"

    def compile(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        any_shape: bool = False,
        onnxruntime: str = "auto",
        inputs: str | os.PathLike[str] | None = None,
    ) -> "CompiledModel":
        """Build the network with the best verified records to `path`, by default in the current directory.

        Without a `path` the file is named after the network, the shapes and the target that were asked for. Operators
        that tuning did not reach run as the cost model predicts to be fastest, verified but not measured. An earlier
        compiled network at `path` is replaced, a file of another kind only with `force`. With the private key in
        `sign`, the file is signed. With `any_shape` it holds the model too, with which ONNX Runtime runs other shapes.
        ONNX Runtime runs what it is faster at (`auto`), but not the whole network (`parts`), or nothing (`never`).
        The file is also compared and timed on the arrays in `inputs`, an .npz file, else on those of `tune`.

        Raises:
            UsageError: `path` cannot be written, or must not be replaced.
            WorkError: the network does not compile.
        """
        from tunery.domain.request import CompileOptions
        from tunery.reports.format import file_name

        options = CompileOptions(
            predict=True, force=force, sign=os.fspath(sign or ""), any_shape=any_shape, onnxruntime=onnxruntime,
            inputs=os.fspath(inputs or self.request.options.get("inputs", "")),
        )  # fmt: skip
        output = Path(path) if path is not None else Path(file_name(self.result.network.name, self.request))
        with _verbs(self.service, self.request.store, "compiling", keep=False) as verbs:
            report, _ = verbs.compile(self.request, output, options)
        return CompiledModel(report.request_of(self.request), output, report, self.service)


@dataclass(frozen=True)
class CompiledModel(_Step):
    """A compiled network in a file: `path` is what `tunery.load_compiled` takes."""

    request: "Request"
    path: Path
    result: "CompileReport"
    service: "ServiceClient | None" = None

    def load(self) -> "CompiledNetwork":
        """Load it into this process; call the result with one NumPy array per input."""
        from tunery.delivery.files.loading import load_compiled

        return load_compiled(self.path)

    def benchmark(self, against: Sequence[str] = ("onnxruntime", "untuned"), *, seconds: float = 10.0) -> "Benchmark":
        """Measure this file, interleaved with its rivals on the same number of threads.

        All run on the first set of the `inputs` that `tune` was given, if any. A service measures the network that it
        compiled, on its own machine.

        Raises:
            UsageError: a rival is unknown.
            WorkError: the network does not run.
        """
        with _verbs(self.service, self.request.store, "benchmarking", keep=False) as verbs:
            return Benchmark(verbs.bench(self.request, against, seconds, self.path))


@dataclass(frozen=True)
class Benchmark(_Step):
    """A comparison of whole networks: printed it is a table, `result` has the numbers."""

    result: "BenchReport"

    def report(self) -> str:
        """Return a table: each contestant's median latency and spread, and how many times faster tunery is."""
        from tunery.reports.comparison import bench_text

        return bench_text(self.result)

    def __str__(self) -> str:
        """Return the report."""
        return self.report()


Sizes = int | Sequence[int]
Shapes = Mapping[str, Sizes] | Sequence[Mapping[str, Sizes]]


@overload
def load(
    model: str | os.PathLike[str],
    shapes: Shapes | None = None,
    *,
    trust: bool = False,
    service: "ServiceClient | None" = None,
) -> Model: ...


@overload
def load(
    model: object,
    example_inputs: object,
    /,
    *,
    shapes: Shapes | None = None,
    dynamic_shapes: object = None,
    service: "ServiceClient | None" = None,
) -> Model: ...


def load(
    model: object,
    *given: Any,
    shapes: Shapes | None = None,
    trust: bool = False,
    dynamic_shapes: object = None,
    service: "ServiceClient | None" = None,
) -> Model:
    """Name a model: an ONNX file, a saved torch ExportedProgram (`.pt2`), or `zoo:NAME`; or give a torch module.

    `shapes`, which may come second, binds dynamic inputs by name, and dimensions by theirs; a list of such bindings
    makes one file for all of them. The file is read when it is needed, in another process. `trust` lets a torch program
    run code that it holds. With a `service` (`tunery.connect`) all is done there.

    A module in `eval()` mode comes with `example_inputs`: a tuple of its arguments, or a dictionary of them by name. It
    is exported at once, with `dynamic_shapes` as in `torch.export.export`, and kept as a `.pt2` file in the cache.

    Raises:
        UsageError: a shape is not a sequence of positive integers; or `model` is neither a name nor a module in
            `eval()` mode that torch can export, or torch's exporter is not installed.

    Example:
        tunery.load("bert.onnx", {"input_ids": (1, 128)}).on("native").within("10min").tune()
        tunery.load("resnet18.onnx", [{"batch": 1}, {"batch": 8}]).on("native").within("10min").tune()
        tunery.load(module.eval(), (torch.zeros(1, 3, 224, 224),)).on("native").within("10min").tune()
    """
    if len(given) > 1:
        raise UsageError(
            "a model comes with one thing more, shapes or example inputs; give several in one tuple, and name the rest"
        )
    second = given[0] if given else None
    if isinstance(model, str | os.PathLike):
        source, shapes = os.fspath(model), second if shapes is None else shapes
    elif "torch" in sys.modules:
        from tunery.torch import export

        source = str(export(model, second, dynamic_shapes))
        trust = service is None  # what it holds is the caller's own
    else:
        raise UsageError(
            f"a {type(model).__name__} is no model; give the name of a file, zoo:NAME, or a module of torch "
            f"({pip_install('torch')}) and example inputs"
        )
    bindings = [shapes] if isinstance(shapes, Mapping) else [{}] if shapes is None else shapes
    if not isinstance(bindings, list | tuple) or not all(isinstance(one, Mapping) for one in bindings):
        raise UsageError(f"the shapes {shapes!r:.60} have no names; write for example {{'x': (1, 3, 224, 224)}}")
    first, *more = [_bound(one) for one in bindings] or [{}]
    return Model(source, first, trust, service, tuple(more))


def _bound(shapes: Mapping[str, Sizes]) -> dict[str, tuple[int, ...]]:
    bound = {}
    for name, shape in shapes.items():
        bound[name] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if not all(isinstance(size, int) and size > 0 for size in bound[name]):
            raise UsageError(
                f"the shape {bound[name]} of {name!r} must be positive integers, for example (1, 3, 224, 224)"
            )
    return bound


@contextmanager
def _verbs(
    service: "ServiceClient | None", store: str, doing: str, *, keep: bool = True
) -> "Iterator[Session | There]":
    """Give what does the work: a service, or else a session over a store of this machine."""
    if service is not None:
        from tunery.web.client import There

        yield There(service)
        return
    with compiler_parts(doing):
        from tunery.service.session import Session
    with Session(store, keep=keep) as session:
        yield session


def _ignore(_: object) -> None:
    """Show nothing."""
