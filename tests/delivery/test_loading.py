import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tunery
from tunery._errors import TuneryError, UsageError
from tunery.dialects.fake import FakeDialect, fake_network


def compiled(directory: Path) -> Path:
    dialect, path = FakeDialect(), directory / "net.tunery"
    dialect.compile(fake_network("fake:net?tasks=1"), dialect.resolve_target("native", 1), {}, path)
    return path


def zipped(directory: Path, **members: str) -> Path:
    path = directory / "net.tunery"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "."), text)
    return path


def test_a_compiled_network_runs_in_three_lines(tmp_path: Path) -> None:
    network = tunery.load_compiled(compiled(tmp_path))
    arrays = [np.ones(spec.shape, spec.dtype) for spec in fake_network("fake:net?tasks=1").inputs]
    outputs = network(*arrays)
    assert [output.shape for output in outputs] == [spec.shape for spec in fake_network("fake:net?tasks=1").outputs]
    assert np.allclose(outputs[0], arrays[0] @ arrays[1])


MANIFESTS = {
    "manifest of another kind": "[1, 2]",
    "manifest is no JSON": "{",
    "manifest without a dialect": "{}",
    "unknown dialect": json.dumps({"dialect": "oracle"}),
    "manifest and nothing else": json.dumps({"dialect": "fake"}),
}
CONTENTS = {"garbage": b"\x7fELF not ours", "empty": b""}


def make(directory: Path, kind: str) -> Path:
    path = directory / "net.tunery"
    if kind == "directory":
        path.mkdir()
    elif kind == "cut short":
        whole = compiled(directory).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "no manifest":
        zipped(directory, other__json="{}")
    elif kind in CONTENTS:
        path.write_bytes(CONTENTS[kind])
    elif kind in MANIFESTS:
        zipped(directory, manifest__json=MANIFESTS[kind])
    return path


@pytest.mark.parametrize(
    "kind",
    ["missing", "directory", "cut short", "no manifest", *CONTENTS, *MANIFESTS],
)
def test_what_is_no_compiled_network_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path, kind)
    with pytest.raises(TuneryError) as caught:
        tunery.load_compiled(path)
    assert "\n" not in str(caught.value)
    if kind not in ("unknown dialect", "manifest and nothing else"):
        assert isinstance(caught.value, UsageError)
        assert str(path) in str(caught.value)
        assert "tunery compile" in str(caught.value)
