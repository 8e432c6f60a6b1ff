"""How a function becomes a command: options from the fields of what it takes, and its result as text or JSON."""

import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer

from tunery._errors import UsageError
from tunery.domain.request import Option, options_in
from tunery.reports.format import printable

F = TypeVar("F", bound=Callable[..., Any])
COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {}
"""By a command's words, its function and an example."""
READERS: dict[type, Callable[..., Any]] = {}
"""By class, what makes one of the values of its options; others are made of these as they are."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more; show the traceback of an error.")]
_FLAGS = {"json": Json, "verbose": Verbose}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Result(NamedTuple):
    """What a command prints: `data` with --json, else `lines`; and its exit code."""

    data: object
    lines: Iterable[str] = ()
    exit_code: int = 0


class Only:
    """Which fields of a parameter's class are options of its command: those named, or all `but` some."""

    def __init__(self, *names: str, but: Collection[str] = ()) -> None:
        self._names, self._but = names, but

    def of(self, cls: type) -> list[str]:
        return [name for name in self._names or options_in(cls) if name not in self._but]


def command(words: str, example: str, *, prints: bool = True) -> Callable[[F], F]:
    """Make a function the command of these words.

    It has the options --json and -v, and is told of them if it takes `json` or `verbose`. A parameter with `Only` is
    made of one option for each field. Unless it `prints` nothing, what it returns is printed.
    """

    def register(function: F) -> F:
        COMMANDS[words] = _for_typer(function, prints=prints), f"Example: tunery {example}"
        return function

    return register


def _for_typer(function: Callable[..., Any], *, prints: bool) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    shown, read = list[inspect.Parameter](), dict[str, tuple[type, list[str]]]()
    own = inspect.signature(function).parameters
    for parameter in own.values():
        hint = hints[parameter.name]
        if only := [extra for extra in get_args(hint)[1:] if isinstance(extra, Only)]:
            kind = get_args(hint)[0]
            shown += _options(kind, only[0].of(kind))
            read[parameter.name] = kind, only[0].of(kind)
        elif parameter.name not in _FLAGS:
            shown.append(parameter.replace(annotation=hint, kind=_KEYWORD))
    shown += [inspect.Parameter(name, _KEYWORD, default=False, annotation=hint)
              for name, hint in _FLAGS.items() if prints or name != "json"]  # fmt: skip

    def run(**values: Any) -> None:
        for name, (kind, names) in read.items():
            values[name] = READERS.get(kind, kind)(**{one: values.pop(one) for one in names})
        result = function(**{name: values[name] for name in own})
        if result is not None:
            _print(result, as_json=values["json"])

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__annotations__ = {one.name: one.annotation for one in shown}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return run


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        emit(result.data)
    else:
        for line in result.lines:
            say(line)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _options(kind: type, names: Iterable[str]) -> Iterable[inspect.Parameter]:
    options, known = options_in(kind), {field.name: field for field in fields(kind)}
    for name in names:
        typed, option = options[name]
        typed, plain = _as_given(name, typed, option)
        default = _default(known[name], plain)
        flag = f"--{name.replace('_', '-')}"
        limits = {"min": option.least, "max": option.most} if typed in {int, float} else {}
        more: dict[str, Any] = {"help": option.help, "metavar": option.metavar or None, **limits}
        info = typer.Argument(**more) if option.argument else typer.Option(*(option.flags or (flag,)), **more)
        yield inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[typed, info])


def _as_given(name: str, typed: Any, option: Option) -> tuple[Any, Any]:
    """Return the type of what is given for a field, and its default; what is no plain value is read from text."""
    if option.choices:
        choices = StrEnum(name, {choice.upper(): choice for choice in option.choices})  # type: ignore[misc]
        return choices, MISSING
    if typed in {str, int, float, bool}:
        return typed, MISSING
    if get_origin(typed) in {types.UnionType} and float in get_args(typed):
        return str, ""
    return list[str] | None, None


def _default(field: "Field[Any]", plain: Any) -> Any:
    if plain is not MISSING:
        return plain
    return inspect.Parameter.empty if field.default is MISSING else field.default


def emit(data: object) -> None:
    """Print one JSON document; numbers that JSON does not know are null."""
    from tunery.reports.data import plain

    typer.echo(json.dumps(plain(data), indent=2, allow_nan=False))


def say(text: str) -> None:
    """Print text; a character the terminal cannot show is replaced, one that it would obey is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(printable(text).encode(encoding, "replace").decode(encoding))


def remark(text: str) -> None:
    """Print a remark on the way to the result, on stderr, as `say` does."""
    encoding = sys.stderr.encoding or "utf-8"
    typer.echo(printable(text).encode(encoding, "replace").decode(encoding), err=True)


def width() -> int | None:
    """Return the terminal's width for tables; None where the output goes to a file, which is as wide as need be."""
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 60)
    except (OSError, ValueError):
        return None


def output_path(text: str, name: str = "") -> Path:
    """Return the file that an option or argument names: in a directory, `name`."""
    path, is_directory = Path(text), False
    with suppress(OSError):  # a name that is too long is refused where the file is checked
        is_directory = path.is_dir()
    if text.endswith(os.sep) and not is_directory:
        raise UsageError(f"there is no directory {text!r}; make it first, or name a file")
    return path / name if name and is_directory else path
