"""A compiled network's file is bounded before it is read, and read as its manifest says or not at all."""

import hashlib
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tunery._archive import (
    MEMBERS,
    PARTS,
    Archive,
    ArchiveError,
    add_signature,
    extend_manifest,
    new_archive,
    parse,
    vouch,
)


def archive(path: Path, *, body: bytes = b"code") -> Path:
    with new_archive(path) as writer:
        with writer.member("part") as member:
            member.write(body)
        writer.finish({"dialect": "fake"})
    return path


def content(path: Path) -> bytes:
    with Archive(path) as opened:
        return opened.read("part")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "net", body=bytes(range(256)) * 10_000)
    assert content(path) == bytes(range(256)) * 10_000
    with Archive(path) as opened:
        assert opened.manifest["dialect"] == "fake"
        assert opened.signature is None
        opened.extract("part", tmp_path / "copy")
        digest = opened.digest
    assert (tmp_path / "copy").read_bytes() == content(path)
    add_signature(path, b"signed")
    with Archive(path) as opened:
        assert opened.digest == digest
        assert opened.signature == b"signed"


def test_many_members_are_read_where_they_lie(tmp_path: Path) -> None:
    """More than a file for the most shapes and targets has."""
    with new_archive(tmp_path / "net") as writer:
        for number in range(300):
            with writer.member(f"{number}/network.so") as member:
                member.write(bytes([number % 256]) * 37 * number)
        writer.finish({"dialect": "fake"})
    with Archive(tmp_path / "net") as opened:
        for number in (0, 1, 299):
            assert bytes(opened.map(f"{number}/network.so")) == bytes([number % 256]) * 37 * number


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    assert archive(tmp_path / "one").read_bytes() == archive(tmp_path / "two").read_bytes()


@pytest.mark.parametrize("size", [0, 5, 1 << 20])
def test_the_digest_of_a_file_is_known_once_it_is_written(size: int, tmp_path: Path) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    with new_archive(tmp_path / "net") as writer:
        with writer.member("part") as member:
            for part in (body[:size], memoryview(body)[:size], b"the end"):
                member.write(part)
        writer.finish({"dialect": "fake"})
    assert writer.digest == hashlib.sha256((tmp_path / "net").read_bytes()).hexdigest()
    assert content(tmp_path / "net") == 2 * body[:size] + b"the end"
    with Archive(tmp_path / "net") as opened:
        assert bytes(opened.map("part")) == 2 * body[:size] + b"the end"
        assert not opened.damaged()


def test_nothing_is_left_of_an_archive_that_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_archive(tmp_path / "net"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def rewritten(path: Path, change: Callable[[dict[str, bytes]], object], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in members.items():
            new.writestr(name, data)
    return path


def told(members: dict[str, bytes], **changes: object) -> None:
    manifest = json.loads(members["manifest.json"])
    manifest[MEMBERS]["part"] |= changes
    members["manifest.json"] = json.dumps(manifest).encode()


def parts(members: dict[str, bytes], value: object) -> None:
    members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), PARTS: value}).encode()


CHANGES: dict[str, Callable[[dict[str, bytes]], object]] = {
    "another part": lambda members: members.update(part=b"evil"),
    "a longer part": lambda members: members.update(part=b"code and more"),
    "no part": lambda members: members.pop("part"),
    "another digest": lambda members: told(members, sha256="0" * 64),
    "a digest of another kind": lambda members: told(members, sha256=[]),
    "another size": lambda members: told(members, bytes=3),
    "members that are no object": lambda members: members.update({"manifest.json": b'{"members": 1}'}),
    "no parts": lambda members: parts(members, []),
    "parts that are no list": lambda members: parts(members, {}),
    "parts that are no objects": lambda members: parts(members, [1]),
    "many parts": lambda members: parts(members, [{}] * 200),
    "no manifest": lambda members: members.pop("manifest.json"),
    "a manifest of brackets": lambda members: members.update({"manifest.json": b"[" * 100_000}),
    "a manifest of objects": lambda members: members.update({"manifest.json": b'{"a":' * 100_000}),
    "a manifest of blanks": lambda members: members.update({"manifest.json": b" " * (17 << 20)}),
    "a number of 5,000 digits": lambda members: members.update({"manifest.json": b'{"a":' + b"9" * 5000 + b"}"}),
    "NaN": lambda members: members.update({"manifest.json": b'{"a": NaN}'}),
    "a manifest that is a list": lambda members: members.update({"manifest.json": b"[]"}),
    "a manifest that is no text": lambda members: members.update({"manifest.json": b"\xff\xfe"}),
    "a huge signature": lambda members: members.update({"signature.json": bytes(5000)}),
    "many members": lambda members: members.update({str(n): b"" for n in range(80)}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_content_than_the_manifests_is_refused(
    change: Callable[[dict[str, bytes]], object], tmp_path: Path
) -> None:
    path = rewritten(archive(tmp_path / "net"), change)
    with pytest.raises(ArchiveError):
        content(path)


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = rewritten(archive(tmp_path / "net"), lambda members: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(ArchiveError):
        content(path)


@pytest.mark.parametrize("make", [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"PK\5\6" + bytes(18)),
    lambda path: path.write_bytes(b"PK\5\6" + bytes(8) + b"\xff\xff\xff\x7f" + bytes(6)),
    lambda path: path.write_bytes(archive(path.with_name("whole")).read_bytes()[:-30]),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: __import__("os").mkfifo(path),
], ids=["empty", "no directory", "a huge directory", "cut short", "a device", "a pipe"])  # fmt: skip
def test_what_is_no_archive_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "net")
    with pytest.raises((ArchiveError, OSError)):
        content(tmp_path / "net")


def test_a_manifest_of_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    """The file is sparse, and the reader may take 400 MB in all."""
    path = tmp_path / "net"
    with zipfile.ZipFile(path, "w") as new, new.open("manifest.json", "w", force_zip64=True):
        pass
    directory = path.read_bytes()
    head, size = directory.index(b"PK\1\2"), 3 << 30
    with path.open("r+b") as file:
        file.truncate(head + size)
        file.seek(head + size)
        entry = bytearray(directory[head:])
        entry[20:28] = size.to_bytes(4, "little") * 2
        end = entry.index(b"PK\5\6")
        entry[end + 16 : end + 20] = (head + size).to_bytes(4, "little")
        file.write(entry)
    code = "import sys, pathlib\nfrom tunery._archive import Archive\nwith Archive(pathlib.Path(sys.argv[1])): 0"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)),
    )  # fmt: skip
    assert "ArchiveError: its manifest.json is larger" in done.stderr


def test_a_manifest_is_an_object() -> None:
    assert parse(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_a_member_is_mapped_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    body = bytes(range(256)) * 100
    path = archive(tmp_path / "net", body=body)
    with Archive(path) as opened:
        mapped = opened.map("part")
    assert bytes(mapped) == body
    assert path.read_bytes().index(body) % 4096 == 0, "processes share whole pages of it"
    whole = path.read_bytes()
    for at in (whole.index(body), whole.index(body) + len(body) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (tmp_path / "damaged").write_bytes(damaged)
        with Archive(tmp_path / "damaged") as opened, pytest.raises(ArchiveError):
            opened.map("part")
    with Archive(path) as opened, pytest.raises(ArchiveError):
        opened.map("other")


def test_a_file_that_is_vouched_for_is_not_hashed_until_it_is_written_to(tmp_path: Path) -> None:
    path = archive(tmp_path / "net")
    damaged = path.read_bytes().replace(b"code", b"edoc")
    path.write_bytes(damaged)
    vouch(path)
    with Archive(path) as opened:
        assert bytes(opened.map("part")) == b"edoc"
    os.utime(path, ns=(0, 0))
    with Archive(path) as opened, pytest.raises(ArchiveError):
        opened.map("part")


@pytest.mark.parametrize("facts", [{"more": 1}, {"more": "x" * 5000}, {"begin": ""}])
def test_a_manifest_gets_more_facts_where_it_is(facts: dict[str, object], tmp_path: Path) -> None:
    path, body = tmp_path / "network", bytes(range(256)) * 64
    with new_archive(path) as archive:
        with archive.member("part") as member:
            member.write(body)
        archive.finish({"dialect": "fake", "begin": "y" * 100})
    before = path.read_bytes()
    extend_manifest(path, facts)
    with Archive(path) as opened:
        assert bytes(opened.map("part")) == body
        assert opened.manifest == {"dialect": "fake", "begin": "y" * 100, **facts}
    end = before.index(body) + len(body)
    assert path.read_bytes()[:end] == before[:end]
    add_signature(path, b"signature")
    with pytest.raises(ArchiveError):
        extend_manifest(path, facts)
