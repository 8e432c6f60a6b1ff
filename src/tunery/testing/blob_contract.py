"""The checks that every store of blobs must pass; a subclass named Test… that makes one runs them under pytest.

Example:
    class TestMyBlobs(BlobsContract):
        def make(self, limit_bytes):
            return MyBlobs(limit_bytes)
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunery._errors import BlobError, BlobNotFoundError
from tunery.blobs._base import Blobs

LIMIT_BYTES = 1000
ABSENT = hashlib.sha256(b"never stored").hexdigest()


class BlobsContract(ABC):
    """What `Blobs` promises, as tests. `make` returns a new and empty one; the suite closes it."""

    @abstractmethod
    def make(self, limit_bytes: int) -> Blobs:
        """Return new blobs that may keep so many bytes."""

    @pytest.fixture
    def blobs(self) -> Iterator[Blobs]:
        """Give blobs, and close them."""
        with self.make(LIMIT_BYTES) as blobs:
            yield blobs

    @pytest.mark.parametrize("temporary", [False, True])
    @pytest.mark.parametrize("data", [b"", b"text", bytes(range(256)) * 5000])
    def test_what_was_put_is_there_under_its_digest(self, blobs: Blobs, data: bytes, *, temporary: bool) -> None:
        digest = blobs.put(data, temporary=temporary)
        assert digest == hashlib.sha256(data).hexdigest()
        assert blobs.has(digest)
        assert blobs.get(digest).read_bytes() == data
        assert blobs.get(digest, verify=True).read_bytes() == data

    def test_a_file_is_stored_as_bytes_are(self, blobs: Blobs, tmp_path: Path) -> None:
        source = tmp_path / "a file"
        source.write_bytes(b"its bytes")
        digest = blobs.put(source)
        assert digest == blobs.put(b"its bytes")
        source.write_bytes(b"other bytes")
        assert blobs.get(digest).read_bytes() == b"its bytes"
        assert source.read_bytes() == b"other bytes"

    @pytest.mark.parametrize("sync", [False, True])
    @pytest.mark.parametrize("temporary", [False, True])
    def test_a_file_may_be_moved(self, blobs: Blobs, tmp_path: Path, *, temporary: bool, sync: bool) -> None:
        for _ in range(2):
            source = tmp_path / "a file"
            source.write_bytes(b"its bytes")
            digest = blobs.put(source, move=True, temporary=temporary, sync=sync)
            assert not source.exists()
            assert blobs.get(digest, verify=True).read_bytes() == b"its bytes"

    @pytest.mark.parametrize("temporary", [False, True])
    def test_a_digest_that_is_known_is_not_computed(self, blobs: Blobs, tmp_path: Path, *, temporary: bool) -> None:
        source = tmp_path / "a file"
        source.write_bytes(b"other bytes")
        digest = blobs.put(source, move=True, temporary=temporary, known=ABSENT)
        assert digest == ABSENT
        assert blobs.get(digest).read_bytes() == b"other bytes"
        with pytest.raises(BlobNotFoundError, match="damaged"):
            blobs.get(digest, verify=True)

    def test_a_file_that_is_missing_is_no_fault_of_the_blobs(self, blobs: Blobs, tmp_path: Path) -> None:
        for move in (False, True):
            with pytest.raises(FileNotFoundError):
                blobs.put(tmp_path / "nothing", move=move)

    def test_what_is_not_there_is_said(self, blobs: Blobs) -> None:
        assert not blobs.has(ABSENT)
        with pytest.raises(BlobNotFoundError, match=ABSENT) as caught:
            blobs.get(ABSENT)
        assert caught.value.digest == ABSENT
        blobs.release(ABSENT)

    @pytest.mark.parametrize("name", ["", "ab", "../" * 21 + "a", "A" * 64, ABSENT + "0", ABSENT + "\n"])
    def test_what_is_no_digest_names_nothing(self, blobs: Blobs, name: str) -> None:
        for ask in (blobs.get, blobs.has, blobs.release):
            with pytest.raises(BlobError, match="SHA-256"):
                ask(name)

    def test_release_ends_a_temporary_blob_and_keeps_others(self, blobs: Blobs) -> None:
        kept, gone = blobs.put(b"kept"), blobs.put(b"gone", temporary=True)
        for digest in (kept, gone):
            blobs.release(digest)
            blobs.release(digest)
        assert blobs.get(kept).read_bytes() == b"kept"
        assert not blobs.has(gone)
        assert blobs.put(b"gone", temporary=True) == gone
        assert blobs.get(gone).read_bytes() == b"gone"

    def test_a_blob_is_kept_if_it_was_ever_put_to_be_kept(self, blobs: Blobs) -> None:
        for first in (True, False):
            data = f"first {first}".encode()
            digest = blobs.put(data, temporary=first)
            assert blobs.put(data, temporary=not first) == digest
            blobs.release(digest)
            assert blobs.get(digest).read_bytes() == data

    def test_a_damaged_blob_counts_as_missing(self, blobs: Blobs) -> None:
        for temporary in (False, True):
            digest = blobs.put(b"as it was", temporary=temporary)
            path = blobs.get(digest)
            path.chmod(0o600)
            path.write_bytes(b"as it is")
            with pytest.raises(BlobNotFoundError, match="damaged") as caught:
                blobs.get(digest, verify=True)
            assert caught.value.digest == digest
            assert not blobs.has(digest)
            assert blobs.put(b"as it was") == digest
            assert blobs.get(digest, verify=True).read_bytes() == b"as it was"

    def test_what_nobody_uses_is_swept_the_least_recently_used_first(self, blobs: Blobs) -> None:
        old, used, new = (blobs.put(bytes([i]) * 400) for i in range(3))
        for digest in (old, new):
            blobs.release(digest)
        self.age(blobs, old, 3)
        self.age(blobs, new, 1)
        assert blobs.sweep() == 400
        assert [blobs.has(digest) for digest in (old, used, new)] == [False, True, True]
        assert blobs.sweep() == 0

    def test_a_blob_in_use_is_not_swept_whatever_the_limit(self, blobs: Blobs) -> None:
        digests = [blobs.put(bytes([i]) * 400) for i in range(5)]
        assert blobs.sweep() == 0
        assert all(map(blobs.has, digests))
        for digest in digests:
            blobs.release(digest)
        blobs.get(digests[0])
        blobs.sweep()
        assert blobs.has(digests[0])
        assert sum(map(blobs.has, digests)) == 2

    def test_followers_hear_of_each_release(self, blobs: Blobs, tmp_path: Path) -> None:
        heard = list[str]()
        released, taken = blobs.put(b"released"), blobs.put(b"taken")
        blobs.followers = (heard.append,)
        blobs.release(released)
        blobs.take(taken, tmp_path / "taken")
        assert heard == [released, taken]

    def test_a_file_that_is_taken_is_the_takers_own(self, blobs: Blobs, tmp_path: Path) -> None:
        for temporary in (False, True):
            digest, path = blobs.put(b"as it was", temporary=temporary), tmp_path / f"{temporary}"
            blobs.take(digest, path)
            assert path.read_bytes() == b"as it was"
            with path.open("ab") as file:
                file.write(b" and more")
            assert blobs.has(digest)  # it was kept before
            assert blobs.get(digest, verify=True).read_bytes() == b"as it was"
        digest = blobs.put(b"short-lived", temporary=True)
        blobs.take(digest, tmp_path / "mine")
        assert not blobs.has(digest)
        assert (tmp_path / "mine").stat().st_mode == (tmp_path / "True").stat().st_mode
        with pytest.raises(FileExistsError):
            blobs.take(blobs.put(b"more"), tmp_path / "mine")
        with pytest.raises(BlobNotFoundError):
            blobs.take(ABSENT, tmp_path / "absent")
        assert (tmp_path / "mine").read_bytes() == b"short-lived"

    def test_a_key_finds_its_latest_blob_while_that_is_there(self, blobs: Blobs) -> None:
        assert blobs.find("key") is None
        kept, temporary = blobs.put(b"kept"), blobs.put(b"temporary", temporary=True)
        blobs.remember("key", kept)
        assert (blobs.find("key"), blobs.find("another key")) == (kept, None)
        blobs.remember("a/../key", temporary)
        assert blobs.find("a/../key") == temporary
        blobs.release(temporary)
        assert blobs.find("a/../key") is None
        other = blobs.put(b"other")
        blobs.remember("key", other)
        assert blobs.find("key") == other

    def test_what_a_key_finds_is_in_use(self, blobs: Blobs) -> None:
        digest = blobs.put(bytes(2 * LIMIT_BYTES))
        blobs.remember("key", digest)
        blobs.release(digest)
        assert blobs.find("key") == digest
        blobs.sweep()
        assert blobs.has(digest)
        blobs.release(digest)
        blobs.sweep()
        assert blobs.find("key") is None

    def test_a_scratch_directory_is_empty_and_ends_with_its_block(self, blobs: Blobs) -> None:
        with blobs.scratch() as one, blobs.scratch() as other:
            assert one != other
            assert not list(one.iterdir())
            (one / "made").write_bytes(b"a result")
            (one / "left").write_bytes(b"rubbish")
            digest = blobs.put(one / "made", move=True)
        assert not one.exists()
        assert blobs.get(digest).read_bytes() == b"a result"

    def age(self, blobs: Blobs, digest: str, hours: float) -> None:  # noqa: B027 - for those with a clock
        """Make a kept blob one that was last used so many hours ago; the suite ages the oldest first."""
