"""What the log says of a queue besides its messages: names with a number each, on disk and in every copy.

An attribute stands in `ring.attributes`, and an ATTR record in the group of what it follows from tells it to the disk
and to the other replicas. A value of 0 takes a name out. Names begin with a byte that says of which kind they are; the
kinds are here, and nowhere else. Names that begin with a zero byte are the log's own (`journal.queue_state`,
`replication.places`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K")
_NUMBER: Final = struct.Struct(">Q")


class Kind(Generic[K]):
    """Attributes of one kind. `prefix`: the first byte of their names; the rest is the key."""

    __slots__ = ("_encode", "prefix")

    def __init__(self, prefix: bytes, encode: Callable[[K], bytes]) -> None:
        assert prefix not in KINDS, "a byte stands for one kind"
        KINDS[prefix] = self
        self.prefix = prefix
        self._encode = encode

    def name(self, key: K) -> bytes:
        return self.prefix + self._encode(key)

    def names(self, attributes: Mapping[bytes, int]) -> list[bytes]:
        """Of those of this kind, in their order."""
        return [name for name in attributes if name[:1] == self.prefix]


class Readable(Kind[K]):
    """Of which the keys are read."""

    __slots__ = ("_decode",)

    def __init__(self, prefix: bytes, encode: Callable[[K], bytes], decode: Callable[[bytes], K]) -> None:
        super().__init__(prefix, encode)
        self._decode = decode

    def key(self, name: bytes) -> K:
        return self._decode(name[1:])

    def of(self, attributes: Mapping[bytes, int]) -> list[tuple[K, int]]:
        """(key, value) of those of this kind, in their order."""
        return [(self.key(name), attributes[name]) for name in self.names(attributes)]


KINDS: Final[dict[bytes, Kind]] = {}  # type: ignore[type-arg]


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _bucket(key: tuple[int, bytes]) -> bytes:
    return _NUMBER.pack(key[0]) + key[1]


def _start(key: tuple[str, int]) -> bytes:
    return b"%b/%d" % (key[0].encode(), key[1])


def _run(key: tuple[str, str]) -> bytes:
    lease = key[0].encode()
    return len(lease).to_bytes(2) + lease + key[1].encode()


def _text(prefix: bytes) -> Readable[str]:
    return Readable(prefix, str.encode, bytes.decode)


PROXY: Final = Kind(b"n", _start)
"""A start of a node: its publishes are numbered without a gap, the value is the last number that is in the log
(`broker.remote.attachment`)."""
PROXY_REFUSED: Final = Kind(b"r", _start)
"""The same start: the highest number that was refused and died for it (reject-publish-dlx)."""
CLIENT: Final = Kind(b"p", _as_it_is)
"""A client that numbers its messages (x-producer, x-seq): the highest number plus one; what is below is known. Numbers
rise, from 0 or 1, gaps are allowed."""
CLIENT_REFUSED: Final = Readable(b"h", _bucket, lambda raw: (_NUMBER.unpack_from(raw)[0], raw[_NUMBER.size :]))
"""(bucket, client): numbers that were refused for want of room. They are not known, though higher ones are. Bit 2i
stands for number 31 * bucket + i, the bit above it says that it came again and was taken. Bits are only added, so
values only rise."""
CLIENT_FLOOR: Final = Readable(b"f", _as_it_is, _as_it_is)
"""Of a client's numbers below it the queue knows only those that its buckets say were taken. It rises above what was
refused and forgotten."""
DEAD_LETTERS: Final[Readable[tuple[bytes, int]]] = Readable(
    b"d",
    lambda key: key[0] + _NUMBER.pack(key[1]),
    lambda raw: (raw[: -_NUMBER.size], _NUMBER.unpack(raw[-_NUMBER.size :])[0]),
)
"""(queue id [+ gap epoch], bucket): dead letters of that queue, numbered in the order of its DEAD records. They may
come in any order (one may be tried again later), so the value is a set: bit i stands for number 63 * bucket + i. Bits
are only added, so values only rise. A queue that lost what was committed has lost its numbers too, so its next letters
have another name."""
LEASE: Final = _text(b"l")
"""A lease, by its name: where it ends (`leasing`)."""
LEASE_ACKNOWLEDGED: Final = _text(b"a")
"""What of it has left."""
LEASE_RUN: Final = Kind(b"u", _run)
"""(lease, run): a start of its reader, numbered in the order in which they took the lease."""
MOVED: Final[Readable[int]] = Readable(b"t", _NUMBER.pack, lambda raw: int(_NUMBER.unpack(raw)[0]))
"""Rows of a committed segment, by the id of its queue: the highest seq that came, and one (`log`)."""
BOOKMARK: Final = _text(b"o")
"""How far a stream's reader, by its name, says it is (`broker.streams.bookmarks`)."""
LINK_DELIVERY: Final[Readable[tuple[int, bytes]]] = Readable(
    b"s",
    lambda key: _NUMBER.pack(key[0]) + key[1],
    lambda raw: (_NUMBER.unpack_from(raw)[0], raw[_NUMBER.size :]),
)
"""(link, delivery-tag): a message that a recoverable sender link has sent came into the queue, and its client may still
hold it unsettled. The value is the attach and the delivery's number (`link_deliveries`)."""
LINK_HELD: Final[Readable[tuple[int, int]]] = Readable(
    b"k",
    lambda key: _NUMBER.pack(key[0]) + _NUMBER.pack(key[1]),
    lambda raw: (_NUMBER.unpack_from(raw)[0], _NUMBER.unpack_from(raw, _NUMBER.size)[0]),
)
"""(link, bucket): messages that a recoverable receiver link holds. Bit i stands for seq 62 * bucket + i."""
LINK_ATTACH: Final[Readable[int]] = Readable(b"v", _NUMBER.pack, lambda raw: int(_NUMBER.unpack(raw)[0]))
"""A recoverable receiver link: its last attach that held messages here. What it holds of an attach before one that did
not resume it returns."""
LINK_WITHDRAWN: Final[Readable[tuple[int, int]]] = Readable(
    b"w",
    lambda key: _NUMBER.pack(key[0]) + _NUMBER.pack(key[1]),
    lambda raw: (_NUMBER.unpack_from(raw)[0], _NUMBER.unpack_from(raw, _NUMBER.size)[0]),
)
"""(link, bucket), as LINK_HELD: messages that a suspended link held for too long. They have returned, and its client
has not heard so."""
RETRY: Final[Readable[int]] = Readable(b"y", _NUMBER.pack, lambda raw: int(_NUMBER.unpack(raw)[0]))
"""A message, by its seq, that came back and waits before it is handed out again: when it returns, in ms since 1970, and
as the lowest bit whether that counts (`dispatch`)."""
SUSPECT: Final[Readable[int]] = Readable(b"q", _NUMBER.pack, lambda raw: int(_NUMBER.unpack(raw)[0]))
"""A request of a worker pool, by its seq, with which a worker was lost: it is handed out alone
(`broker.pools.suspects`)."""
DUE_TARGET: Final[Readable[tuple[int, int]]] = Readable(
    b"e",
    lambda key: _NUMBER.pack(key[0]) + _NUMBER.pack(key[1]),
    lambda raw: (_NUMBER.unpack_from(raw)[0], _NUMBER.unpack_from(raw, _NUMBER.size)[0]),
)
"""(seq, queue id): a message of a delay queue that is due waits for this queue's answer; others have given theirs
(`broker.delay.due_letters`)."""
RETRIES_MAX: Final = 16_384
"""Of a queue; more of them wait, and return at once when another owner begins."""
LINK_NAME_BYTES: Final = 256
"""What a name of LINK_DELIVERY takes in memory, besides its tag, which stands there twice."""
LINK_NAMES_BYTES_MAX: Final = 64 << 20
"""Of all names of LINK_DELIVERY of a queue: some 240,000 deliveries with short tags. Each checkpoint and each sync
tells all of them."""
EXCLUDED: Final[Readable[tuple[bytes, int]]] = Readable(
    b"x",
    lambda key: key[0] + _NUMBER.pack(key[1]),
    lambda raw: (raw[: -_NUMBER.size], _NUMBER.unpack(raw[-_NUMBER.size :])[0]),
)
"""(link, bucket): messages that a recoverable receiver link has returned and never wants again. The link is a digest of
its container-id and name (`selecting`). Bit i stands for seq 62 * bucket + i."""
SWEPT: Final = _text(b"g").name("")
"""A queue with a selector of its own has let go of all below it that this does not take (`sweeping`)."""
HAD_CONSUMERS: Final = _text(b"c").name("")
"""1: the queue has had a consumer (auto-delete survives a failover)."""
