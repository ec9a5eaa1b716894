"""Links between members that cannot reach each other, through a third member that reaches both (pure).

Theory. A cut between two living members that both reach the Raft leader fails neither of them, and is absent from the
map. Without a link between them a proxy at the one could not use the queues of the other, its copies would leave the
in-sync sets, and the attach barrier of a queue with a new owner would never fall. The pair therefore gets a *relayed
link*, which is a link in every respect that counts to those above: first in, first out, and reset as a whole when
anything is lost. The difference is invisible to them.

    opener (the lower name)             relay                            the other (the higher name)
      apart --RelayOpen-->  route, if it is linked with the other  --RelayOpen--> standing
      standing <----------------------- RelayAccept ------------------------------
      frames  <=== Relayed: pieces of the two streams of frames, passed on unread ===>  frames
      any end, or the relay when it loses a link: RelayClose --> apart

The relay is a member with direct links to both, as all members tell their neighbours (`Reach`): the Raft leader if it
is one of them, else the lowest name. Nothing is relayed over two hops: an end must be the sender or the receiver of a
relayed frame. A direct link that comes up ends the relayed one first.

Waiting bytes are bounded by a window: an end sends WINDOW_BYTES more than the other has taken, and the other takes no
more while its frames wait for the wiring. The rest waits at the sender, in `backlog`, as for a socket. A relay thus
holds at most a window per direction; a sender beyond it loses the link.

`Reach` comes every second, so its absence shows a dead direct link before the kernel does: `silent`.

Invariants: (1) `relayed` and `lost` are reported alternately for a peer, and never `relayed` while there is a direct
link; (2) a frame is reported between the two, in the order of sending; (3) frames of another number or another relay
than the present one are dropped, or answered by RelayClose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.node.hub import Hub, MemberShell, Payload
from clusterbroker.broker.node.messages import (
    Passing,
    Reach,
    RelayAccept,
    RelayClose,
    Relayed,
    RelayMessage,
    RelayOpen,
    RelayTook,
)
from clusterbroker.cluster.link.frames import BadFrame, FrameReader
from clusterbroker.replication.errors import BadMessage

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore

APART_MS: Final = 500
"""A pair without a direct link for so long gets a relayed one."""
ANSWER_MS: Final = 1000
"""A relay, or the other end, that has not answered by then does not."""
RETRY_MS: Final = 250
REACH_MS: Final = 1000
SILENT_MS: Final = 3000
"""Three times no `Reach`."""
WINDOW_BYTES: Final = 4 << 20
PIECE_BYTES: Final = 256 << 10
TOOK_BYTES: Final = 512 << 10
"""What was taken is told each time that it is so much more."""

assert TOOK_BYTES + PIECE_BYTES < WINDOW_BYTES, "a sender who waits for room hears of some"


class RelayHost(Protocol):
    """What relayed links ask of their node."""

    @property
    def now_ms(self) -> int: ...

    @property
    def leader(self) -> str | None:
        """Who leads the wiring log, as far as this node knows."""

    def send_direct(self, peer: str, head: RelayMessage, payload: Iterable[Payload] = ()) -> None:
        """A frame for the direct link to the peer, which stands."""

    def gathered(self, peer: str) -> Sequence[bytes]:
        """Takes the frames that wait for a peer with a relayed link."""

    def held_bytes(self, peer: str) -> int:
        """So much of what came from the peer waits for the wiring."""

    def relayed(self, peer: str, number: int, via: str) -> None:
        """There is a relayed link with the peer."""

    def frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None:
        """A frame came over it; a bad one is followed by `drop`."""

    def lost(self, peer: str, why: str) -> None:
        """It is over, with all that was on it."""

    def silent(self, peer: str, silent_ms: int) -> None:
        """Nothing has come over the direct link with a living peer for too long; told again until it does."""

    def stumbled(self, peer: str, error: Exception) -> None:
        """A mistake of ours over a peer, which costs the link with it."""


@dataclass(slots=True, eq=False)
class _End:
    """This node's end of a relayed link."""

    peer: str
    via: str
    number: int
    standing: bool
    """False: RelayOpen is not answered yet."""
    since_ms: int
    reader: FrameReader = field(default_factory=FrameReader)
    waiting: deque[memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    sent: int = 0
    acked: int = 0
    """Bytes of the stream to the peer: sent, and taken by it."""
    taken: int = 0
    reported: int = 0
    """Bytes of the stream from the peer: taken, and acknowledged so."""


class _Route:
    """A relay's account of a link between two others: bytes passed on, and taken by the other, by sender."""

    __slots__ = ("number", "passed", "took")

    def __init__(self, number: int, ends: tuple[str, str]) -> None:
        self.number = number
        self.passed = dict.fromkeys(ends, 0)
        self.took = dict.fromkeys(ends, 0)


@dataclass(slots=True)
class _Apart:
    """A living member without a direct link."""

    since_ms: int
    try_ms: int
    tried: list[str] = field(default_factory=list)
    """Relays that did not work since one last did."""


class Relay:
    """One node's ends of relayed links, and its routes between others."""

    def __init__(self, name: str, incarnation: int, host: RelayHost) -> None:
        self.name = name
        self._host = host
        self._number = incarnation << 32
        self._direct: dict[str, int] = {}  # when Reach was last heard of it
        self._reach: dict[str, tuple[str, ...]] = {}
        self._alive: dict[str, int] = {}
        self._apart: dict[str, _Apart] = {}
        self._ends: dict[str, _End] = {}
        self._routes: dict[tuple[str, str], _Route] = {}
        self._reach_at_ms: int | None = None

    # -- what the node tells ----------------------------------------------------------------------------------

    def members(self, alive: dict[str, int]) -> None:
        """The living members and their incarnations, by the map."""
        now_ms = self._host.now_ms
        before, self._alive = self._alive, {name: alive[name] for name in sorted(alive) if name != self.name}
        for peer in tuple(self._ends):
            if self._alive.get(peer) != before.get(peer):
                self._end(peer, "the cluster takes it for dead" if peer not in self._alive else "it started again")
        for peer, incarnation in self._alive.items():
            if before.get(peer) != incarnation and peer in self._direct:
                self._direct[peer] = now_ms
        self._apart = {
            peer: self._apart.get(peer) or _Apart(now_ms, now_ms + APART_MS)
            for peer in self._alive
            if peer not in self._direct
        }

    def linked(self, peer: str) -> None:
        """There will be a direct link from here on: it wins."""
        self._end(peer, "there is a direct link")
        self._direct[peer] = self._host.now_ms
        self._direct = dict(sorted(self._direct.items()))
        self._apart.pop(peer, None)
        self._reach_at_ms = self._host.now_ms

    def unlinked(self, peer: str) -> None:
        """The direct link is gone, and so is all that went over it."""
        if self._direct.pop(peer, None) is None:
            return
        self._reach.pop(peer, None)
        self._reach_at_ms = self._host.now_ms
        if peer in self._alive:
            self._apart[peer] = _Apart(self._host.now_ms, self._host.now_ms + APART_MS)
        for end in tuple(self._ends.values()):
            if end.via == peer:
                self._end(end.peer, f"{peer} is not linked any more", notify=False)
        for pair, route in tuple(self._routes.items()):
            if peer in pair:
                other = pair[0] if pair[1] == peer else pair[1]
                self._close_route(pair, route, (other,), f"{self.name} has no link with {peer} any more")

    @property
    def at_rest(self) -> bool:
        """All living members are linked directly."""
        return not self._ends and not self._apart

    def tick(self, now_ms: int) -> None:
        """To be called every 50 ms, four times a second while `at_rest`."""
        if self._reach_at_ms is None or now_ms >= self._reach_at_ms:
            self._send_reach(now_ms)
        for peer, reached_ms in tuple(self._direct.items()):
            if peer in self._alive and now_ms - reached_ms >= SILENT_MS:
                self._for(peer, self._host.silent, peer, now_ms - reached_ms)
        for end in tuple(self._ends.values()):
            if not end.standing and now_ms - end.since_ms >= ANSWER_MS:
                self._for(end.peer, self._end, end.peer, "no answer")
        for peer, apart in tuple(self._apart.items()):
            due = self.name < peer and peer not in self._ends and now_ms >= apart.try_ms
            if due and not self._for(peer, self._open, peer, apart, now_ms):
                apart.try_ms = now_ms + APART_MS

    def _for(self, peer: str, what: Callable[..., object], *given: object) -> bool:
        """Does what is due over a peer; whether it went well, for a mistake in it costs no other."""
        try:
            what(*given)
        except Exception as error:
            self._host.stumbled(peer, error)
            return False
        return True

    def _send_reach(self, now_ms: int) -> None:
        self._reach_at_ms = now_ms + REACH_MS
        reach = Reach(tuple(self._direct))
        for peer in tuple(self._direct):
            self._for(peer, self._host.send_direct, peer, reach)

    # -- what others ask --------------------------------------------------------------------------------------

    @property
    def via(self) -> dict[str, str]:
        """Peers with a relayed link that stands, and the relay."""
        return {end.peer: end.via for end in self._ends.values() if end.standing}

    def backlog(self, peer: str) -> int:
        """Bytes that the peer has not taken yet, of those for a relayed link; 0 without one."""
        end = self._ends.get(peer)
        return end.waiting_bytes + end.sent - end.acked if end is not None else 0

    def carry(self) -> None:
        """To be called before frames are taken to the links: those for relayed links join the relay's."""
        if self._reach_at_ms is not None and self._reach_at_ms <= self._host.now_ms:
            self._send_reach(self._host.now_ms)
        for end in tuple(self._ends.values()):
            if not end.standing:
                continue
            for frame in self._host.gathered(end.peer):
                end.waiting.append(memoryview(frame))
                end.waiting_bytes += len(frame)
            self._pump(end)
            if end.taken - end.reported >= TOOK_BYTES and self._host.held_bytes(end.peer) < WINDOW_BYTES:
                end.reported = end.taken
                self._host.send_direct(end.via, RelayTook(self.name, end.peer, end.number, end.taken))

    def _pump(self, end: _End) -> None:
        while end.waiting and end.sent - end.acked < WINDOW_BYTES:
            pieces: list[memoryview] = []
            size = 0
            while end.waiting and size < PIECE_BYTES:
                piece = end.waiting.popleft()
                room = PIECE_BYTES - size
                if len(piece) > room:
                    end.waiting.appendleft(piece[room:])
                    piece = piece[:room]
                pieces.append(piece)
                size += len(piece)
            end.sent += size
            end.waiting_bytes -= size
            self._host.send_direct(end.via, Relayed(self.name, end.peer, end.number), pieces)

    def drop(self, peer: str, why: str) -> None:
        """Ends the relayed link with the peer, if there is one."""
        self._end(peer, why)

    # -- opening and ending -----------------------------------------------------------------------------------

    def _relays(self, peer: str) -> list[str]:
        """Who has links with both, the best first."""
        found = [name for name in self._direct if peer in self._reach.get(name, ()) and name in self._alive]
        leader = self._host.leader
        return sorted(found, key=lambda name: (name != leader, name))

    def _open(self, peer: str, apart: _Apart, now_ms: int) -> None:
        relays = self._relays(peer)
        untried = [name for name in relays if name not in apart.tried]
        if relays and not untried:
            apart.tried.clear()
            untried = relays
        if not untried:
            return
        via = untried[0]
        apart.tried.append(via)
        self._number += 1
        self._ends[peer] = _End(peer, via, self._number, standing=False, since_ms=now_ms)
        self._host.send_direct(via, RelayOpen(self.name, peer, self._number))

    def _stands(self, end: _End) -> None:
        end.standing = True
        apart = self._apart.get(end.peer)
        if apart is not None:
            apart.tried.clear()
        self._host.relayed(end.peer, end.number, end.via)

    def _end(self, peer: str, why: str, notify: bool = True) -> None:
        """`notify`: the other end does not know."""
        end = self._ends.pop(peer, None)
        if end is None:
            return
        if notify and end.via in self._direct:
            self._host.send_direct(end.via, RelayClose(self.name, peer, end.number, why))
        apart = self._apart.get(peer)
        if apart is not None:
            apart.try_ms = max(apart.try_ms, self._host.now_ms + RETRY_MS)
        if end.standing:
            self._host.lost(peer, why)

    # -- what comes -------------------------------------------------------------------------------------------

    def received(self, peer: str, message: RelayMessage, payload: memoryview) -> None:
        """A frame of a direct link. Raises BadMessage."""
        if isinstance(message, Reach):
            if peer in self._direct:
                self._direct[peer] = self._host.now_ms
                self._reach[peer] = message.names
            return
        assert isinstance(message, Passing), "there are no others"
        if message.target == self.name and message.source not in (peer, self.name):
            self._arrived(peer, message, payload)
        elif message.source == peer and message.target != self.name:
            self._pass_on(message, payload)
        else:
            raise BadMessage(f"{peer} speaks for {message.source} to {message.target}: it stands between other nodes")

    def _arrived(self, via: str, message: Passing, payload: memoryview) -> None:
        """At the end that it is for."""
        peer, end = message.source, self._ends.get(message.source)
        if isinstance(message, RelayOpen):
            self._asked(via, message)
            return
        if end is None or (end.via, end.number) != (via, message.number):
            if not isinstance(message, RelayClose):
                self._refuse(via, message, "no such link")
        elif isinstance(message, RelayAccept):
            if not end.standing:
                self._stands(end)
        elif isinstance(message, RelayClose):
            self._end(peer, message.why, notify=False)
        elif not end.standing:
            pass  # of an earlier link with the same number there is none, so this cannot be; it is not believed
        elif isinstance(message, RelayTook):
            if not end.acked <= message.upto <= end.sent:
                self._end(peer, f"it took {message.upto} bytes of {end.sent}")
            else:
                end.acked = message.upto
        else:
            self._take(end, payload)

    def _asked(self, via: str, message: RelayOpen) -> None:
        peer = message.source
        if peer in self._direct:
            self._refuse(via, message, "there is a direct link")  # it will be found dead, if it is
        elif peer not in self._alive or peer > self.name:
            self._refuse(via, message, "not now")
        else:
            self._end(peer, "a newer one took its place")
            end = self._ends[peer] = _End(peer, via, message.number, standing=True, since_ms=self._host.now_ms)
            self._host.send_direct(via, RelayAccept(self.name, peer, message.number))
            self._stands(end)

    def _take(self, end: _End, payload: memoryview) -> None:
        end.taken += len(payload)
        try:
            for index, head, body in end.reader.feed(payload):
                self._host.frame(end.peer, index, head, body)
                if self._ends.get(end.peer) is not end:
                    return
        except BadFrame as error:
            self._end(end.peer, f"it sent {error}")

    def _refuse(self, via: str, message: Passing, why: str) -> None:
        if via in self._direct:
            self._host.send_direct(via, RelayClose(self.name, message.source, message.number, why))

    # -- between others ---------------------------------------------------------------------------------------

    def _pass_on(self, message: Passing, payload: memoryview) -> None:
        source, target = message.source, message.target
        pair = (source, target) if source < target else (target, source)
        route = self._routes.get(pair)
        if isinstance(message, RelayOpen):
            if route is not None:
                self._close_route(pair, route, (target,), "a newer one took its place")
            if target not in self._direct or source > target:
                self._host.send_direct(source, RelayClose(target, source, message.number, f"no way from {self.name}"))
                return
            self._routes[pair] = _Route(message.number, pair)
        elif route is None or route.number != message.number:
            if not isinstance(message, RelayClose):
                self._host.send_direct(source, RelayClose(target, source, message.number, "no such link"))
            return
        elif isinstance(message, RelayClose):
            del self._routes[pair]
        elif isinstance(message, Relayed):
            route.passed[source] += len(payload)
            if route.passed[source] - route.took[source] > WINDOW_BYTES + PIECE_BYTES:
                self._close_route(pair, route, pair, f"{source} sent more than its window")
                return
        elif isinstance(message, RelayTook):
            route.took[target] = min(route.passed[target], max(route.took[target], message.upto))
        self._host.send_direct(target, message, (payload,) if len(payload) else ())

    def _close_route(self, pair: tuple[str, str], route: _Route, to: Iterable[str], why: str) -> None:
        del self._routes[pair]
        for end in to:
            if end in self._direct:
                other = pair[0] if pair[1] == end else pair[1]
                self._host.send_direct(end, RelayClose(other, end, route.number, why))


class Relaying:
    """What a node and its shell give the node's `Relay`."""

    def __init__(
        self, node: NodeCore, hub: Hub, shell: MemberShell, begins: Callable[[str, int], None],
        ends: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._node = node
        self._hub = hub
        self._begins = begins
        self._ends = ends
        self._shell = shell
        self.relay = Relay(hub.name, node.options.incarnation, self)
        hub.carry = self.relay.carry
        heads = (Reach, RelayOpen, RelayAccept, RelayClose, Relayed, RelayTook)
        hub.handlers.update(dict.fromkeys(heads, self.relay.received))

    @property
    def now_ms(self) -> int:
        return self._node.now_ms

    @property
    def leader(self) -> str | None:
        return self._shell.leader

    def send_direct(self, peer: str, head: RelayMessage, payload: Iterable[Payload] = ()) -> None:
        self._hub.send(peer, head, payload)

    def gathered(self, peer: str) -> Sequence[bytes]:
        return self._hub.out.pop(peer, ())

    def held_bytes(self, peer: str) -> int:
        return self._hub.held_bytes.get(peer, 0)

    def relayed(self, peer: str, number: int, via: str) -> None:
        self._shell.log_event("link.relayed", {"peer": peer, "via": via})
        self._begins(peer, number)

    def frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None:
        self._hub.received(peer, index, head, payload)

    def lost(self, peer: str, why: str) -> None:
        self._shell.log_event("link.relay_ended", {"peer": peer, "why": why})
        self._ends(peer)

    def silent(self, peer: str, silent_ms: int) -> None:
        self._shell.silent(peer, silent_ms)

    def stumbled(self, peer: str, error: Exception) -> None:
        self._hub.failed(peer, error)
