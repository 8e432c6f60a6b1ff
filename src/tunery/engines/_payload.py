"""Arguments and results as JSON by a service's own annotations, and the blobs that they name."""

import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Annotated, Any, Union

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError

from tunery import _errors
from tunery._errors import EngineError, RemoteError, TuneryError
from tunery.blobs import Blobs
from tunery.domain.keys import BlobMark

Finder = Callable[[Any], Iterable[str]]
"""Yields the digests in a value of one type."""


@cache
def blob_finder(hint: Any) -> Finder | None:  # noqa: PLR0911 - one for each kind of type
    """Return what finds the blobs in a value that is annotated so; None where there can be none. Blobs are found in
    annotated dataclasses, tuples, sequences, sets, mappings and unions of such."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if any(isinstance(mark, BlobMark) for mark in arguments[1:]):
            return lambda value: (value,) if value else ()
        return blob_finder(arguments[0])
    if isinstance(hint, type) and is_dataclass(hint):
        return _in_dataclass(hint)
    if origin in (Union, UnionType):
        return _in_union(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return _in_places(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _in_each(blob_finder(arguments[1]), lambda value: value.values())
    if isinstance(origin, type) and issubclass(origin, Iterable) and arguments:
        return _in_each(blob_finder(arguments[0]), lambda value: value)
    return None


def find_all(finders: Iterable[Finder | None], values: Iterable[object]) -> tuple[str, ...]:
    pairs = ((finder, value) for finder, value in zip(finders, values, strict=True) if finder is not None)
    return tuple(dict.fromkeys(digest for finder, value in pairs for digest in finder(value)))


def _in_each(inner: Finder | None, members: Callable[[Any], Iterable[Any]]) -> Finder | None:
    return None if inner is None else lambda value: (digest for each in members(value) for digest in inner(each))


def _in_dataclass(cls: type) -> Finder | None:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {field.name: blob_finder(hints[field.name]) for field in fields(cls)}
    inner = {name: finder for name, finder in found.items() if finder is not None}
    if not inner:
        return None
    return lambda value: (d for name, finder in inner.items() for d in finder(getattr(value, name)))


def _in_places(hints: tuple[Any, ...]) -> Finder | None:
    inner = [blob_finder(hint) for hint in hints]
    return (lambda value: find_all(inner, value)) if any(inner) else None


def _in_union(hints: tuple[Any, ...]) -> Finder | None:
    arms = [(_class_of(hint), finder) for hint in hints if (finder := blob_finder(hint)) is not None]
    if not arms:
        return None
    return lambda value: (d for cls, finder in arms if isinstance(value, cls) for d in finder(value))


def _class_of(hint: Any) -> type:
    """Return the class that a value of a type has, as far as arms of a union are told apart by it."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _class_of(typing.get_args(hint)[0])
    found = origin or hint
    return found if isinstance(found, type) else object


_CONFIG = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")


class Signatures:
    """The public methods of one service class and how their arguments and results become JSON and back. Both sides
    import the class, so a service's module imports its heavy libraries inside its methods. A parameter or result
    without an annotation is plain JSON data; inf, nan, bytes (base64), paths, dataclasses, enums and tuples survive
    where they are annotated."""

    def __init__(self, service: str) -> None:
        module, _, name = service.partition(":")
        try:
            self.cls: type[Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise EngineError(f"service {service!r} is not an importable module:Class: {error}") from error

    def encode_settings(self, settings: Mapping[str, Any]) -> bytes:
        return _dump(self._settings_adapter(list(settings)), tuple(settings.values()), "settings")

    def create(self, names: Sequence[str], body: bytes, blobs: Callable[[], Blobs]) -> Any:
        """Return a new instance of the service, from what `encode_settings` made of the settings called `names`.
        `blobs` opens the host's blobs; it is called for a service whose constructor has a parameter for them."""
        values = self._settings_adapter(names).validate_json(body)
        given = {name: blobs() for name, hint in self._hints().items() if hint is Blobs and name not in names}
        return self.cls(**dict(zip(names, values, strict=True)), **given)

    def encode_arguments(self, method: str, args: tuple[object, ...]) -> bytes:
        return _dump(_arguments(self._function(method), len(args))[0], args, method)

    def decode_arguments(self, method: str, count: int, body: bytes) -> tuple[Any, ...]:
        return tuple(_arguments(self._function(method), count)[0].validate_json(body))

    def encode_result(self, method: str, result: object) -> bytes:
        return _dump(_returned(self._function(method))[0], (result,), f"the result of {method}")

    def decode_result(self, method: str, body: bytes) -> Any:
        return _returned(self._function(method))[0].validate_json(body)[0]

    def blobs_in_settings(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        hints = self._hints()
        return find_all([blob_finder(hints.get(name, Any)) for name in settings], settings.values())

    def blobs_in_arguments(self, method: str, args: tuple[object, ...]) -> tuple[str, ...]:
        return find_all(_arguments(self._function(method), len(args))[1], args)

    def blobs_in_result(self, method: str, result: object) -> tuple[str, ...]:
        return find_all([_returned(self._function(method))[1]], [result])

    def _settings_adapter(self, names: Sequence[str]) -> TypeAdapter[Any]:
        parameters: dict[str, inspect.Parameter] = {}
        if self.cls.__init__ is not object.__init__:
            parameters = dict(inspect.signature(self.cls.__init__).parameters)
        rest = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
        unknown = [name for name in names if name not in parameters and rest is None]
        if unknown:
            raise TypeError(f"{self.cls.__name__} has no setting {unknown[0]!r}")
        hints = self._hints()
        return _adapter([hints.get(name if name in parameters else str(rest), Any) for name in names])

    def _hints(self) -> dict[str, Any]:
        if self.cls.__init__ is object.__init__:
            return {}
        return typing.get_type_hints(self.cls.__init__, include_extras=True)

    def _function(self, method: str) -> Callable[..., Any]:
        function = None if method.startswith("_") else getattr(self.cls, method, None)
        if not inspect.isfunction(function):
            raise TypeError(f"{self.cls.__name__} has no public method {method!r}")
        return function


@cache
def _arguments(function: Callable[..., Any], count: int) -> tuple[TypeAdapter[Any], Sequence[Finder | None]]:
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*range(count + 1))  # one more for self
    except TypeError as error:
        raise TypeError(f"{function.__qualname__} called with {count} arguments: {error}") from None
    hints = typing.get_type_hints(function, include_extras=True)
    types: list[Any] = []
    for name, value in bound.arguments.items():
        repeated = len(value) if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL else 1
        types += [hints.get(name, Any)] * repeated
    return _adapter(types[1:]), [blob_finder(hint) for hint in types[1:]]


@cache
def _returned(function: Callable[..., Any]) -> tuple[TypeAdapter[Any], Finder | None]:
    hint = typing.get_type_hints(function, include_extras=True).get("return", Any)
    return _adapter([hint]), blob_finder(hint)


@lru_cache(maxsize=256)
def signatures(service: str) -> Signatures:
    """Return the (shared) signatures of `module:Class`; EngineError where it cannot be imported."""
    return Signatures(service)


def error_to_data(error: BaseException) -> dict[str, Any]:
    """Return what of an exception crosses the border. Its class, our nearest class above it, message, trace, and those
    attributes that are plain values."""
    import traceback

    own = (c for c in type(error).__mro__ if c.__module__ == _errors.__name__ and issubclass(c, TuneryError))
    ours = next((c.__name__ for c in own), "")
    trace = "".join(traceback.format_exception(error))
    message = str(error).encode(errors="replace").decode()  # a compiler's output may hold what no text column takes
    values = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {"kind": type(error).__name__, "ours": ours, "message": message, "trace": trace, "values": values}


def error_from_data(data: Mapping[str, Any], where: str) -> TuneryError:
    """Return the exception to raise on this side: the same class for our own errors, else a RemoteError. `where`
    (worker and method) opens the message of a RemoteError only: a user's error keeps its exact sentence."""
    cls = getattr(_errors, data["ours"], RemoteError) if data["ours"] else RemoteError
    if cls is RemoteError and data["kind"] == RemoteError.__name__:  # another host has passed it on
        return RemoteError(data["message"], kind=data["values"]["kind"], trace=data["values"]["trace"])
    if cls is RemoteError:
        message = f"{where} raised {data['kind']}: {data['message']}"
        return RemoteError(message, kind=data["kind"], trace=data["trace"])
    error: TuneryError = cls(data["message"])
    vars(error).update(data["values"])
    error.add_note(f"raised in {where}:\n{data['trace']}")
    return error


def _adapter(types: Sequence[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(tuple[tuple(types)], config=_CONFIG)  # type: ignore[arg-type, misc]  # made at run time


def _dump(adapter: TypeAdapter[Any], values: tuple[object, ...], what: str) -> bytes:
    try:
        return adapter.dump_json(values, warnings="error")
    except PydanticSerializationError as error:
        raise TypeError(f"{what}: not the plain data that the annotation says: {error}") from None
