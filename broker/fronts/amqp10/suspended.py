"""What a link has left while its client is away, in the memory of its node (classes L0 and L1).

    class   kept in                         survives
    L0      the session's memory            detach and attach in one session
    L1      the node's memory               the connection
    L2      the logs of the link's queues   connection, node, and owner of the queue (`recoverable`)

    SuspendedSender      tags of deliveries that were accepted, and the beginning of one that is not whole
    SuspendedReceiver    the link itself: it stays a consumer of its queue without credit, and what it holds stays
                         unacknowledged there

A suspended link ends with its time, with what it is about (its queue, its vhost, its user), or when its client attaches
without a map. What it holds returns then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.receiver import give_back
from clusterbroker.broker.access.timeouts import check_timeouts
from clusterbroker.broker.content.selector.filters import selects_as
from clusterbroker.broker.fronts.amqp10.delivery import SessionLedger
from clusterbroker.broker.fronts.amqp10.expiry import Event, Terms
from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
from clusterbroker.broker.fronts.amqp10.sender_memory import Memory
from clusterbroker.broker.node.links import Identity
from clusterbroker.broker.stats.links import SuspendedRow
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp10.errors import Amqp10Error
from clusterbroker.broker.wire.amqp10.performatives import Source, Target

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

HELD_MAX: Final = 65_536
"""Deliveries of a suspended link; what it has more returns to its queue."""
PART_BYTES_MAX: Final = 1 << 20
PARTS_BYTES_MAX: Final = 32 << 20
"""Of deliveries that are not whole: of one, and of all suspended links of the node. What is more is forgotten."""
ROOM_BYTES: Final = 512
LOOKS_AT_ONCE: Final = 100_000
"""Steps of a look for deliveries that are held for too long."""


class _Suspended:
    """Of either role."""

    __slots__ = ("_runs", "access", "expires_ms", "identity", "since_ms", "terms")

    def __init__(self, identity: Identity, access: Authorization, terms: Terms) -> None:
        self.identity = identity
        self.access = access
        self.terms = terms
        self.since_ms = access.node.now_ms
        self.expires_ms = 0
        """0: its time does not run."""
        self._runs = False

    @property
    def is_lasting(self) -> bool:
        return self.terms.outlives_connection

    @property
    def bytes_kept(self) -> int:
        return 0

    def went(self, event: Event) -> bool:
        """Its client is further away; False: it has ended with that."""
        node = self.access.node
        if node.links.find(self.identity) is not self:
            return False
        if not self.terms.outlives(event):
            self.end()
            return False
        if self.terms.timeout_s and not self._runs and self.terms.runs_from(event):
            self._runs = True
            self.expires_ms = node.now_ms + self.terms.timeout_s * 1000
            node.links.expires(self, self.expires_ms)
        return True

    @property
    def _held(self) -> tuple[str | None, int, int]:
        """(address, queue id, unsettled)."""
        raise NotImplementedError

    @property
    def row(self) -> SuspendedRow:
        """For operators."""
        name, user = self.identity
        address, queue_id, unsettled = self._held
        return SuspendedRow(
            vhost=name.vhost,
            container=name.container,
            name=name.link,
            receives=name.role,
            user=user,
            level="node" if self.terms.outlives_connection else "session",
            address=address,
            queue_id=queue_id,
            unsettled=unsettled,
            since_ms=self.since_ms,
            expires_ms=self.expires_ms,
            expiry_policy=self.terms.policy,
            timeout_s=self.terms.timeout_s,
        )

    def end(self) -> None:
        """It is not suspended any more, and nothing of it is kept."""
        if self.access.node.links.find(self.identity) is self:
            self.access.node.links.take(self)
            self.expire()

    def expire(self) -> None:
        raise NotImplementedError

    def review(self, now_ms: int) -> None:  # noqa: ARG002
        """Its user, or its vhost, may be gone."""
        access, node = self.access, self.access.node
        if access.rights.gone or node.vhosts.get(access.vhost.name) is not access.vhost:
            self.end()


class SuspendedSender(_Suspended):
    """The client sends."""

    __slots__ = ("connection_id", "memory", "part", "target")

    def __init__(
        self, identity: Identity, access: Authorization, terms: Terms, target: Any, memory: Memory,
        part: tuple[bytes, bytes] | None, connection_id: str,
    ) -> None:  # fmt: skip
        super().__init__(identity, access, terms)
        self.connection_id = connection_id
        """On which its client was told outcomes: whoever attaches on it has read them."""
        self.target = target
        """The address of its target."""
        self.memory = memory
        self.part = part
        """Of a delivery that is not whole: its tag, and its first bytes."""

    @property
    def bytes_kept(self) -> int:
        return 0 if self.part is None else len(self.part[1])

    @property
    def _held(self) -> tuple[str | None, int, int]:
        return (
            self.target if isinstance(self.target, str) else None,
            0,
            len(self.memory.stored) + max(0, self.memory.undecided),
        )

    def is_of(self, terminus: Any) -> bool:
        """Whether a client comes back to the same place."""
        return isinstance(terminus, Target) and terminus.address == self.target and not terminus.dynamic

    def expire(self) -> None:
        self.memory.stored.clear()


class SuspendedReceiver(_Suspended):
    """The client receives. It is the session of its link meanwhile."""

    __slots__ = ("ledger", "link")
    closing = False
    hears_cancels = True
    connection = None

    def __init__(self, identity: Identity, access: Authorization, terms: Terms, link: ReceiverLink) -> None:
        super().__init__(identity, access, terms)
        self.link = link
        self.ledger = SessionLedger(0, OutBuffer(ROOM_BYTES))
        self.ledger.flowing = False

    @property
    def _held(self) -> tuple[str | None, int, int]:
        address = self.link.source.address
        shown = address if isinstance(address, str) else None
        return shown, self.link.queue.entity.queue_id, self.ledger.unacked

    def is_of(self, terminus: Any) -> bool:
        """Whether a client comes back to the same place, for the same messages."""
        if not isinstance(terminus, Source) or terminus.dynamic or self.link.queue.deleted:
            return False
        return terminus.address == self.link.source.address and selects_as(terminus.filter or {}, self.link.filter)

    @property
    def is_here(self) -> bool:
        """Its time is not over."""
        return self.access.node.links.find(self.identity) is self

    def hold(self, seqs: Collection[int]) -> list[int]:
        """Takes over what the link holds, in this order; returns what is too much."""
        taken = list(seqs)
        room = max(0, HELD_MAX - self.ledger.unacked)
        for seq in taken[:room]:
            self.ledger.add(self.link.credit, seq, self.access.node.now_ms)
        return taken[room:]

    def let_go(self) -> list[int]:
        """What the link holds, which goes on elsewhere."""
        return [seq for _, _, seq in self.ledger.drain_of(self.link.credit)]

    def expire(self) -> None:
        """All returns, uncounted."""
        link, node = self.link, self.access.node
        entries = self.ledger.drain_of(link.credit)
        if not link.queue.deleted:
            node.setting_aside.work(link.queue, link.queue.unsubscribe, link, node.now_ms)
            give_back(node, entries, requeue=True, counted=False)

    def review(self, now_ms: int) -> None:
        super().review(now_ms)
        node = self.access.node
        if self.ledger.unacked and node.links.find(self.identity) is self:
            check_timeouts(self, node, now_ms, node.labour.done + LOOKS_AT_ONCE)

    # -- as its link, and `check_timeouts`, see a session

    @property
    def consumers(self) -> Mapping[str, ReceiverLink]:
        return {self.link.name: self.link}

    def cut(self, _: ReceiverLink, __: Amqp10Error) -> None:
        """The queue is deleted."""
        self.end()

    def cancelled(self, _: ReceiverLink) -> None:
        """A delivery was held for too long: all of them have returned."""
        self.access.node.links.take(self)

    def timed_out(self, _: int) -> None:
        self.end()

    def want_send(self) -> None:
        """Nobody listens."""


Suspended = SuspendedSender | SuspendedReceiver


NOBODY: Final[dict[Identity, Suspended]] = {}
"""Of each session and connection that nobody has left a link on: there may be very many. It stays empty."""
NOTED_MIN: Final = 64


def noted(known: dict[Identity, Suspended], links: Iterable[Suspended], node: Any) -> dict[Identity, Suspended]:
    """With these links besides. What has gone on or ended since is in it too, but never much of that."""
    for link in links:
        known = known or {}
        known[link.identity] = link
    if len(known) > 2 * len(node.links) + NOTED_MIN:
        return {identity: link for identity, link in known.items() if node.links.find(identity) is link}
    return known


def left(entries: Sequence[Any]) -> list[Any]:
    """Deliveries that a session had kept apart, and carries out in vain: those of links that are suspended stay with
    these. Returns the others."""
    others = []
    for entry in entries:
        link: ReceiverLink = entry[1].owner
        queue: Any = link.queue
        waiting: Any = link.session
        if link.attach.link and not link.attached:
            if not queue.deleted:
                queue.leave_to_link((entry[2],), link.attach)
        elif not (isinstance(waiting, SuspendedReceiver) and waiting.is_here and not waiting.hold((entry[2],))):
            others.append(entry)
    return others
