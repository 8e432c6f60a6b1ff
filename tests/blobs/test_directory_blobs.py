"""A directory of blobs beside other processes: killed ones, sweeping ones, and a disk that is full."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tunery._errors import BlobError, BlobNotFoundError
from tunery.blobs import DirectoryBlobs, open_blobs

PATIENCE_S = 60.0
LIMIT_BYTES = 10_000


def child(directory: Path, code: str, *args: object, file_bytes: int = 0) -> "subprocess.Popen[str]":
    """Run `code` with `blobs`, a lease of its own on `directory`, in another process."""

    opening = f"""
        import resource, sys, time
        from pathlib import Path
        from tunery.blobs import DirectoryBlobs
        blobs = DirectoryBlobs(Path({str(directory)!r}), 100_000)
        if {file_bytes}:
            resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, resource.RLIM_INFINITY))
    """
    whole = textwrap.dedent(opening) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", whole, *map(str, args)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_no_lock_is_opened_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    places = {name: tmp_path / name for name in ("lock", "lease")}
    for place in places.values():
        (place / "leases" / "1-left").mkdir(parents=True)
    (places["lock"] / "lock").symlink_to(victim)
    with pytest.raises(BlobError, match="TUNERY_CACHE"):
        DirectoryBlobs(places["lock"])
    (places["lease"] / "leases" / "1-left" / "lock").symlink_to(victim)
    (places["lease"] / "leases" / "2-left").symlink_to(tmp_path)
    with DirectoryBlobs(places["lease"]) as blobs:
        assert blobs.get(blobs.put(b"x")).read_bytes() == b"x"
    assert victim.read_text() == "precious"
    assert not (places["lease"] / "leases" / "1-left").exists()


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]


def test_a_blob_of_another_living_process_is_not_swept(tmp_path: Path) -> None:
    with child(tmp_path, "print(blobs.put(bytes(200_000)), flush=True); sys.stdin.readline()") as other:
        assert other.stdout is not None
        digest = other.stdout.readline().strip()
        with DirectoryBlobs(tmp_path, 0) as blobs:
            assert blobs.sweep() == 0
            assert blobs.has(digest)
            other.communicate("\n", timeout=PATIENCE_S)
            assert blobs.sweep() == 200_000
            assert not blobs.has(digest)


def test_a_blob_that_was_got_survives_whoever_removes_it(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as blobs:
        path = blobs.get(blobs.put(b"mine"))
        for kept in (tmp_path / "objects").rglob("*"):
            if kept.is_file():
                kept.unlink()
        assert path.read_bytes() == b"mine"


def test_what_a_killed_process_used_and_had_begun_is_swept(tmp_path: Path) -> None:
    code = """
        kept, temporary = blobs.put(b"kept"), blobs.put(bytes(1000), temporary=True)
        with blobs.scratch() as scratch:
            (scratch / "half").write_bytes(bytes(1000))
            print(kept, temporary, flush=True)
            time.sleep(1000)
    """
    with child(tmp_path, code) as other:
        assert other.stdout is not None
        kept, temporary = other.stdout.readline().split()
        os.kill(other.pid, signal.SIGKILL)
        other.wait(PATIENCE_S)
    with DirectoryBlobs(tmp_path) as blobs:
        assert blobs.get(kept, verify=True).read_bytes() == b"kept"
        assert not blobs.has(temporary)
        assert {path.name for path in files(tmp_path)} == {kept}


@pytest.mark.jobs
def test_processes_killed_at_any_moment_leave_whole_blobs_or_none(tmp_path: Path) -> None:
    code = """
        import random
        rng = random.Random(int(sys.argv[1]))
        print("up", flush=True)
        while True:
            data = bytes([rng.randrange(256)]) * rng.randrange(50_000)
            digest = blobs.put(data, temporary=rng.random() < 0.3, sync=False)
            blobs.remember(str(len(data) % 10), digest)
            assert blobs.get(digest).read_bytes() == data
            blobs.release(digest)
            if rng.random() < 0.2:
                blobs.sweep()
    """
    rng = random.Random(7)
    with DirectoryBlobs(tmp_path, 100_000) as blobs:
        mine = blobs.put(b"in use all the while")
        for turn in range(4):
            others = [child(tmp_path, code, 2 * turn + i) for i in range(2)]
            for other in others:
                assert other.stdout is not None
                assert other.stdout.readline() == "up\n"
            subprocess.run(["sleep", str(0.05 + 0.3 * rng.random())], check=True)
            for other in others:
                assert other.poll() is None, other.communicate()[1]
                other.kill()
                other.communicate(timeout=PATIENCE_S)
        blobs.sweep()
        digests = {path.name for path in (tmp_path / "objects").rglob("*") if path.is_file()}
        assert mine in digests
        for digest in digests:
            blobs.get(digest, verify=True)
            blobs.release(digest)
        assert len(list((tmp_path / "leases").iterdir())) == 1
        blobs.sweep()
        kept = [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in kept) <= 100_000
        for number in range(10):
            found = blobs.find(str(number))
            assert found is None or len(blobs.get(found, verify=True).read_bytes()) % 10 == number


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
        from tunery._errors import BlobError
        source = Path(sys.argv[1])
        for put in (lambda: blobs.put(bytes(5000)), lambda: blobs.put(bytes(5000), temporary=True),
                    lambda: blobs.put(source), lambda: blobs.put(source, temporary=True)):
            try:
                put()
            except BlobError as error:
                print(error)
        sys.stdin.readline()
        assert blobs.get(blobs.put(b"small")).read_bytes() == b"small"
    """
    source = tmp_path / "source"
    source.write_bytes(bytes(6000))
    directory = tmp_path / "blobs"
    with child(directory, code, source, file_bytes=1000) as other:
        assert other.stdout is not None
        lines = [other.stdout.readline() for _ in range(4)]
        assert files(directory) == []
        _, error = other.communicate("\n", timeout=PATIENCE_S)
    assert other.returncode == 0, error
    assert all(f"cannot write {directory}" in line and "TUNERY_CACHE" in line for line in lines), lines


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(BlobError, match="cannot write"):
            DirectoryBlobs(tmp_path / place)


def test_a_temporary_blob_is_seen_by_its_own_lease_alone(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as one, DirectoryBlobs(tmp_path) as other:
        digest = one.put(b"short-lived", temporary=True)
        one.remember("key", digest)
        partner = open_blobs(one.place)
        assert partner.get(digest).read_bytes() == b"short-lived"
        assert partner.find("key") == digest
        assert not other.has(digest)
        assert other.find("key") is None
        with pytest.raises(BlobNotFoundError):
            other.get(digest)
        partner.release(digest)
        assert not one.has(digest)


def test_a_limit_is_kept_without_anybody_asking(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path, LIMIT_BYTES) as blobs:
        for number in range(100):
            blobs.release(blobs.put(number.to_bytes(2) * 500))
        sizes = [path.stat().st_size for path in files(tmp_path / "objects")]
        assert 0 < sum(sizes) <= 1.5 * LIMIT_BYTES


def test_what_is_moved_on_one_file_system_is_not_copied(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as blobs, blobs.scratch() as scratch:
        for temporary in (False, True):
            (scratch / "made").write_bytes(b"made %d" % temporary)
            before = (scratch / "made").stat().st_ino
            digest = blobs.put(scratch / "made", move=True, temporary=temporary)
            assert blobs.get(digest).stat().st_ino == before


def test_a_torn_name_is_no_name(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as blobs:
        digest = blobs.put(b"data")
        blobs.remember("key", digest)
        (name,) = files(tmp_path / "names")
        for text in (b"", digest[:30].encode(), b"\xff" * 64, b"../../../etc/passwd"):
            name.write_bytes(text)
            assert blobs.find("key") is None
        blobs.remember("key", digest)
        assert blobs.find("key") == digest
