"""A replicated AMQP broker: nodes, clusters of them, and one inside your tests.

from clusterbroker import Broker

with Broker() as b:
    connect(b.url)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("clusterbroker runs on Linux and macOS; on Windows, install it in WSL")

if TYPE_CHECKING:
    from clusterbroker.broker.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    """The embedded node is imported when it is asked for: the pytest plugin and the command need none of it."""
    if name == "Broker":
        from clusterbroker.broker.embedded import Broker

        return Broker
    raise AttributeError(f"module 'clusterbroker' has no attribute {name!r}")
