"""Knowledge of one compiler, processor or operating system stays in the room that exists for it.

Looked at are identifiers, imports and string literals, those inside f-strings included: what the program does and says.
Comments and docstrings may name a compiler as an example of what a rule is for.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tunery

ROOT = Path(tunery.__file__).parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

# Which words belong where. A word of an identifier ends at an underscore or where the case changes.
COMPILER = ("tvm", "metaschedule", "relax", "tir", "llvm")
PROCESSOR = ("avx", "x86", "sse", "neon", "amx")
SYSTEM = ("/proc", "/sys", "schedstat", "rapl", "cgroup", "cgroups", "sched_setaffinity", "sched_getaffinity")
SCRIPTED = ("fake:",)
ROOMS = {
    COMPILER: ("dialects/metaschedule/", "dialects/iree/"),
    PROCESSOR: ("dialects/metaschedule/", "devices/cpu/", "_processor.py"),
    # A local engine starts, places and ends processes of this system.
    SYSTEM: ("devices/cpu/", "engines/local/", "_processor.py"),
    SCRIPTED: ("testing/",),
}
# Imports of a plug-in by its name: others find it by its entry point.
PLUGINS = {
    "dialects/metaschedule/": "tunery.dialects.metaschedule",
    "testing/": "tunery.testing",
    "dialects/iree/": "tunery.dialects.iree",
    "dialects/kernels/": "tunery.dialects.kernels",
}
EXCEPTIONS = {
    ("domain/request.py", "metaschedule"): "the dialect of a request that names none",
    ("_extras.py", "tvm"): "the extra that brings the compiler goes by this name, and so does what it brings",
    ("_sandbox.py", "/proc /sys x86 sched_getaffinity"): "a sandbox is a list of this system's calls and files",
    ("store/database/lease.py", "/proc /sys"): "who holds a lease: this start of this machine, these process numbers",
    ("testing/engine_contract.py", "sched_getaffinity"): "places a worker of any engine on a core that there is",
    ("dialects/metaschedule/search/limits.py", "/sys"): "a thread's share of a cache decides what is worth a build",
}


@cache
def words_of(text: str) -> frozenset[str]:
    """Return the fenced words in a text: an identifier, a module's name or a string."""
    parts = {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", text)}
    found = {word for words in (COMPILER, PROCESSOR, SYSTEM) for word in words if word.isalnum() and word in parts}
    found |= {word for word in ("tvm", "metaschedule", "llvm") if word in text.lower()}
    if any(re.fullmatch(r"avx\d*", part) for part in parts):
        found.add("avx")
    found |= {word for word in SYSTEM if word.startswith("sched_") and word in text}
    if re.search(r"(?<![\w.])fake:", text):
        found.add("fake:")
    return frozenset(found | {word for word in ("/proc", "/sys") if re.search(rf"{word}(/|$)", text)})


@cache
def spoken(file: str) -> tuple[tuple[int, str], ...]:
    """Return line and text of every identifier, import and string literal of a file that is no docstring."""
    return tuple(_spoken(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


def _spoken(tree: ast.Module) -> Iterator[tuple[int, str]]:
    # A string that stands alone is a docstring, of whatever is before or around it.
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in silent:
            yield line, node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        elif isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield line, node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield line, node.arg
        elif isinstance(node, ast.Import):
            yield from ((line, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((line, f"{node.module or ''}.{alias.name}") for alias in node.names)


def strangers(file: str) -> set[str]:
    """Return the fenced words that a file says although they belong to another room."""
    return {
        word
        for _, text in spoken(file)
        for word in words_of(text)
        if not file.startswith(next(rooms for words, rooms in ROOMS.items() if word in words))
    }


def test_words_are_seen() -> None:
    assert words_of("TvmNetwork") == words_of("import_tvm") == words_of("apache-tvm") == {"tvm"}
    assert words_of("/proc/self/statm") == {"/proc"}
    assert words_of("AVX512") == words_of("avx2") == {"avx"}
    assert words_of("fake:net?tasks=3") == {"fake:"}
    assert words_of("relaxed") == words_of("tunery.testing.fake_device:FakeDevice") == words_of("/process") == set()


def test_knowledge_stays_in_its_room() -> None:
    found = []
    for file in FILES:
        allowed = {word for path, words in EXCEPTIONS for word in words.split() if path == file}
        if wrong := strangers(file) - allowed:
            found += [f"{file}:{line} says {text[:60]!r}" for line, text in spoken(file) if words_of(text) & wrong]
    assert found == []


def test_plug_ins_are_found_by_their_entry_points() -> None:
    wrong = [
        f"{file}:{line} names {name}"
        for file in FILES
        for line, name in spoken(file)
        for room, plugin in PLUGINS.items()
        if plugin in name and not file.startswith(room)
    ]
    assert wrong == []


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 8
    assert all(set(words.split()) <= strangers(file) for file, words in EXCEPTIONS)
