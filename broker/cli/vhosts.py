"""`clusterbroker vhosts` and `vhost-limits` (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.commands import listed, listing, operation, shown
from clusterbroker.broker.cli.parameters import VhostName, Yes, sure
from clusterbroker.broker.cli.tables import ABSENT, Column, Document, Table, number, pairs, rate, text
from clusterbroker.broker.cli.target import Target
from clusterbroker.cluster.wiring.entities import VhostLimit

app = typer.Typer(no_args_is_help=True, help="Virtual hosts.")
limits = typer.Typer(no_args_is_help=True, help="Limits of queues and connections of a virtual host.")


def _kind(value: Any) -> str:
    return ABSENT if value == "undefined" else text(value)


VHOSTS = Table(
    (
        Column("name"),
        Column("description"),
        Column("tags"),
        Column("ready", "messages_ready", number),
        Column("unacked", "messages_unacknowledged", number),
        Column("in", "message_stats.publish_details.rate", rate),
        Column("out", "message_stats.deliver_get_details.rate", rate),
        Column("default_queue_type", show=_kind, wide=True),
        Column("tracing", wide=True),
    )
)
LIMITS = Table((Column("vhost"), Column("limits", "value", pairs)), name="vhost")
Limit = Annotated[VhostLimit, typer.Argument()]


@listing(app, "list", VHOSTS)
def vhost_list(reach: Target) -> list[Document]:
    """All virtual hosts, with rates."""
    return reach.rows("vhost.list")


shown(app, "show", VHOSTS, "/api/vhosts/{vhost}", "One virtual host.", vhost=VhostName)


@operation(app, "create", hidden=True)
@operation(app, "add")
def vhost_add(
    reach: Target,
    name: str,
    description: Annotated[str, typer.Option(help="A description.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", "--tags", help="A tag (repeatable).")] = None,
) -> str:
    """Create a virtual host. With --url or --as its creator has all permissions, else no user: `permissions set`."""
    reach.change("vhost.add", name=name, description=description, tags=tag or [])
    return f"created vhost '{name}'"


@operation(app, "delete")
def vhost_delete(
    reach: Target,
    vhost: VhostName,
    yes: Yes = False,
) -> str:
    """Delete a virtual host with its queues, messages, exchanges and permissions."""
    sure(f"Delete vhost '{vhost}' with all its queues and messages?", yes)
    reach.change("vhost.delete", name=vhost)
    return f"vhost '{vhost}' is deleted"


@operation(app, "alive")
def vhost_alive(reach: Target, vhost: VhostName = "/") -> str:
    """Test a virtual host: declare a queue, publish and get a message."""
    reach.api.get("/api/aliveness-test/{}", vhost)
    return "ok"


@operation(app, "trace-on")
def vhost_trace_on(reach: Target, vhost: VhostName = "/") -> str:
    """Start tracing (firehose): copies of published and delivered messages go to amq.rabbitmq.trace."""
    reach.api.put("/api/vhosts/{}", vhost, body={"tracing": True})
    return f"vhost '{vhost}' is traced: bind a queue to its exchange 'amq.rabbitmq.trace'"


@operation(app, "trace-off")
def vhost_trace_off(reach: Target, vhost: VhostName = "/") -> str:
    """Stop tracing."""
    reach.api.put("/api/vhosts/{}", vhost, body={"tracing": False})
    return f"vhost '{vhost}' is not traced"


listed(limits, "list", LIMITS, "/api/vhost-limits", "All limits of virtual hosts.")


@operation(app, "limit", hidden=True)
@operation(limits, "set")
def vhost_limit_set(reach: Target, vhost: VhostName, limit: Limit, value: int) -> str:
    """Set a limit of a virtual host; a negative number removes the limit."""
    reach.change("vhost.limit", vhost=vhost, limit=limit, value=value)
    return f"vhost '{vhost}' has {limit} {value}" if value >= 0 else f"vhost '{vhost}' has no {limit}"


@operation(limits, "clear")
def vhost_limit_clear(reach: Target, vhost: VhostName, limit: Limit) -> str:
    """Remove a limit."""
    return vhost_limit_set(reach, vhost, limit, -1)
