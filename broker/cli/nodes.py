"""`clusterbroker nodes`, `cluster`, `overview` and `whoami`: the members, and the whole at a glance (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listing, operation, showing
from clusterbroker.broker.cli.parameters import NodeName, Yes, sure
from clusterbroker.broker.cli.tables import Column, Document, Table, number, rate, size, span
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Members of the cluster: memory, disk, leases, what they own.")
cluster = typer.Typer(no_args_is_help=True, help="The cluster as a whole.")
glance = typer.Typer(add_completion=False)

NODES = Table(
    (
        Column("name"),
        Column("running"),
        Column("leased"),
        Column("owns", "owned_queues", number),
        Column("holds", "held_queues", number),
        Column("memory", "mem_used", size),
        Column("of", "mem_limit", size),
        Column("disk_free", show=size),
        Column("alarms"),
        Column("sockets", "sockets_used", number),
        Column("lag", "loop_lag_ms", span),
        Column("uptime", show=span),
        Column("draining"),
        Column("leader", "wiring_leader"),
        Column("version"),
        Column("alive", wide=True),
        Column("voter", wide=True),
        Column("witness", wide=True),
        Column("journal", "journal_bytes", size, wide=True),
        Column("wiring_index", show=number, wide=True),
        Column("told_ms_ago", show=span, wide=True),
    )
)
ATTEMPTS = Table(
    (
        Column("protocol"),
        Column("from", "remote_address", wide=True),
        Column("user", "username", wide=True),
        Column("succeeded", "auth_attempts_succeeded", number),
        Column("failed", "auth_attempts_failed", number),
    ),
    name="protocol",
)
FLAGS = Table((Column("name"), Column("state"), Column("desc")))
OVERVIEW = Table(
    (
        Column("cluster_name"),
        Column("node"),
        Column("product_version"),
        Column("queues", "object_totals.queues", number),
        Column("exchanges", "object_totals.exchanges", number),
        Column("connections", "object_totals.connections", number),
        Column("channels", "object_totals.channels", number),
        Column("consumers", "object_totals.consumers", number),
        Column("ready", "queue_totals.messages_ready", number),
        Column("unacked", "queue_totals.messages_unacknowledged", number),
        Column("published", "message_stats.publish_details.rate", rate),
        Column("confirmed", "message_stats.confirm_details.rate", rate),
        Column("delivered", "message_stats.deliver_get_details.rate", rate),
        Column("acknowledged", "message_stats.ack_details.rate", rate),
        Column("redelivered", "message_stats.redeliver_details.rate", rate),
    )
)
WHOAMI = Table((Column("name"), Column("tags")))


@listing(app, "list", NODES)
def node_list(reach: Target) -> list[Document]:
    """All members: who runs, with how much memory and disk, and who owns how much."""
    return reach.api.documents("/api/nodes")


@showing(app, "show", NODES)
def node_show(reach: Target, node: NodeName) -> Document:
    """One member."""
    return reach.api.document("/api/nodes/{}", node)


@listing(app, "logins", ATTEMPTS)
def node_logins(
    reach: Target,
    node: NodeName,
    by_source: Annotated[
        bool, typer.Option("--by-source", help="At its management API, by address and user; asked of that node.")
    ] = False,
) -> list[Document]:
    """How often clients signed in at a member since it started, and how often they failed."""
    if by_source:
        return reach.api.documents("/api/auth/attempts/{}/source", node)
    return reach.api.documents("/api/auth/attempts/{}", node)


@operation(app, "forget-logins")
def node_forget_logins(reach: Target, node: NodeName) -> str:
    """Begin to count sign-in attempts by address and user anew; asked of that node."""
    reach.api.delete("/api/auth/attempts/{}/source", node)
    return f"attempts at '{node}' are counted anew"


@operation(glance, "forget-node")
@operation(app, "forget")
def node_forget(
    reach: Target,
    node: NodeName,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Even if it has the only copy of a queue.")
    ] = False,
    yes: Yes = False,
) -> str:
    """Take a dead member out for good. `clusterbroker leave` is for one that lives."""
    sure(f"Take member '{node}' out for good?", yes)
    if reach.here:
        reach.perform("leave", member=node, accept_loss=accept_loss)
    else:
        reach.api.delete("/api/nodes/{}", node, query={"accept-loss": "true"} if accept_loss else {})
    return f"{node} is a member no more"


@showing(glance, "overview", OVERVIEW)
@showing(cluster, "status", OVERVIEW)
def overview(reach: Target) -> Document:
    """The cluster at a glance: how much is there, and what happens."""
    return reach.api.document("/api/overview")


@operation(cluster, "name")
def cluster_name(
    reach: Target, name: Annotated[str | None, typer.Argument(help="The new one; without it the name is told.")] = None
) -> str:
    """What the cluster is called, for people."""
    if name is not None:
        reach.api.put("/api/cluster-name", body={"name": name})
    return str(reach.api.get("/api/cluster-name")["name"])


@listing(cluster, "features", FLAGS)
def cluster_features(reach: Target) -> list[Document]:
    """The feature flags that RabbitMQ's clients ask for."""
    return reach.api.documents("/api/feature-flags")


@showing(glance, "whoami", WHOAMI)
def whoami(reach: Target) -> Document:
    """As whom this command line speaks, and with which tags."""
    return reach.api.document("/api/whoami")
