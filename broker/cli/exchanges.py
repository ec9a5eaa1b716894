"""`clusterbroker exchanges` and `bindings` (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli import messages
from clusterbroker.broker.cli.commands import listed, listing, operation, showing
from clusterbroker.broker.cli.complete import exchanges as complete_exchanges
from clusterbroker.broker.cli.complete import queues as complete_queues
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.parameters import (
    Arguments,
    AutoDelete,
    Durable,
    ExchangeName,
    OfVhost,
    RoutingKey,
    Vhost,
    table,
)
from clusterbroker.broker.cli.tables import Column, Document, Table, number, pairs, quoted, rate
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Exchanges.")
bindings = typer.Typer(no_args_is_help=True, help="Bindings of exchanges to queues and exchanges.")

EXCHANGES = Table(
    (
        Column("vhost"),
        Column("name", show=quoted),
        Column("type"),
        Column("durable"),
        Column("in", "message_stats.publish_in_details.rate", rate),
        Column("out", "message_stats.publish_out_details.rate", rate),
        Column("policy"),
        Column("delayed", "messages_delayed", number, wide=True),
        Column("cached", "cached_values", number, wide=True),
        Column("auto_delete", wide=True),
        Column("internal", wide=True),
        Column("arguments", show=pairs, wide=True),
    )
)
BINDINGS = Table(
    (
        Column("vhost"),
        Column("source", show=quoted),
        Column("routing_key"),
        Column("destination"),
        Column("to", "destination_type"),
        Column("arguments", show=pairs),
    ),
    name="destination",
)
Destination = Annotated[str, typer.Argument(metavar="DESTINATION", autocompletion=complete_exchanges)]
Source = Annotated[str, typer.Argument(metavar="SOURCE", autocompletion=complete_exchanges)]


listed(app, "list", EXCHANGES, "/api/exchanges", "All exchanges, with rates.")


@showing(app, "show", EXCHANGES)
def exchange_show(reach: Target, exchange: ExchangeName, vhost: Vhost = "/") -> Document:
    """One exchange."""
    return reach.api.document("/api/exchanges/{}/{}", vhost, exchange or messages.DEFAULT_EXCHANGE)


@operation(app, "create", hidden=True)
@operation(app, "declare")
def exchange_declare(
    reach: Target,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE")],
    kind: Annotated[str, typer.Option("--type", help="direct, fanout, topic, headers, ...")] = "direct",
    vhost: Vhost = "/",
    durable: Durable = True,
    auto_delete: AutoDelete = False,
    internal: Annotated[bool, typer.Option("--internal", help="Closed to publishers, open to bindings.")] = False,
    argument: Arguments = None,
) -> str:
    """Declare an exchange. An existing one must have the same settings."""
    body = {
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": table(argument),
    }
    reach.api.put("/api/exchanges/{}/{}", vhost, exchange, body=body)
    return f"exchange '{exchange}' is declared"


@operation(app, "delete")
def exchange_delete(
    reach: Target,
    exchange: ExchangeName,
    vhost: Vhost = "/",
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only without bindings.")] = False,
) -> str:
    """Delete an exchange and its bindings."""
    query = {"if-unused": "true"} if if_unused else {}
    reach.api.delete("/api/exchanges/{}/{}", vhost, exchange, query=query)
    return f"exchange '{exchange}' is deleted"


@operation(app, "publish")
def exchange_publish(
    reach: Target,
    exchange: ExchangeName,
    body: messages.Body = None,
    routing_key: RoutingKey = "",
    file: messages.File = None,
    properties: messages.Properties = None,
    headers: messages.Headers = None,
    persistent: messages.Persistent = True,
    vhost: Vhost = "/",
) -> str:
    """Publish a message, and wait for the confirm. Exit code 1 when no queue received the message."""
    return messages.publish(reach, vhost, exchange, routing_key, (body, file), properties, headers, persistent)


@operation(app, "bind")
def exchange_bind(
    reach: Target,
    destination: Destination,
    source: Source,
    routing_key: RoutingKey = "",
    argument: Arguments = None,
    vhost: Vhost = "/",
) -> str:
    """Bind the exchange DESTINATION to the exchange SOURCE."""
    messages.bind(reach, vhost, source, "e", destination, routing_key, table(argument))
    return f"exchange '{destination}' is bound to '{source}'"


@operation(app, "unbind")
def exchange_unbind(
    reach: Target,
    destination: Destination,
    source: Source,
    routing_key: RoutingKey = "",
    argument: Arguments = None,
    vhost: Vhost = "/",
) -> str:
    """Remove the binding with this routing key and these arguments."""
    messages.unbind(reach, vhost, source, "e", destination, routing_key, table(argument))
    return f"exchange '{destination}' is no longer bound to '{source}'"


@listing(bindings, "list", BINDINGS)
def binding_list(
    reach: Target,
    vhost: OfVhost = None,
    source: Annotated[
        str | None, typer.Option("--source", help="From this exchange.", autocompletion=complete_exchanges)
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="To this queue.", autocompletion=complete_queues)] = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="To this exchange.", autocompletion=complete_exchanges)
    ] = None,
) -> list[Document]:
    """All bindings, or those of one exchange or queue (then of the vhost / unless told)."""
    if queue is not None and exchange is not None:
        raise Failed("say --queue or --exchange, not both", USAGE)
    api, default = reach.api, messages.DEFAULT_EXCHANGE
    where = "/" if vhost is None else vhost
    if queue is not None:
        found = api.documents("/api/queues/{}/{}/bindings", where, queue)
    elif exchange is not None:
        found = api.documents("/api/exchanges/{}/{}/bindings/destination", where, exchange or default)
    elif source is not None:
        return api.documents("/api/exchanges/{}/{}/bindings/source", where, source or default)
    else:
        return api.documents("/api/bindings", of=vhost)
    if source is not None:
        wanted = "" if source == default else source
        found = [binding for binding in found if binding["source"] == wanted]
    return found
