"""Saved torch programs as data: a copy of one that holds nothing which torch's loader would run as code. A `.pt2` file
is a zip archive: the program as JSON, weights as bytes, and where the author wants it pickles. torch takes more of the
JSON for code than its names tell: an operator may be any function below `torch`, a size is an expression for Python's
`eval`, names become a function's source. So the copy has known entries only, and their text is checked against what
`torch.export.save` writes for a network."""

import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tunery._errors import ModelError

_ROOT = "program"
_PLAIN = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id", "version")
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_MODEL = "models/model.json"
_DATA = re.compile(r"data/(weights/weight_\d+|constants/tensor_\d+|sample_inputs/model\.pt)")
_MOST_JSON = 256 << 20

_NAME = re.compile(r"[A-Za-z0-9_.+\-]*")
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed|torchvision)\.(?!from_file)\w+\.\w+", re.ASCII)
_FUNCTIONS = frozenset({
    *(f"torch.ops.higher_order.{name}" for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond")),
    *(f"torch.{name}" for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum")),
    *(f"_operator.{name}" for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge",
        "and_", "or_", "not_", "getitem", "lshift", "rshift", "index",
    )),
    *(f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")),
})  # fmt: skip
_EXPRESSION = re.compile(r"(?>'\w*'|[A-Za-z_]\w*|\d+(?:\.\d+)?|[-+*/%(),<>=!&|~ ])*+", re.ASCII)
_WORD = re.compile(r"'\w*'|[A-Za-z_]\w*", re.ASCII)
_SYMBOL = re.compile(r"'\w*'|z?[suf]\d+|zu?f?\d+", re.ASCII)
_ALGEBRA = frozenset({
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "Eq", "Ne", "Lt",
    "Le", "Gt", "Ge", "Equality", "Unequality", "LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan",
    "And", "Or", "Not", "floor", "ceiling", "true", "false", "True", "False", "None", "positive", "integer",
    "nonnegative", "real", "evaluate", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt",
    "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
    "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity",
})  # fmt: skip
_TREES = frozenset({None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_DROPPED: dict[str, Any] = {"metadata": {}, "guards_code": []}
"""What a program is converted without: where it comes from in Python, and tests of its inputs as source text."""
_TEXT = frozenset({"as_string", "as_strings"})  # arguments of an operator, which take them as they are


class CodeInProgramError(ModelError):
    """A saved program holds what torch would run as code; the message says what."""


def copy_data(source: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as copy:
            _copy(_entries(archive), archive, copy)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError, ValueError) as error:
        raise ModelError(f"it is no saved program: {error}") from None


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2]
        if name in found:
            raise ValueError(f"it has {name!r} twice")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name!r} is compressed, which torch.export.save does not do")
        found[name] = entry
    return found


def _copy(entries: Mapping[str, zipfile.ZipInfo], archive: zipfile.ZipFile, copy: zipfile.ZipFile) -> None:
    if _MODEL not in entries:
        _refuse("is of the format before torch 2.8, whose weights are a pickle")
    for name, entry in entries.items():
        if name == _MODEL or name in _CONFIGS:
            if entry.file_size > _MOST_JSON:
                raise ValueError(f"{name!r} has {entry.file_size} bytes")
            data = _payloads(json.loads(archive.read(entry))) if name in _CONFIGS else _checked(archive.read(entry))
            copy.writestr(f"{_ROOT}/{name}", json.dumps(data))
        elif name in _PLAIN or _DATA.fullmatch(name):
            with (
                archive.open(entry) as given,
                copy.open(zipfile.ZipInfo(f"{_ROOT}/{name}"), "w", force_zip64=True) as to,
            ):
                shutil.copyfileobj(given, to, 1 << 20)


def _payloads(config: Any) -> Any:
    for payload in config["config"].values():
        if not re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"]):
            _refuse(f"holds objects of its author's ({payload['path_name'][:40]!r})")
    _check(config["config"], "config")
    return config


def _checked(text: bytes) -> Any:
    program = json.loads(text)
    _check(program, "program")
    return program


def _check(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name in value:
            if name in _DROPPED:
                value[name] = _DROPPED[name]
            _check_text(name, "expr_str" if key == "range_constraints" else "name")
            _check(value[name], name)
        if isinstance(value.get("hint"), dict) and any(isinstance(hint, str) for hint in value["hint"].values()):
            _refuse("has text for the value of a size")
    elif isinstance(value, list):
        for each in value:
            _check(each, key)
    elif isinstance(value, str):
        _check_text(value, key)


def _check_text(text: str, key: str) -> None:
    if key in _TEXT:
        return
    if key == "expr_str":
        words = _WORD.findall(text)
        if not _EXPRESSION.fullmatch(text) or not all(word in _ALGEBRA or _SYMBOL.fullmatch(word) for word in words):
            _refuse(f"has a size that is no arithmetic, {text[:60]!r}")
    elif key in {"target", "as_operator"}:
        if not _OPERATOR.fullmatch(text) and text not in _FUNCTIONS:
            _refuse(f"calls {text[:60]!r}, which is no operator of a network")
    elif key in {"in_spec", "out_spec"}:
        for tree in json.loads(text)[1:] if text else ():
            _check_tree(tree)
    elif key == "class_fqn":
        _refuse(f"holds an object of the class {text[:60]!r}")
    elif not _NAME.fullmatch(text):
        _refuse(f"has {text[:60]!r} for a name")


def _check_tree(tree: Any) -> None:
    context = json.loads(tree["context"]) if tree["context"] else None
    if tree["type"] not in _TREES or not (
        context is None or (isinstance(context, list) and all(isinstance(name, str) for name in context))
    ):
        _refuse(f"takes or returns a {str(tree['type'])[:60]!r}")
    for child in tree["children_spec"]:
        _check_tree(child)


def _refuse(what: str) -> NoReturn:
    raise CodeInProgramError(what)
