"""`clusterbroker links`: links of clients of AMQP 1.0 (waits)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listing, operation
from clusterbroker.broker.cli.complete import connections as complete_connections
from clusterbroker.broker.cli.parameters import OfVhost
from clusterbroker.broker.cli.tables import Column, Document, Table, counted, number, pairs
from clusterbroker.broker.cli.target import Target
from clusterbroker.broker.visible import visible

app = typer.Typer(no_args_is_help=True, help="Links of clients of AMQP 1.0.")

LINKS = Table(
    (
        Column("container", "container_id"),
        Column("name"),
        Column("role"),
        Column("address"),
        Column("state"),
        Column("level"),
        Column("credit", show=number),
        Column("unsettled", show=number),
        Column("expires in s", "expires_in_s", number),
        Column("user"),
        Column("vhost"),
        Column("node"),
        Column("count", "delivery_count", number, wide=True),
        Column("since", wide=True),
        Column("expires", wide=True),
        Column("expiry_policy", wide=True),
        Column("timeout_s", show=number, wide=True),
        Column("connection", "connection_details.name", wide=True),
        Column("session", show=number, wide=True),
        Column("handle", show=number, wide=True),
        Column("snd_settle_mode", wide=True),
        Column("rcv_settle_mode", wide=True),
        Column("filter", show=pairs, wide=True),
    )
)


Container = Annotated[str, typer.Argument(metavar="CONTAINER", help="The client's container-id.")]


class Role(StrEnum):
    """Of a link's client."""

    SENDER = "sender"
    RECEIVER = "receiver"


class State(StrEnum):
    """Of a link."""

    ATTACHED = "attached"
    SUSPENDED = "suspended"


@listing(app, "list", LINKS)
def link_list(
    reach: Target,
    vhost: OfVhost = None,
    connection: Annotated[
        str | None,
        typer.Option("--connection", help="Only of this connection.", autocompletion=complete_connections),
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only of this state.")] = None,
) -> list[Document]:
    """All links, attached or suspended: address, credit, unsettled deliveries."""
    found = reach.api.documents("/api/links", of=vhost, query=None if state is None else {"state": state.value})
    return [row for row in found if connection in (None, row["connection_details"].get("name"))]


@listing(app, "show", LINKS)
def link_show(
    reach: Target,
    container: Container,
    link: Annotated[str, typer.Argument(metavar="LINK", help="Name of the link.")],
    vhost: OfVhost = None,
) -> list[Document]:
    """Links of a container by their name: one of each role."""
    if vhost is None:
        return reach.api.documents("/api/links/{}/{}", container, link)
    return reach.api.documents("/api/links/{}/{}/{}", vhost, container, link)


@operation(app, "expire")
def link_expire(
    reach: Target,
    container: Container,
    links: Annotated[list[str], typer.Argument(metavar="LINK...", help="Names of links.")],
    vhost: OfVhost = None,
    role: Annotated[Role | None, typer.Option("--role", help="Only of this role, which is the client's.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also links that are attached: they are detached first.")
    ] = False,
) -> str:
    """End suspended links as if their time were over: what they hold returns to its queues."""
    query = {**({} if role is None else {"role": role.value}), **({"force": "true"} if force else {})}
    for link in links:
        if vhost is None:
            reach.api.delete("/api/links/{}/{}", container, link, query=query)
        else:
            reach.api.delete("/api/links/{}/{}/{}", vhost, container, link, query=query)
    return f"{counted(len(links), 'link')} of container '{visible(container)}' ended"
