"""The engine is chosen by its name: one of ours, or another's by its entry point."""

from pathlib import Path

import pytest

from tunery._errors import UsageError
from tunery.engines import Engine, LocalEngine, engine_class
from tunery.runtime.opening import workplace
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.inline_engine import InlineEngine

NAMES = {"local": LocalEngine, "inline": InlineEngine}


class OtherEngine(InlineEngine):
    """An engine that another distribution brings."""


@pytest.fixture
def _other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site" / "other_engine-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other-engine\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[tunery.engines]\nother = {__name__}:OtherEngine\n")
    monkeypatch.syspath_prepend(installed.parent)


@pytest.mark.parametrize(("name", "cls"), NAMES.items())
def test_our_engines_are_there_by_name(name: str, cls: type[Engine], tmp_path: Path) -> None:
    assert engine_class(name) is cls
    with FakeBlobs() as blobs, engine_class(name).open(tmp_path, blobs) as engine:
        assert engine.blobs is blobs


@pytest.mark.usefixtures("_other")
def test_an_installed_engine_is_chosen_by_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNERY_ENGINE", "other")
    with workplace() as (engine, _):
        assert type(engine) is OtherEngine


@pytest.mark.usefixtures("_other")
def test_an_unknown_engine_is_refused_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_ENGINE", "locl")
    with pytest.raises(UsageError) as caught, workplace():
        raise AssertionError
    for word in ("'locl'", "TUNERY_ENGINE", *NAMES, "other"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
