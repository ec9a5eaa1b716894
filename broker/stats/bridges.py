"""The row of a bridge, within that of the node that runs it (`rows`)."""

from __future__ import annotations

import msgspec

from clusterbroker.broker.stats.totals import Total


class BridgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A bridge that the node runs."""

    vhost: str
    name: str
    state: str
    """One of `broker.bridges.standing.STATES`."""
    moved: Total = 0
    """Confirmed by the destination."""
    again: Total = 0
    """Of these: recognised, and published once."""
    doubtful: Total = 0
    """Of these: redelivered, and perhaps there twice."""
    lost: Total = 0
    """How often an end was lost, or an error ended it."""
    held: int = 0
    """Messages that came from the source and are not confirmed."""
    lag_ms: int = 0
    """Since the destination confirmed something, while messages are held."""
    counted: bool = False
    """Exactly once."""
