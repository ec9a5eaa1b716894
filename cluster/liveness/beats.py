"""Heartbeat, word and answer: one datagram of at most 160 bytes, for one receiver (pure).

     0  u8   version, 2
     1  u8   kind: 1 beat, 2 answer, 3 word
     2  u64  incarnation: of the sender of the beat, in all kinds; 0: it is not registered yet
    10  u64  term that the sender knows
    18  u64  seq: number of the beat, in all kinds; of one sender and incarnation it only grows
    26  u64  the sender's applied wiring index
    34  u32  ms for which the slowest of the sender's loop, journal flush and Raft flush has been stuck
    38  u64  the sender's time, ms since 1970: for people and alerts, without effect
    46  u16  ms since a datagram of the receiver came to the sender; 65535: longer, or never
    48  u16  ms for which the sender relies on the word for this beat
    50  u8   length of the sender's name          51  name
     +  16   HMAC-SHA256, cut to 128 bits, over cluster id, receiver's name and all before

A *word* comes from every member for a beat at once: the beat was heard (`contact`). An *answer* is the leader's,
after a quorum round: a lease. All three may also come over a TCP link, as they are.

The receiver's name is under the tag without being sent, so a message to one node proves nothing to another. A
replayed datagram is dropped by `ReplayGuard` (beats) or by the lease's keeper (answers).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

from msgspec import Struct

VERSION: Final = 2
DATAGRAM_BYTES_MAX: Final = 160
TAG_BYTES: Final = 16
NAME_BYTES_MAX: Final = 64
_HEAD: Final = struct.Struct("<BBQQQQIQHHB")
_BEAT: Final = 1
_ANSWER: Final = 2
_WORD: Final = 3
_SHORT_MS_MAX: Final = 2**16 - 1
_STUCK_MS_MAX: Final = 2**32 - 1

assert _HEAD.size + NAME_BYTES_MAX + TAG_BYTES <= DATAGRAM_BYTES_MAX, "the longest beat fits"


class Beat(Struct, frozen=True):
    """I am here. `answer`: the leader's, that a majority followed it after the beat came. `word`: it was heard."""

    name: str
    """The sender."""
    incarnation: int
    term: int
    seq: int
    applied: int
    stuck_ms: int = 0
    answer: bool = False
    time_ms: int = 0
    """The sender's, ms since 1970."""
    heard_ms: int = _SHORT_MS_MAX
    """How long ago a datagram of the receiver came to the sender."""
    rely_ms: int = 0
    word: bool = False


class BeatCodec:
    """Beats of one cluster, to and from one node."""

    __slots__ = ("_own", "_prefix", "_tags")

    def __init__(self, key: bytes, cluster: str, own: str) -> None:
        """`key`: `Secret.key("beats")`; `cluster`: the cluster's id; `own`: this node's name."""
        self._prefix = hmac.new(key, cluster.encode() + b"\0", hashlib.sha256)
        self._tags: dict[str, hmac.HMAC] = {}
        self._own = own

    def _tag(self, receiver: str, body: bytes) -> bytes:
        begun = self._tags.get(receiver)
        if begun is None:
            begun = self._prefix.copy()
            begun.update(receiver.encode() + b"\0")
            self._tags[receiver] = begun
        tag = begun.copy()
        tag.update(body)
        return tag.digest()[:TAG_BYTES]

    def encode(self, beat: Beat, receiver: str) -> bytes:
        """The datagram for one member."""
        name = beat.name.encode()
        assert 0 < len(name) <= NAME_BYTES_MAX, f"'{beat.name}' is no node name"
        assert not (beat.answer and beat.word), "it is one of three"
        kind = _ANSWER if beat.answer else _WORD if beat.word else _BEAT
        stuck_ms = min(beat.stuck_ms, _STUCK_MS_MAX)
        numbers = beat.incarnation, beat.term, beat.seq, beat.applied, stuck_ms, beat.time_ms
        short = min(beat.heard_ms, _SHORT_MS_MAX), min(beat.rely_ms, _SHORT_MS_MAX)
        body = _HEAD.pack(VERSION, kind, *numbers, *short, len(name)) + name
        return body + self._tag(receiver, body)

    def decode(self, data: bytes) -> Beat | None:
        """The beat that is meant for this node; None for anything else, whatever it is."""
        if not _HEAD.size + TAG_BYTES < len(data) <= DATAGRAM_BYTES_MAX or data[0] != VERSION:
            return None
        body = data[:-TAG_BYTES]
        if not hmac.compare_digest(self._tag(self._own, body), data[-TAG_BYTES:]):
            return None
        _, kind, incarnation, term, seq, applied, stuck_ms, time_ms, heard_ms, rely_ms, length = _HEAD.unpack_from(body)
        name = body[_HEAD.size :]
        if kind not in (_BEAT, _ANSWER, _WORD) or len(name) != length:
            return None
        try:
            sender = name.decode()
        except UnicodeDecodeError:
            return None
        numbers = incarnation, term, seq, applied, stuck_ms
        return Beat(sender, *numbers, kind == _ANSWER, time_ms, heard_ms, rely_ms, kind == _WORD)


class ReplayGuard:
    """Lets each beat through once, and none that is older than one that came already."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def is_new(self, beat: Beat) -> bool:
        """Whether it is newer than all of that sender so far; then it is remembered."""
        place = beat.incarnation, beat.seq
        if place <= self._last.get(beat.name, (-1, -1)):
            return False
        self._last[beat.name] = place
        return True

    def keep(self, names: set[str]) -> None:
        """Forget all but these."""
        self._last = {name: place for name, place in self._last.items() if name in names}
