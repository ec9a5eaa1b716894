"""What goes on when an exchange of type `x-message-deduplication` passes a message on, and to whom: to those behind it
now. It keeps the address with which it was published; its time to live begins.

The queue of another exchange of this type gets a copy that says which ones it has passed (header PASSED), so none gets
it twice in a circle of exchanges, however short their memories are. All others get one without that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.content.formats import format_of
from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import KnownProperties
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.repeats import PASSED
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore

_PASSED_NAME: Final = PASSED.encode()


class PassedMessages:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node

    def parts(
        self, queue: LocalQueue, message: Message, number: bytes
    ) -> Sequence[tuple[Message, Sequence[QueueHandle]]]:
        """What is published, and to whom. `number`: by which a random exchange chooses."""
        node, own = self._node, queue.entity.compares
        vhost = node.vhosts.get(queue.entity.vhost)
        if vhost is None or vhost.router.exchange_type(own) is None:
            return ()  # it ends just now
        exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
        header, known = message.header, KnownProperties(message)
        plain = not format_of(message.format).looked_into(header) and _PASSED_NAME not in header
        headers = {} if plain else known.headers()
        keys = (key, *copy_keys(headers, "CC"), *copy_keys(headers, "BCC"))
        targets = vhost.router.passing(own, keys, known.headers, known.named, number).targets
        counts = vhost.counts(own)
        counts.publish_out += len(targets)
        counts.drop_unroutable += not targets
        if plain and not any(target.entity.compares for target in targets):
            node.effort.due(1, len(header), len(targets))
            return ((republished(message, exchange, key, None, node.now_ms), targets),)
        node.effort.letter(len(header), len(targets))
        headers = dict(known.headers())
        before = headers.pop(PASSED, None)
        passed = [*(before if isinstance(before, list) else ()), own]
        farther = [one for one in targets if one.entity.compares and one.entity.compares not in passed]
        last = [one for one in targets if not one.entity.compares]

        def copy(**more: Any) -> Message:
            made = {name: value for name, value in headers.items() if name != "BCC" or more} | more
            return republished(message, exchange, key, replace(known.all(), headers=made), node.now_ms)

        return [(copy(**{PASSED: passed}), farther), (copy(), last)]
