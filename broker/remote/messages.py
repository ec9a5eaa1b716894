"""Messages between a proxy and a queue's owner: heads of frames; records follow as payload.

A proxy is a node with clients of a queue; the owner may be the same node. Every frame also carries its sender's
applied wiring index, and waits until the receiver has applied that index. `gen` is the proxy's number of its present
attachment to the queue: frames of another gen are dropped on both sides. Ranges are (first, last), inclusive. Message
records in payloads are ENQ records as in journal/layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from clusterbroker.broker.queues.browse import Browse
from clusterbroker.broker.queues.lease import LeaseAnswer, LeaseRequest
from clusterbroker.broker.queues.link_deliveries import ATTACH_MAX
from clusterbroker.cluster.link.fields import Producer, Short, Signed, Term, Whole, Word, check_ranges
from clusterbroker.cluster.link.fields import Range as Range

Tag = Annotated[bytes, msgspec.Meta(max_length=32)]
"""A delivery-tag of AMQP 1.0."""
AttachNumber = Annotated[int, msgspec.Meta(ge=0, le=ATTACH_MAX)]
"""An attach of a recoverable link."""
Holding = tuple[Whole, AttachNumber]
"""A `LinkAttach` that was handed messages: what its client says of them counts while its link has not begun anew."""
LinkRanges = tuple[tuple[Holding, tuple[Range, ...]], ...]
"""Messages by the recoverable links that hold them. For another holder's nobody else's word counts."""
AlarmName = Literal["memory", "disk"]


class ProxyMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these heads."""


# -- proxy to owner ---------------------------------------------------------------------------------------------


class ConsumerHead(msgspec.Struct, frozen=True, array_like=True):
    """A consumer as its owner knows it. Its arguments stay at its node: they mean nothing to an owner, they may hold
    what no codec of ours knows, and those of many consumers would not fit into a frame."""

    consumer: Whole
    """Number, unique in the proxy's node incarnation."""
    tag: str
    """For people only."""
    priority: Signed
    exclusive: bool
    no_ack: bool
    prefetch: Whole
    """For people only; the limit itself is `upto`."""
    upto: Whole
    """Credit: the owner may deliver this many to it in this gen."""
    held: Whole
    """Unacknowledged at the consumer now."""
    order: Whole
    """When it was declared, wall clock ms; the order of waiting single active consumers."""
    link: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """`LocalConsumer.link`."""
    filter: Annotated[bytes, msgspec.Meta(max_length=16 << 10)] = b""
    """Which messages it takes (`content.selector.filters`); empty: all."""
    holding: Whole = 0
    """The recoverable link that holds what it is handed (feature level 3), 0: none does."""
    attach: AttachNumber = 0
    """Of that link."""
    worker: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """`Member.worker` (feature level 6)."""


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """What became of deliveries. Kept by the proxy until `Settled`."""

    id: Whole
    """Rising per proxy and queue."""
    outcome: Annotated[int, msgspec.Meta(ge=0, le=4)]
    """SETTLE_*."""
    ranges: tuple[Range, ...]
    count: Short = 0
    """SETTLE_REQUEUE_COUNTED: the delivery count that the messages came with. Where it is higher now, an owner before
    has carried the return out and could not say so."""

    link: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """SETTLE_REQUEUE and SETTLE_REQUEUE_COUNTED: this link never gets them again; empty: it may."""
    change: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""
    """Likewise, and of SETTLE_REJECT: annotations that they have from now on (`content.changes`)."""
    withdraws: Whole = 0
    """SETTLE_REQUEUE_COUNTED: the recoverable link that has held them for too long, and whose client is to hear that.
    An owner of an older release does not read it."""
    whole: Whole = 0
    """SETTLE_ACK and SETTLE_REJECT: all settlements that name this id, the last one's, are carried out, or none.
    0: each one of its messages counts by itself. Members below feature level 6 do not read it."""
    held_by: Holding | None = None
    """SETTLE_ACK and SETTLE_REJECT for which a client waits: the recoverable link that holds them; None: none, or
    anyone. An owner of an older release passes it over."""

    def __post_init__(self) -> None:
        check_ranges(self.ranges)


SETTLE_ACK = 0
SETTLE_REJECT = 1  # leaves the queue, to its dead-letter exchange
SETTLE_REQUEUE = 2  # returns, uncounted (nack, recover)
SETTLE_REQUEUE_COUNTED = 3  # returns, the consumer failed at it (reject, channel or connection loss)
SETTLE_LEFT = 4  # is at the node no more: it stays with its link, and returns if it has none (feature level 3)


class AttachedQueue(msgspec.Struct, frozen=True, array_like=True):
    """Everything that the proxy's node has to do with a queue."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    consumers: tuple[ConsumerHead, ...]
    outstanding: tuple[Range, ...]
    settlements: tuple[Settlement, ...]
    """Not yet answered, in order; their seqs are not in `outstanding`."""
    next_number: Whole
    """Number of the proxy's next publish; those not acknowledged are sent again after Attached."""
    asking: tuple[ConsumerHead, ...] = ()
    """Consumers whose first answer is awaited: each is a `Consume`, taken up once the queue knows everybody."""
    sent: Whole = 0
    """Publishes up to this number have been sent to an owner before."""
    links: tuple[tuple[Whole, AttachNumber], ...] = ()
    """Attaches of recoverable links whose consumers are gone, while settlements of their deliveries are on the way. An
    owner of an older release does not read it."""

    def __post_init__(self) -> None:
        check_ranges(self.outstanding)


class Attach(ProxyMessage, frozen=True, tag=20):
    """Complete for the listed queues; every other queue that the receiver owns at `index`: nothing here."""

    incarnation: Whole
    index: Whole
    queues: tuple[AttachedQueue, ...]
    partial: bool = False
    """True: only the listed queues are meant (a single queue attaches again)."""
    before: tuple[Whole, ...] = ()
    """Queue ids that partial Attaches just before this one have listed: all of them together are one complete one, cut
    because frames are bounded."""
    silent: tuple[Whole, ...] = ()
    """Queue ids: nothing here either. Said of thousands of queues at once when their owner has failed, and not
    answered: whoever gets something to say of one attaches it."""


class Publish(ProxyMessage, frozen=True, tag=21):
    """Messages for queues that the receiver owns."""

    parts: tuple[tuple[Whole, Term, Whole, Whole, Whole, Whole], ...]
    """(queue_id, epoch, gen, number of the first, count, bytes of ENQ records)."""


class NamedPublish(ProxyMessage, frozen=True, tag=22):
    """One message of a producer that numbers its messages itself (x-producer, x-seq); takes a number like others."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    number: Whole
    producer: Producer
    sequence: Whole
    more: tuple[Whole, ...] = ()
    """Of the same producer, with the numbers behind that: a message each (feature level 6). Those of a client rise."""


class Consume(ProxyMessage, frozen=True, tag=23):
    queue_id: Whole
    epoch: Term
    gen: Whole
    head: ConsumerHead


class Cancel(ProxyMessage, frozen=True, tag=24):
    queue_id: Whole
    epoch: Term
    gen: Whole
    consumer: Whole


class Credit(ProxyMessage, frozen=True, tag=25):
    """(queue_id, gen, consumer, upto, held): cumulative per gen."""

    grants: tuple[tuple[Whole, Whole, Whole, Whole, Whole], ...]


class Settle(ProxyMessage, frozen=True, tag=26):
    queue_id: Whole
    epoch: Term
    gen: Whole
    settlements: tuple[Settlement, ...]


class Ask(ProxyMessage, frozen=True, tag=27):
    """A question or an order that is answered once: ASK_*. Asked again after a new attach."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    request: Whole
    what: Annotated[int, msgspec.Meta(ge=0, le=11)]
    if_unused: bool = False
    if_empty: bool = False
    no_ack: bool = False
    """Of ASK_GET: the client will not acknowledge, its node does; for the totals."""
    word: LeaseRequest | None = None
    """Of ASK_LEASE, and there it is."""
    consumer: Whole = 0
    """Of ASK_COUNTS: what is ready for this consumer, which may pass messages over; 0: for anybody."""
    tags: tuple[Whole, AttachNumber, tuple[Tag, ...], bool, Word] | None = None
    """Of ASK_TAGS and ASK_FORGET, and there it is: an `AskedTags`."""
    ranges: tuple[Range, ...] = ()
    """Of ASK_READ: messages that the proxy's clients hold. Of ASK_JUDGE: those that a transaction settles."""
    browse: Browse | None = None
    """Of ASK_BROWSE, and there it is."""
    link: tuple[Whole, AttachNumber] | None = None
    """Of ASK_HELD, and there it is: a `LinkAttach`."""
    publishes: tuple[Whole, Whole] = (0, 0)
    """Of ASK_JUDGE: messages of a transaction, and bytes of their bodies but for the last one's."""
    if_settled: bool = False
    """Of ASK_DELETE: `if_empty`, and what is unacknowledged counts as well. An owner of an older release passes it
    over."""
    numbered: tuple[tuple[Producer, tuple[tuple[Whole, Whole, Whole], ...]], ...] = ()
    """Of ASK_JUDGE: messages whose producers number them: place among the part's messages, from 0, the producer's
    number, and bytes of the body (feature level 7)."""
    links: LinkRanges = ()
    """Of ASK_JUDGE: of those that the transaction settles. An owner of an older release passes it over."""

    def __post_init__(self) -> None:
        if (self.word is None) != (self.what != ASK_LEASE):
            raise ValueError("a question about a lease says what, and no other does")
        if (self.tags is None) != (self.what not in (ASK_TAGS, ASK_FORGET)):
            raise ValueError("a question about a link's deliveries says which, and no other does")
        if bool(self.ranges) != (self.what == ASK_READ) and self.what != ASK_JUDGE:
            raise ValueError("who reads says what, and nobody else does")
        if (self.browse is None) != (self.what != ASK_BROWSE):
            raise ValueError("a browser's question says where it is, and no other does")
        check_ranges(self.ranges)
        if (self.link is None) != (self.what != ASK_HELD):
            raise ValueError("a question about what a link holds says which link, and no other does")


ASK_GET = 0
ASK_COUNTS = 1
ASK_PURGE = 2
ASK_DELETE = 3  # may it be deleted? the owner takes nothing more until it is
ASK_LEASE = 5  # something is said about the lease on it
ASK_READ = 6  # messages that were handed out before (feature level 3)
ASK_TAGS = 7  # which deliveries of a recoverable link are here (feature level 3)
ASK_BROWSE = 8  # what is ready is looked at, and not taken (feature level 3)
ASK_FORGET = 9  # deliveries of a recoverable link, for which nobody asks any more (feature level 3)
ASK_HELD = 10  # what a recoverable link holds, and its node is this one from now on (feature level 3)
ASK_JUDGE = 11  # would a transaction's part be refused? (feature level 6)
ASK_TOUCH = 4  # it was declared again: x-expires begins anew; answered like ASK_COUNTS


class Reply(ProxyMessage, frozen=True, tag=28):
    """Any node to the node of a requester: a direct reply (amq.rabbitmq.reply-to). The payload is one ENQ record whose
    ids mean nothing. Delivered at most once: what is lost with a link stays lost."""

    key: str
    vhost: str = ""
    """From where."""


class Commit(ProxyMessage, frozen=True, tag=29):
    """What a transaction publishes into one queue and settles there: the owner does all of it in one group or, when the
    queue refuses a message (overflow), nothing. It takes `count` publish numbers, and by them it is taken once."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    first: Whole
    count: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    settlements: tuple[tuple[Annotated[int, msgspec.Meta(ge=0, le=1)], tuple[Range, ...]], ...]
    """(SETTLE_ACK or SETTLE_REJECT, ranges): outstanding at the proxy until the commit is answered. What the
    transaction returns goes in a `Settle`."""
    named: tuple[tuple[Whole, Producer, Whole], ...] = ()
    """(number, producer, its number) of messages whose producer numbers them itself."""
    moved: tuple[Whole, tuple[Whole, ...]] | None = None
    """All of them are rows of a committed segment: the id of its queue, and their seqs there."""
    changes: tuple[tuple[Annotated[bytes, msgspec.Meta(max_length=4096)], tuple[Range, ...]], ...] = ()
    """Annotations of the dead letters of these, which are rejected."""
    judged: bool = False
    """The owner, or one before, has said that there is room (ASK_JUDGE). Members below feature level 6 do not read
    it."""
    lost: bool = False
    """None of its messages comes: the owner notes that it has refused their numbers, and takes nothing (feature level
    7)."""
    links: LinkRanges = ()
    """Of the messages that it settles. An owner of an older release passes it over."""

    def __post_init__(self) -> None:
        for _, ranges in (*self.settlements, *self.changes, *self.links):
            check_ranges(ranges)


class Alarmed(ProxyMessage, frozen=True, tag=30):
    """A node to all others: its resource alarms. Nobody publishes to its queues meanwhile."""

    names: tuple[AlarmName, ...]


class Seek(ProxyMessage, frozen=True, tag=31):
    """Any node to the node of a requester: does the channel of this reply key still wait for replies?"""

    request: Whole
    key: Annotated[str, msgspec.Meta(max_length=512)]
    vhost: str = ""
    """From where."""


class Sought(ProxyMessage, frozen=True, tag=32):
    """Answer to Seek."""

    request: Whole
    there: bool


class TaggedPublish(ProxyMessage, frozen=True, tag=36):
    """Neighbouring deliveries of a recoverable sender link (feature level 3), a message each: the owner takes all of
    them in one group, but for those that it knows, or nothing. They take a number each, and by these they are taken
    once."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    first: Whole
    link: Whole
    attach: AttachNumber
    number: Whole
    """Of the first delivery at its attach."""
    tags: Annotated[list[Tag], msgspec.Meta(min_length=1)]
    again: tuple[Tag, ...] = ()
    """Of these, what may be known already."""


class LinkKeep(ProxyMessage, frozen=True, tag=37):
    """To all members: of what earlier attaches of the link have sent, its client may ask for these tags only (feature
    level 3)."""

    link: Whole
    attach: AttachNumber
    tags: list[Tag]


# -- owner to proxy ---------------------------------------------------------------------------------------------


class Attached(ProxyMessage, frozen=True, tag=40):
    """The owner has taken the attachment; `accepted`: it has all publishes of this proxy up to this number."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    accepted: Whole


class Published(ProxyMessage, frozen=True, tag=41):
    """Publishes up to `upto` are committed, but for those that were refused (overflow)."""

    queue_id: Whole
    gen: Whole
    upto: Whole
    refused: tuple[Range, ...] = ()
    """Numbers, told once, at or below `upto`."""

    def __post_init__(self) -> None:
        check_ranges(self.refused)


class Consuming(ProxyMessage, frozen=True, tag=42):
    """Answer to Consume; `refused` is "" or the reason (exclusive use). Later, of a queue with a single active
    consumer: whether that is this one now."""

    queue_id: Whole
    gen: Whole
    consumer: Whole
    refused: str = ""
    active: bool | None = None
    """None: nothing is said of it, as by owners of older releases."""


class Cancelled(ProxyMessage, frozen=True, tag=43):
    """The owner ended a consumer."""

    queue_id: Whole
    gen: Whole
    consumer: Whole


class Deliver(ProxyMessage, frozen=True, tag=44):
    """Messages for consumers of the receiver."""

    parts: tuple[tuple[Whole, Term, Whole, Whole, Whole], ...]
    """(queue_id, epoch, gen, consumer, bytes of ENQ records). A record's REDELIVERED_BIT is its flag."""


class Settled(ProxyMessage, frozen=True, tag=45):
    """Settlements up to this id are committed (or void)."""

    queue_id: Whole
    gen: Whole
    id: Whole
    void: tuple[Range, ...] = ()
    """Seqs of the settlement with this id that were not carried out: the node does not hold them. Members of older
    releases do not read it."""

    def __post_init__(self) -> None:
        check_ranges(self.void)


class Answer(ProxyMessage, frozen=True, tag=46):
    """Answer to Ask. ASK_GET: payload is one ENQ record, or nothing when the queue is empty. ASK_LEASE, ASK_READ: what
    was read, as ENQ records."""

    queue_id: Whole
    gen: Whole
    request: Whole
    count: Whole = 0
    """Messages ready, or purged. ASK_READ: how many, from the first, were looked at."""
    consumers: Whole = 0
    refused: str = ""
    """ASK_DELETE: "" or "in use" or "not empty". ASK_GET: "" or who leases the queue."""
    lease: LeaseAnswer | None = None
    """Of ASK_LEASE, and there it is."""
    bytes: Whole = 0
    """ASK_COUNTS, of a queue that holds staged rows: of their bodies."""
    tags: list[Tag] = []
    """ASK_TAGS: those that are known."""
    next: Whole = 0
    """ASK_BROWSE: where to go on."""
    held: Sequence[tuple[Whole, Whole, Short]] = ()
    """ASK_HELD: `HeldMessages`."""
    withdrawn: tuple[Range, ...] = ()
    """ASK_HELD: those that were withdrawn. Members below feature level 4 do not read it."""


class Detach(ProxyMessage, frozen=True, tag=47):
    """The owner wants the proxy to attach this queue again: "gap", "refused", "moving" (a hand-over failed),
    "opened" (publishes came too early to be judged), "unknown"."""

    queue_id: Whole
    epoch: Term
    gen: Whole
    why: str


AnyProxy = (
    Attach
    | Publish
    | NamedPublish
    | Consume
    | Cancel
    | Credit
    | Settle
    | Ask
    | Reply
    | Commit
    | Alarmed
    | TaggedPublish
    | LinkKeep
    | Seek
    | Sought
    | Attached
    | Published
    | Consuming
    | Cancelled
    | Deliver
    | Settled
    | Answer
    | Detach
)
