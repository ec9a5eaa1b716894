"""Which one of its destinations a choosing exchange gives a message to.

    type              chosen
    x-random          any of them, each with the same chance
    x-local-random    any of those whose queue has its leader at this node; none: the message is unroutable
    x-modulus-hash    the one at (hash of the routing keys modulo their number), in the order of their names

A publish that comes again must go where it has been, or it is stored twice: the queues know numbers, and each queue
its own. So what has a number (of its producer, a dead letter, a row of a transaction) is chosen by that number, and
by the two random types among all destinations: which queues are at this node is another question after a failover.
The choice is the same for as long as the bindings are.

A question about where messages may go (EVERY) gets all destinations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from clusterbroker.broker.routing.binding import Destination
from clusterbroker.broker.routing.hashing import key_point

EVERY: Final = b""
"""In place of a number: all destinations, of which a message would get one."""
Chance = Callable[[int], int]
"""Of n: one of 0 to n - 1, each as likely as the others."""


class Draws:
    """A `Chance` of a few bytes: hashes of a count. Even, and foretold by anybody: nothing secret hangs on it."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, n: int) -> int:
        self._count += 1
        return key_point(self._count.to_bytes(8, "big")) % n


def numbered(producer: bytes, number: int) -> bytes:
    """A message's number, by which it is chosen for."""
    return producer + b":%d" % number


def one_of(destinations: Collection[Destination], number: bytes | None, chance: Chance) -> Collection[Destination]:
    """One of the destinations, by the message's number or by chance; all for EVERY; none of none."""
    if number == EVERY or len(destinations) < 2:
        return destinations
    index = chance(len(destinations)) if number is None else key_point(number) % len(destinations)
    return (sorted(destinations)[index],)


def by_modulus(destinations: Sequence[Destination], routing_keys: Sequence[str]) -> Destination:
    """The destination of a message with these keys; `destinations` are in order, and there is one.

    As RabbitMQ's exchange of this type, with another hash: the same keys go the same way, and nobody may rely on which.
    """
    keys = b"\0".join(key.encode("utf-8", "surrogatepass") for key in routing_keys)
    return destinations[key_point(keys) % len(destinations)]
