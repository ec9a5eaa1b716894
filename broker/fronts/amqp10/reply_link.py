"""Direct reply-to (RabbitMQ 4.2's volatile queues): an address that is a receiver's link itself, and no queue.

    attach      source: dynamic, no address, capability `rabbitmq:volatile-queue`; snd-settle-mode settled
    answer      the source's address is /queues/amq.rabbitmq.reply-to.:key, which requests name in `reply-to`
    a reply     to that address, from any node and protocol: a settled delivery, if there is credit and a window

Replies are delivered at most once: without credit, a window, or room in the client's buffer they are dropped. The key
is a secret, and a right; it is for this link, and ends with it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.content.formats import SECTIONS
from clusterbroker.broker.content.replies import reply_as
from clusterbroker.broker.fronts.amqp10.attach_answer import answer
from clusterbroker.broker.fronts.amqp10.own_link import OwnLink
from clusterbroker.broker.fronts.amqp10.ports import LinkState, SessionCore
from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Source
from clusterbroker.journal.record import Message

VOLATILE: Final = "rabbitmq:volatile-queue"
EXPIRES: Final = "link-detach"
WAITING_BYTES_MAX: Final = 32 << 20
"""Of a client that does not read: it gets no more replies."""
SETTLED: Final = 1
KEY: Final = f"{REPLY_TO}."


class ReplyLink(OwnLink):
    """The link, as its session sees it, and as a requester (`broker.remote.replies.Target`)."""

    __slots__ = ("key",)

    def __init__(self, session: SessionCore, attach: Attach) -> None:
        super().__init__(session, attach)
        node = session.access.node
        self.key = KEY + node.secret_name()
        node.reply_targets[self.key] = self

    @property
    def address(self) -> str:
        """For the client's requests."""
        return f"/queues/{quote(self.key, safe='')}"

    @property
    def state(self) -> LinkState:
        return LinkState(f"/queues/{REPLY_TO}", self.credit, 0, self.delivery_count)  # the key is a secret

    @property
    def vhost_name(self) -> str:
        return self.session.access.vhost.name

    def reply(self, message: Message) -> None:
        """A message to the link's address."""
        ledger, out = self.session.ledger, self.session.connection.out
        found = reply_as(message, SECTIONS)
        if found is None or not self.credit or not ledger.window or ledger.is_cut or out.size > WAITING_BYTES_MAX:
            return
        if 0 < self._bytes_max < found.size:
            return
        self._send(found.payload)

    def interrupted(self) -> None:
        """The link is over, and its address."""
        self.session.access.node.reply_targets.pop(self.key, None)


def is_volatile(source: Source) -> bool:
    """Whether an attach asks for an address of direct replies."""
    return source.dynamic and VOLATILE in source.capabilities


def attach_replies(session: SessionCore, performative: Attach, source: Source) -> None:
    """Raises LinkError for what no such address can be."""
    if source.address is not None:
        raise LinkError(INVALID_FIELD, "a dynamic source has no address")
    if performative.snd_settle_mode != SETTLED:
        raise LinkError(INVALID_FIELD, "direct replies are sent settled: snd-settle-mode is settled")
    if source.durable or source.timeout or source.expiry_policy != EXPIRES:
        raise LinkError(
            INVALID_FIELD, f"an address of direct replies lasts as long as its link: {EXPIRES}, not durable"
        )
    link = ReplyLink(session, performative)
    session.links[link.handle] = link
    known = replace(
        source, address=link.address, capabilities=(VOLATILE,), filter=None, outcomes=(), distribution_mode=None
    )
    answer(session, performative, link, source=known, initial_delivery_count=0)
