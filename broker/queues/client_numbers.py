"""Which numbers of clients that number their publishes a queue has: the part of `producers` with a table of its own.

There may be two tables of a queue. The ring's is the log's: what stands in it is known after a crash. A number whose
message is fleeting, one that never comes to the log, must not stand there, or it would be confirmed after a crash and
be nowhere. So the first of them begins a second table, in memory alone, that knows them all (`producers.Producers`).
"""

from __future__ import annotations

from bisect import insort
from typing import Final, Protocol

from clusterbroker.broker.queues.attributes import CLIENT, CLIENT_FLOOR, CLIENT_REFUSED

NAMED_MAX: Final = 10_000
REFUSED_BUCKETS: Final = 64
REFUSED_MAX: Final = 10_000
"""Of these buckets, of all clients of a queue."""
REFUSED_BITS: Final = 31
REFUSED: Final = 1
TAKEN_SINCE: Final = 2
"""What the two bits of a refused number say."""
_UPTO: Final = CLIENT.prefix
_FLOOR: Final = CLIENT_FLOOR.prefix
CLIENTS: Final = (_UPTO, _FLOOR, CLIENT_REFUSED.prefix)


class Table(Protocol):
    """Names and their values; the name that was set last stands last."""

    @property
    def attributes(self) -> dict[bytes, int]: ...

    def set_attribute(self, name: bytes, upto: int) -> None:
        """Sets a name; 0 takes it out."""


class MemoryTable:
    """The clients' part of another table, to go on by itself."""

    __slots__ = ("attributes",)

    def __init__(self, table: Table) -> None:
        self.attributes = {name: value for name, value in table.attributes.items() if name[:1] in CLIENTS}

    def set_attribute(self, name: bytes, upto: int) -> None:
        self.attributes.pop(name, None)
        if upto:
            self.attributes[name] = upto


class ClientNumbers:
    """The numbers of one table: the attributes CLIENT, CLIENT_REFUSED and CLIENT_FLOOR."""

    __slots__ = ("_named", "_refused", "_refused_buckets", "_table")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._refused: dict[bytes, list[int]] = {}  # client to its buckets, ascending; who was refused last at the end
        self._named: dict[bytes, None] = {}  # clients, the longest silent first
        for name in table.attributes:  # who was heard later stands behind, by whichever of his names
            if name[:1] == _UPTO:
                self._named.pop(name[1:], None)
                self._named[name[1:]] = None
            elif name[:1] == CLIENT_REFUSED.prefix:
                bucket, client = CLIENT_REFUSED.key(name)
                self._named.pop(client, None)
                self._named[client] = None
                self._refused[client] = self._refused.pop(client, [])
                insort(self._refused[client], bucket)
        self._refused_buckets = sum(map(len, self._refused.values()))
        # of whom nothing but a floor is left, nothing can be confirmed in error: they go first
        floors = [client for client, _ in CLIENT_FLOOR.of(table.attributes) if client not in self._named]
        if floors:
            self._named = dict.fromkeys(floors) | self._named

    def knows(self, client: bytes, number: int) -> bool:
        """Whether this publish is in the queue, or was."""
        if number >= self.upto(client):
            return False
        said = self._refusal(client, number)
        return said & TAKEN_SINCE > 0 if number < self._floor(client) else said != REFUSED

    def upto(self, client: bytes) -> int:
        """One more than the client's highest number."""
        return self._table.attributes.get(_UPTO + client, 0)

    def note(self, client: bytes, number: int) -> None:
        """A publish that is not known is appended in this turn."""
        assert not self.knows(client, number), "a publish is noted once"
        if self._refusal(client, number) == REFUSED or number < self._floor(client):
            self._say(client, number, REFUSED | TAKEN_SINCE)
        if number >= self.upto(client):
            self._table.set_attribute(_UPTO + client, number + 1)
        self._heard(client)

    def note_above(self, client: bytes, first: int, last: int) -> bool:
        """As `note`, for publishes with rising numbers of which nothing is known or was refused. False: some may be,
        and nothing was noted."""
        if first < self.upto(client) or first < self._floor(client) or client in self._refused:
            return False
        self._table.set_attribute(_UPTO + client, last + 1)
        self._heard(client)
        return True

    def refuse(self, client: bytes, number: int) -> bool:
        """A publish that is not known finds no room. It must not seem known once a later one is taken; whether that was
        news for the table."""
        assert not self.knows(client, number), "what is here is not refused"
        if self._refusal(client, number) == REFUSED:
            return False
        self._say(client, number, REFUSED)
        self._heard(client)
        return True

    def skip(self, client: bytes, first: int, last: int) -> None:
        """None of these numbers, which are above all that are known, is here, though a higher one is about to be."""
        assert first >= self.upto(client), "what is skipped was never known"
        begin = max(first, last + 1 - REFUSED_BUCKETS * REFUSED_BITS)
        if begin > first:
            self._raise_floor(client, begin)
        for number in range(begin, last + 1):
            self._say(client, number, REFUSED)

    def _floor(self, client: bytes) -> int:
        return self._table.attributes.get(_FLOOR + client, 0)

    def _refusal(self, client: bytes, number: int) -> int:
        if client not in self._refused:
            return 0
        name, bit = _refused_bucket(client, number)
        return self._table.attributes.get(name, 0) >> bit & 3

    def _say(self, client: bytes, number: int, bits: int) -> None:
        """Adds the bits to what is said of one number."""
        name, bit = _refused_bucket(client, number)
        buckets = self._refused[client] = self._refused.pop(client, [])
        if name not in self._table.attributes:
            insort(buckets, number // REFUSED_BITS)
            self._refused_buckets += 1
        self._table.set_attribute(name, self._table.attributes.get(name, 0) | bits << bit)
        if len(buckets) > REFUSED_BUCKETS:
            self._raise_floor(client, (buckets[0] + 1) * REFUSED_BITS)
            self._forget_refused(client, 1)
        elif self._refused_buckets > REFUSED_MAX:
            oldest = next(iter(self._refused))
            self._raise_floor(oldest, (self._refused[oldest][-1] + 1) * REFUSED_BITS)
            self._forget_refused(oldest, REFUSED_BUCKETS)

    def _raise_floor(self, client: bytes, number: int) -> None:
        if number > self._floor(client):
            self._table.set_attribute(_FLOOR + client, number)

    def _forget_refused(self, client: bytes, count: int) -> None:
        """Takes out so many of the client's buckets, the lowest first."""
        buckets = self._refused[client]
        for bucket in buckets[:count]:
            self._table.set_attribute(_refused_bucket(client, bucket * REFUSED_BITS)[0], 0)
            self._refused_buckets -= 1
        del buckets[:count]
        if not buckets:
            del self._refused[client]

    def _heard(self, client: bytes) -> None:
        """The client is the one that was silent for the shortest time."""
        self._named.pop(client, None)
        self._named[client] = None
        if len(self._named) > NAMED_MAX:
            oldest = next(iter(self._named))
            del self._named[oldest]
            for name in (_UPTO + oldest, _FLOOR + oldest):
                if name in self._table.attributes:
                    self._table.set_attribute(name, 0)
            if oldest in self._refused:
                self._forget_refused(oldest, REFUSED_BUCKETS)


def _refused_bucket(client: bytes, number: int) -> tuple[bytes, int]:
    """The name of a refused number's bucket, and the first of its two bits there."""
    bucket, place = divmod(number, REFUSED_BITS)
    return CLIENT_REFUSED.name((bucket, client)), 2 * place
