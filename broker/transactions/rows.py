"""What a mover does with each row: the compiled half or its twin, `rows_pure`, which explains it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from clusterbroker.journal import build

COMPILED: Final = build.COMPILED and importlib.util.find_spec("clusterbroker.broker.transactions.rows_fast") is not None

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.broker.transactions.rows_pure import divide, looks_alone, next_rows, settle_rows
else:
    from clusterbroker.broker.transactions.rows_fast import divide, looks_alone, next_rows, settle_rows

__all__ = ["divide", "looks_alone", "next_rows", "settle_rows"]
