"""`clusterbroker links`: links of clients of AMQP 1.0 (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listing
from clusterbroker.broker.cli.complete import connections as complete_connections
from clusterbroker.broker.cli.parameters import OfVhost
from clusterbroker.broker.cli.tables import Column, Document, Table, number, pairs
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Links of clients of AMQP 1.0.")

LINKS = Table(
    (
        Column("container", "container_id"),
        Column("name"),
        Column("role"),
        Column("address"),
        Column("credit", show=number),
        Column("unsettled", show=number),
        Column("count", "delivery_count", number),
        Column("user"),
        Column("vhost"),
        Column("node"),
        Column("connection", "connection_details.name", wide=True),
        Column("session", show=number, wide=True),
        Column("handle", show=number, wide=True),
        Column("snd_settle_mode", wide=True),
        Column("rcv_settle_mode", wide=True),
        Column("filter", show=pairs, wide=True),
    )
)


@listing(app, "list", LINKS)
def link_list(
    reach: Target,
    vhost: OfVhost = None,
    connection: Annotated[
        str | None,
        typer.Option("--connection", help="Only of this connection.", autocompletion=complete_connections),
    ] = None,
) -> list[Document]:
    """All links: address, credit, unsettled deliveries."""
    found = reach.api.documents("/api/links") if vhost is None else reach.api.documents("/api/links/{}", vhost)
    return [row for row in found if connection in (None, row["connection_details"]["name"])]


@listing(app, "show", LINKS)
def link_show(
    reach: Target,
    container: Annotated[str, typer.Argument(metavar="CONTAINER", help="The client's container-id.")],
    link: Annotated[str, typer.Argument(metavar="LINK", help="Name of the link.")],
) -> list[Document]:
    """Links of a container by their name: one of each role."""
    return reach.api.documents("/api/links/{}/{}", container, link)
