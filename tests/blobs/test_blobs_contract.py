import os
import time
from pathlib import Path

import pytest

from tunery.blobs import Blobs, DirectoryBlobs, open_blobs
from tunery.testing.blob_contract import BlobsContract
from tunery.testing.fake_blobs import FakeBlobs


class TestDirectoryBlobs(BlobsContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "blobs"

    def make(self, limit_bytes: int) -> Blobs:
        return DirectoryBlobs(self.directory, limit_bytes)

    def age(self, blobs: Blobs, digest: str, hours: float) -> None:
        then = time.time() - hours * 3600
        os.utime(self.directory / "objects" / digest[:2] / digest, (then, then))


class TestJoinedDirectoryBlobs(TestDirectoryBlobs):
    """The view of a second process of one lease keeps the same promises."""

    def make(self, limit_bytes: int) -> Blobs:
        self.owner = DirectoryBlobs(self.directory, limit_bytes)
        return open_blobs(self.owner.place)


class TestDirectoryBlobsWithoutHardLinks(TestDirectoryBlobs):
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)


class TestFakeBlobs(BlobsContract):
    def make(self, limit_bytes: int) -> Blobs:
        return FakeBlobs(limit_bytes)
