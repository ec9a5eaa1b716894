"""Stored messages to columns: the compiled half or its twin, `records_pure`, which explains them.

`CLUSTERBROKER_PURE=1` asks for the twin, as elsewhere; without a compiled build it runs too.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Final


COMPILED: Final = (
    os.environ.get("CLUSTERBROKER_PURE", "") in ("", "0")
    and importlib.util.find_spec("clusterbroker.pipeline.records_fast") is not None
)

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.pipeline.records_pure import decode
else:
    from clusterbroker.pipeline.records_fast import decode

__all__ = ["decode"]
