"""`clusterbroker producers`: who publishes in transactions, and how far they are (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listing, showing
from clusterbroker.broker.cli.parameters import OfVhost, Vhost
from clusterbroker.broker.cli.tables import Column, Document, Table, moment, number
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Producers of transactions: committed epochs, staged and moving rows.")

PRODUCERS = Table(
    (
        Column("vhost"),
        Column("producer"),
        Column("epoch", show=number),
        Column("rows", show=number),
        Column("committed", "committed_at_ms", moment),
        Column("moving", show=number),
        Column("unroutable", show=number),
        Column("open"),
        Column("run", wide=True),
        Column("user", wide=True),
        Column("expires", "expires_at_ms", moment, wide=True),
    ),
    name="producer",
)


@listing(app, "list", PRODUCERS)
def producer_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All producers: last epoch, and rows still on their way to queues."""
    return reach.api.documents("/api/producers", of=vhost)


@showing(app, "show", PRODUCERS)
def producer_show(
    reach: Target, producer: Annotated[str, typer.Argument(metavar="PRODUCER")], vhost: Vhost = "/"
) -> Document:
    """One producer."""
    return reach.api.document("/api/producers/{}/{}", vhost, producer)
