"""What queues ask of their node, and what they are told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.effort import Effort
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.journal.stream_catalogue import Taken as Records
from clusterbroker.journal.stream_catalogue import Wish

Q_contra = TypeVar("Q_contra", contravariant=True)
"""The queue as its node knows it (`local_queue.LocalQueue`)."""
Loaded = Callable[[Sequence[Location], Sequence[Message], Sequence[Location]], None]
"""What was read, and what was asked for: the rest cannot be read, and is held back (broker/node/damages.py)."""


class Links(Protocol[Q_contra]):
    """The recoverable links of all nodes."""

    def since(self, queue: Q_contra, link: int, attach: int) -> int:
        """What the map says of an attach of a link (`cluster.wiring.links`), to a queue that may know deliveries of it
        from now on; 0: it does not count."""

    def goes_on(self, attach: LinkAttach) -> bool:
        """Whether a later attach has what this one held: the link has not begun anew since, and has not ended."""

    @property
    def withdraws(self) -> bool:
        """Whether every member tells a client what its link has held for too long."""


class Due(Protocol[Q_contra]):
    """Messages of delay queues that are due."""

    def targets(self, queue: Q_contra, message: Message) -> Sequence[QueueHandle] | None:
        """Where a message goes now that it is due; None: its exchange ends just now."""

    def together(
        self, queue: Q_contra, messages: list[Message], bytes_max: int
    ) -> tuple[int, QueueHandle | None]:  # fmt: skip
        """How many of these, from the first one on, go to one queue and no other, with about so many bytes of headers;
        and which. None: so many, one at least, are to be looked at one by one."""

    def publish(
        self, queue: Q_contra, messages: Sequence[Message], numbers: Sequence[int], targets: Sequence[QueueHandle],
        tickets: Sequence[Ticket],
    ) -> None:  # fmt: skip
        """Publish them to each target, under the queue's dead-letter name and these numbers; each target has its
        ticket. Several go to one target that refuses nothing."""


class NodeOfQueues(Protocol[Q_contra]):
    """The node, as its queues and streams see it."""

    @property
    def recovery(self) -> Links[Q_contra]: ...

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""

    @property
    def ages_by_ms(self) -> int | None:
        """The date by which a stream's messages are too old or not; None: no message may be called so now."""

    @property
    def effort(self) -> Effort:
        """What the node has left for dead letters in this turn."""

    @property
    def dead_lettering(self) -> bool:
        """A dead letter is being published: no other one is now."""

    def later(self, queue: Q_contra) -> None:
        """Mark the log's ring in the node's next turn, and see to it that this comes soon."""

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Call it in the node's next turn, or a later one if others there are much work already."""

    def stumbled(self, queue: Q_contra, error: Exception, seq: int = 0) -> None:
        """Something raised in the log's work, over the message with this seq if it is known: set the log aside."""

    def dead_letter(self, queue: Q_contra, message: Message, reason: Reason) -> None:
        """Publish the message to the queue's dead-letter exchange."""

    def repeated(self, queue: Q_contra) -> None:
        """The exchange whose messages pass through the queue has dropped one that it knows."""

    def dead_letter_once(self, queue: Q_contra, message: Message, reason: Reason, number: int, ticket: Ticket) -> bool:
        """As `dead_letter`, to queues wherever they are: `publish_numbered` under the queue's dead-letter name and this
        number; the ticket is held by each target. False: no exchange, or no route (a cycle is a route)."""

    @property
    def due(self) -> Due[Q_contra]:
        """For delay queues."""

    def load(self, queue: Q_contra, locations: list[Location], loaded: Loaded) -> None:
        """Read messages from the journal. `loaded` is not called when the log was deleted."""

    def fetch(
        self,
        queue: Q_contra,
        locations: Sequence[Location],
        then: Callable[[Sequence[Message]], None],
        otherwise: Callable[[], None] = ...,
    ) -> None:
        """Read messages from the journal for `then`. Not called when the log went away; `otherwise` in its place when
        some of them are damaged."""

    def read_stream(self, queue: Q_contra, wish: Wish, then: Callable[[Records], None]) -> None:
        """Read records of a stream's past; `then` is not called when the stream goes away."""

    def begins_late(self, queue: Q_contra, offset: int) -> None:
        """It is a stream that keeps everything, and its readers are told that it begins here, above 0."""

    def write(self, queue: Q_contra) -> None:
        """The ring has something for the next group commit."""

    def rest(self, queue: Q_contra) -> None:
        """It was marked for what was published just now: the mark may go if a turn could do nothing for that yet."""

    def wake(self, queue: Q_contra, at_ms: int) -> None:
        """Mark the log's ring at this time; replaces an earlier wish."""

    def moves(self, segment_id: int) -> bool:
        """Whether the rows of this committed segment may be on their way."""

    def keeps(self, queue: Q_contra, segment_id: int) -> None:
        """The log remembers what it has of a segment, and wants to hear of its end."""

    def end(self, queue: Q_contra) -> None:
        """Propose the queue's deletion: it is auto-delete or expired and unused."""
