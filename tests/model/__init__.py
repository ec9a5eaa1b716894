"""The compiled modules in plain Python: their specification, and the oracles of the property tests."""

from __future__ import annotations

import importlib
import sys
from typing import Final

MODELS: Final = {
    "clusterbroker.journal.record": "record",
    "clusterbroker.journal.walk": "walk",
    "clusterbroker.journal.due_index": "due_index",
    "clusterbroker.broker.wire.amqp091.codec": "codec",
    "clusterbroker.broker.queues.ring": "ring",
    "clusterbroker.broker.access.ledger": "ledger",
    "clusterbroker.broker.fronts.amqp091.delivery": "delivery",
    "clusterbroker.broker.wire.amqp10.sections": "sections10",
    "clusterbroker.broker.wire.amqp10.tags": "tags10",
    "clusterbroker.broker.wire.amqp10.flows": "flows10",
    "clusterbroker.broker.wire.amqp10.codec": "codec10",
    "clusterbroker.broker.fronts.amqp10.delivery": "delivery10",
    "clusterbroker.broker.bridges.rewriting": "rewriting",
    "clusterbroker.broker.content.headers": "headers",
    "clusterbroker.broker.content.numbers": "numbers",
    "clusterbroker.broker.content.delays": "delays",
    "clusterbroker.broker.content.translation": "translation",
    "clusterbroker.broker.transactions.rows": "rows",
    "clusterbroker.pipeline.records": "records",
}
"""The model of each compiled module; those that others import come first."""


def stand_in() -> None:
    """From now on models are imported in place of the compiled modules, in this process: a model can be patched.
    Nothing that imports the compiled ones may have been imported before."""
    for name, model in MODELS.items():
        module = importlib.import_module(f"{__name__}.{model}")
        package, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(package), attribute, module)
        sys.modules[name] = module
