"""A compiled network's file: a zip archive with a manifest that names every other member, its size and its digest.

Nothing is read before its size is known to be bounded, and what is read is compared with the manifest before it is
used. So whoever vouches for the manifest, by its digest or its signature, vouches for all that is loaded.

The manifest is a list of parts, each a network for one set of shapes and one target, with all that is said of it and
the names of its members (`files`: the archive's by its own); members stand beside them once, whoever shares them.
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
from copy import copy
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from typing_extensions import override

MANIFEST, SIGNATURE, PARTS, MEMBERS = "manifest.json", "signature.json", "parts", "members"
FILES, INSTRUCTIONS = "files", "instructions"
ACCEPTS, OTHERS, DIMENSIONS = "accepts", "others", "dimensions"
"""What the part of a model with free dimensions says beside the rest: which shapes it is run for as a matter of
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


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Bounded(io.FileIO):
    """A regular file of which nothing large is read before its directory is known to be small."""

    def __init__(self, path: Path) -> None:
        # A pipe without a writer would hold up the opening itself.
        super().__init__(path, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        status = os.fstat(self.fileno())
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ArchiveError("it is no regular file")
        self.size = status.st_size
        self.most_bytes = _MOST_DIRECTORY_BYTES

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = self.size - self.tell()
        if size > self.most_bytes:
            raise ArchiveError("its directory is too large")
        return super().read(size) or b""  # None only where it would block


class Archive:
    """An open compiled network: its parts, and members, each read as the manifest says or not at all. `shapes` are
    numbers of parts, together those for the same shapes, first the ones that need the most instructions. `manifest` is
    that of part `number`: of the first shapes the best that this processor can run, the least demanding where it can
    run none, unless it is `of` another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _Bounded(path)
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        groups: dict[str, list[int]] = {}
        for number, part in enumerate(self.parts):
            groups.setdefault(json.dumps([part.get("inputs"), ACCEPTS in part]), []).append(number)
        self.shapes = [sorted(group, key=lambda one: -len(_needed(self.parts[one]))) for group in groups.values()]
        self.number = self.best(0)

    def _read(self) -> None:
        try:
            with zipfile.ZipFile(self._file) as archive:
                infos = archive.infolist()
                self._infos = {info.filename: info for info in infos}
                if len(self._infos) != len(infos) or len(infos) > _MOST_MEMBERS:
                    raise ArchiveError("it has members twice, or too many")
                self._file.most_bytes = self._file.size
                signed = SIGNATURE in self._infos
                self.signature = self._small(archive, SIGNATURE, _MOST_SIGNATURE_BYTES) if signed else None
                self.manifest_bytes = self._small(archive, MANIFEST, _MOST_MANIFEST_BYTES)
        except (zipfile.BadZipFile, EOFError) as error:
            raise ArchiveError("it is cut short or damaged, or never was one") from error
        except (NotImplementedError, UnicodeError, RuntimeError) as error:
            raise ArchiveError(str(error) or "it is damaged") from error
        self.digest = hashlib.sha256(self.manifest_bytes).hexdigest()
        whole = parse(self.manifest_bytes)
        self.parts = _parts_of(whole)
        members = whole.get(MEMBERS)
        if not isinstance(members, dict) or not self.sizes.keys() <= members.keys():
            raise ArchiveError("it has members that its manifest does not name")
        self._facts: Mapping[str, Any] = members

    def _small(self, archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
        info = self._infos.get(name)
        if info is None:
            raise ArchiveError(f"it has no {name}")
        if max(info.file_size, info.compress_size) > most_bytes or info.compress_type != zipfile.ZIP_STORED:
            raise ArchiveError(f"its {name} is larger than {most_bytes} bytes, or compressed")
        return archive.read(info)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.parts[self.number]

    def of(self, number: int) -> "Archive":
        other = copy(self)
        other.number = number
        return other

    def best(self, shape: int) -> int:
        numbers = self.shapes[shape]
        return next((number for number in numbers if not lacking_in(self.parts[number])), numbers[-1])

    @property
    def here(self) -> "list[Archive]":
        return [self.of(self.best(shape)) for shape in range(len(self.shapes))]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: info.file_size for name, info in self._infos.items() if name not in {MANIFEST, SIGNATURE}}

    def damaged(self) -> list[str]:
        return [name for name in self.sizes if not self._is_whole(name)]

    def _is_whole(self, name: str) -> bool:
        try:
            for _ in self._chunks(name):
                pass
        except ArchiveError:
            return False
        return True

    def extract(self, name: str, path: Path) -> None:
        with path.open("xb") as file:
            file.writelines(self.chunks(name))

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        return self._chunks(self.member(name))

    def _chunks(self, member: str) -> Iterator[bytes]:
        start, size, digest = self._stretch(member)
        read, sha256 = 0, hashlib.sha256()
        while chunk := os.pread(self._file.fileno(), min(_CHUNK, size - read), start + read):
            read += len(chunk)
            sha256.update(chunk)
            yield chunk
        if read != size or sha256.hexdigest() != digest:
            raise ArchiveError(f"its {member} is not what was written")

    def map(self, name: str) -> memoryview:
        """Map a member, whose pages processes share that only read them. Its bytes are compared with the manifest
        first, and are right while nobody writes to the file: `publish` replaces it."""
        member = self.member(name)
        start, size, digest = self._stretch(member)
        if not size:
            return memoryview(b"")
        before, descriptor = start % mmap.ALLOCATIONGRANULARITY, self._file.fileno()
        try:
            pages = mmap.mmap(descriptor, before + size, access=mmap.ACCESS_COPY, offset=start - before)
        except ValueError:  # it would end behind the file's end
            raise ArchiveError(f"its {member} is cut short") from None
        content = memoryview(pages)[before:]
        if _stamp_of(os.fstat(descriptor)) not in _vouched and hashlib.sha256(content).hexdigest() != digest:
            raise ArchiveError(f"its {member} is not what was written")
        return content

    def member(self, name: str) -> str:
        names = self.manifest.get(FILES)
        own = names.get(name, name) if isinstance(names, dict) else name
        return own if isinstance(own, str) else name

    @property
    def members(self) -> list[str]:
        names = self.manifest.get(FILES)
        return list(names) if isinstance(names, dict) else list(self.sizes)

    def facts(self, name: str) -> Mapping[str, Any]:
        facts = self._facts.get(self.member(name))
        return facts if isinstance(facts, dict) else {}

    def _stretch(self, member: str) -> tuple[int, int, str]:
        info, facts = self._infos.get(member), self._facts.get(member)
        if info is None or info.compress_type != zipfile.ZIP_STORED or not isinstance(facts, dict):
            raise ArchiveError(f"its {member} is not what was written")
        digest = facts.get("sha256")
        if facts.get("bytes") != info.file_size or not isinstance(digest, str):
            raise ArchiveError(f"its {member} is not what was written")
        header = os.pread(self._file.fileno(), _HEADER_BYTES, info.header_offset)
        if len(header) < _HEADER_BYTES or not header.startswith(b"PK\3\4"):
            raise ArchiveError(f"its {member} is not where it says")
        start = info.header_offset + _HEADER_BYTES + sum(struct.unpack_from("<HH", header, _HEADER_BYTES - 4))
        return start, info.file_size, digest


def _parts_of(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = whole.get(PARTS)
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_SHAPES * MOST_TARGETS:
        raise ArchiveError(f"its {PARTS} are none, or too many")
    if not all(isinstance(part, dict) for part in parts):
        raise ArchiveError(f"its {PARTS} are no objects")
    return parts


def _needed(manifest: Mapping[str, Any]) -> Sequence[object]:
    needed = manifest.get(INSTRUCTIONS)
    return needed if isinstance(needed, list) else ()


def lacking_in(manifest: Mapping[str, Any]) -> list[str]:
    if not _needed(manifest):
        return []
    from tunery._processor import lacking

    return lacking(_needed(manifest))


def parse(data: bytes) -> dict[str, Any]:
    try:
        whole = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"its {MANIFEST} cannot be read: {error}") from None
    if not isinstance(whole, dict):
        raise ArchiveError(f"its {MANIFEST} is no object")
    return whole


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class ArchiveWriter:
    """Writes a compiled network: members first, then `finish` with what the manifest says of its parts."""

    def __init__(self, archive: zipfile.ZipFile, file: "_HashedBeside") -> None:
        self._zip, self._file = archive, file
        self._members: dict[str, dict[str, Any]] = {}

    @property
    def digest(self) -> str:
        return self._file.sha256.hexdigest()

    def add(self, name: str, source: Path) -> None:
        with source.open("rb") as file, self.member(name) as writer:
            while chunk := file.read(_CHUNK):
                writer.write(chunk)

    def copy(self, archive: Archive, name: str, as_name: str) -> str:
        """Copy a member of another archive, unless one here has the same bytes; return the name of either here."""
        facts = archive.facts(name)
        equal = next((member for member, ours in self._members.items() if ours == facts), "")
        if not equal:
            with self.member(as_name) as member:
                for chunk in archive.chunks(name):
                    member.write(chunk)
        return equal or as_name

    def copy_part(self, part: Archive, folder: str, without: str = "") -> dict[str, Any]:
        names = (name for name in part.members if name != without)
        return {**part.manifest, FILES: {name: self.copy(part, name, f"{folder}/{name}") for name in names}}

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

    def finish(self, *parts: Mapping[str, Any]) -> None:
        self._zip.writestr(_info(MANIFEST), _manifest_bytes({PARTS: parts, MEMBERS: self._members}))


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
    """Yield a writer of a file; nothing is left of it if the block fails. It has no dates: same content, same file. It
    is written from its begin to its end, so that its digest is known with its last byte."""
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
    with Archive(path) as source:
        whole = parse(source.manifest_bytes)
        manifest = {**whole, PARTS: [{**part, **facts} for part in source.parts]}
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
