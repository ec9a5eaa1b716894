"""Which half of each twin runs: the compiled module or its pure-Python specification.

The choice is made once for the whole process, because the halves of different modules do not mix (a compiled
ring holds compiled messages). `CLUSTERBROKER_PURE=1` asks for the twins; without a compiled build they run too.
"""

from __future__ import annotations

import importlib.util
import os

COMPILED_MODULES = (
    "clusterbroker.journal.record_fast",
    "clusterbroker.journal.walk_fast",
    "clusterbroker.broker.amqp.codec_fast",
    "clusterbroker.broker.queues.ring_fast",
    "clusterbroker.broker.session.delivery_fast",
)


def _compiled() -> bool:
    if os.environ.get("CLUSTERBROKER_PURE", "") not in ("", "0"):
        return False
    return all(importlib.util.find_spec(module) is not None for module in COMPILED_MODULES)


COMPILED: bool = _compiled()
