"""Where one message goes, and what the broker changes in it: user-id, reply-to, CC and BCC, and its producer's number.

The usual batch takes the route of its address (`Publisher.find`); a message with one of these properties, or to an
exchange that looks into headers, has a route of its own (`addressed`). A row of a segment goes to the segment, if its
target leads anywhere (`way_of_row`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.access.errors import Impersonated, precondition_failed
from clusterbroker.broker.access.pool_requests import enters_pool
from clusterbroker.broker.access.publisher import Named, Publisher, affordable, way_of
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.content.formats import format_of
from clusterbroker.broker.content.message import reply_to_of, with_flags, with_reply_to
from clusterbroker.broker.content.numbers import named_in
from clusterbroker.broker.content.properties import KnownProperties
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.routing.carbon_copy import UnacceptableHeader, accepted_keys
from clusterbroker.broker.routing.choosing import numbered
from clusterbroker.broker.routing.delays import DELAY_KEY, DELAY_MS_MAX, KEY_BYTES_MAX, delay_key, due_ms
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.transactions.onward import route_of
from clusterbroker.broker.wire.amqp091.fields import FieldTable
from clusterbroker.journal.layout import HAS_BCC, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

LOOKED_INTO: Final = HAS_HEADERS | HAS_USER_ID | HAS_REPLY_TO
OWN_WAY: Final = HAS_USER_ID | HAS_REPLY_TO
"""Each message that has one of these is looked into by itself."""
REPLY_KEY: Final = f"{REPLY_TO}."
"""Of a direct reply."""


class Sender(Protocol):
    """The session that publishes."""

    @property
    def access(self) -> Authorization: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def reply_key(self) -> str: ...

    @property
    def is_transactional(self) -> bool: ...


def looks_into(flags: int, messages: Iterable[Message]) -> bool:
    """Whether a message has properties that matter here. May err on the careful side. `flags`: of all of them."""
    if not flags & LOOKED_INTO:
        return False
    if flags & OWN_WAY:
        return True
    return any(format_of(message.format).looked_into(message.header) for message in messages)


def addressed(
    session: Sender, exchange: str, key: str, message: Message, number: bytes | None = None,
    known: Route[QueueHandle] | None = None,
) -> tuple[Message, Route[QueueHandle], Named | None]:  # fmt: skip
    """A message with what the broker changes in it, its own route, and its number if its producer gave one; `number`:
    what it is known by if it comes again without that; `known`: the route of its address, if that is found already. A
    direct reply is handed to its requester. Of the properties no more is decoded than the message's flags ask for.
    Raises Refusal."""
    access = session.access
    properties = KnownProperties(message)
    own = message
    if message.flags & HAS_USER_ID:
        _check_user(access, properties.all().user_id)
    if message.flags & HAS_REPLY_TO and reply_to_of(message) == REPLY_TO:
        if not session.reply_key:
            raise precondition_failed("fast reply consumer does not exist")
        own = with_reply_to(message, session.reply_key)
    if not exchange and key.startswith(REPLY_KEY):
        if session.is_transactional:
            return own, Route(uncacheable=True), None  # `replied` with the commit
        return message, session.publisher.replied(own), None
    copies: tuple[str, ...] = ()
    named = None
    if message.flags & HAS_HEADERS:
        copies, is_blind = _copies(access, exchange, properties.all().headers)
        if is_blind:
            own = with_flags(own, own.flags | HAS_BCC)
        named = _named(properties.all().headers)
    if known is None or known.uncacheable or copies:
        known = session.publisher.route(
            exchange, key, lambda: properties.all().headers, copies, properties.named,
            number if named is None else numbered(*named),
        )  # fmt: skip
    if copies and enters_pool(access.node.map.pools, known.targets):
        raise precondition_failed(
            "a request of a worker pool has one key: publish it for each key, without the headers CC and BCC"
        )
    if known.leads_on is not None:
        _check_delay(properties.all().headers, access.node.now_ms)
    return own, known, named


def _check_user(access: Authorization, user: str | None) -> None:
    if user not in (None, access.user) and "impersonator" not in access.rights.tags:
        raise Impersonated(f"user_id property set to '{user}' but authenticated user was '{access.user}'")
    if user is not None and access.by_token and access.node.map.user(user) is not None:
        raise Impersonated(f"user_id property set to '{user}', an account, but a token signed in")


def _copies(access: Authorization, exchange: str, headers: FieldTable | None) -> tuple[tuple[str, ...], bool]:
    """The keys of CC and BCC that the user may publish to, and whether there are any of BCC."""
    try:
        copies, blind = accepted_keys(headers)
    except UnacceptableHeader as error:
        raise precondition_failed(str(error)) from None
    if copies or blind:
        segment = access.vhost.segments.get(exchange)
        topic = exchange if segment is None else segment.target  # where its rows go when they are committed
        for each in (*copies, *blind):
            access.check_key(topic, each)
            access.check_topic("write", topic, each)
    return (*copies, *blind), bool(blind)


def _check_delay(headers: FieldTable | None, now_ms: int) -> None:
    """Refuses a delay beyond what is kept, and a key under which nothing can wait."""
    due = due_ms(headers, now_ms)
    if due is not None and due - now_ms > DELAY_MS_MAX:
        raise precondition_failed(f"delay of {due - now_ms} ms: a message waits for {DELAY_MS_MAX} ms at most")
    if headers and DELAY_KEY in headers and not delay_key(headers):
        raise precondition_failed(f"invalid header '{DELAY_KEY}': expected a text of 1 to {KEY_BYTES_MAX} bytes")


def _named(headers: FieldTable | None) -> Named | None:
    """Producer and number of a message that has them; a name without a good number is an error."""
    try:
        return named_in(headers)
    except ValueError as error:
        raise precondition_failed(str(error)) from None


def as_row(message: Message) -> Message:
    """What is staged outlives its node, whatever a row's delivery mode is: a commit means all rows."""
    return message if message.persistent else with_flags(message, message.flags | PERSISTENT)


def way_of_row(access: Authorization, exchange: str, route: Route[QueueHandle], row: Message) -> Route[QueueHandle]:
    """Of a mandatory row, by its own headers: to its segment, or nowhere when its target leads nowhere now."""
    router = access.vhost.router
    found = affordable(route_of, router, access.vhost.segments[exchange].target, row)
    return route if way_of(found, mandatory=True).targets else Route()
