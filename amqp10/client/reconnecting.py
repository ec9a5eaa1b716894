"""Where to connect next, and when: addresses in turn, with a pause that grows and is never the same twice.

The random number is handed in; a thousand clients of a node that died do not come back in one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from clusterbroker.amqp10.client.errors import ClientError

PORT: Final = 5672
TLS_PORT: Final = 5671


@dataclass(frozen=True, slots=True)
class Address:
    """One of `amqp://user:password@host:port/vhost`, or `amqps://...`."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = None
    vhost: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ClientError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ClientError(f"'{url}' is no address: {error}") from None
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ClientError(f"'{url}' is no address of the form amqp://host:port or amqps://host:port")
        tls = parts.scheme == "amqps"
        return cls(
            parts.hostname,
            port or (TLS_PORT if tls else PORT),
            tls,
            None if parts.username is None else unquote(parts.username),
            None if parts.password is None else unquote(parts.password),
            unquote(parts.path[1:]) or None,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between attempts: the first round over all addresses goes without a pause longer than `first`."""

    first: float = 0.05
    factor: float = 1.6
    longest: float = 5.0

    def pause(self, round_: int, chance: float) -> float:
        """`round_`: how often all addresses have failed since the last success; `chance`: 0 to 1."""
        whole = min(self.longest, self.first * self.factor ** min(round_, 64))
        return whole * (0.5 + chance / 2)


class Tour:
    """The order of attempts. It begins after the address that was in use: its node is the one that went."""

    def __init__(self, addresses: Sequence[Address], backoff: Backoff, chance: Callable[[], float]) -> None:
        if not addresses:
            raise ClientError("there is no address to connect to")
        self.addresses = tuple(addresses)
        self.backoff = backoff
        self._chance = chance
        self._at = -1
        self._failures = 0

    def next(self) -> tuple[Address, float]:
        """The address to try, and the pause before it."""
        self._at = (self._at + 1) % len(self.addresses)
        rounds = self._failures // len(self.addresses)
        pause = 0.0 if not self._failures else self.backoff.pause(rounds, self._chance())
        self._failures += 1
        return self.addresses[self._at], pause

    def pause(self, failures: int) -> float:
        """Before something else is tried again that failed so often."""
        return self.backoff.pause(failures, self._chance())

    def succeeded(self) -> None:
        """The next loss is answered with a short pause."""
        self._failures = 1
