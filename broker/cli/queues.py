"""`clusterbroker queues`, `leases` and `producers`: queues, their messages, leaders, readers and writers (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.cli import messages
from clusterbroker.broker.cli.administration import PATIENCE_S, AsJson, DataDir
from clusterbroker.broker.cli.administration import perform as perform_here
from clusterbroker.broker.cli.administration import show as show_facts
from clusterbroker.broker.cli.commands import listed, listing, operation, show, shown
from clusterbroker.broker.cli.complete import exchanges as complete_exchanges
from clusterbroker.broker.cli.complete import queues as complete_queues
from clusterbroker.broker.cli.exit_codes import USAGE, Failed, end
from clusterbroker.broker.cli.parameters import (
    Arguments,
    AutoDelete,
    Durable,
    NodeName,
    OfVhost,
    QueueName,
    QueueNames,
    RoutingKey,
    Vhost,
    table,
)
from clusterbroker.broker.cli.tables import Column, Document, Table, Wish, counted, moment, number, pairs, rate, size
from clusterbroker.broker.cli.target import DATA_DIR, Target

app = typer.Typer(invoke_without_command=True, help="Queues: messages, leaders, replicas.")
leases = typer.Typer(no_args_is_help=True, help="Leases on queues: exclusive ranges of readers.")
producers = typer.Typer(no_args_is_help=True, help="Transactions: their producers, and messages on the way to queues.")

QUEUES = Table(
    (
        Column("vhost"),
        Column("name"),
        Column("type", wide=True),
        Column("owner", heading="leader"),
        Column("in_sync"),
        Column("state"),
        Column("ready", "messages_ready", number),
        Column("unacked", "messages_unacknowledged", number),
        Column("in", "message_stats.publish_details.rate", rate),
        Column("out", "message_stats.deliver_get_details.rate", rate),
        Column("consumers", show=number),
        Column("bytes", "message_bytes", size),
        Column("policy", wide=True),
        Column("epoch", show=number, wide=True),
        Column("replicas", wide=True),
        Column("durable", wide=True),
        Column("auto_delete", wide=True),
        Column("exclusive", wide=True),
        Column("arguments", show=pairs, wide=True),
        Column("first_offset", "stream.first_offset", number, wide=True),
        Column("next_offset", "stream.next_offset", number, wide=True),
        Column("file_bytes", "stream.file_bytes", size, wide=True),
    ),
    narrow=True,
)


@app.callback()
def queue_owners(context: typer.Context, data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """Queues: messages, leaders, replicas. Without a command: leaders and replicas, as this member knows them."""
    if context.invoked_subcommand is None:
        show_facts(perform_here(data_dir, "queues")["queues"], as_json, "no queues")
        return
    said = context.get_parameter_source("data_dir")
    if as_json or (said is not None and said.name == "COMMANDLINE"):
        end(Failed("options follow the command: clusterbroker queues list --data-dir DIR", USAGE))


listed(app, "list", QUEUES, "/api/queues", "All queues: depth, rates, consumers, leader.")

_QUEUE = "One queue. `explain queue` adds the reasons."
shown(app, "show", QUEUES, "/api/queues/{vhost}/{queue}", _QUEUE, queue=QueueName)


@operation(app, "create", hidden=True)
@operation(app, "declare")
def queue_declare(
    reach: Target,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    vhost: Vhost = "/",
    durable: Durable = True,
    auto_delete: AutoDelete = False,
    argument: Arguments = None,
) -> str:
    """Declare a queue. An existing one must have the same settings."""
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": table(argument)}
    reach.api.put("/api/queues/{}/{}", vhost, queue, body=body)
    return f"queue '{queue}' is declared"


@operation(app, "delete")
def queue_delete(
    reach: Target,
    queues: QueueNames,
    vhost: Vhost = "/",
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only without messages.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only without consumers.")] = False,
) -> None:
    """Delete queues with their messages; the first failure ends the command."""
    conditions = {"if-empty": if_empty, "if-unused": if_unused}
    for queue in queues:
        query = {name: "true" for name, wanted in conditions.items() if wanted}
        reach.api.delete("/api/queues/{}/{}", vhost, queue, query=query)
        typer.echo(f"queue '{queue}' is deleted")


@operation(app, "purge")
def queue_purge(reach: Target, queue: QueueName, vhost: Vhost = "/") -> str:
    """Delete all ready messages of a queue."""
    reach.api.delete("/api/queues/{}/{}/contents", vhost, queue)
    return f"queue '{queue}' is purged"


@operation(app, "publish")
def queue_publish(
    reach: Target,
    queue: QueueName,
    body: messages.Body = None,
    file: messages.File = None,
    properties: messages.Properties = None,
    headers: messages.Headers = None,
    persistent: messages.Persistent = True,
    vhost: Vhost = "/",
) -> str:
    """Publish a message to a queue, and wait for the confirm."""
    return messages.publish(reach, vhost, "", queue, (body, file), properties, headers, persistent)


@operation(app, "get")
def queue_get(
    reach: Target,
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most this many.")] = 1,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge: remove the messages.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject: drop or dead-letter the messages.")] = False,
    body_only: Annotated[bool, typer.Option("--body-only", help="Bodies only, byte for byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, on one line.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Get messages. Without --ack or --reject they return to their places, flagged as redelivered."""
    if ack and reject:
        raise Failed("say --ack or --reject, not both", USAGE)
    mode = "ack_requeue_false" if ack else "reject_requeue_false" if reject else "ack_requeue_true"
    asked = {"count": count, "ackmode": mode, "encoding": "base64" if body_only else "auto"}
    found: list[Document] = reach.api.post("/api/queues/{}/{}/get", vhost, queue, body=asked)
    if body_only:
        messages.write_bodies(found)
    else:
        show(messages.MESSAGES, lambda: found, Wish(as_json=as_json))


@operation(app, "bind")
def queue_bind(
    reach: Target,
    queue: QueueName,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", autocompletion=complete_exchanges)],
    routing_key: RoutingKey = "",
    argument: Arguments = None,
    vhost: Vhost = "/",
) -> str:
    """Bind a queue to an exchange."""
    messages.bind(reach, vhost, exchange, "q", queue, routing_key, table(argument))
    return f"queue '{queue}' is bound to '{exchange}'"


@operation(app, "unbind")
def queue_unbind(
    reach: Target,
    queue: QueueName,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", autocompletion=complete_exchanges)],
    routing_key: RoutingKey = "",
    argument: Arguments = None,
    vhost: Vhost = "/",
) -> str:
    """Remove the binding with this routing key and these arguments."""
    messages.unbind(reach, vhost, exchange, "q", queue, routing_key, table(argument))
    return f"queue '{queue}' is no longer bound to '{exchange}'"


# -- single messages --------------------------------------------------------------------------------------------


@operation(app, "browse")
def queue_browse(
    reach: Target,
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most this many.")] = 20,
    only: messages.Filter = "",
    first: messages.First = 1,
    truncate: Annotated[int, typer.Option("--truncate", min=0, max=1 << 20, help="Bytes shown of a body.")] = 200,
    body_only: Annotated[bool, typer.Option("--body-only", help="Bodies only, byte for byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, on one line.")] = False,
    vhost: Vhost = "/",
) -> None:
    """Show messages without any effect on them."""
    limit = 1 << 20 if body_only else truncate
    found = messages.browsed(reach, vhost, queue, count, only, first, limit, "base64" if body_only else "auto")
    if body_only:
        messages.write_bodies(found)
    else:
        show(messages.BROWSED, lambda: found, Wish(as_json=as_json))


@operation(app, "delete-messages")
def queue_delete_messages(
    reach: Target,
    queue: QueueName,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    first: messages.First = 1,
    staged: Annotated[
        bool, typer.Option("--staged", help="QUEUE is a staging exchange: rows that cannot be read.")
    ] = False,
    vhost: Vhost = "/",
) -> str:
    """Delete some messages of a queue: ready ones, and by number those that cannot be read."""
    where = {"staged": True} if staged else {}
    return messages.treated(reach, vhost, queue, "delete", seq, only, first, where)


@operation(app, "move-messages")
def queue_move_messages(
    reach: Target,
    queue: QueueName,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    first: messages.First = 1,
    to_queue: messages.ToQueue = None,
    exchange: messages.ToExchange = None,
    routing_key: messages.Key = None,
    to_origin: messages.ToOrigin = False,
    vhost: Vhost = "/",
) -> str:
    """Move some messages of a queue. Each leaves after its destination has confirmed it."""
    where = messages.destination(to_queue, exchange, routing_key, to_origin)
    return messages.treated(reach, vhost, queue, "move", seq, only, first, where)


@operation(app, "replay-messages")
def queue_replay_messages(
    reach: Target,
    queue: QueueName,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    first: messages.First = 1,
    to_queue: messages.ToQueue = None,
    exchange: messages.ToExchange = None,
    routing_key: messages.Key = None,
    to_origin: messages.ToOrigin = False,
    vhost: Vhost = "/",
) -> str:
    """Publish some messages of a queue again; the originals stay."""
    where = messages.destination(to_queue, exchange, routing_key, to_origin)
    return messages.treated(reach, vhost, queue, "replay", seq, only, first, where)


@operation(app, "pause")
def queue_pause(reach: Target, queue: QueueName, vhost: Vhost = "/") -> str:
    """Stop deliveries to consumers and gets; publishes and acknowledgements go on."""
    reach.change("queues.pause", vhost=vhost, queue=queue)
    return f"queue '{queue}' is paused"


@operation(app, "resume")
def queue_resume(
    reach: Target,
    queue: QueueName,
    staged: Annotated[bool, typer.Option("--staged", help="QUEUE is a staging exchange: move its rows again.")] = False,
    vhost: Vhost = "/",
) -> str:
    """Resume the deliveries of a paused queue."""
    more = {"staged": True} if staged else {}
    reach.change("queues.resume", vhost=vhost, queue=queue, **more)
    return f"{'staged rows of ' if staged else 'queue '}'{queue}' {'go on' if staged else 'delivers again'}"


# -- leadership ---------------------------------------------------------------------------------------------------

MOVES = Table(
    (
        Column("time", "at_ms", moment),
        Column("kind", wide=True),
        Column("vhost"),
        Column("queue"),
        Column("from"),
        Column("to"),
        Column("why"),
        Column("member"),
        Column("what"),
        Column("epoch", show=number, wide=True),
        Column("index", show=number, wide=True),
    ),
    name="queue",
)


@listing(app, "moves", MOVES, hidden=True)
@listing(app, "leader-history", MOVES)
def queue_moves(
    reach: Target,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", autocompletion=complete_queues)] = None,
    vhost: Vhost = "/",
) -> list[Document]:
    """Leadership changes of a queue, or of all queues with events of members; the newest first."""
    if queue is None:
        return reach.api.documents("/api/moves")
    return reach.api.documents("/api/queues/{}/{}/moves", vhost, queue)


@operation(app, "move", hidden=True)
@operation(app, "transfer-leader")
def queue_move(
    reach: Target,
    queue: QueueName,
    to: NodeName,
    vhost: Vhost = "/",
) -> str:
    """Transfer a queue's leadership to another in-sync member."""
    took = reach.change("queues.move", vhost=vhost, queue=queue, to=to)
    return f"'{queue}' is led by {took['owner']}, epoch {took['epoch']}"


@operation(app, "force-leader", hidden=True)
@operation(app, "force-owner")
def queue_force_owner(
    reach: Target,
    queue: QueueName,
    to: NodeName,
    confirm_loss: Annotated[
        bool, typer.Option("--confirm-loss", help="Messages that this replica lacks are lost.")
    ] = False,
    vhost: Vhost = "/",
) -> str:
    """Make a replica the leader, whatever it lacks: the last resort without an in-sync replica."""
    if not confirm_loss:
        raise Failed("messages that this replica lacks are lost: say --confirm-loss", USAGE)
    took = reach.change("queues.force-owner", vhost=vhost, queue=queue, to=to, confirm_loss=True)
    return f"'{queue}' is led by {took['owner']}, epoch {took['epoch']}"


@operation(app, "rebalance")
def queue_rebalance(reach: Target) -> str:
    """Transfer leadership until each member leads about as many queues."""
    done = reach.change("queues.rebalance", PATIENCE_S)
    return f"moved {counted(done['moved'], 'queue')}, {done['left']:,} left"


# -- leases, and producers of transactions -----------------------------------------------------------------------

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


@listing(leases, "list", LEASES)
def lease_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All leases: reader, range, and the end without further requests."""
    query = {"columns": "name,vhost,lease"}
    queues: list[dict[str, Any]] = reach.api.documents("/api/queues", of=vhost, query=query)
    return [{"queue": queue["name"], **queue} for queue in queues if queue.get("lease")]


@operation(leases, "end")
def lease_end(
    reach: Target,
    queue: QueueName,
    vhost: Vhost = "/",
    name: Annotated[str, typer.Option("--name", metavar="LEASE", help="Only the lease of this reader.")] = "",
) -> str:
    """End the lease on a queue. Its unsettled messages return, flagged as redelivered."""
    reach.api.delete("/api/queues/{}/{}/lease", vhost, queue, query={"name": name} if name else {})
    return f"nobody leases queue '{queue}'"


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
Producer = Annotated[str, typer.Argument(metavar="PRODUCER")]

_PRODUCERS = "All producers of transactions: the last one committed, and messages still on their way to queues."
listed(producers, "list", PRODUCERS, "/api/producers", _PRODUCERS)
shown(producers, "show", PRODUCERS, "/api/producers/{vhost}/{producer}", "One producer.", producer=Producer)
