"""The options that commands share, and how a request is made of them."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.domain.request import DEFAULT_DIALECT, MOST_SHAPES

if TYPE_CHECKING:
    from tunery.domain.request import Request


class Effort(StrEnum):
    """How many trials a task gets where no budget is given."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


class HandOver(StrEnum):
    """What ONNX Runtime may run of a compiled file."""

    AUTO = "auto"
    NEVER = "never"
    PARTS = "parts"


RIVALS = ("onnxruntime", "untuned", "torch", "torch-compiled")
_SMALL_BYTES = 64 << 20
_SIZES = r"[1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*"
_SHAPE = re.compile(rf"(?P<name>.+)=(?P<sizes>{_SIZES}(?:,{_SIZES})*)", re.DOTALL)


def check_model(model: str) -> str:
    """Refuse a file that is not there before anything is imported to read it."""
    if model.partition(":")[0] == model and not os.path.lexists(model):
        with suppress(ModuleNotFoundError):  # a service may have what this installation has not
            from tunery.models import check

            check(model)
    return model


def check_shapes(request: "Request") -> None:
    """Refuse a small ONNX file with inputs of unknown size at once: the workers find that out in any case."""
    path = Path(request.model)
    if path.suffix == ".onnx" and path.is_file() and path.stat().st_size <= _SMALL_BYTES:
        from tunery.models import check_shapes as check_inputs

        check_inputs(path, [one.shapes for one in request.each_shape])


ModelName = Annotated[
    str,
    typer.Argument(
        callback=check_model,
        metavar="MODEL",
        help="An ONNX file, a saved torch program (.pt2), zoo:NAME, or a kernel file (.toml).",
    ),
]
TargetName = Annotated[str, typer.Option("--target", help="What to generate code for: native, a name, or JSON.")]
HostName = Annotated[str, typer.Option("--on", metavar="HOST", help="The host to measure on: see `tunery hosts`.")]
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="What workers run in: local, or ray for the nodes of a cluster.")
]
StoreUrl = Annotated[str, typer.Option("--store", help="Where records are kept: a file or a database URL.")]
Threads = Annotated[int, typer.Option("--threads", min=0, max=65_536, help="Threads of a kernel; 0: all usable cores.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=SIZES",
        help="Shape of an input (x=1x3x224x224) or size of a dimension (batch=4); several by commas; repeatable.",
    ),
]  # fmt: skip
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the search.")]
DialectName = Annotated[
    str,
    typer.Option(
        "--dialect", metavar="NAME", help="A compiler: see `tunery dialects`; tune and compile take several by commas."
    ),
]
FewShot = Annotated[
    int, typer.Option("--few-shot", min=0, max=64, help="Measure this many predictions of each task without a record.")
]
FewShotBudget = Annotated[
    str | None,
    typer.Option(
        "--few-shot-budget", metavar="TIME", help="Measure no longer than this; heavy and uncertain tasks come first."
    ),
]
OnnxRuntime = Annotated[
    HandOver,
    typer.Option(
        "--onnxruntime",
        help="What ONNX Runtime may run: what it runs faster (auto), not the whole network (parts), nothing (never).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Let the output replace a file of another kind.")]
Trust = Annotated[bool, typer.Option("--trust", help="Let a torch program (.pt2) run code that it holds.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more; show the traceback of an error.")]
Against = Annotated[
    str, typer.Option("--against", help="Rivals to compare with: onnxruntime, untuned, torch, torch-compiled.")
]
BudgetText = Annotated[
    list[str] | None,
    typer.Option("--budget", help="What it may cost: 10min, 500trials, $2, 50kJ; several by commas, or repeated."),
]
LatencyTarget = Annotated[
    str, typer.Option("--latency-target", metavar="12ms", help="A network latency that is good enough: stop there.")
]
PriceSheet = Annotated[str, typer.Option("--prices", metavar="FILE", help="What the machine costs: a price sheet.")]
DIALECT = DEFAULT_DIALECT


def make_request(
    model: str,
    *,
    target: str,
    store: str,
    threads: int,
    shapes: Sequence[str] | None,
    dialect: str,
    budget: Sequence[str] | None = None,
    prices: str = "",
    latency_target: str = "",
    effort: Effort = Effort.STANDARD,
    seed: int = 0,
    trust: bool = False,
    on: str = "",
) -> "Request":
    """Return the request that the options describe.

    Raises:
        UsageError: a shape or the budget is malformed.
    """
    from tunery.dialects import file_dialect
    from tunery.domain import Budget, parse_latency
    from tunery.domain.request import Request

    first, *more = parse_shapes(shapes or ())
    return Request(
        model=model,
        shapes=first,
        more_shapes=tuple(more),
        target=target,
        dialect=(file_dialect(model) if dialect == DIALECT else None) or dialect,
        threads=threads,
        budget=Budget.parse(budget) if budget else Budget(),
        effort=effort.value,
        store=store,
        seed=seed,
        latency_target_s=parse_latency(latency_target) if latency_target else None,
        prices=str(Path(prices).resolve()) if prices else "",
        trust=trust,
        on="" if on == "native" else on,
    )


def fill_options(few_shot: int, within: str | None = None, *, predict: bool) -> dict[str, Any]:
    """Return the options of a job that say how to fill what no record answers.

    Raises:
        UsageError: `within` is no duration, or there is nothing to measure within it.
    """
    from tunery.domain import Budget

    if not within:
        return {"predict": predict, "few_shot": few_shot}
    if not few_shot:
        raise UsageError("--few-shot-budget limits what --few-shot measures; give --few-shot 4 with it")
    budget = Budget.parse(within, {})
    if budget.seconds is None or budget != Budget(seconds=budget.seconds):
        raise UsageError(f"--few-shot-budget {within!r} is not a time; write for example 20s or 2min")
    return {"predict": predict, "few_shot": few_shot, "few_shot_seconds": budget.seconds}


def parse_shapes(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Read shapes such as `input=1x3x224x224` or `batch=1,4`, and return a binding for each value, at least one.

    What has several values has as many as all others with several; one value is for all bindings.

    >>> parse_shapes(["batch=1,4", "length=128"])
    [{'batch': (1,), 'length': (128,)}, {'batch': (4,), 'length': (128,)}]

    Raises:
        UsageError: one is malformed, an input is named twice, there are too many values, or they are not equally many.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if not match:
            raise UsageError(
                f"--shape {text!r} is not a name and its sizes; write for example input=1x3x224x224, or batch=1,4,16"
            )
        if match["name"] in found:
            raise UsageError(f"--shape names {match['name']!r} twice; name it once, with its values joined by commas")
        found[match["name"]] = [tuple(int(size) for size in one.split("x")) for one in match["sizes"].split(",")]
    counts = {len(values) for values in found.values()} - {1}
    if len(counts) > 1:
        said = ", ".join(f"{name} {len(values)}" for name, values in found.items() if len(values) > 1)
        raise UsageError(f"--shape has unequal numbers of values ({said}); give each as many, or one for all")
    count = max(counts, default=1)
    if count > MOST_SHAPES:
        raise UsageError(f"--shape has {count} values, of which at most {MOST_SHAPES} are taken; give fewer")
    bindings = [{name: values[at % len(values)] for name, values in found.items()} for at in range(count)]
    if any(one in bindings[:at] for at, one in enumerate(bindings)):
        name, values = max(found.items(), key=lambda one: len(one[1]))
        one = "x".join(str(size) for value in values for size in value)
        raise UsageError(f"--shape has the same values twice; give each once, or write {name}={one} for one shape")
    return bindings


def parse_rivals(text: str) -> tuple[str, ...]:
    """Read rivals such as `untuned,onnxruntime`; "" gives none.

    Raises:
        UsageError: one is unknown.
    """
    chosen = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in chosen:
        if name not in RIVALS:
            raise UsageError(f"unknown rival {name!r}; --against takes {', '.join(RIVALS)}, joined by commas")
    return tuple(chosen)


def job_options(texts: Sequence[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` options of a job: numbers, true, false and JSON lists as such, all else as text.

    Paths are made absolute: the daemon has another working directory.

    Raises:
        UsageError: one is not NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--option {text!r} is not NAME=VALUE; write for example output=net.tunery")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = str(Path(value).absolute()) if name in {"output", "compiled", "sign"} else value
    return found
