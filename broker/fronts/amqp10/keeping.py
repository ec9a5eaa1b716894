"""Where the state of a link is kept while its client is away: what a link asks of it, wherever that is.

    class   kept in                         survives                                   implementation
    L0      the session's memory            detach and attach in one session           `kept_in_memory`
    L1      the node's memory               the connection                             `kept_in_memory`
    L2      the logs of the link's queues   connection, node, and owner of the queue   (the queues' own)

A question is answered once, perhaps later and perhaps from another node; its `then` may be called before the question
returns. A store that can say nothing in time answers with a LinkError, and the attach is refused with that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from clusterbroker.broker.fronts.amqp10.outcomes import Unsettled
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.journal.record import Message


class SenderStore(Protocol):
    """What the node knows of the deliveries of one sender link (the client sends).

    `known(tags, then)` is asked when the link is resumed, with the tags of the client's map that have no outcome; of an
    incomplete map with `everything`, for the answer has what else is known. The answer comes when all that the link has
    sent before is decided. Tags that are not in the client's complete map are forgotten after it (`keep`).
    """

    def known(
        self, tags: Collection[bytes], everything: bool, then: Callable[[frozenset[bytes] | LinkError], None]
    ) -> None:
        """`then(stored)`: those of the tags whose deliveries have been accepted."""

    def keep(self, tags: Collection[bytes]) -> None:
        """All other tags of the link are forgotten."""

    def publish(
        self,
        route: Route[QueueHandle],
        messages: Sequence[Message],
        tags: Sequence[bytes],
        again: frozenset[bytes],
        ticket: Unsettled,
    ) -> None:
        """Neighbouring deliveries of the link, one message each. The store has their tags with the commit of the
        messages, before the ticket passes. `again`: those of the tags that the client has named in the map of its
        attach; one that is known to a queue of the route is not stored there again. Any other tag is a new delivery,
        whatever was known by it before. Raises Refusal."""

    def forget(self, tags: Collection[bytes]) -> None:
        """Their client has settled them, or has proven that it read their outcome."""

    def close(self) -> None:
        """The link is over: nothing of it is known any more."""


class Held(NamedTuple):
    """A delivery that a receiver link holds: unacknowledged at its queue, and nobody else's."""

    tag: bytes
    seq: int
    delivery_count: int
    """For how often it was delivered in vain before (3.2.1)."""


class ReceiverStore(Protocol):
    """What one receiver link (the client receives) holds of its queue while it is suspended."""

    def held(self, then: Callable[[Sequence[Held] | LinkError], None]) -> None:
        """`then(deliveries)`, in the order in which they were handed out."""

    def read(self, seqs: Sequence[int], then: Callable[[Mapping[int, Message]], None]) -> None:
        """`then(messages)` of these, wherever their bodies are (`QueueHandle.reread`). Some may be missing: their queue
        is deleted, or has lost them."""

    def release(self, seqs: Sequence[int], counted: bool) -> None:
        """These return to their places, for anybody; `counted`: as failed deliveries."""

    def close(self) -> None:
        """The link is over: what it held returns, uncounted."""
