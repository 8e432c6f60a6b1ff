"""A compiled network's file: a zip archive with a manifest that names every other member, its size and its digest.

Nothing is read before its size is known to be bounded, and what is read is compared with the manifest before it is
used. So whoever vouches for the manifest, by its digest or its signature, vouches for all that is loaded.

A file may hold a network for several targets. Then the manifest has a list of them (`targets`), each with what is said
of it alone, and the names of its own members (`files`). What such a file is opened as is the best that runs here.
One for several shapes has a list of those (`shapes`) in the same way, and is opened as one of them: that of a number,
else the first.
"""

import hashlib
import io
import json
import mmap
import os
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from typing_extensions import override

MANIFEST, SIGNATURE, MEMBERS = "manifest.json", "signature.json", "members"
TARGETS, SHAPES, FILES, INSTRUCTIONS = "targets", "shapes", "files", "instructions"
ACCEPTS, ANY = "accepts", "any_shape"
"""What the manifest of a model with free dimensions says beside the rest: which shapes it is run for as a matter of
course, and whether it is run for all others."""
_MOST_MANIFEST_BYTES = 1 << 24
_MOST_SIGNATURE_BYTES = 1 << 12
_MOST_DIRECTORY_BYTES = 1 << 17  # of the zip archive; more than the 64 kB comment that is looked for at its end
_MOST_MEMBERS, MOST_TARGETS, MOST_SHAPES = 512, 8, 17  # with what runs any shape
_CHUNK = 1 << 20
_BESIDE = 1 << 16  # bytes from which hashing them beside their writing is worth a hand-over to a thread
_PAGE = 4096
_HEADER_BYTES, _ZIP64_BYTES, _PADDING_FIELD = 30, 20, 0xD935  # the field that Android's zipalign pads with


class ArchiveError(Exception):
    """The file is damaged, or no compiled network; the message is part of a sentence about it."""


_vouched = set[tuple[int, ...]]()


def vouch(path: Path) -> None:
    """Let this process map the members of a file without hashing them, until somebody writes to it: that was done."""
    _vouched.add(_stamp_of(path.stat()))


def _stamp_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _Bounded(io.FileIO):
    """A regular file of which nothing large is read before its directory is known to be small."""

    def __init__(self, path: Path) -> None:
        # A pipe without a writer would hold up the opening itself.
        super().__init__(path, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        found = os.fstat(self.fileno())
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise ArchiveError("it is no regular file")
        self.size = found.st_size
        self.most_bytes = _MOST_DIRECTORY_BYTES

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = self.size - self.tell()
        if size > self.most_bytes:
            raise ArchiveError("its directory is too large")
        return super().read(size) or b""  # None only where it would block


class Archive:
    """An open compiled network: its manifest, and its members, each read as the manifest says or not at all.

    Of a file for several targets, `targets` are the manifests of all, the best first, and `manifest` is that of the
    best that this processor can run; of the least demanding where it can run none. Else both are the file's own.
    `shapes` are the manifests of a file for several shapes, of which number `shape` is opened; empty of any other. Each
    may have targets of its own. With a number of a `target`, `manifest` is that one's, whatever this processor can run.
    """

    def __init__(self, archive: zipfile.ZipFile, file: IO[bytes], shape: int = 0, target: int | None = None) -> None:
        self._zip, self._file = archive, file
        infos = archive.infolist()
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) != len(infos) or len(infos) > _MOST_MEMBERS:
            raise ArchiveError("it has members twice, or too many")
        self.signature = self._small(SIGNATURE, _MOST_SIGNATURE_BYTES) if SIGNATURE in self._infos else None
        self.manifest_bytes = self._small(MANIFEST, _MOST_MANIFEST_BYTES)
        self.digest = hashlib.sha256(self.manifest_bytes).hexdigest()
        whole = parse(self.manifest_bytes)
        self._told_of = whole.get(MEMBERS)
        self.shapes = _parts_in(whole, SHAPES, MOST_SHAPES) if SHAPES in whole else []
        if self.shapes:
            if shape >= len(self.shapes):
                raise ArchiveError("it has not so many shapes")
            whole = self.shapes[shape]
        self.targets = _targets_in(whole) if TARGETS in whole else [whole]
        if target is not None and target >= len(self.targets):
            raise ArchiveError("it has not so many targets")
        best = next((one for one in self.targets if not lacking_in(one)), self.targets[-1])
        self.manifest = best if target is None else self.targets[target]
        if isinstance(self._told_of, dict) and not self.sizes.keys() <= self._told_of.keys():
            raise ArchiveError("it has members that its manifest does not name")

    @property
    def sizes(self) -> dict[str, int]:
        """The members beside manifest and signature, in their order, with their bytes."""
        return {name: info.file_size for name, info in self._infos.items() if name not in {MANIFEST, SIGNATURE}}

    def damaged(self) -> list[str]:
        """Return the members, of all targets and shapes, that are not what the manifest says; it reads the whole file.

        Of those that an earlier version wrote without digests the checksums are compared.
        """
        told_of = self._told_of if isinstance(self._told_of, dict) else {}
        return [name for name in self.sizes if not self._is_whole(self._infos[name], told_of.get(name))]

    def _is_whole(self, info: zipfile.ZipInfo, told: object) -> bool:
        digests = told if isinstance(told, dict) and "sha256" in told else {"sha256": None, "bytes": info.file_size}
        if info.compress_type != zipfile.ZIP_STORED or not _fits(info, digests):
            return False
        try:
            with self._zip.open(info) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # reads as a file does
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
            return False
        return digests["sha256"] in {None, found}

    def extract(self, name: str, path: Path, told: Mapping[str, Any] | None = None) -> None:
        """Write a member to a new file; `told` as for `open`."""
        with self.open(name, told) as source, path.open("xb") as file:
            while chunk := source.read(_CHUNK):
                file.write(chunk)

    def read(self, name: str) -> bytes:
        """Return a member's bytes."""
        with self.open(name) as source:
            return b"".join(iter(lambda: source.read(_CHUNK), b""))

    @contextmanager
    def open(self, name: str, told: Mapping[str, Any] | None = None) -> Iterator[IO[bytes]]:
        """Yield a member's bytes to be read to their end, at which they are compared with the manifest.

        `told` is what the manifest says of it, where that is elsewhere: its `sha256`, or only its `crc`.
        """
        info, told = self._info(name), self.told(name) if told is None else told
        if info is None or info.compress_type != zipfile.ZIP_STORED or not _fits(info, told):
            raise ArchiveError(f"its {name} is not what was written")
        with self._zip.open(info) as file:
            hashed = _Hashed(file)
            yield hashed  # type: ignore[misc]  # reads as a file does
            if hashed.sha256.hexdigest() != told.get("sha256", hashed.sha256.hexdigest()) or file.read(1):
                raise ArchiveError(f"its {name} is not what was written")

    def map(self, name: str) -> memoryview:
        """Return a member's bytes where the file lies in memory, whose pages processes share that only read them.

        They are compared with the manifest first, and are right while nobody writes to the file: `publish` replaces it.
        """
        info, told = self._info(name), self.told(name)
        if info is None or info.compress_type != zipfile.ZIP_STORED or "sha256" not in told or not _fits(info, told):
            raise ArchiveError(f"its {name} is not what was written")
        descriptor = self._file.fileno()
        header = os.pread(descriptor, _HEADER_BYTES, info.header_offset)
        if len(header) < _HEADER_BYTES or not header.startswith(b"PK\3\4"):
            raise ArchiveError(f"its {name} is not where it says")
        start = info.header_offset + _HEADER_BYTES + sum(struct.unpack_from("<HH", header, _HEADER_BYTES - 4))
        if not info.file_size:
            return memoryview(b"")
        before = start % mmap.ALLOCATIONGRANULARITY
        try:
            whole = mmap.mmap(descriptor, before + info.file_size, access=mmap.ACCESS_COPY, offset=start - before)
        except ValueError:  # it would end behind the file's end
            raise ArchiveError(f"its {name} is cut short") from None
        found = memoryview(whole)[before:]
        if _stamp_of(os.fstat(descriptor)) not in _vouched and hashlib.sha256(found).hexdigest() != told["sha256"]:
            raise ArchiveError(f"its {name} is not what was written")
        return found

    def _name(self, name: str) -> str:
        names = self.manifest.get(FILES)
        found = names.get(name, name) if isinstance(names, dict) else name
        return found if isinstance(found, str) else name

    def _info(self, name: str) -> zipfile.ZipInfo | None:
        return self._infos.get(self._name(name))

    def told(self, name: str) -> Mapping[str, Any]:
        """Return what the manifest says of a member: its `bytes` and `sha256`; nothing where that is not said."""
        told = self._told_of.get(self._name(name)) if isinstance(self._told_of, dict) else None
        return told if isinstance(told, dict) and "sha256" in told else {}

    def _small(self, name: str, most_bytes: int) -> bytes:
        info = self._infos.get(name)
        if info is None:
            raise ArchiveError(f"it has no {name}")
        if max(info.file_size, info.compress_size) > most_bytes or info.compress_type != zipfile.ZIP_STORED:
            raise ArchiveError(f"its {name} is larger than {most_bytes} bytes, or compressed")
        return self._zip.read(info)


def _targets_in(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests of a file's targets, those that need the most instructions first."""
    return sorted(_parts_in(whole, TARGETS, MOST_TARGETS), key=lambda one: -len(_needed(one)))


def _parts_in(whole: Mapping[str, Any], kind: str, most: int) -> list[dict[str, Any]]:
    """Return the manifests in a list of a file's, with what is said of all of them."""
    told = whole[kind]
    if not isinstance(told, list) or not 0 < len(told) <= most or not all(isinstance(one, dict) for one in told):
        raise ArchiveError(f"its {kind} are none, or too many")
    shared = {name: value for name, value in whole.items() if name != kind}
    return [{**shared, **one} for one in told]


def _needed(manifest: Mapping[str, Any]) -> Sequence[object]:
    found = manifest.get(INSTRUCTIONS)
    return found if isinstance(found, list) else ()


def lacking_in(manifest: Mapping[str, Any]) -> list[str]:
    """Return which of the instructions that a target's code needs this processor lacks."""
    if not _needed(manifest):
        return []
    from tunery._processor import lacking

    return lacking(_needed(manifest))


def _fits(info: zipfile.ZipInfo, told: Mapping[str, Any]) -> bool:
    """Whether a member may be what the manifest says; one without a digest is compared with its checksum by zipfile."""
    return told["bytes"] == info.file_size if "sha256" in told and "bytes" in told else told.get("crc") == info.CRC


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def open_archive(path: Path, digest: str = "") -> Iterator[Archive]:
    """Open a compiled network; with a `digest`, only if it is its manifest's.

    Behind the digest may be which of a file's shapes and targets is opened (`part_of`).
    """
    digest, shape, target = (*digest.split(":"), "", "")[:3]
    with _Bounded(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                file.most_bytes = file.size  # members are bounded by the directory, the manifest before it is read
                found = Archive(archive, file, int(shape or 0), int(target) if target else None)
                if digest and found.digest != digest:
                    raise ArchiveError("it was replaced while it was being read")
                yield found
        except (zipfile.BadZipFile, EOFError) as error:
            raise ArchiveError("it is cut short or damaged, or never was one") from error
        except (NotImplementedError, UnicodeError, RuntimeError) as error:
            raise ArchiveError(str(error) or "it is damaged") from error


def part_of(digest: str, shape: int, target: int | None = None) -> str:
    return f"{digest}:{shape}" if target is None else f"{digest}:{shape}:{target}"


def parse(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`, which is bounded."""
    try:
        found = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"its {MANIFEST} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ArchiveError(f"its {MANIFEST} is no object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class ArchiveWriter:
    """Writes a compiled network: members first, then `finish` with what the manifest says of them."""

    def __init__(self, archive: zipfile.ZipFile, file: "_HashedBeside") -> None:
        self._zip, self._file = archive, file
        self._members: dict[str, dict[str, Any]] = {}

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole file, once that is written: behind the block of `new_archive`."""
        return self._file.sha256.hexdigest()

    def add(self, name: str, source: Path) -> None:
        with source.open("rb") as file, self.member(name) as writer:
            while chunk := file.read(_CHUNK):
                writer.write(chunk)

    def copy(self, archive: Archive, name: str, as_name: str = "") -> str:
        """Copy a member of another archive; return its name here.

        With `as_name` it gets that name, unless a member here has the same bytes, whose name is returned.
        """
        with archive.open(name) as file:
            told = archive.told(name)
            if as_name and (known := next((known for known, one in self._members.items() if one == told), "")):
                while file.read(_CHUNK):
                    pass
                return known
            with self.member(as_name or name) as member:
                while chunk := file.read(_CHUNK):
                    member.write(chunk)
        return as_name or name

    @contextmanager
    def member(self, name: str) -> Iterator["MemberWriter"]:
        """Yield what the bytes of a new member are written to, which begin at a page's begin: they can be mapped."""
        info = _info(name)
        info.extra = _padding(self._zip.start_dir + _HEADER_BYTES + len(name.encode()) + _ZIP64_BYTES)
        with self._zip.open(info, "w", force_zip64=True) as file:
            writer = MemberWriter(file, self._file.pool)
            yield writer
        info.extra = b""  # the directory, which is bounded, goes without the padding
        self._members[name] = {"bytes": writer.size, "sha256": writer.sha256.hexdigest()}

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with the members' sizes and digests."""
        self._zip.writestr(_info(MANIFEST), _manifest_bytes({**manifest, MEMBERS: self._members}))


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    data = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > _MOST_MANIFEST_BYTES:
        raise ArchiveError(f"its {MANIFEST} would be larger than {_MOST_MANIFEST_BYTES} bytes")
    return data


def _padding(end: int) -> bytes:
    size = -(end + 4) % _PAGE
    return struct.pack("<HH", _PADDING_FIELD, size) + bytes(size)


class _HashedBeside:
    """Hashes what is written to a file, on a thread beside the writing; it cannot be sought in."""

    def __init__(self, file: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self._file, self.pool = file, pool
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        if len(data) < _BESIDE:
            self.sha256.update(data)
            return self._file.write(data)
        hashing = self.pool.submit(self.sha256.update, data)
        written = self._file.write(data)
        hashing.result()
        return written

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()


class MemberWriter(_HashedBeside):
    """Counts and hashes what is written to a member."""

    def __init__(self, file: IO[bytes], pool: ThreadPoolExecutor) -> None:
        super().__init__(file, pool)
        self.size = 0

    @override
    def write(self, data: bytes | memoryview) -> int:
        written = super().write(data)
        self.size += written
        return written


@contextmanager
def new_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Yield a writer of a file; nothing is left of it if the block fails. It has no dates: same content, same file.

    It is written from its begin to its end, so that its digest is known with its last byte.
    """
    with ThreadPoolExecutor(2) as pool, path.open("wb") as file:
        hashed = _HashedBeside(file, pool)
        with zipfile.ZipFile(hashed, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]  # it is only written to
            try:
                yield ArchiveWriter(archive, hashed)
            except BaseException:
                with suppress(OSError):
                    path.unlink()
                raise


def extend_manifest(path: Path, facts: Mapping[str, Any]) -> None:
    """Add `facts` to the manifest of a compiled network that is not signed; its other members stay where they are."""
    with open_archive(path) as source:
        manifest = {**parse(source.manifest_bytes), **facts}
        if source.signature is not None:
            raise ArchiveError("it is signed")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        last = archive.filelist.pop()
        if last.filename != MANIFEST:
            raise ArchiveError(f"its {MANIFEST} is not at its end")
        del archive.NameToInfo[MANIFEST]
        archive.start_dir = last.header_offset  # where the next member is written
        archive.writestr(_info(MANIFEST), _manifest_bytes(manifest))


def add_signature(path: Path, signature: bytes) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(_info(SIGNATURE), signature)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # without a date
    info.external_attr = 0o600 << 16
    return info
