"""Frames between this node and the others: receivers, and the moment of handling.

A frame is handled after this node has applied the wiring index that its sender had applied, and never before an
earlier frame of the same link. Its receiver therefore finds every queue, epoch and member that the sender knew.
Frames of a node to itself (a proxy to the owner next door) go through here as well, without being encoded.

    out      frames for each peer, in order; the shell takes them after the group that they belong to is on its way
    held     frames that wait for the wiring, per peer: at most HELD_FRAMES_MAX and about HELD_BYTES_MAX

A lost link takes its frames with it, those that wait here too: the cores attach and sync again.

*Long frames.* A group commit holds the publishes of all nodes since the last one, so the payload of one Append has no
better bound than the windows of all proxies together; and a message may be as long as the configuration says. The
surplus goes ahead in frames with nothing but `More`: the payload of the next frame of this link begins with it.

*Faults of a peer.* The other end of a link is a member and has the cluster's secret; it is not believed for that. No
frame of a peer ends this node, or holds more of its memory than the bounds above. A frame that no correct member
sends ends the link (`bad`), before anything of it is carried out, and the next link begins from scratch.

    torn, longer than 64 MiB, head longer than its frame              the link ends (cluster.link.frames)
    no head, unknown tag, wrong type, negative, beyond its field,     the link ends
      a range that ends before it begins, epochs that do not rise
    parts that differ from their payload                              the link ends
    a record with a wrong checksum, kind, queue, or too high an       Publish, Deliver, Answer, Reply: the link ends
      epoch or seq                                                    Append, SyncBucket: refused, and synced anew
    a wiring index that this node does not reach                      frames wait, HELD_MS_MAX at most: the link ends
    AppendAck of a group that was not sent, a bucket that was not     the link ends
      asked for, deliveries beyond their credit
    an epoch, incarnation, sync, gen or owner of the past, or one     dropped; an Append or offer is refused, so that
      that the map does not know                                      its owner hears of it
    the same frame again                                              nothing: numbers are taken once
    a gap in publishes                                                Detach: they are sent again in order
    a settlement of a message that its node does not hold             answered, and nothing else
    a queue that is not owned, not held, or does not exist            dropped, or refused

A clock of a peer is never read: times in frames are those of messages. Invisible lies are believed: a backup that
acknowledges unwritten records, an owner that settles without an acknowledgement. Members are not Byzantine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, Protocol

import msgspec

from clusterbroker.broker.node.messages import AnyRelay, AnyRequest, More, RelayMessage
from clusterbroker.broker.pools.messages import AnyPool
from clusterbroker.broker.remote.messages import AnyProxy
from clusterbroker.broker.stats.peer_messages import AnyCensus
from clusterbroker.broker.streams.messages import AnyStream
from clusterbroker.cluster.link.frames import decoder, encode
from clusterbroker.journal.record import DamagedRecord
from clusterbroker.replication.errors import BadMessage
from clusterbroker.replication.messages import AnyReplication

PIECE_BYTES: Final = 16 << 20
"""So much goes into one frame; the rest of a frame's 64 MiB is for its head."""
PAYLOAD_BYTES_MAX: Final = 2 << 30
"""More than any node has under way to another one."""


def pieces(payload: memoryview) -> Iterator[memoryview]:
    """What goes into one frame each, in order; the last is the rest."""
    at = 0
    while len(payload) - at > PIECE_BYTES:
        yield payload[at : at + PIECE_BYTES]
        at += PIECE_BYTES
    yield payload[at:]


class Joining:
    """The beginnings of one link's next payload."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._size = 0

    def add(self, piece: memoryview) -> None:
        """Raises BadMessage when it becomes longer than any payload is."""
        self._size += len(piece)
        if self._size > PAYLOAD_BYTES_MAX:
            raise BadMessage(f"a payload of more than {PAYLOAD_BYTES_MAX} bytes")
        self._pieces.append(piece)

    def end(self, rest: memoryview) -> memoryview:
        """The whole payload."""
        if not self._pieces:
            return rest
        joined, self._pieces, self._size = memoryview(b"".join((*self._pieces, rest))), [], 0
        return joined


Payload = bytes | bytearray | memoryview
Handler = Callable[[str, Any, memoryview], object]

HEADS: Final = decoder(AnyReplication, AnyProxy, AnyRequest, AnyRelay, AnyCensus, AnyStream, AnyPool, More)
ROUNDS_MAX: Final = 10_000
"""So often may an answer to itself lead to another one. Frames do not count: a failover has one for each queue."""
HELD_FRAMES_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 << 20
"""What may wait of one peer; a single frame may be as long as it likes."""
HELD_MS_MAX: Final = 5_000
"""So long a frame may wait: who is further behind is about to lose its lease."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
BAD: Final = (BadMessage, DamagedRecord)


class MemberShell(Protocol):
    """The process around a member: the links to the others, the metadata log, the node's log."""

    @property
    def leader(self) -> str | None:
        """The leader of the metadata log, as far as known."""

    def backlog(self, peer: str) -> int:
        """Bytes that wait for the peer's socket."""

    def bad_frame(self, peer: str, why: str) -> None:
        """The peer sent what no correct member sends, or what cannot be carried out here: its link ends."""

    def silent(self, peer: str, silent_ms: int) -> None:
        """Nothing has come from a living peer over its direct link for so long: the link may end."""

    def log_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """A line about a queue's copies, its owner or a relayed link."""


def _raised(_peer: str, error: Exception) -> NoReturn:
    raise error


def _no_link_owner(peer: str, why: str) -> NoReturn:
    raise AssertionError(f"nobody ends the link to {peer}: {why}")


class Hub:
    """The data channel of one node. `handlers` maps each type of head to the core that handles it.

    carry  called before frames are taken: those for relayed links join the frames of the relay's
    bad    (peer, why): the peer sent what no correct member sends; the link's owner ends it, with `unlink`
    failed (peer, error): its frame, or one of this node to itself, raised here: our mistake, which costs the link
    before called with each head before its handler, while this node owes something of the wiring (`arrears`)
    """

    def __init__(
        self,
        name: str,
        applied: Callable[[], int],
        bad: Callable[[str, str], object] = _no_link_owner,
        failed: Callable[[str, Exception], object] = _raised,
    ) -> None:
        self.name = name
        self._applied = applied
        self.bad = bad
        self.failed = failed
        self.carry: Callable[[], None] = lambda: None
        self.before: Callable[[Any], None] | None = None
        self.handlers: dict[type, Handler] = {}
        self.linked: dict[str, int] = {}
        """Session number of the link to each peer that has one; this node is always linked to itself."""
        self.out: dict[str, list[bytes]] = {}
        self.held_bytes: dict[str, int] = {}
        self._held: dict[str, deque[tuple[int, Any, memoryview, int]]] = {}
        self._joining: dict[str, Joining] = {}
        self._waiting: dict[str, tuple[Any, int]] = {}  # per peer, the oldest frame that waits, and since when (ms)
        self._round: deque[tuple[Any, memoryview]] = deque()

    # -- out

    def send(self, peer: str, head: msgspec.Struct, payload: Iterable[Payload] = ()) -> bool:
        """False: there is no link, and whoever sends will hear of it when there is one again. Raises ValueError for a
        head that cannot be encoded, which is the fault of whoever gave its values: nothing of it is sent."""
        if peer == self.name:
            self._round.append((head, memoryview(b"".join(payload))))
            return True
        if peer not in self.linked:
            return False
        out, applied = self.out.setdefault(peer, []), self._applied()
        parts = tuple(payload)
        ahead: list[memoryview] = []
        if sum(map(len, parts)) > PIECE_BYTES:
            *ahead, rest = pieces(memoryview(b"".join(parts)))
            parts = (rest,)
        try:
            last = encode(head, applied, parts)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{type(head).__name__} cannot be said: {error}") from error
        if ahead:
            out.extend(encode(More(), applied, (piece,)) for piece in ahead)
        out.append(last)
        return True

    def take(self) -> dict[str, list[bytes]]:
        """The frames that wait to be sent, by peer with a link of its own."""
        self.carry()
        out, self.out = self.out, {}
        return out

    # -- links

    @property
    def round(self) -> bool:
        """Frames of this node to itself wait for a turn."""
        return bool(self._round)

    def link(self, peer: str, session: int) -> None:
        """A new link: nothing of the old one counts any more."""
        self.unlink(peer)
        self.linked[peer] = session
        self._joining[peer] = Joining()
        self._held[peer] = deque()
        self.held_bytes[peer] = 0

    def unlink(self, peer: str) -> None:
        self.linked.pop(peer, None)
        self.out.pop(peer, None)
        self._joining.pop(peer, None)
        self._held.pop(peer, None)
        self._waiting.pop(peer, None)
        self.held_bytes.pop(peer, None)

    # -- in

    def received(self, peer: str, index: int, head: Payload, payload: memoryview) -> None:
        """A frame came over the peer's present link."""
        held = self._held.get(peer)
        if held is None:
            return
        try:
            message = HEADS.decode(head)
        except UNREADABLE as error:
            self.bad(peer, _line(error))
            return
        if isinstance(message, RelayMessage):
            self._handle(peer, message, payload)
            return
        if isinstance(message, More):
            try:
                self._joining[peer].add(payload)
            except BadMessage as error:
                self.bad(peer, _line(error))
            return
        payload = self._joining[peer].end(payload)
        if not held and index <= self._applied():
            self._handle(peer, message, payload)
            return
        size = len(head) + len(payload)
        if held and (len(held) >= HELD_FRAMES_MAX or self.held_bytes[peer] + size > HELD_BYTES_MAX):
            self.bad(peer, f"{len(held)} frames wait for wiring index {held[0][0]}, and {self._applied()} is applied")
            return
        held.append((index, message, payload, size))
        self.held_bytes[peer] += size

    def _handle(self, peer: str, message: Any, payload: memoryview) -> None:
        handler = self.handlers.get(type(message))
        if handler is None:
            self.bad(peer, f"nobody here listens to {type(message).__name__}")
            return
        if self.before is not None:
            self.before(message)
        try:
            handler(peer, message, payload)
        except BAD as error:
            self.bad(peer, f"{type(message).__name__}: {_line(error)}")
        except Exception as error:
            self.failed(peer, error)

    def advanced(self) -> None:
        """The wiring went on: what waited for it may be looked at."""
        for peer in tuple(self._held):
            held = self._held.get(peer)
            while held and held[0][0] <= self._applied() and self._held.get(peer) is held:  # else the link has ended
                _, message, payload, size = held.popleft()
                self.held_bytes[peer] -= size
                self._handle(peer, message, payload)

    @property
    def at_rest(self) -> bool:
        """No frame waits for the map."""
        return not any(self._held.values())

    def tick(self, now_ms: int) -> None:
        """To be called from time to time: looks for frames that wait too long."""
        for peer, held in tuple(self._held.items()):
            if not held:
                self._waiting.pop(peer, None)
            elif (known := self._waiting.get(peer)) is None or known[0] is not held[0]:
                self._waiting[peer] = held[0], now_ms
            elif now_ms - known[1] >= HELD_MS_MAX:
                self.bad(peer, f"a frame waits for wiring index {held[0][0]}, and {self._applied()} is applied")

    def turn(self) -> bool:
        """Hands over what this node sent to itself; True when there was something."""
        moved = bool(self._round)
        rounds = 0
        while self._round:
            frames, self._round = self._round, deque()
            for head, payload in frames:
                if self.before is not None:
                    self.before(head)
                try:
                    self.handlers[type(head)](self.name, head, payload)
                except Exception as error:
                    self.failed(self.name, error)
            rounds += 1
            assert rounds < ROUNDS_MAX, "what a node says to itself comes to an end"
        return moved


def _line(error: BaseException) -> str:
    return str(error) or type(error).__name__
