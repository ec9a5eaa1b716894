"""Requests about links: those that are attached at this node, in the requester's virtual host.

    GET     /links                      200   a list: container, name, role, address, credit, unsettled, delivery-count
    DELETE  /links/:container/:name     200   link_count: so many were detached, with amqp:connection:forced

A user sees and detaches its own links, an administrator all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.wire.amqp10.errors import CONNECTION_FORCED, LinkError
from clusterbroker.broker.wire.numbers import UInt32, UInt64

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

LISTED_MAX: Final = 1000
"""Links in one answer."""


def attached(access: Authorization) -> Iterator[tuple[Any, Any, Any]]:
    """(connection, session, link) of those that the user may hear of, in no order."""
    clients: tuple[Any, ...] = tuple(access.node.clients.values())
    for client in clients:
        container = getattr(client, "container_id", None)  # clients of other protocols have none
        if container is None or not client.is_open or client.access.vhost is not access.vhost:
            continue
        if client.access.principal != access.principal and not access.is_administrator:
            continue
        for session in tuple(client.channels.values()):
            for link in tuple(session.links.values()):
                yield client, session, link


def listed(access: Authorization) -> list[dict[str, Any]]:
    """What is told of each; the first LISTED_MAX by container and name."""
    found = sorted(attached(access), key=lambda one: (one[0].container_id, one[2].name, one[2].role))
    answer = []
    for client, _, link in found[:LISTED_MAX]:
        address, credit, unsettled, count = link.state
        answer.append(
            {
                "container": client.container_id,
                "name": link.name,
                "role": "receiver" if link.role else "sender",
                "address": address,
                "credit": UInt32(credit),
                "unsettled": UInt64(unsettled),
                "delivery-count": UInt32(count),
            }
        )
    return answer


def detach(access: Authorization, container: str, name: str) -> int:
    """Ends the links of this name, of both roles; how many there were."""
    found = [one for one in attached(access) if one[0].container_id == container and one[2].name == name]
    for _, session, link in found:
        session.cut(link, LinkError(CONNECTION_FORCED, f"link '{name}' was detached by user '{access.user}'"))
    return len(found)
