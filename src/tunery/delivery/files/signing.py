"""Signatures of compiled networks: ed25519, over the manifest, which fixes all else that is loaded by its digests."""

import base64
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tunery._archive import Archive, add_signature
from tunery._errors import UsageError

_PURPOSE = b"tunery compiled network 1\0"  # a signature for anything else that this key signs is none for a network
_RECORDS = b"tunery records 1\0"
_ALGORITHM = "ed25519"
_MOST_BYTES = 1 << 14
_CREATE = "make a key pair with `tunery keys create FILE`"


def create_key(path: Path) -> Path:
    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    known = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    made: list[Path] = []
    try:
        for each, content, mode in ((path, secret, 0o600), (public, known, 0o644)):
            descriptor = os.open(each, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(each)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        for each in made:  # half a pair is of no use
            each.unlink(missing_ok=True)
        what = "exists, and a key is never replaced" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"cannot write the key pair to {str(path)!r}: {what}; choose another name") from error
    return public


def read_key(path: Path) -> Ed25519PrivateKey:
    data = _read(path, secret=True)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{str(path)!r} is no private ed25519 key without a password; {_CREATE}")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{str(path)!r} is no public ed25519 key; give the .pub file of whom you trust")
    return key


def sign(path: Path, key: Ed25519PrivateKey) -> None:
    with Archive(path) as archive:
        signature = key.sign(_PURPOSE + archive.manifest_bytes)
    text = {"algorithm": _ALGORITHM, "signature": base64.b64encode(signature).decode()}
    add_signature(path, json.dumps(text).encode())


def check_signature(archive: Archive, path: Path, keys: Iterable[Ed25519PublicKey]) -> None:
    if archive.signature is None:
        raise UsageError(f"{path} is not signed; sign it with `tunery compile MODEL --sign KEY`, or load it elsewhere")
    signature = _signature(archive.signature)
    for key in keys:
        try:
            key.verify(signature, _PURPOSE + archive.manifest_bytes)
        except InvalidSignature:
            continue
        return
    raise UsageError(f"{path} is not signed by any of the keys that are trusted; ask for a file from whom you trust")


def _signature(data: bytes) -> bytes:
    try:
        text = json.loads(data)
        return base64.b64decode(text["signature"], validate=True) if text["algorithm"] == _ALGORITHM else b""
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""


def _read(path: Path, *, secret: bool = False) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if secret and os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(f"others may read the private key {str(path)!r}; run: chmod 600 FILE, on that file")
            return file.read(_MOST_BYTES) or b""
    except OSError as error:
        raise UsageError(f"cannot read the key {str(path)!r}: {error.strerror}; {_CREATE}") from error


def sign_file(path: Path, key: Ed25519PrivateKey) -> None:
    signature = base64.b64encode(key.sign(_RECORDS + _digest(path)))
    try:
        _beside(path).write_bytes(signature + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {str(_beside(path))!r}: {error.strerror}; choose another place") from error


def check_file(path: Path, key: Ed25519PublicKey) -> None:
    signature = _read(_beside(path))
    try:
        key.verify(base64.b64decode(signature), _RECORDS + _digest(path))
    except (InvalidSignature, ValueError):
        raise UsageError(
            f"{str(path)!r} is not what was signed with this key; get the file and its .sig again, or another key"
        ) from None


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}; check its name") from error
