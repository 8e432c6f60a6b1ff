"""Compiled files in which any byte, member or field lies: refused in a sentence, or what they were before."""

import random
import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tunery
from tunery._errors import TuneryError
from tunery.delivery.files.signing import create_key, read_key, sign
from tunery.testing.fake_dialect import FakeDialect, fake_network

pytestmark = pytest.mark.hostile
WORDS = [b"", b"\0", b"\xff" * 8, b"[" * 50_000, b'{"a":' * 50_000, b"9" * 6000, b"NaN", b"1e999", b"null", b"PK\5\6",
         b"PK\1\2", b"PK\3\4", b"../../x", b"/etc/passwd", b" " * 200_000, b"\xff\xff\xff\x7f"]  # fmt: skip


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed")
    path, dialect = folder / "net.tunery", FakeDialect()
    dialect.compile(fake_network("fake:net?tasks=1"), dialect.resolve_target("native", 1), {}, path)
    create_key(folder / "team.key")
    sign(path, read_key(folder / "team.key"))
    return path


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """A test that fails does not fill the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def output_of(path: Path, trusted: str | None) -> np.ndarray | None:
    """Return what a file computes, None where it is refused."""
    arrays = [np.ones(spec.shape, spec.dtype) for spec in fake_network("fake:net?tasks=1").inputs]
    try:
        network = tunery.load_compiled(path, trusted=trusted)
        return np.asarray(network(*arrays)[0])
    except TuneryError:
        return None


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data)), rng.choice((0, 1, 1, 4, 100))
    put = rng.choice((rng.randbytes(rng.choice((0, 1, 4))), rng.choice(WORDS)))
    return data[:at] + put + data[at + length :]


def spoil_members(path: Path, to: Path, rng: random.Random) -> None:
    """Write the archive anew: a member changed, doubled, renamed, left out, or all in another order."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = rng.randrange(len(members))
    name, data = members[at]
    way = rng.randrange(5)
    if way == 0:
        members[at] = name, spoil_bytes(data or b"x", rng)
    elif way == 1:
        members.append((rng.choice(("x", "../x", name.upper(), "manifest.json/")), data))
    elif way == 2:
        members[at] = rng.choice(("x", "/x", f"{name}\0")), data
    elif way == 3:
        del members[at]
    rng.shuffle(members)
    with zipfile.ZipFile(
        to, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, data in members:
            archive.writestr(name, data)


@pytest.mark.parametrize("trusting", [False, True])
def test_no_file_that_lies_computes_anything_else(signed: Path, tmp_path: Path, trusting: bool) -> None:
    trusted = str(signed.with_name("team.key.pub")) if trusting else None
    whole, path = output_of(signed, trusted), tmp_path / "net.tunery"
    assert whole is not None

    @settings(max_examples=400, deadline=None, database=None)
    @given(st.integers(0, 2**62))
    def check_one(seed: int) -> None:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            path.write_bytes(spoil_bytes(signed.read_bytes(), rng))
        else:
            spoil_members(signed, path, rng)
        found = output_of(path, trusted)
        assert found is None or np.array_equal(found, whole)

    check_one()
