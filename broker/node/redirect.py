"""Addresses for clients that should leave this node: the AMQP addresses of the members (pure).

A member counts while it is alive, does not drain and is no witness (which cannot hold queues).
"""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.view import ClusterView

TEXT_BYTES_MAX: Final = 255
"""A reply text is a short string."""
DRAINED: Final = "node is drained"


def hosts(view: ClusterView) -> tuple[Member, ...]:
    """The members that clients may connect to, by name."""
    serving = [member for member in view.alive_members() if not member.draining and not member.witness]
    return tuple(sorted(serving, key=lambda member: member.name))


def addresses(view: ClusterView, but: str = "") -> tuple[str, ...]:
    """Their AMQP addresses, without those of the member `but`."""
    return tuple(url for member in hosts(view) if member.name != but for url in member.amqp)


def moving_text(why: str, view: ClusterView, own: str) -> str:
    """Why a connection ends, and where its client may go: whole addresses, as many as a reply text holds."""
    text, sign = why, ", connect to "
    for url in addresses(view, own):
        longer = text + sign + url
        if len(longer.encode()) > TEXT_BYTES_MAX:
            break
        text, sign = longer, " or "
    return text
