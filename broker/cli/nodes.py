"""`clusterbroker nodes`, `cluster`, `overview` and `whoami`: members and totals (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listed, listing, operation, shown
from clusterbroker.broker.cli.parameters import NodeName, Yes, sure
from clusterbroker.broker.cli.tables import Column, Document, Table, number, rate, size, span
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Members of the cluster: memory, disk, leases, queues.")
cluster = typer.Typer(no_args_is_help=True, help="The cluster as a whole.")
glance = typer.Typer(add_completion=False)

NODES = Table(
    (
        Column("name"),
        Column("running"),
        Column("leased"),
        Column("owns", "owned_queues", number, heading="leads"),
        Column("holds", "held_queues", number, heading="replicas"),
        Column("memory", "mem_used", size),
        Column("of", "mem_limit", size, heading="memory_limit"),
        Column("disk_free", show=size),
        Column("alarms"),
        Column("sockets", "sockets_used", number),
        Column("lag", "loop_lag_ms", span),
        Column("uptime", show=span),
        Column("draining"),
        Column("leader", "wiring_leader", heading="metadata_leader"),
        Column("version"),
        Column("supported_feature_level", wide=True),
        Column("alive", wide=True),
        Column("voter", wide=True),
        Column("witness", wide=True),
        Column("journal", "journal_bytes", size, wide=True),
        Column("wiring_index", show=number, wide=True, heading="metadata_index"),
        Column("told_ms_ago", show=span, wide=True, heading="told_ago"),
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
        Column("product_version", heading="version"),
        Column("feature_level"),
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


listed(app, "list", NODES, "/api/nodes", "All members: state, memory, disk, number of queues.", None)

shown(app, "show", NODES, "/api/nodes/{node}", "One member.", node=NodeName)


@listing(app, "logins", ATTEMPTS)
def node_logins(
    reach: Target,
    node: NodeName,
    by_source: Annotated[
        bool, typer.Option("--by-source", help="At its management API, by address and user; only at that node.")
    ] = False,
) -> list[Document]:
    """Sign-ins at a member since its start: succeeded and failed."""
    if by_source:
        return reach.api.documents("/api/auth/attempts/{}/source", node)
    return reach.api.documents("/api/auth/attempts/{}", node)


@operation(app, "forget-logins")
def node_forget_logins(reach: Target, node: NodeName) -> str:
    """Reset the counts of sign-in attempts by address and user; only at that node."""
    reach.api.delete("/api/auth/attempts/{}/source", node)
    return f"attempts at '{node}' are reset"


@operation(glance, "forget-node")
@operation(app, "forget")
def node_forget(
    reach: Target,
    node: NodeName,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Even with the only replica of a queue.")] = False,
    yes: Yes = False,
) -> str:
    """Remove a dead member. `clusterbroker leave` is for a running one."""
    sure(f"Remove member '{node}'?", yes)
    reach.change("leave", member=node, accept_loss=accept_loss)
    return f"{node} is a member no more"


shown(glance, "overview", OVERVIEW, "/api/overview", "The cluster at a glance: totals and rates.")
listed(cluster, "status", NODES, "/api/nodes", "The members of the cluster, as `nodes list`.", None)


@operation(cluster, "name")
def cluster_name(
    reach: Target, name: Annotated[str | None, typer.Argument(help="The new name; none: show the name.")] = None
) -> str:
    """Show or set the cluster's display name."""
    if name is not None:
        reach.api.put("/api/cluster-name", body={"name": name})
    return str(reach.api.get("/api/cluster-name")["name"])


@operation(cluster, "raise-level")
def cluster_raise_level(
    reach: Target,
    level: Annotated[
        int | None, typer.Argument(min=1, help="The new level; none: the highest that the node's release knows.")
    ] = None,
    yes: Yes = False,
) -> str:
    """Raise the feature level, once all members run the new release. There is no way back to an older one."""
    sure("Raise the feature level? No member can return to an older release afterwards.", yes)
    done = reach.change("level.raise", **({} if level is None else {"level": level}))
    if done["level"] == done["before"]:
        return f"the cluster is at feature level {done['level']} already"
    return f"the cluster is at feature level {done['level']}, it was at {done['before']}"


_FEATURES = "Feature flags, as RabbitMQ's clients expect them."
listed(cluster, "features", FLAGS, "/api/feature-flags", _FEATURES, None)

shown(glance, "whoami", WHOAMI, "/api/whoami", "The user of this command line, and its tags.")
