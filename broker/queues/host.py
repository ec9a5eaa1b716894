"""What a queue asks of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from clusterbroker.broker.queues.deadletter import Reason
from clusterbroker.broker.queues.effort import Effort
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.journal.stream_catalogue import Taken, Wish

if TYPE_CHECKING:
    from clusterbroker.broker.queues.queue import Queue


class Host(Protocol):
    """The node, as its queues see it."""

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
    def burying(self) -> bool:
        """A dead letter is being published: no other one is now."""

    def later(self, queue: Queue) -> None:
        """Mark the queue's ring in the node's next turn, and see to it that this comes soon."""

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Call it in the node's next turn, or a later one if others there are much work already."""

    def stumbled(self, queue: Queue, error: Exception, seq: int = 0) -> None:
        """Something raised in the queue's work, over the message with this seq if it is known: set the queue aside."""

    def dead_letter(self, queue: Queue, message: Message, reason: Reason) -> None:
        """Publish the message to the queue's dead-letter exchange."""

    def bury(self, queue: Queue, message: Message, reason: Reason, number: int, ticket: Ticket) -> bool:
        """As `dead_letter`, to queues wherever they are: `publish_named` under the queue's dead-letter name and this
        number; the ticket is held by each target. False: no exchange, or no route (a cycle is a route)."""

    def load(self, queue: Queue, locations: list[Location]) -> None:
        """Read messages from the journal; the answer comes to `queue.loaded`."""

    def fetch(
        self,
        queue: Queue,
        locations: Sequence[Location],
        then: Callable[[Sequence[Message]], None],
        otherwise: Callable[[], None] = ...,
    ) -> None:
        """Read messages from the journal for `then`; the ring does not change. Not called when the queue went away;
        `otherwise` in its place when some of them are damaged."""

    def read_stream(self, queue: Queue, wish: Wish, then: Callable[[Taken], None]) -> None:
        """Read records of a stream's past; `then` is not called when the queue goes away."""

    def begins_late(self, queue: Queue, offset: int) -> None:
        """It is a stream that keeps everything, and its readers are told that it begins here, above 0."""

    def write(self, queue: Queue) -> None:
        """The ring has something for the next group commit."""

    def rest(self, queue: Queue) -> None:
        """It was marked for what was published just now: the mark may go if a turn could do nothing for that yet."""

    def wake(self, queue: Queue, at_ms: int) -> None:
        """Mark the queue's ring at this time; replaces an earlier wish."""

    def moves(self, segment_id: int) -> bool:
        """Whether the rows of this committed segment may be on their way."""

    def keeps(self, queue: Queue, segment_id: int) -> None:
        """The queue remembers what it has of a segment, and wants to hear of its end."""

    def end(self, queue: Queue) -> None:
        """Propose the queue's deletion: it is auto-delete or expired and unused."""
