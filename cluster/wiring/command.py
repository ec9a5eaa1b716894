"""The root of all commands of the wiring log (commands.py)."""

from __future__ import annotations

import msgspec

from clusterbroker.cluster.ids import Incarnation, NodeId


class Command(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="command"):
    """Root of all commands."""

    at_ms: int = 0
    """When it was proposed, wall clock of the proposer, ms since 1970; for display: nothing ends by it."""


class OfProcess(Command, frozen=True, kw_only=True):
    """Proposed by, or about, one process of a member; void, or refused, when the member began anew since."""

    node: NodeId
    incarnation: Incarnation
