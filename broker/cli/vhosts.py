"""`clusterbroker vhosts` and `vhost-limits` (waits)."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterbroker.broker.cli.commands import listing, operation, showing
from clusterbroker.broker.cli.parameters import OfVhost, VhostName, Yes, sure
from clusterbroker.broker.cli.tables import Column, Document, Table, number, rate
from clusterbroker.broker.cli.target import Target
from clusterbroker.cluster.entities import VhostLimit

app = typer.Typer(no_args_is_help=True, help="Virtual hosts.")
limits = typer.Typer(no_args_is_help=True, help="How many queues and connections a virtual host may have.")

VHOSTS = Table(
    (
        Column("name"),
        Column("description"),
        Column("tags"),
        Column("ready", "messages_ready", number),
        Column("unacked", "messages_unacknowledged", number),
        Column("in", "message_stats.publish_details.rate", rate),
        Column("out", "message_stats.deliver_get_details.rate", rate),
        Column("default_queue_type", wide=True),
        Column("tracing", wide=True),
    )
)
LIMITS = Table((Column("vhost"), Column("limits", "value")), name="vhost")
Limit = Annotated[VhostLimit, typer.Argument()]


@listing(app, "list", VHOSTS)
def vhost_list(reach: Target) -> list[Document]:
    """All virtual hosts and what happens in them."""
    return reach.documents("/api/vhosts", "vhost.list", "vhosts")


@showing(app, "show", VHOSTS)
def vhost_show(reach: Target, vhost: VhostName) -> Document:
    """One virtual host."""
    return reach.api.document("/api/vhosts/{}", vhost)


@operation(app, "add")
def vhost_add(
    reach: Target,
    name: str,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="For people too (repeatable).")] = None,
) -> str:
    """Make a virtual host. By --url, or --as, its maker may do everything in it; else nobody yet: `permissions set`."""
    if reach.here and not tag:
        reach.perform("vhost.add", name=name, description=description)
    else:
        reach.api.put("/api/vhosts/{}", name, body={"description": description, "tags": ",".join(tag or [])})
    return f"vhost '{name}' is made"


@operation(app, "delete")
def vhost_delete(
    reach: Target,
    vhost: VhostName,
    yes: Yes = False,
) -> str:
    """Delete a virtual host and all that is in it: queues with their messages, exchanges, permissions."""
    sure(f"Delete vhost '{vhost}' with all its queues and messages?", yes)
    reach.change("vhost.delete", "DELETE", "/api/vhosts/{name}", name=vhost)
    return f"vhost '{vhost}' is deleted"


@operation(app, "alive")
def vhost_alive(reach: Target, vhost: VhostName = "/") -> str:
    """Whether a message goes through: a queue is declared, a message published and got."""
    reach.api.get("/api/aliveness-test/{}", vhost)
    return "ok"


@operation(app, "trace-on")
def vhost_trace_on(reach: Target, vhost: VhostName = "/") -> str:
    """Open the firehose: all that clients publish and get is published to amq.rabbitmq.trace as well."""
    reach.api.put("/api/vhosts/{}", vhost, body={"tracing": True})
    return f"vhost '{vhost}' is traced: bind a queue to its exchange 'amq.rabbitmq.trace'"


@operation(app, "trace-off")
def vhost_trace_off(reach: Target, vhost: VhostName = "/") -> str:
    """Shut the firehose."""
    reach.api.put("/api/vhosts/{}", vhost, body={"tracing": False})
    return f"vhost '{vhost}' is not traced"


@listing(limits, "list", LIMITS)
def vhost_limit_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """Limits of virtual hosts that have some."""
    return reach.api.documents("/api/vhost-limits", of=vhost)


@operation(app, "limit", hidden=True)
@operation(limits, "set")
def vhost_limit_set(reach: Target, vhost: VhostName, limit: Limit, value: int) -> str:
    """Set a limit of a virtual host; a negative number takes it off."""
    if reach.here:
        reach.perform("vhost.limit", vhost=vhost, limit=limit, value=value)
    elif value < 0:
        reach.api.delete("/api/vhost-limits/{}/{}", vhost, limit)
    else:
        reach.api.put("/api/vhost-limits/{}/{}", vhost, limit, body={"value": value})
    return f"vhost '{vhost}' has {limit} {value}" if value >= 0 else f"vhost '{vhost}' has no {limit}"


@operation(limits, "clear")
def vhost_limit_clear(reach: Target, vhost: VhostName, limit: Limit) -> str:
    """Take a limit off."""
    return vhost_limit_set(reach, vhost, limit, -1)
