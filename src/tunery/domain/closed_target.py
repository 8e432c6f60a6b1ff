"""The closed form of a target: the one gate through which each description of a target comes, whoever has written it.
Compilers have options that run programs and write files. So a target is data: names, numbers and features, of which the
dialect itself makes what its compiler is given. No value of it can be an option, a path or a command."""

import json
import re
from collections.abc import Collection, Mapping, Sequence

from tunery._errors import TargetError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(\+[a-z0-9]{1,16}){0,16}")
_FEATURE = re.compile(r"[+-][a-z0-9][a-z0-9._-]{0,31}")
_DEVICE = re.compile(r"[A-Za-z0-9][\w .,@()+/:-]{0,199}")
_NUMBERS = {"num-cores": (1, 65_536), "opt-level": (0, 3), "vector-width": (64, 2048)}
_TEXTS = {
    "kind": _NAME,
    "mcpu": _NAME,
    "arch": re.compile(r"sm_[1-9][0-9]{1,2}[af]?"),
    "machine": re.compile("aarch64"),
    "mtriple": re.compile("[a-z0-9_]{1,16}-linux-gnu"),
    "gcc": re.compile(r"[0-9.]{1,16}"),
    "device": _DEVICE,
}
_LONGEST, _MOST_FEATURES, _SHOWN = 4096, 64, 120


def closed(config: Mapping[str, object], fields: Collection[str] = ()) -> dict[str, object]:
    """Return a target's description, of these `fields` (all that there are, if none is named)."""
    for name, value in config.items():
        if name not in (fields or _KNOWN):
            raise TargetError(f"a target has no {name[:64]!r}; it has {', '.join(sorted(fields or _KNOWN))}")
        if not _fits(name, value):
            raise TargetError(f"a target's {name!r} is not {value!r:.60}; it is {_wanted(name)}")
    return dict(config)


def check_target(spec: str) -> None:
    """Check that a request's target can be one of some dialect: `native`, a plain name, or an object of data."""
    if spec.lstrip().startswith("{"):
        try:
            closed(json.loads(spec[: _LONGEST + 1]))
        except (ValueError, RecursionError):
            raise TargetError(f"target {spec!r:.120} is not JSON; use native, or a processor's name") from None
    elif not _NAME.fullmatch(spec):
        raise TargetError(f"unknown target {spec!r:.120}; use native, a processor's name, or a JSON object")


def read_target(spec: str, kind: str, fields: Sequence[str], example: str) -> dict[str, object]:
    """Return the target that the name of a processor or a JSON object describes, in its closed form."""
    shown = repr(spec) if len(spec) <= _SHOWN else f"{spec[:_SHOWN]!r}..."
    try:
        is_name = not spec.lstrip().startswith("{")
        config = {"kind": kind, fields[0]: spec} if is_name else json.loads(spec[: _LONGEST + 1])
        if not config.keys() >= {"kind", fields[0]} or config["kind"] != kind:
            why = f"it is no object with the kind {kind!r} and {fields[0]}"
        else:
            return closed(config, {"kind", *fields})
    except (ValueError, AttributeError, RecursionError):
        why = "it is not JSON"
    except TargetError as error:
        why = str(error)
    raise TargetError(f"unknown target {shown}: {why}; use native, or for example {example}")


def _fits(name: str, value: object) -> bool:
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        return type(value) is int and least <= value <= most
    if name in _TEXTS:
        return isinstance(value, str) and _TEXTS[name].fullmatch(value) is not None
    if name == "mattr":
        words = value if isinstance(value, list) and len(value) <= _MOST_FEATURES else [None]
        return all(isinstance(word, str) and _FEATURE.fullmatch(word) for word in words)
    return isinstance(value, bool) if name == "unswitch" else type(value) in {int, float}


def _wanted(name: str) -> str:
    if name in _NUMBERS:
        return "a whole number from {} to {}".format(*_NUMBERS[name])
    return {"mattr": "a short list of features such as +name", "unswitch": "true or false"}.get(name, "a plain name")


_KNOWN = frozenset({*_NUMBERS, *_TEXTS, "mattr", "unswitch", "speed"})
