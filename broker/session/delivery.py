"""A channel's consumers and their unacknowledged deliveries: the compiled half or its twin (`journal.build`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.broker.session.delivery_pure import BasicConsumer, Ledger
else:
    from clusterbroker.broker.session.delivery_fast import BasicConsumer, Ledger

__all__ = ["BasicConsumer", "Ledger"]
