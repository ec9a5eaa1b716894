"""Throttling of sign-ins after too many failures, until the minute is over.

    a user at an address     10 failures within a minute
    an address               100, under any names

The pair and not the user alone: a guesser elsewhere must not lock a name's owner out. The address as well, by ten
times as much: a client that tries one password with many names is held up too, and many people behind one address are
not held up by the mistakes of one of them. Of IPv6 the network of 64 bits counts, because a holder of one address
there has them all.

At most REMEMBERED_MAX of each kind are remembered; beyond that the oldest are forgotten, and a guesser with as many
networks is not held up by this.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FAILURES_MAX: Final = 10
FAILURES_OF_ADDRESS_MAX: Final = 100
WINDOW_MS: Final = 60_000
REMEMBERED_MAX: Final = 10_000
NETWORK_BITS: Final = 64
NAME_MAX: Final = 255
"""So much of a name is remembered: no user has a longer one, and guessers' may have thousands of characters."""

K = TypeVar("K", bound=Hashable)


class _Failures(Generic[K]):
    """Since when, and how many."""

    __slots__ = ("_failed", "_most")

    def __init__(self, most: int) -> None:
        self._failed: OrderedDict[K, tuple[int, int]] = OrderedDict()
        self._most = most

    def waits_ms(self, who: K, now_ms: int) -> int:
        since_ms, count = self._failed.get(who, (0, 0))
        left_ms = since_ms + WINDOW_MS - now_ms
        if count and left_ms <= 0:
            del self._failed[who]
            return 0
        return left_ms if count >= self._most else 0

    def failed(self, who: K, now_ms: int) -> None:
        since_ms, count = self._failed.get(who, (now_ms, 0))
        if now_ms - since_ms >= WINDOW_MS:
            since_ms, count = now_ms, 0
            self._failed.pop(who, None)  # it is among the youngest now
        self._failed[who] = (since_ms, count + 1)
        if len(self._failed) > REMEMBERED_MAX:
            self._failed.popitem(last=False)

    def forget(self, who: K) -> None:
        self._failed.pop(who, None)


class Throttle:
    """Failed attempts of the last minute."""

    __slots__ = ("_addresses", "_pairs")

    def __init__(self) -> None:
        self._pairs: _Failures[tuple[str, str]] = _Failures(FAILURES_MAX)
        self._addresses: _Failures[str] = _Failures(FAILURES_OF_ADDRESS_MAX)

    def waits_ms(self, user: str, address: str, now_ms: int) -> int:
        """For how long this user has to wait at this address; 0: not at all."""
        where = network(address)
        return max(self._pairs.waits_ms((user[:NAME_MAX], where), now_ms), self._addresses.waits_ms(where, now_ms))

    def failed(self, user: str, address: str, now_ms: int) -> None:
        """An attempt failed."""
        self._pairs.failed((user[:NAME_MAX], network(address)), now_ms)
        self.failed_at(address, now_ms)

    def address_waits_ms(self, address: str, now_ms: int) -> int:
        """For how long whoever comes by way of this address has to wait."""
        return self._addresses.waits_ms(network(address), now_ms)

    def failed_at(self, address: str, now_ms: int) -> None:
        """An attempt that came by way of this address failed, whoever it said to be."""
        self._addresses.failed(network(address), now_ms)

    def succeeded(self, user: str, address: str) -> None:
        """An attempt was good: nothing is remembered of the pair's bad ones. Those of the address stay, or whoever has
        one account could guess at all others for ever."""
        self._pairs.forget((user[:NAME_MAX], network(address)))


def network(address: str) -> str:
    """What counts as one place: an IPv4 address, an IPv6 network, or the text when it is neither."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if not parsed.is_loopback:
            return str(ipaddress.ip_network((parsed, NETWORK_BITS), strict=False))
    return str(parsed)
