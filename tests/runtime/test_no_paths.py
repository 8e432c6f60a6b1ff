"""No file's path crosses an engine, and none is kept in a store: files are named by what is in them."""

import dataclasses
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from job_tools import register_model, request_in, run_in

from tunery.engines import WorkerSpec
from tunery.service.session import compile_model
from tunery.testing.inline_engine import InlineEngine

pytestmark = pytest.mark.jobs

SEEN: list[tuple[str, Any]] = []
# What a user has asked for, in his words: the model and the store are his own names for them.
WORDS_OF_THE_USER = {("jobs", "request")}


class ListeningEngine(InlineEngine):
    """Keeps what crosses it: settings, arguments and results."""

    def start(self, spec: WorkerSpec) -> str:
        SEEN.append((f"settings of {spec.service}", dict(spec.settings)))
        return super().start(spec)

    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        SEEN.append((f"arguments of {method}", args))
        future = super().call(worker, method, *args, deadline_s=deadline_s)
        future.add_done_callback(lambda done: SEEN.append((f"result of {method}", _result(done))))
        return future


def _result(done: Future[Any]) -> Any:
    return None if done.cancelled() or done.exception() else done.result()


@pytest.fixture
def _listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = tmp_path / "site" / "listening-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: listening\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[tunery.engines]\nlistening = {__name__}:ListeningEngine\n")
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.setenv("TUNERY_ENGINE", "listening")
    SEEN.clear()
    yield
    SEEN.clear()


def paths_in(value: object, here: str) -> Iterator[str]:
    """Yield whatever in a value is a path, or holds one of this test's own directory."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from paths_in(inner, here)
    elif isinstance(value, os.PathLike):
        yield repr(value)
    elif isinstance(value, bytes):
        if here.encode() in _unpacked(value):
            yield repr(value)
    elif isinstance(value, str):
        yield from _paths_in_text(value, here)


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return data


def _paths_in_text(text: str, here: str) -> Iterator[str]:
    if text.startswith("/") or here in text:
        yield text
    elif text[:1] in {"{", "["}:
        try:
            inner = json.loads(text)
        except ValueError:
            return
        yield from paths_in(inner, here)


def test_paths_are_seen() -> None:
    @dataclasses.dataclass
    class Inner:
        text: str

    for value in (Path("a"), "/a", {"k": ["/a"]}, {"/a": 1}, Inner("/a"), (Inner("see /here/x"),), '{"k": "/a"}',
                  b"x/here/y",
                  zlib.compress(b"x/here/y")):  # fmt: skip
        assert list(paths_in(value, "/here")), value
    assert not list(paths_in(["a/b", 1.0, None, "1 / 2", '{"k": "a"}', b"/a"], "/here"))


@pytest.mark.usefixtures("_listening")
def test_no_path_crosses_an_engine_and_none_is_stored(tmp_path: Path) -> None:
    register_model()
    run_in(tmp_path, "fake:told?tasks=2&build_s=0.01", "30trials")
    compile_model(request_in(tmp_path, "fake:told?tasks=2&build_s=0.01"), tmp_path / "out.tunery")
    methods = {what.split()[-1] for what, _ in SEEN if what.startswith("result of")}
    assert {"extract", "propose", "build", "race", "finals", "compile"} <= methods, "else little was seen"
    found = {(what, path) for what, value in SEEN for path in paths_in(value, str(tmp_path))}
    assert found == set()
    assert set(stored_paths(tmp_path / "store.db", str(tmp_path))) == set()


def stored_paths(store: Path, here: str) -> Iterator[tuple[str, str, str]]:
    engine = sa.create_engine(f"sqlite:///{store}")
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            for row in connection.execute(sa.select(table)).mappings():
                for column, value in row.items():
                    if (table.name, column) not in WORDS_OF_THE_USER:
                        yield from ((table.name, str(column), path) for path in paths_in(value, here))
    engine.dispose()
