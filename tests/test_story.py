"""The drawing and the story of the architecture name what is there."""

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "src" / "tunery"
_STORY = (_ROOT / "docs" / "story.md").read_text(encoding="utf-8")
_DRAWING = re.search(
    r"```mermaid\n(.*?)```", (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.DOTALL
)


def names_of(tree: ast.AST, prefix: str = "") -> set[str]:
    """Return the functions and classes of a module, those of classes with their class's name before them."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found |= {prefix + node.name, *names_of(node, f"{prefix}{node.name}.")}
    return found


@pytest.mark.parametrize(("path", "name"), sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", _STORY))))
def test_the_story_names_what_is_there(path: str, name: str) -> None:
    assert name in names_of(ast.parse((_SOURCE / path).read_text(encoding="utf-8")))


def test_the_drawing_is_of_what_is_there() -> None:
    assert _DRAWING is not None
    text = _DRAWING[1]
    paths = dict(re.findall(r'(\w+)\[\(?"[^"]*<br>([^"]+)"\)?\]', text))
    assert [path for path in paths.values() if not (_SOURCE / path).exists()] == []
    ends = re.findall(r"^  (\w+).*? --> (\w+)", text, re.MULTILINE)
    assert len(ends) == text.count("-->")
    assert {name for pair in ends for name in pair} == paths.keys(), "whatever an arrow joins is drawn"
