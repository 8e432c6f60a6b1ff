"""The text of a token: a prefix that scanners of source code know, a secret, and a checksum.

`tunery_` + 32 characters of 62 (190 bits) + 6 characters of the CRC-32 of what comes before. The checksum tells a token
that was cut or mistyped from one that is unknown, without a look into the store.
"""

import hashlib
import secrets
import string
import zlib

PREFIX = "tunery_"
_ALPHABET = string.digits + string.ascii_letters
_SECRET, _CHECK = 32, 6


def new_token() -> str:
    text = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET))
    return text + _checksum(text)


def is_whole(token: str) -> bool:
    return (
        len(token) == len(PREFIX) + _SECRET + _CHECK
        and token.isascii()
        and token.startswith(PREFIX)
        and token[-_CHECK:] == _checksum(token[:-_CHECK])
    )


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _checksum(text: str) -> str:
    number, out = zlib.crc32(text.encode()), ""
    for _ in range(_CHECK):
        number, digit = divmod(number, len(_ALPHABET))
        out = _ALPHABET[digit] + out
    return out
