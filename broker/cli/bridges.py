"""`clusterbroker bridges`: standing movers between brokers, in RabbitMQ's words dynamic shovels (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.bridges.shovel import COMPONENT, BadBridge, bridge
from clusterbroker.broker.cli.commands import listing, operation
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.parameters import OfVhost, Vhost
from clusterbroker.broker.cli.tables import Column, Document, Table, number
from clusterbroker.broker.cli.target import Target
from clusterbroker.broker.cli.uris import HOW, uri
from clusterbroker.broker.visible import visible

app = typer.Typer(no_args_is_help=True, help="Bridges: messages move from broker to broker.")

BRIDGES = Table(
    (
        Column("name"),
        Column("vhost"),
        Column("state"),
        Column("node"),
        Column("source"),
        Column("destination"),
        Column("moved", show=number),
        Column("why"),
        Column("counted", wide=True),
        Column("again", show=number, wide=True),
        Column("doubtful", show=number, wide=True),
        Column("lost", show=number, wide=True),
        Column("held", show=number, wide=True),
        Column("lag_s", wide=True),
    )
)
_PATH = "/api/parameters/{}/{}/{}"
Name = Annotated[str, typer.Argument(metavar="BRIDGE", help="Name of the bridge.")]


@listing(app, "list", BRIDGES)
def bridge_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All bridges with their nodes; counts of those that the asked node runs."""
    rows: list[Document] = reach.api.get("/api/bridges")["bridges"]
    return [row for row in rows if vhost in (None, row["vhost"])]


@operation(app, "set")
def bridge_set(
    reach: Target,
    name: Name,
    source: Annotated[str, typer.Option("--from", help=f"AMQP URI of the source; no host: the node itself; {HOW}.")],
    destination: Annotated[str, typer.Option("--to", help=f"AMQP URI of the destination; {HOW}.")],
    queue: Annotated[str | None, typer.Option("--queue", help="Source queue.")] = None,
    exchange: Annotated[str | None, typer.Option("--exchange", help="Source exchange.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="With --exchange: the binding's key.")] = None,
    to_queue: Annotated[str | None, typer.Option("--to-queue", help="Destination queue.")] = None,
    to_exchange: Annotated[str | None, typer.Option("--to-exchange", help="Destination exchange.")] = None,
    to_key: Annotated[
        str | None, typer.Option("--to-key", help="With --to-exchange: routing key. [as it was published]")
    ] = None,
    prefetch: Annotated[int | None, typer.Option("--prefetch", min=1, help="Unacknowledged messages.")] = None,
    vhost: Vhost = "/",
) -> str:
    """Make or change a bridge. It is kept as a parameter of component `shovel`, and runs at one node."""
    said = {
        "src-uri": uri(source, "--from"),
        "dest-uri": uri(destination, "--to"),
        "src-queue": queue,
        "src-exchange": exchange,
        "src-exchange-key": key,
        "dest-queue": to_queue,
        "dest-exchange": to_exchange,
        "dest-exchange-key": to_key,
        "src-prefetch-count": prefetch,
    }
    value: dict[str, Any] = {name: one for name, one in said.items() if one is not None}
    try:
        bridge(vhost, name, value)
    except BadBridge as bad:
        raise Failed(str(bad), USAGE) from None
    reach.api.put(_PATH, COMPONENT, vhost, name, body={"value": value})
    return f"bridge '{visible(name)}' is set"


@operation(app, "delete")
def bridge_delete(reach: Target, name: Name, vhost: Vhost = "/") -> str:
    """End a bridge, and forget what it knows of messages on their way."""
    reach.api.delete(_PATH, COMPONENT, vhost, name)
    return f"bridge '{visible(name)}' is deleted"
