"""What a client sees: AMQP, exchanges, queues, sessions, the command line, and a node inside your tests.

from broker import Broker

with Broker() as b:
    connect(b.url)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    """The embedded node is imported when it is asked for: `broker.amqp` and the plugin need none of it."""
    if name == "Broker":
        from broker.embedded import Broker

        return Broker
    raise AttributeError(f"module 'broker' has no attribute {name!r}")
