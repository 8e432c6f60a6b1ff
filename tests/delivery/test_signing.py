"""A signed network is loaded by whoever trusts its key, and by nobody else once anything in it has changed."""

import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tunery
from tunery._archive import Archive
from tunery._errors import UsageError
from tunery.delivery.files.signing import create_key, read_key, sign
from tunery.domain.request import CompileOptions, Request
from tunery.service.session import compile_model
from tunery.testing.fake_dialect import FakeDialect, fake_network


def compiled(path: Path, tasks: int = 1) -> Path:
    dialect = FakeDialect()
    dialect.compile(fake_network(f"fake:net?tasks={tasks}"), dialect.resolve_target("native", 1), {}, path)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    create_key(tmp_path / "team.key")
    return tmp_path / "team.key"


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Path:
    path = compiled(tmp_path / "net.tunery")
    sign(path, read_key(key))
    return path


def test_whoever_trusts_the_key_may_load(signed: Path, key: Path, tmp_path: Path) -> None:
    public = f"{key}.pub"
    other = create_key(tmp_path / "other.key")
    for trusted in (public, Path(public), [other, public], None):
        assert tunery.load_compiled(signed, trusted=trusted).threads == 1
    for stranger in (other, [other], []):
        with pytest.raises(UsageError, match="not signed by any"):
            tunery.load_compiled(signed, trusted=stranger)


@pytest.mark.parametrize("trusted", [7, b"team.pub", [7], {"a": 1}])
def test_what_names_no_key_is_refused(signed: Path, trusted: object) -> None:
    with pytest.raises(UsageError):
        tunery.load_compiled(signed, trusted=trusted)  # type: ignore[arg-type]


def test_what_is_not_signed_is_not_trusted(key: Path, tmp_path: Path) -> None:
    path = compiled(tmp_path / "plain.tunery")
    with pytest.raises(UsageError, match="is not signed"):
        tunery.load_compiled(path, trusted=f"{key}.pub")


def changed_manifest(members: dict[str, bytes]) -> None:
    manifest = json.loads(members["manifest.json"])
    manifest["parts"][0]["target"]["threads"] = 2
    members["manifest.json"] = json.dumps(manifest).encode()


CHANGES: dict[str, Callable[[dict[str, bytes]], object]] = {
    "manifest": changed_manifest,
    "a blank": lambda members: members.update({"manifest.json": members["manifest.json"] + b" "}),
    "no signature": lambda members: members.pop("signature.json"),
    "garbage": lambda members: members.update({"signature.json": b"[" * 4000}),
    "no base64": lambda members: members.update({"signature.json": b'{"algorithm": "ed25519", "signature": "?"}'}),
    "another algorithm": lambda members: members.update(
        {"signature.json": members["signature.json"].replace(b"ed25519", b"none")}
    ),
    "empty": lambda members: members.update({"signature.json": b'{"algorithm": "ed25519", "signature": ""}'}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_anything_ends_the_trust(
    change: Callable[[dict[str, bytes]], object], signed: Path, key: Path
) -> None:
    with zipfile.ZipFile(signed) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(signed, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    with pytest.raises(UsageError, match="not signed"):
        tunery.load_compiled(signed, trusted=f"{key}.pub")


@pytest.mark.parametrize("name", ["more", "0/network.so", "manifest.json.old"])
def test_a_member_that_no_signature_covers_is_refused(name: str, signed: Path, key: Path) -> None:
    with zipfile.ZipFile(signed, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, b"\0" * 8)
    for trusted in (f"{key}.pub", None):
        with pytest.raises(UsageError):
            tunery.load_compiled(signed, trusted=trusted)


def test_a_file_that_is_replaced_once_its_signature_was_checked_is_not_loaded(
    signed: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil, load = compiled(tmp_path / "evil.tunery", tasks=2), FakeDialect.load_network
    inputs = len(tunery.load_compiled(signed).inputs)

    def replaced(self: FakeDialect, archive: Archive, *options: object) -> object:
        shutil.copyfile(evil, tmp_path / "other")
        (tmp_path / "other").replace(archive.path)
        return load(self, archive, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeDialect, "load_network", replaced)
    assert len(tunery.load_compiled(signed, trusted=f"{key}.pub").inputs) == inputs
    with pytest.raises(tunery.TuneryError, match="not signed"):
        tunery.load_compiled(signed, trusted=f"{key}.pub")


def test_keys_are_private_and_never_replaced(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = create_key(tmp_path / "a.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
    kept = public.read_bytes()
    with pytest.raises(UsageError, match="never replaced"):
        create_key(tmp_path / "a.key")
    assert public.read_bytes() == kept
    (tmp_path / "b.key.pub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="never replaced"):
        create_key(tmp_path / "b.key")
    assert not (tmp_path / "b.key").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_that_others_may_read_signs_nothing(key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_key(key)


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_said(content: bytes, signed: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="no private ed25519 key"):
        read_key(path)
    with pytest.raises(UsageError, match="no public ed25519 key"):
        tunery.load_compiled(signed, trusted=path)
    with pytest.raises(UsageError, match="cannot read the key"):
        tunery.load_compiled(signed, trusted=tmp_path / "missing")
    with pytest.raises(UsageError, match="no public ed25519 key"):
        tunery.load_compiled(signed, trusted="/dev/zero")


@pytest.mark.tvm
def test_a_network_of_the_compiler_is_signed_with_its_library_and_its_weights(
    tmp_path: Path, key: Path, let_win: Callable[[str], None]
) -> None:
    whole = tmp_path / "net.tunery"
    let_win("tunery")
    request = Request("zoo:mlp-mnist", threads=1, store=str(tmp_path / "s.db"))
    report, _ = compile_model(request, whole, CompileOptions(predict=True, sign=str(key)))
    assert report.size_bytes == whole.stat().st_size
    network = tunery.load_compiled(whole, trusted=f"{key}.pub")
    assert network(*[np.zeros(spec.shape, spec.dtype) for spec in network.inputs])
    with zipfile.ZipFile(whole) as archive:
        offsets = {info.filename: (info.header_offset, info.file_size) for info in archive.infolist()}
    assert {"network.so", "weights.bin", "manifest.json", "signature.json"} == offsets.keys()
    data = whole.read_bytes()
    for name, (offset, size) in offsets.items():
        altered = bytearray(data)
        altered[offset + 100 + size // 2] ^= 1
        whole.write_bytes(altered)
        with pytest.raises(UsageError):
            tunery.load_compiled(whole, trusted=f"{key}.pub")
        assert name in offsets


def test_a_key_is_never_replaced_by_what_it_signs(key: Path, tmp_path: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(UsageError, match="works on"):
        compile_model(
            Request("fake:demo", dialect="fake", store=str(tmp_path / "s.db")),
            key,
            CompileOptions(force=True, sign=str(key)),
        )
    assert key.read_bytes() == before
