"""What goes on when an exchange of type `x-message-deduplication` passes a message on, and to whom: to those behind it
now. It keeps the address with which it was published; its time to live begins.

The queue of another exchange of this type gets a copy that says which ones it has passed (header PASSED), so none gets
it twice in a circle of exchanges, however short their memories are. All others get one without that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.content.delays import alike
from clusterbroker.broker.content.formats import format_of
from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import KnownProperties, routing_headers
from clusterbroker.broker.queues.effort import HEADER_BYTES
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.choosing import EVERY, numbered
from clusterbroker.broker.routing.delays import TARGETS
from clusterbroker.broker.routing.repeats import PASSED
from clusterbroker.broker.routing.router import Route
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost

NUMBER_BYTES: Final = 1024
"""Of a message, by which a random exchange chooses: whoever leads the queue later must choose the same."""
_PASSED_NAME, _TARGETS_NAME = PASSED.encode(), TARGETS.encode()


class PassedMessages:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node

    def targets(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle] | None:
        """See `Due.targets`."""
        own = queue.entity.compares
        if vhost.router.exchange_type(own) is None:
            return None
        plain = _is_plain(message)
        if plain:
            self._node.effort.looked(message.header_length)
        else:
            self._node.effort.decoded(message.header_length)
        headers = {} if plain else routing_headers(message) or {}
        copies = (*copy_keys(headers, "CC"), *copy_keys(headers, "BCC"))
        left, before = headers.get(TARGETS), headers.get(PASSED)
        # those that it was meant for are named: nothing is chosen again
        number = EVERY if isinstance(left, list) else chance_of(message)
        targets: Sequence[QueueHandle] = _route(vhost, queue, message, copies, number).targets
        if isinstance(left, list):
            targets = [one for one in targets if one.name in left]
        if isinstance(before, list):
            targets = [one for one in targets if one.entity.compares not in before]
        if not targets:
            vhost.counts(own).drop_unroutable += 1
        return targets

    def together(
        self, vhost: VirtualHost, queue: LocalQueue, messages: list[Message], bytes_max: int
    ) -> tuple[int, QueueHandle | None]:  # fmt: skip
        """See `Due.together`. All of these are decoded when they are judged."""
        effort = self._node.effort
        count, looked = alike(messages, min(bytes_max, max(0, effort.left) * HEADER_BYTES))
        effort.looked_at(count, looked)
        if not count:
            return 1, None
        if vhost.router.exchange_type(queue.entity.compares) is None:
            return count, None
        for place, message in enumerate(messages[:count]):
            if not _is_plain(message):
                return max(1, place), None
        route = _route(vhost, queue, messages[0], (), chance_of(messages[0]))
        if route.uncacheable or len(route.targets) != 1 or route.targets[0].entity.compares:
            return count, None
        return count, route.targets[0]

    def made(
        self, queue: LocalQueue, messages: Sequence[Message], targets: Sequence[QueueHandle]
    ) -> list[tuple[list[Message], list[int]]]:  # fmt: skip
        """What is published, and to which of the targets, by their places."""
        node, own = self._node, queue.entity.compares
        if (vhost := node.vhosts.get(queue.entity.vhost)) is not None:
            vhost.counts(own).publish_out += len(targets) * len(messages)
        farther = [place for place, target in enumerate(targets) if target.entity.compares]
        last = [place for place, target in enumerate(targets) if not target.entity.compares]
        size = sum([message.header_length for message in messages])
        node.effort.due(len(messages), size, len(targets))
        made = []
        if farther:
            made.append(([self._copy(message, own) for message in messages], farther))
        if last:
            made.append(([self._copy(message, "") for message in messages], last))
        return made

    def _copy(self, message: Message, passed: str) -> Message:
        """`passed`: the exchange that a further one has to know of; empty: nobody compares it."""
        exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
        if not passed and _is_plain(message):
            return republished(message, exchange, key, None, self._node.now_ms)
        self._node.effort.letter(message.header_length, 0)
        known = KnownProperties(message).all()
        headers: dict[str, Any] = {name: one for name, one in (known.headers or {}).items() if name != TARGETS}
        before = headers.pop(PASSED, None)
        if passed:
            headers[PASSED] = [*(before if isinstance(before, list) else ()), passed]
        else:
            headers.pop("BCC", None)  # the route has them
        return republished(message, exchange, key, replace(known, headers=headers), self._node.now_ms)


def chance_of(message: Message) -> bytes:
    """By which a random exchange chooses; of the body, for headers change while a message waits."""
    return numbered(bytes(message.body[:NUMBER_BYTES]), message.time_ms)


def _route(
    vhost: VirtualHost, queue: LocalQueue, message: Message, copies: Sequence[str], number: bytes
) -> Route[QueueHandle]:  # fmt: skip
    key, known = message.routing_key.decode("utf-8", "surrogateescape"), KnownProperties(message)
    return vhost.router.passing(queue.entity.compares, (key, *copies), known.headers, known.named, number)


def _is_plain(message: Message) -> bool:
    """Whether its way and its copies ask for no header of it."""
    header = message.header
    return (
        not format_of(message.format).looked_into(header) and _PASSED_NAME not in header and _TARGETS_NAME not in header
    )
