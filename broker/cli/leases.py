"""`clusterbroker leases`: who reads a queue by a lease, and the end of one (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.commands import listing, operation
from clusterbroker.broker.cli.parameters import OfVhost, QueueName, Vhost
from clusterbroker.broker.cli.tables import Column, Document, Table, number
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Leases on queues: exclusive ranges of readers.")

LEASES = Table(
    (
        Column("vhost"),
        Column("queue"),
        Column("lease", "lease.name"),
        Column("run", "lease.run"),
        Column("start", "lease.start", number),
        Column("end", "lease.end", number),
        Column("rows", "lease.rows", number),
        Column("until", "lease.until"),
    ),
    name="queue",
)


@listing(app, "list", LEASES)
def lease_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All leases: reader, range, and the end without further requests."""
    query = {"columns": "name,vhost,lease"}
    queues: list[dict[str, Any]] = reach.api.documents("/api/queues", of=vhost, query=query)
    return [{"queue": queue["name"], **queue} for queue in queues if queue.get("lease")]


@operation(app, "end")
def lease_end(
    reach: Target,
    queue: QueueName,
    vhost: Vhost = "/",
    name: Annotated[str, typer.Option("--name", metavar="LEASE", help="Only the lease of this reader.")] = "",
) -> str:
    """End the lease on a queue. Its unsettled messages return, flagged as redelivered."""
    reach.api.delete("/api/queues/{}/{}/lease", vhost, queue, query={"name": name} if name else {})
    return f"nobody leases queue '{queue}'"
