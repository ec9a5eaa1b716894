"""The pair of links over which a client manages the node: requests on one, responses on the other (AMQP Link Pair 1.0).

    sender to /management        requests, up to REQUESTS_MAX of them without a response
    receiver from /management    responses, settled, in the order of the requests

Two links are a pair if they have the same name and session, and each says so by its property `paired`. A request when
only one half is there ends its link. Requests take effect one after another: what a client sends together may build on
what it has sent before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from clusterbroker.broker.fronts.amqp10.addresses import MANAGEMENT
from clusterbroker.broker.fronts.amqp10.attach_answer import answer
from clusterbroker.broker.fronts.amqp10.management import Request, carry_out
from clusterbroker.broker.fronts.amqp10.outcomes import Unsettled
from clusterbroker.broker.fronts.amqp10.own_link import OwnLink
from clusterbroker.broker.fronts.amqp10.ports import LinkState, SessionCore
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
from clusterbroker.broker.wire.amqp10.codec import Transferred
from clusterbroker.broker.wire.amqp10.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Attach

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

REQUESTS_MAX: Final = 8
REQUEST_BYTES_MAX: Final = 128 << 10
"""As much as a method of AMQP 0-9-1 has in a frame."""
PAIRED: Final = "paired"
"""Property of both links."""
SETTLED: Final = 1
"""snd-settle-mode of responses."""


class RequestLink(SenderLink):
    """The half whose sender is the client."""

    __slots__ = ("_current", "_waiting")

    def __init__(self, session: SessionCore, attach: Attach) -> None:
        super().__init__(session, attach, None)
        self.incoming.raw = True  # whatever it is, the link lives
        self._waiting: deque[bytes] = deque()
        self._current: Request | None = None

    @property
    def access(self) -> Authorization:
        return self.session.access

    @property
    def address(self) -> str:
        return MANAGEMENT

    @property
    def attached(self) -> bool:
        return self.session.links.get(self.handle) is self

    @property
    def _responses(self) -> ResponseLink | None:
        return _half(self.session, ResponseLink, self.name)

    def withhold(self) -> None:
        """No alarm holds requests."""

    def review_credit(self) -> None:
        """As many requests as may wait, or their responses. No alarm holds them: what would take memory is refused
        (`access.admin`)."""
        if self.session.ledger.is_cut:
            return
        responses = self._responses
        free = REQUESTS_MAX - len(self._waiting) - (self._current is not None)
        free -= 0 if responses is None else responses.waiting
        if self.credit <= REQUESTS_MAX // 2 and self.credit < free:
            self.credit = free
            self.tell()

    def _publish(self, batch: Transferred, ticket: Unsettled | None, txn_id: bytes = b"") -> None:
        if txn_id:
            raise LinkError(NOT_IMPLEMENTED, "management takes nothing in a transaction")
        if self._responses is None:
            raise LinkError(
                PRECONDITION_FAILED, f"a request, but no receiver '{self.name}' from {MANAGEMENT} is attached"
            )
        for message in batch.messages:
            size = len(message.payload)
            if size > REQUEST_BYTES_MAX:
                raise LinkError(MESSAGE_SIZE, f"a request of {size} bytes; it may have {REQUEST_BYTES_MAX}")
        if ticket is not None:
            ticket.pass_()  # accepted: what comes of it is the response
        self._waiting.extend(message.payload for message in batch.messages)
        self._take_up()

    def _take_up(self) -> None:
        if self._current is None and self._waiting:
            self._current = Request(self, self._waiting.popleft())
            carry_out(self._current)

    def answered(self, request: Request, response: bytes) -> None:
        """The response of the request that was taken up."""
        if self._current is not request:
            return
        self._current = None
        responses = self._responses
        if responses is not None:
            responses.respond(response)
        self.review_credit()
        self._take_up()

    def interrupted(self) -> None:
        """The link is over: what waits is not taken up any more."""
        super().interrupted()
        self._waiting.clear()
        self._current = None


class ResponseLink(OwnLink):
    """The half whose receiver is the client. A response waits for its credit."""

    __slots__ = ("_waiting",)

    def __init__(self, session: SessionCore, attach: Attach) -> None:
        super().__init__(session, attach)
        self._waiting: deque[bytes] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def state(self) -> LinkState:
        return LinkState(MANAGEMENT, self.credit, 0, self.delivery_count)

    def respond(self, response: bytes) -> None:
        if 0 < self._bytes_max < len(response):
            text = f"a response of {len(response)} bytes; the receiver takes {self._bytes_max}"
            self.session.cut(self, LinkError(MESSAGE_SIZE, text))
            return
        self._waiting.append(response)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self.credit:
            self._send(self._waiting.popleft())

    def _credited(self) -> None:
        self._go_on()
        requests = _half(self.session, RequestLink, self.name)
        if requests is not None:
            requests.review_credit()

    def interrupted(self) -> None:
        """The link is over."""
        self._waiting.clear()


_Half = TypeVar("_Half", RequestLink, ResponseLink)


def _half(session: SessionCore, kind: type[_Half], name: str) -> _Half | None:
    """One of a pair."""
    for link in session.links.values():
        if isinstance(link, kind) and link.name == name:
            return link
    return None


def attach_requests(session: SessionCore, performative: Attach) -> None:
    """A client's sender to the node itself. Raises LinkError."""
    _check_paired(performative)
    link = RequestLink(session, performative)
    session.links[link.handle] = link
    answer(session, performative, link, max_message_size=REQUEST_BYTES_MAX, properties={PAIRED: True})
    link.review_credit()


def attach_responses(session: SessionCore, performative: Attach) -> None:
    """A client's receiver from the node itself. Raises LinkError."""
    _check_paired(performative)
    link = ResponseLink(session, performative)
    session.links[link.handle] = link
    answer(session, performative, link, snd_settle_mode=SETTLED, initial_delivery_count=0, properties={PAIRED: True})


def _check_paired(performative: Attach) -> None:
    if (performative.properties or {}).get(PAIRED) is not True:
        raise LinkError(INVALID_FIELD, f"a link of {MANAGEMENT} says that its property '{PAIRED}' is true")
