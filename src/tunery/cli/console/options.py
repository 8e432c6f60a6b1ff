"""What commands are given, as what it means: requests and compile options of text."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console.commands import READERS, Only
from tunery.domain.request import DEFAULT_DIALECT, MOST_SHAPES, CompileOptions, QueryOptions, Request

RIVALS = ("onnxruntime", "untuned", "torch", "torch-compiled")
_SMALL_BYTES = 64 << 20
_SIZES = r"[1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*"
_SHAPE = re.compile(rf"(?P<name>.+)=(?P<sizes>{_SIZES}(?:,{_SIZES})*)", re.DOTALL)

StoreUrl = Annotated[str, typer.Option("--store", help="Where records are kept: a file or a database URL.")]
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="What workers run in: local, or ray for the nodes of a cluster.")
]
Force = Annotated[bool, typer.Option("--force", help="Let the output replace a file of another kind.")]
Trusted = Annotated[
    list[Path] | None, typer.Option("--trusted", metavar="KEY", help="Check signatures with this public key.")
]
Sign = Annotated[str, typer.Option("--sign", metavar="KEY", help="Sign it with this private key.")]
Against = Annotated[
    str, typer.Option("--against", help="Rivals to compare with: onnxruntime, untuned, torch, torch-compiled.")
]
Measured = Only("model", "target", "on", "store", "threads", "shapes", "trust", "dialect")
"""The options of a request of what is known of a model."""
Tuned = Only(
    "model", "target", "on", "budget", "latency_target_s", "prices", "effort", "store", "threads", "shapes", "seed",
    "trust", "dialect",
)  # fmt: skip
Few = ("few_shot", "few_shot_seconds")


def check_model(model: str) -> None:
    """Refuse a file that is not there before anything is imported to read it."""
    if model and model.partition(":")[0] == model and not os.path.lexists(model):
        with suppress(ModuleNotFoundError):  # a service may have what this installation has not
            from tunery.models import check

            check(model)


def with_inputs(request: Request, inputs: str) -> Request:
    """Return the request with the shapes of a user's arrays, where it names none."""
    if not inputs:
        return request
    if request.more_shapes:
        raise UsageError("--inputs has arrays of one shape; name one value for each --shape")
    from tunery.measuring.inputs import shapes_in

    return replace(request, shapes={**shapes_in(inputs), **request.shapes})


def check_shapes(request: Request) -> None:
    """Refuse a small ONNX file with inputs of unknown size at once: the workers find that out in any case."""
    path = Path(request.model)
    if path.suffix == ".onnx" and path.is_file() and path.stat().st_size <= _SMALL_BYTES:
        from tunery.models import check_shapes as check_inputs

        check_inputs(path, [one.shapes for one in request.each_shape])


def make_request(
    model: str = "",
    *,
    shapes: Sequence[str] | None = None,
    budget: Sequence[str] | None = None,
    prices: str = "",
    latency_target_s: str = "",
    effort: str = "standard",
    on: str = "",
    **same: Any,
) -> Request:
    """Return the request that the options describe."""
    from tunery.domain import Budget, parse_latency

    check_model(model)
    first, *more = parse_shapes(shapes or ())
    request = Request(
        model=model,
        shapes=first,
        more_shapes=tuple(more),
        budget=Budget.parse(budget) if budget else Budget(),
        latency_target_s=parse_latency(latency_target_s) if latency_target_s else None,
        prices=str(Path(prices).resolve()) if prices else "",
        effort=str(effort),
        on="" if on == "native" else on,
        **same,
    )
    return of_model(request, model)


def of_model(request: Request, model: str) -> Request:
    """Return the request for a model, of the dialect that its file is for if none was named."""
    if request.dialect != DEFAULT_DIALECT or model.startswith("zoo:") or model.endswith(".onnx"):
        return replace(request, model=model)  # told without what finds dialects
    from tunery.dialects import file_dialect

    dialect = file_dialect(model) or request.dialect
    return replace(request, model=model, dialect=dialect)


def make_options(**given: Any) -> CompileOptions:
    """Return how a network is compiled."""
    if "onnxruntime" in given:
        given["onnxruntime"] = str(given["onnxruntime"])
    return CompileOptions(**_filled(given))


def make_query(**given: Any) -> QueryOptions:
    """Return how what no record answers is filled."""
    return QueryOptions(**_filled(given))


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    """Read how long predictions are measured."""
    from tunery.domain import Budget

    if not (within := given.get("few_shot_seconds")):
        return {name: value for name, value in given.items() if name != "few_shot_seconds"}
    if not given["few_shot"]:
        raise UsageError("--few-shot-budget limits what --few-shot measures; give --few-shot 4 with it")
    budget = Budget.parse(within, {})
    if budget.seconds is None or budget != Budget(seconds=budget.seconds):
        raise UsageError(f"--few-shot-budget {within!r} is not a time; write for example 20s or 2min")
    return {**given, "few_shot_seconds": budget.seconds}


READERS.update({Request: make_request, CompileOptions: make_options, QueryOptions: make_query})


def parse_shapes(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Read shapes such as `input=1x3x224x224` or `batch=1,4`, and return a binding for each value, at least one.

    What has several values has as many as all others with several; one value is for all bindings.

    >>> parse_shapes(["batch=1,4", "length=128"])
    [{'batch': (1,), 'length': (128,)}, {'batch': (4,), 'length': (128,)}]
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if not match:
            raise UsageError(
                f"--shape {text!r} is not a name and its sizes, which begin at 1; "
                "write for example input=1x3x224x224, or batch=1,4,16"
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
    """Read rivals such as `untuned,onnxruntime`; "" gives none."""
    chosen = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in chosen:
        if name not in RIVALS:
            raise UsageError(f"unknown rival {name!r}; --against takes {', '.join(RIVALS)}, joined by commas")
    return tuple(chosen)


def job_options(texts: Sequence[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` options of a job: numbers, true, false and JSON lists as such, all else as text.

    Paths are made absolute: the daemon has another working directory.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--option {text!r} is not NAME=VALUE; write for example output=net.tunery")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = str(Path(value).absolute()) if name in {"output", "compiled", "sign", "inputs"} else value
    return found
