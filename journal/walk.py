"""Which runs the messages of a segment belong to: the compiled half or its twin (`journal.build`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.journal.walk_pure import walk_groups
else:
    from clusterbroker.journal.walk_fast import walk_groups

__all__ = ["walk_groups"]
