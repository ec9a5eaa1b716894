"""What a channel does with each event: the tables of its methods, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.fronts.amqp091 import channel, consuming, declaring, publishing, transacting
from clusterbroker.broker.wire.amqp091.codec import Acked, Published

HANDLERS: Final[dict[type, Callable[[channel.Channel, Any], None]]] = {
    Published: publishing.publish,
    Acked: consuming.ack,
    **channel.HANDLERS,
    **declaring.HANDLERS,
    **publishing.HANDLERS,
    **transacting.HANDLERS,
    **consuming.HANDLERS,
}
