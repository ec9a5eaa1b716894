"""The kinds of values that options have: text in, value out, or ValueError with what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit


class Endpoint(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def text(value: str) -> str:
    return value


def flag(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError("true or false")
    return known[value.strip().lower()]


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return number

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for name in allowed:
            if value.strip().lower() == name.lower():
                return name
        raise ValueError(" or ".join(allowed))

    return parse


def short(value: str) -> str:
    """Names and keys are short strings on the wire."""
    if len(value.encode()) > 255:
        raise ValueError("at most 255 bytes of UTF-8")
    return value


def name(bytes_max: int = 255) -> Callable[[str], str]:
    """Of what there is: an empty one would stand for none."""

    def parse(value: str) -> str:
        if not 1 <= len(value.encode()) <= bytes_max or "\0" in value:
            raise ValueError(f"1 to {bytes_max} bytes of UTF-8, none of them NUL")
        return value

    return parse


def is_host(value: str) -> bool:
    """Whether a resolver may be asked for it: a name has labels of 1 to 63 bytes."""
    try:
        value.encode("idna")
    except UnicodeError:
        return False
    return True


def parse_endpoints(value: str) -> tuple[Endpoint, ...]:
    """`host`, `host:port` or `[address]:port`, separated by commas; without a port, the one that suits TLS: 0."""
    found = []
    for word in filter(None, (part.strip() for part in value.split(","))):
        try:
            parts = urlsplit(f"//{word}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not is_host(host) or any((parts.path, parts.query, parts.fragment)):
            host = None
        if host is None or parts.username is not None or (port is None and word.endswith(":")):
            raise ValueError("HOST:PORT, or several separated by commas")
        found.append(Endpoint(host, port or 0))
    if not found:
        raise ValueError("HOST:PORT, or several separated by commas")
    return tuple(found)


MOMENT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: what is beyond are not ms."""
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(value: str) -> float:
    found = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", value.strip())
    if found is None:
        raise ValueError("a whole number and ms, s, m, h or d, such as 15m")
    return int(found[1]) * _UNITS_S[found[2]]


def moment_ms(value: str) -> int:
    """One before 1970 is 1970: brokers have taken nothing before it."""
    try:
        if value.strip().isdecimal():
            number = int(value)
            if number > MOMENT_MS_MAX:
                raise ValueError
            return number
        moment = datetime.fromisoformat(value.strip())
        if moment.tzinfo is None:
            raise ValueError
        return max(int(moment.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise ValueError("ms since 1970, or a moment with its zone such as 2026-01-31T08:00:00Z") from None


def names(value: str) -> tuple[str, ...]:
    names = tuple(filter(None, (part.strip() for part in value.split(","))))
    if not names or len(set(names)) < len(names) or any(len(name.encode()) > 255 for name in names):
        raise ValueError("names separated by commas, each once")
    return names


_WHERE: Final = 'earliest, latest, or an offset for each stream as JSON, such as {"readings": 1200}'

Where: TypeAlias = str | tuple[tuple[str, str | int], ...]
"""A word for all streams, or (stream, word or offset) of each."""


def where(value: str) -> Where:
    if value.strip().lower() in ("earliest", "latest"):
        return value.strip().lower()
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(_WHERE) from None
    if not isinstance(said, dict):
        raise ValueError(_WHERE)
    for offset in said.values():
        is_number = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 2**62
        if not is_number and offset not in ("earliest", "latest"):
            raise ValueError(_WHERE)
    return tuple(said.items())
