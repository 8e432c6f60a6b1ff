import json
import platform
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tunery
from tunery._errors import TuneryError, UsageError
from tunery.domain.request import Request
from tunery.service.session import compile_model
from tunery.testing.fake_dialect import FakeDialect, fake_network


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


def test_a_compiled_network_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    network = tunery.load_compiled(compiled(tmp_path), threads=2)
    [first, _], [result] = network.inputs, network.outputs
    shown = repr(network)
    assert f"{first.name}: {first.dtype}{list(first.shape)}" in shown
    assert f"-> {result.name}: {result.dtype}{list(result.shape)}; threads=2" in shown


@pytest.mark.parametrize("wrong", [[[1.0]], 1, "text", None])
def test_what_is_no_array_is_refused(tmp_path: Path, wrong: object) -> None:
    network = tunery.load_compiled(compiled(tmp_path))
    with pytest.raises(UsageError, match="must be an array"):
        network(*[wrong] * len(network.inputs))  # type: ignore[list-item]


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5])
def test_a_wrong_number_of_threads_is_refused(tmp_path: Path, threads: int) -> None:
    with pytest.raises(UsageError, match="number of threads"):
        tunery.load_compiled(compiled(tmp_path), threads)


def altered(source: Path, path: Path, *, binary: bytes | None = b"as it was", **changes: object) -> Path:
    """Copy a compiled network with another manifest (without what is None), or another library, None for none."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        manifest = json.loads(old.read("manifest.json"))
        manifest["members"] = changes.pop("members", manifest["members"])
        facts = {**manifest["parts"][0], **changes}
        manifest["parts"] = [{k: v for k, v in facts.items() if v is not None}]
        new.writestr("manifest.json", json.dumps(manifest))
        for name in set(old.namelist()) - {"manifest.json"}:
            if name != "network.so" or binary == b"as it was":
                new.writestr(name, old.read(name))
            elif binary is not None:
                new.writestr(name, binary)
    return path


@pytest.mark.tvm
def test_a_damaged_network_of_the_compiler_is_refused_and_a_sound_one_serves_threads(
    tmp_path: Path, let_win: Callable[[str], None]
) -> None:
    whole = tmp_path / "whole"
    let_win("tunery")
    compile_model(Request("zoo:mlp-mnist", threads=1, store=str(tmp_path / "s.db")), whole)
    with zipfile.ZipFile(whole) as archive:
        library = archive.read("network.so")
    changes: list[dict[str, object]] = [
        {"binary": None}, {"binary": b""}, {"binary": b"no library"}, {"inputs": None}, {"threads": "x"},
        {"threads": 0}, {"format": 99}, {"format": 0}, {"inputs": [["x"]]}, {"versions": None}, {"members": None},
        {"weights": {"arrays": []}}, {"format": 3},
        {"binary": library[: len(library) // 2]},  # its end would be missed only when it runs
        {"binary": library[:-1] + b"?"},
    ]  # fmt: skip
    damaged = [altered(whole, tmp_path / f"damaged{i}", **change) for i, change in enumerate(changes)]  # type: ignore[arg-type]
    bits = bytearray(whole.read_bytes())
    bits[len(bits) // 2] ^= 1
    damaged.append(tmp_path / "bits")
    damaged[-1].write_bytes(bits)
    for path in damaged:
        with pytest.raises(UsageError, match="compile") as caught:
            tunery.load_compiled(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    other = altered(whole, tmp_path / "other", versions={"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.15"})
    with pytest.raises(UsageError, match=r"compiled with apache-tvm 0\.27\.0 and apache-tvm-ffi 0\.1\.15, .*installed"):
        tunery.load_compiled(other)
    foreign = "neon" if platform.machine() == "x86_64" else "avx2"
    alien = altered(whole, tmp_path / "alien", instructions=[foreign])
    with pytest.raises(UsageError, match=foreign) as caught:
        tunery.load_compiled(alien)
    assert "\n" not in str(caught.value)
    altered(whole, tmp_path / "same")
    tunery.load_compiled(tmp_path / "same")

    network = tunery.load_compiled(whole)
    images = [np.full(network.inputs[0].shape, value, np.float32) for value in np.linspace(-1, 1, 8)]
    alone = [network(image)[0] for image in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            together = pool.map(lambda image: network(image)[0], images)
            assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


MANIFESTS = {
    "manifest of another kind": "[1, 2]",
    "manifest is no JSON": "{",
    "manifest of nothing": "{}",
    "manifest without a dialect": json.dumps({"parts": [{}], "members": {}}),
    "unknown dialect": json.dumps({"parts": [{"dialect": "oracle"}], "members": {}}),
    "manifest and nothing else": json.dumps({"parts": [{"dialect": "fake"}], "members": {}}),
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
