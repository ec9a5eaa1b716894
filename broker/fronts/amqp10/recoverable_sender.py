"""A recoverable link whose sender is the client (`recoverable`): each delivery is stored once, wherever it goes.

Each is stored with its tag by every queue of its route (`queues.link_deliveries`), so whoever owns the queue can say
whether it is there. A client that comes back names what it is in doubt of:

    to a queue        its owner says which of these it has: accepted; the others come again, and are new
    to an exchange    nobody is asked: all come again, and each queue of the route stores what it does not have

A queue forgets a tag when its client has settled the delivery, or has proven that it read its outcome, or when a map
lacks it that is complete, or is the last one of a series (`node.open_maps`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.fronts.amqp10 import resuming
from clusterbroker.broker.fronts.amqp10.attach_answer import NO_MAP, answering
from clusterbroker.broker.fronts.amqp10.recoverable import Attaching, is_asked
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY, Told
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.attributes import LINK_DELIVERY
from clusterbroker.broker.queues.link_deliveries import NUMBERS_MAX, AskedTags, Tagged, value_of
from clusterbroker.broker.wire.amqp10.errors import RESOURCE_LIMIT, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Target

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
    from clusterbroker.broker.fronts.amqp10.expiry import LinkSettings, Terms
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.routing.router import Route


OVER_MAX: Final = 1024
"""Deliveries that queues hear of in a later turn; of more at once."""


SERIES_MAX: Final = resuming.TAGS_MAX
"""Deliveries that a map, and the incomplete ones before it, name and that have not come."""


class RecoverableSender:
    """What an attached link of this kind has besides."""

    __slots__ = (
        "_asks", "_forgetting", "_node", "_number", "_over", "_places", "_queues", "_waiting", "again", "attachment",
    )  # fmt: skip

    def __init__(self, node: Node, attachment: Attachment) -> None:
        self._node = node
        self.attachment = attachment
        self.again: frozenset[bytes] = frozenset()
        """Those of the next deliveries that may be known already."""
        self._number = 0
        self._queues: dict[QueueHandle, None] = {}
        self._places: dict[bytes, tuple[QueueHandle, ...] | None] = {}
        """Where those of this attach went that are not over; None, or without a place: any of `_queues` may know it. A
        queue is asked to forget its own only: one without an owner keeps these questions, and others may go on."""
        self._over: dict[bytes, None] = {}
        self._asks = 0
        self._forgetting: dict[int, QueueHandle] = {}
        """Queues that were told to forget some, and have not committed that; by a number."""
        self._waiting: tuple[set[int], Callable[[], None]] | None = None

    @property
    def is_used_up(self) -> bool:
        """This attach has no more numbers for deliveries."""
        return self._number >= NUMBERS_MAX

    def tagged(self, tags: Collection[bytes], route: Route[QueueHandle]) -> Tagged:
        """The next deliveries, on their way to these queues."""
        if not self._over.keys().isdisjoint(tags):
            self.flush()  # a tag is used again: its queues forget the delivery before, not the next one
        self._queues.update(dict.fromkeys(route.targets))
        again = self.again.intersection(tags)
        self.again = self.again.difference(again)  # each is that once: the next delivery of the tag is another one
        self._note(tags, again, route.targets)
        link, number = self.attachment.link, self._number
        self._number += len(tags)
        return Tagged(int(link.link), link.attach, number, list(tags), again)

    def _note(self, tags: Collection[bytes], again: frozenset[bytes], targets: tuple[QueueHandle, ...]) -> None:
        places = self._places
        if not again and places.keys().isdisjoint(tags):
            places.update(dict.fromkeys(tags, targets))
            return
        for tag in tags:  # one of an earlier attach may be elsewhere as well, and one that is not proven where it was
            before = places.get(tag, ())
            places[tag] = None if tag in again or before is None else tuple(dict.fromkeys((*before, *targets)))

    def number_of(self, tags: Collection[bytes]) -> bytes:
        """Of one delivery: an exchange chooses by it, so that it goes where it has been (`routing.choosing`)."""
        (tag,) = tags
        return LINK_DELIVERY.name((int(self.attachment.link.link), tag))

    def over(self, tags: Collection[bytes]) -> None:
        """Nobody asks for these any more."""
        self._over.update(dict.fromkeys(tags))
        if len(self._over) > OVER_MAX:
            self.flush()

    def flush(self) -> None:
        """Their queues forget them: once a turn, when outcomes are told."""
        self._review()
        if not self._over:
            return
        over, self._over = self._over, {}
        told: dict[QueueHandle, list[bytes]] = {}
        for tag in over:
            places = self._places.pop(tag, None)
            for queue in self._queues if places is None else places:
                told.setdefault(queue, []).append(tag)
        for queue in tuple(self._queues):
            if queue.deleted:
                del self._queues[queue]
        link = self.attachment.link
        for queue, tags in told.items():
            if not queue.deleted:
                self._asks += 1
                self._forgetting[self._asks] = queue
                upto = value_of(link.attach, self._number) - 1
                queue.forget_tags(int(link.link), upto, tags, partial(self._forgotten, self._asks))

    def _forgotten(self, ask: int) -> None:
        self._forgetting.pop(ask, None)
        self._review()

    def when_forgotten(self, then: Callable[[], None]) -> None:
        """`then()` when no queue of this attach knows what is over by now, whoever owns it next. A later question
        takes the place of this one."""
        self.flush()
        self._waiting = set(self._forgetting), then
        self._review()

    def _review(self) -> None:
        if self._waiting is None:
            return
        asks, then = self._waiting
        if all(ask not in self._forgetting or self._forgetting[ask].deleted for ask in asks):
            self._waiting = None
            then()

    def resumed(self, queue: QueueHandle | None) -> None:
        """Deliveries of an earlier attach may be known to this queue."""
        if queue is not None:
            self._queues[queue] = None

    def suspend(self, named: Collection[bytes]) -> None:
        """The client is away. `named`: by its maps, which were incomplete; and they have not come."""
        self.flush()
        self._node.recovery.open_maps.leave(self.attachment.link.link, named)
        self._node.recovery.suspend(self.attachment)

    def close(self, then: Callable[[], None]) -> None:
        """The client ends the link; `then()` when a later attach finds nothing of it."""
        self._node.recovery.forget(self.attachment, then)


def is_wanted(
    session: SessionCore, attach: Attach, place: Place | None, terms: Terms, settings: LinkSettings | None
) -> bool:
    """Whether the client asks for such a link, and it can be one: with a target of its own, whose queues have logs."""
    target = attach.target
    if place is None or not isinstance(target, Target) or not is_asked(session, attach, target, terms, settings):
        return False
    if place.exchange:
        return place.exchange not in session.access.vhost.segments
    queue = session.access.vhost.queues.get(place.key)
    return queue is not None and queue.settings.durability != "memory"


class AttachingSender(Attaching):
    """One attach on its way."""

    role = "sender"
    link: SenderLink

    __slots__ = ("_target",)

    def __init__(
        self, session: SessionCore, attach: Attach, link: SenderLink, client: Told | None, terms: Terms, target: Target
    ) -> None:
        super().__init__(session, attach, link, client, terms)
        self._target = target

    def ask(self, attachment: Attachment) -> None:
        client, place = self.client, self.link.place
        assert place is not None, "a link to anywhere is none of this kind"
        queue = None if place.exchange else self.session.access.vhost.queues.get(place.key)
        if queue is None or client is None or not client.states:
            self._decided(attachment, queue, [])
            return
        tags = [tag for tag, state in client.states.items() if not resuming.is_terminal(state)]
        asked = AskedTags(int(attachment.link.link), attachment.link.attach, tuple(tags), client.incomplete)
        queue.known_tags(asked, self.guarded(lambda known: self._decided(attachment, queue, known)))

    def make_answer(self) -> Attach:
        size = self.session.access.node.options.message_bytes_max
        return answering(
            self.session, self.attach, target=self._target, max_message_size=size, offered_capabilities=(RECOVERY,),
            **NO_MAP,
        )  # fmt: skip

    def _decided(self, attachment: Attachment, queue: QueueHandle | None, known: list[bytes] | str) -> None:
        if not self.waits:
            self.session.access.node.recovery.suspend(attachment)
            return
        if isinstance(known, str):
            self.refuse(LinkError(RESOURCE_LIMIT, f"{known}: attach again"))
            return
        session, link, client, recovery = self.session, self.link, self.client, self.session.access.node.recovery
        named = recovery.open_maps.take(attachment.link.link)
        if client is not None and len(named) + len(client.states) > SERIES_MAX:
            text = f"the incomplete unsettled maps of a link name at most {SERIES_MAX} deliveries that have not come"
            self.refuse(LinkError(RESOURCE_LIMIT, text))
            return
        link.store = store = RecoverableSender(session.access.node, attachment)
        link.keep(self.terms, self._target)
        found = None
        if client is not None:
            found = resuming.resume_sender(client, frozenset(known), {}, self.room, asked=queue is not None)
            link.again = {*found.again, *named.difference(client.states)}
            link.kept = set(known) - found.forgotten
            link.is_partial = found.is_partial
            store.resumed(queue)
            if not client.incomplete:
                recovery.keep(attachment.link, [*link.kept, *link.again])
        self.answer(None if found is None else found.map)
        link.review_credit()
