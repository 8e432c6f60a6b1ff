"""Which blobs a value names: found by its annotation, in the fields that say so (`BlobDigest`)."""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union

from tunery.domain.keys import BlobMark

Finder = Callable[[Any], Iterable[str]]
"""Yields the digests in a value of one type."""


@cache
def blob_finder(hint: Any) -> Finder | None:  # noqa: PLR0911 - one for each kind of type
    """Return what finds the blobs in a value that is annotated so; None where there can be none.

    Blobs are found in annotated dataclasses, tuples, sequences, sets, mappings and unions of such.
    """
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
