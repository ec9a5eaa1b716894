"""What a session asks of a queue, wherever the queue is: here (`queue.Queue`) or at its owner (`remote.RemoteQueue`).

A queue that is here answers at once; one that is elsewhere answers when its owner has. Therefore every question takes
a `then`, which is called exactly once, perhaps before the question returns, and the one who asks parks its channel. A
queue that is deleted meanwhile answers what is still open (`GONE`, nothing ready, no message). What no owner could be
asked within UNANSWERED_MS may never be answered.

What runs once per message needs no answer: deliveries go from the ring into output buffers, acknowledgements from
ledgers into the ring, and a publish is answered through its ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.lease import LeaseAnswer, LeaseRequest
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged
from clusterbroker.broker.queues.link_held import NO_LINK, HeldMessages, LinkAttach
from clusterbroker.broker.queues.modification import Modification as Modification
from clusterbroker.broker.queues.subscription import LocalConsumer, Source
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

Taken = tuple[int, Message, bool, int]  # seq, message, redelivered, delivery count

IN_USE: Final = "in use"
NOT_EMPTY: Final = "not empty"
EXCLUSIVE: Final = "in exclusive use"
GONE: Final = "gone"
NOT_HELD: Final = "does not hold these deliveries for this client any more"
"""Why what a client has settled is not carried out."""

Reread = Callable[[Mapping[int, Message], int], None]
"""Messages by seq, of the first so many of the seqs that were asked for: as many as are worth reading at once, at least
one of them. Some may be missing: they are held by nobody any more, or cannot be read."""

UNANSWERED_MS: Final = 60_000
"""So long somebody waits for an answer of a queue's owner."""


class Moved(NamedTuple):
    """Whose rows a part is made of, so that a queue has each of them once (`producers`)."""

    segment: int
    """Its queue's id."""
    seqs: Sequence[int]
    """Of all messages of the part, in their order, rising."""


class Decided(NamedTuple):
    """What becomes of one delivery."""

    seq: int
    outcome: str
    """"ack", "reject" or "requeue"."""
    link: LinkAttach = NO_LINK
    """To which it was handed out. It counts as long as the link is not attached anew, and has not ended."""
    change: bytes = b""
    """Of "reject": what its letter is annotated with."""


HELD_BY_NOBODY: Final = 0
"""No message has this seq: a part that settles it is refused."""


class CommitPart:
    """What a transaction publishes into one queue, and settles there, in order. Or rows of a segment: with `moved`, and
    without settlements.

    void   seqs of `settles` that could not be carried out, for the link, or the node, does not hold them any more. It
           is complete when the ticket passes, which is rejected then. A part with publishes is carried out whole or not
    """

    __slots__ = ("judged", "moved", "publishes", "settles", "void")

    def __init__(self) -> None:
        self.judged = False
        """The queue has said that it has room (`QueueHandle.judge`)."""
        self.moved: Moved | None = None
        self.publishes: list[tuple[Sequence[Message], tuple[bytes, int] | None]] = []
        """Messages, or one message with its producer and number."""
        self.settles: list[Decided] = []
        self.void: set[int] = set()

    @property
    def decides(self) -> bool:
        """Whether it settles what others could have by now."""
        return any(one.outcome != "requeue" for one in self.settles)


class QueueHandle(Source, Protocol):
    """One queue, as sessions and routers see it."""

    __slots__ = ()

    @property
    def ready(self) -> int:
        """Messages ready; of a queue elsewhere, as its last answer said."""

    # -- publishing

    @property
    def away(self) -> bool:
        """Nobody answers for it now: what is published waits, for how long is not known."""

    @property
    def rejects(self) -> bool:
        """Whether each message may be refused: it is asked for by `accepts`, and needs a ticket of its own."""

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        """Whether there is room for one more, or it is here already: `named` are its producer and number, if that gave
        it one. Elsewhere the owner decides, and refuses through the ticket."""

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        """As `accepts`, for all of these messages or none; what is refused is no dead letter."""

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        """Takes the messages; the ticket, if any, is held until they are committed."""

    def publish_numbered(
        self, producer: bytes, numbers: Sequence[int], messages: Sequence[Message], ticket: Ticket | None, now_ms: int
    ) -> None:
        """Messages of a producer that numbers its own (`producers`), each with its number: the queue stores each number
        once. Those of a client rise. Only where none of them may be refused, or for a single one."""

    def publish_tagged(self, tagged: Tagged, messages: Sequence[Message], ticket: Ticket, now_ms: int) -> None:
        """Deliveries of a recoverable link, one message each (`link_deliveries`): each is stored once, and the queue
        knows its tag, or the ticket is rejected and none of the messages is here."""

    def known_tags(self, asked: AskedTags, then: Callable[[list[bytes] | str], None]) -> None:
        """Which of these deliveries are here, when all that was published before is committed. A text: nobody can say,
        for the link is attached elsewhere, or its queue is gone."""

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None] = lambda: None) -> None:
        """Nobody asks for these deliveries any more: of a sender by their tags, of a receiver, those that were
        withdrawn (`HeldMessages`), by seqs of 8 bytes. What is lost with this node `LinkRecovery.keep` makes good.
        `then()` when that is committed, or the queue is deleted; perhaps never, where the queue changes hands."""

    def accept_dead_letter(self, message: Message) -> None:
        """Takes a dead letter."""

    # -- consuming

    def subscribe(self, subscription: LocalConsumer, now_ms: int, then: Callable[[str], None]) -> None:
        """`then("")`: the consumer stands in line, deliveries follow; otherwise EXCLUSIVE, GONE, or who leases it."""

    def subscribe_link(
        self, subscription: LocalConsumer, link: LinkAttach, now_ms: int, then: Callable[[str], None]
    ) -> None:
        """As `subscribe`, for a recoverable link: what it is handed it holds (`link_holding`), also when the consumer
        is gone. STALE: its attach does not count any more; NOT_KEPT: the queue cannot remember it."""

    def held_by(self, link: LinkAttach, then: Callable[[Sequence[HeldMessages] | str], None]) -> None:
        """What a recoverable link holds, which is attached at this node from now on: its messages are settled, returned
        and read here as those of any consumer, until `leave_to_link`: also by who has lost the link when the answer
        comes. A text: STALE, NOT_KEPT, GONE, IN_TRANSACTION."""

    def leave_to_link(self, seqs: Sequence[int], late: LinkAttach = NO_LINK) -> None:
        """Clients of this node have these no more; they stay with their link, or return if it has ended. `late`: who
        says so had them under this attach, and a later one may be here."""

    def get(self, now_ms: int, then: Callable[[Taken | str | None], None], *, no_ack: bool = False) -> None:
        """The head, unacknowledged (`no_ack`: the caller settles it at once), or None; `ready` counts what is left when
        `then` is called. A text says why nobody gets anything: the queue is leased."""

    def lease(self, request: LeaseRequest, then: Callable[[LeaseAnswer, bytes], None], now_ms: int) -> None:
        """Something is said about the lease on the queue (`leasing`); `then` hears what came of it, and ENQ records."""

    def browse(self, browse: Browse, then: Browsed, now_ms: int) -> None:
        """Shows what is ready, and takes nothing; `then` is called in a later turn."""

    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        """The message of a `get` as its client shall see it."""

    def watch(self, watch: Watch | None) -> None:
        """Who looks at what clients of this node get of it from now on; None: nobody."""

    def settle(self, seq: int, held: bool = False) -> None:
        """Acknowledged; `held`: together with other things of a transaction."""

    def reject(self, seq: int, change: bytes = b"") -> None:
        """Leaves the queue, to its dead-letter exchange; `change`: what its letter is annotated with."""

    def requeue(self, seq: int, counted: bool) -> None:
        """Returns to its place; `counted`: the consumer failed at it."""

    def modify(self, seq: int, modification: Modification) -> None:
        """Returns to its place, changed, or not for everybody."""

    def withdraw(self, seqs: Sequence[int], link: LinkAttach) -> None:
        """A recoverable link held one of these for too long: all return, counted, and its client hears so when it comes
        again (`HeldMessages`)."""

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        """`then()` when these unacknowledged messages can be rejected within one turn."""

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        """Messages that clients of this node hold unacknowledged, as those see them; `seqs` rise. `then` is not called
        when the queue goes away."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether its owner is asked and told by frames."""

    def judge(self, part: CommitPart, now_ms: int, then: Callable[[str], None]) -> None:
        """`then(why)`: why the queue would refuse this part, or ""; not called when its owner does not answer."""

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        """A transaction's part in this queue: all of it in one group, or, when a message is refused (overflow), none of
        it: then the ticket is rejected and the settled messages return. The ticket passes when the part is committed.
        What happened at this node itself is not waited for here: `Node.barrier` is."""

    # -- the queue as a whole

    def touch(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        """It was declared again: its expiry begins anew; answered like `counts`."""

    def counts(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        """(messages ready, consumers)."""

    def ready_for(self, consumer: LocalConsumer, now_ms: int, then: Callable[[int, int], None]) -> None:
        """As `counts`, of messages that this consumer may take: 0 is exact, more may be for others."""

    def staged(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        """Of one that holds staged rows: (rows, bytes of their bodies)."""

    def refuse_numbers(self, named: Sequence[tuple[bytes, int]], then: Callable[[], None]) -> None:
        """Messages with these producers' numbers do not come, unless they are sent once more: behind a later number of
        its producer none of them is taken for known. `then()` when that is committed."""

    def purge(self, then: Callable[[int], None]) -> None:
        """Drops what is ready; `then(how many)`."""

    def begin_delete(
        self, if_unused: bool, if_empty: bool, now_ms: int, then: Callable[[str, int], None], *,
        if_settled: bool = False,
    ) -> None:  # fmt: skip
        """May it be deleted? (IN_USE, NOT_EMPTY or "", messages ready). The deletion itself is a command. `if_settled`:
        for `if_empty` what is unacknowledged counts as well."""

    def adopt(self, settings: QueueSettings) -> None:
        """New settings, by policy."""

    def drop(self) -> None:
        """It was deleted: its consumers are cancelled, all questions and publishers answered."""
