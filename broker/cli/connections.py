"""`clusterbroker connections`, `channels` and `consumers`: who is there (waits)."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from clusterbroker.broker.cli.commands import listed, listing, operation, showing, shown
from clusterbroker.broker.cli.complete import channels as complete_channels
from clusterbroker.broker.cli.complete import connections as complete_connections
from clusterbroker.broker.cli.complete import users as complete_users
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.parameters import OfVhost
from clusterbroker.broker.cli.readable import visible
from clusterbroker.broker.cli.tables import Column, Document, Table, moment, number, pairs, rate, volume
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Connections of clients.")
channels = typer.Typer(no_args_is_help=True, help="Channels of connections.")
consumers = typer.Typer(no_args_is_help=True, help="Consumers and their queues.")

CONNECTIONS = Table(
    (
        Column("name"),
        Column("user"),
        Column("vhost"),
        Column("node"),
        Column("state"),
        Column("channels", show=number),
        Column("in", "recv_oct_details.rate", volume),
        Column("out", "send_oct_details.rate", volume),
        Column("tls", "ssl"),
        Column("since", "connected_at", moment),
        Column("called", "user_provided_name", wide=True),
        Column("protocol", wide=True),
        Column("mechanism", "auth_mechanism", wide=True),
        Column("client", "client_properties.product", wide=True),
    )
)
CHANNELS = Table(
    (
        Column("name"),
        Column("user"),
        Column("vhost"),
        Column("node"),
        Column("state"),
        Column("prefetch", "prefetch_count", number),
        Column("unacked", "messages_unacknowledged", number),
        Column("unconfirmed", "messages_unconfirmed", number),
        Column("consumers", "consumer_count", number),
        Column("in", "message_stats.publish_details.rate", rate),
        Column("out", "message_stats.deliver_get_details.rate", rate),
        Column("confirm", wide=True),
        Column("transactional", wide=True),
    )
)
CONSUMERS = Table(
    (
        Column("vhost", "queue.vhost"),
        Column("queue", "queue.name"),
        Column("tag", "consumer_tag"),
        Column("channel", "channel_details.name"),
        Column("ack_required"),
        Column("prefetch", "prefetch_count", number),
        Column("active"),
        Column("exclusive", wide=True),
        Column("user", "channel_details.user", wide=True),
        Column("arguments", show=pairs, wide=True),
    ),
    name="queue.name",
)
Connection = Annotated[str, typer.Argument(metavar="CONNECTION", autocompletion=complete_connections)]


@listing(app, "list", CONNECTIONS)
def connection_list(
    reach: Target,
    vhost: OfVhost = None,
    user: Annotated[str | None, typer.Option("--of", help="Only of this user.", autocompletion=complete_users)] = None,
) -> list[Document]:
    """All connections of the cluster."""
    return [row for row in _in_vhost(reach, "connections", vhost) if user in (None, row["user"])]


def _in_vhost(reach: Target, what: Literal["connections", "channels"], vhost: str | None) -> list[Document]:
    if vhost is None:
        return reach.api.documents("/api/" + what)
    return reach.api.documents("/api/vhosts/{}/" + what, vhost)


shown(app, "show", CONNECTIONS, "/api/connections/{connection}", "One connection.", connection=Connection)


@operation(app, "close")
def connection_close(
    reach: Target,
    connection: Annotated[
        str | None, typer.Argument(metavar="[CONNECTION]", autocompletion=complete_connections)
    ] = None,
    user: Annotated[str | None, typer.Option("--of", help="All of this user.", autocompletion=complete_users)] = None,
    reason: Annotated[str, typer.Option(help="Reason for the client.")] = "closed by operator",
) -> str:
    """Close one connection, or all of a user."""
    if (connection is None) == (user is None):
        raise Failed("say a connection's name, or --of USER", USAGE)
    headers = {"x-reason": visible(reason).encode("ascii", "backslashreplace").decode()}
    if user is not None:
        reach.api.delete("/api/connections/username/{}", user, headers=headers)
        return f"the connections of '{user}' are closed"
    assert connection is not None, "one of the two was said"
    reach.api.delete("/api/connections/{}", connection, headers=headers)
    return f"connection '{visible(connection)}' is closed"


@listing(channels, "list", CHANNELS)
def channel_list(
    reach: Target,
    vhost: OfVhost = None,
    connection: Annotated[
        str | None,
        typer.Option("--connection", help="Only of this connection.", autocompletion=complete_connections),
    ] = None,
) -> list[Document]:
    """All channels."""
    if connection is not None:
        found = reach.api.documents("/api/connections/{}/channels", connection)
        return [row for row in found if vhost in (None, row["vhost"])]
    return _in_vhost(reach, "channels", vhost)


@showing(channels, "show", CHANNELS)
def channel_show(
    reach: Target, channel: Annotated[str, typer.Argument(metavar="CHANNEL", autocompletion=complete_channels)]
) -> Document:
    """One channel."""
    return reach.api.document("/api/channels/{}", channel)


listed(consumers, "list", CONSUMERS, "/api/consumers", "All consumers, with the queues that they consume from.")
