"""A link whose receiver is the client, and whose deliveries come from no queue: this node sends them, settled."""

from __future__ import annotations

from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT
from clusterbroker.broker.fronts.amqp10.ports import Detached, SessionCore
from clusterbroker.broker.wire.amqp10.performatives import Attach, Flow
from clusterbroker.broker.wire.amqp10.serials import SERIALS, room


class OwnLink:
    """Its credit, and what it sends."""

    role = True
    """As the client says it: it receives."""

    terms = NOTHING_KEPT
    is_lasting = False

    __slots__ = ("_bytes_max", "credit", "delivery_count", "handle", "identity", "name", "session")

    def __init__(self, session: SessionCore, attach: Attach) -> None:
        self.session = session
        self.name = attach.name
        self.identity = session.identity(attach.name, self.role)
        self.handle = int(attach.handle)
        self.credit = 0
        self.delivery_count = 0
        self._bytes_max = attach.max_message_size or 0
        """As the client says; 0: any."""

    def _send(self, content: bytes) -> None:
        """There is credit for it."""
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) % SERIALS
        self.session.ledger.send(self.handle, content)
        self.session.want_send()

    def flow(self, flow: Flow) -> None:
        """The client says how many more it takes (2.6.7); what waits goes first, so a drain ends at once."""
        if flow.link_credit is not None:
            self.credit = room(self.delivery_count, flow.delivery_count or 0, flow.link_credit)
            self._credited()
        if flow.drain:
            self.delivery_count = (self.delivery_count + self.credit) % SERIALS
            self.credit = 0
        if flow.drain or flow.echo:
            session = self.session
            session.send(session.flow(self.handle, self.delivery_count, self.credit, drain=flow.drain))

    def _credited(self) -> None:
        """The client has said how many more it takes."""

    def detached(self, _: bool, then: Detached) -> None:
        then(None)
