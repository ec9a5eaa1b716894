"""Stored passwords: slow to guess, compared in constant time.

    scrypt                           $scrypt$ln=14,r=8,p=1$<salt>$<hash>      base64 without padding (PHC string form)
    rabbit_password_hashing_sha256   base64( 4 bytes of salt | sha256(salt | password) )
    rabbit_password_hashing_sha512   base64( 4 bytes of salt | sha512(salt | password) )

New passwords are hashed with scrypt. The cost stands in the stored string, so it can be raised later without touching
old ones. RabbitMQ's two forms are verified only, for exported definitions. Hashing costs 16 MiB and some 50 ms at the
default cost: call it off the event loop. This is the only module of this floor that makes salt; it is not a core.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from typing import Any, Final

SCRYPT: Final = "scrypt"
MD5: Final = "rabbit_password_hashing_md5"
"""Of RabbitMQ before 3.6: not verified, only recognised."""
SHA256: Final = "rabbit_password_hashing_sha256"
SHA512: Final = "rabbit_password_hashing_sha512"

COST_DEFAULT: Final = 14
"""Base-2 logarithm of scrypt's n; memory is 1 KiB x 2^cost (16 MiB)."""
COST_CHEAP: Final = 4
"""For test brokers that live for seconds."""
COST_MAX: Final = 18
MEMORY_BYTES_MAX: Final = 256 << 20
"""What one verification may take: a hash that wants more was not made here, and is nobody's password."""
PARALLEL_MAX: Final = 4
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
PASSWORD_BYTES_MAX: Final = 4096
_BLOCK: Final = 8
_RABBIT_SALT_BYTES: Final = 4

_STORED: Final = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_RABBIT: Final[dict[str, Callable[[bytes], Any]]] = {SHA256: hashlib.sha256, SHA512: hashlib.sha512}


def hashed(password: str | bytes, *, cost: int = COST_DEFAULT, salt: bytes | None = None) -> str:
    """The string to store for a password, algorithm "scrypt"; salt comes from the system's CSPRNG unless handed in.

    Raises ValueError for an empty or oversized password and for a cost outside 1..18.
    """
    secret = _bytes(password)
    if not secret or len(secret) > PASSWORD_BYTES_MAX:
        raise ValueError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    if not 1 <= cost <= COST_MAX:
        raise ValueError(f"scrypt cost {cost} is not within 1..{COST_MAX}")
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    digest = _scrypt(secret, salt, cost, _BLOCK, 1, HASH_BYTES)
    return f"$scrypt$ln={cost},r={_BLOCK},p=1${_unpadded(salt)}${_unpadded(digest)}"


def verified(password: str | bytes, stored: str, algorithm: str) -> bool:
    """Whether the password is the stored one; an empty password, or nothing stored, never is.

    A stored string that is damaged or of an unknown algorithm is no password at all: False.
    """
    secret = _bytes(password)
    if not secret or not stored or len(secret) > PASSWORD_BYTES_MAX:
        return False
    if algorithm == SCRYPT:
        return _verified_scrypt(secret, stored)
    hash_function = _RABBIT.get(algorithm)
    return hash_function is not None and _verified_rabbit(secret, stored, hash_function)


def verified_nobody(password: str | bytes, *, cost: int = COST_DEFAULT) -> bool:
    """False, after the time a verification takes: for unknown users, so that time does not tell who exists."""
    _scrypt(_bytes(password)[:PASSWORD_BYTES_MAX], b"\0" * SALT_BYTES, cost, _BLOCK, 1, HASH_BYTES)
    return False


def _verified_scrypt(secret: bytes, stored: str) -> bool:
    match = _STORED.fullmatch(stored)
    if match is None:
        return False
    cost, block, parallel = int(match[1]), int(match[2]), int(match[3])
    wants_bytes = 128 * block << cost
    if not (cost >= 1 and block >= 1 and 1 <= parallel <= PARALLEL_MAX and wants_bytes <= MEMORY_BYTES_MAX):
        return False
    try:
        salt, digest = _padded(match[4]), _padded(match[5])
        return hmac.compare_digest(_scrypt(secret, salt, cost, block, parallel, len(digest)), digest)
    except (ValueError, binascii.Error):
        return False


def _verified_rabbit(secret: bytes, stored: str, hash_function: Callable[[bytes], Any]) -> bool:
    try:
        decoded = base64.b64decode(stored, validate=True)
    except (ValueError, binascii.Error):
        return False
    salt, digest = decoded[:_RABBIT_SALT_BYTES], decoded[_RABBIT_SALT_BYTES:]
    expected: bytes = hash_function(salt + secret).digest()
    return hmac.compare_digest(expected, digest)


def _scrypt(secret: bytes, salt: bytes, cost: int, block: int, parallel: int, length: int) -> bytes:
    memory_bytes = 128 * block * ((1 << cost) + parallel) + (1 << 20)
    return hashlib.scrypt(secret, salt=salt, n=1 << cost, r=block, p=parallel, maxmem=memory_bytes, dklen=length)


def _bytes(password: str | bytes) -> bytes:
    return password.encode("utf-8", "surrogatepass") if isinstance(password, str) else password


def _unpadded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii").rstrip("=")


def _padded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
