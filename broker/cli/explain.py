"""`clusterbroker explain queue`: why a queue is as it is, from its document (waits)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from broker.cli import tables
from broker.cli.commands import deed
from broker.cli.given import QueueName, Vhost
from broker.cli.reach import Reach
from broker.cli.tables import Document, number, size, text

app = typer.Typer(no_args_is_help=True, help="Why something is as it is.")


@app.callback()
def _explain() -> None:
    """Why something is as it is."""


@deed(app, "queue")
def explain_queue(
    reach: Reach,
    queue: QueueName,
    vhost: Vhost = "/",
    as_json: Annotated[bool, typer.Option("--json", help="The queue's document, on one line.")] = False,
) -> str:
    """Who owns a queue since when, which copies may take over, and which rule set which limit."""
    found: Document = reach.api.get("/api/queues/{}/{}", vhost, queue)
    return tables.encoded(found) if as_json else "\n".join(story(found))


def story(queue: Document) -> Iterator[str]:
    """The lines."""
    kind = "durable" if queue["durable"] else "transient"
    kinds = [
        kind,
        *(word for word in ("exclusive",) if queue[word]),
        *(["auto-delete"] if queue["auto_delete"] else []),
    ]
    yield f"queue '{text(queue['name'])}' in vhost '{text(queue['vhost'])}': {', '.join(kinds)}, {text(queue['state'])}"
    yield ""
    yield from _owner(queue)
    yield from _copies(queue)
    yield ""
    yield from _rules(queue)
    if "messages" in queue:
        yield ""
        yield (
            f"it has {number(queue['messages_ready'])} messages ready and {number(queue['messages_unacknowledged'])} "
            f"unacknowledged ({size(queue.get('message_bytes'))}), and {number(queue['consumers'])} consumers"
        )


def _owner(queue: Document) -> Iterator[str]:
    if queue["owner"] is None:
        waits = [name for name in queue["in_sync"] if name not in queue["online"]] or queue["in_sync"]
        yield f"owner: nobody; it waits for {text(waits)}, which may have all of its messages"
        yield "  if these never come back: clusterbroker queues force-owner (messages may be lost)"
        return
    yield f"owner: {queue['owner']}, epoch {queue['epoch']} (each new owner begins one)"
    heirs = [name for name in queue["in_sync"] if name != queue["owner"] and name in queue["online"]]
    if heirs:
        yield f"  when it dies, {' or '.join(heirs)} takes over; now: clusterbroker queues move"
    elif len(queue["replicas"]) > 1:
        yield "  when it dies nobody can take over: no other copy is in sync"
    else:
        yield "  it is the only copy: when its node is away, so is the queue"


def _copies(queue: Document) -> Iterator[str]:
    copies = {copy["node"]: copy for copy in queue.get("copies") or []}
    yield "copies:"
    for node in queue["replicas"]:
        facts = ["in sync" if node in queue["in_sync"] else "not in sync"]
        if node not in queue["online"]:
            facts.append("its node is away")
        copy = copies.get(node)
        if copy is not None and copy["records_behind"]:
            facts.append(f"at most {number(copy['records_behind'])} records ({size(copy['bytes_behind'])}) behind")
        yield f"  {node}: {', '.join(facts)}"


def _rules(queue: Document) -> Iterator[str]:
    yield f"policy: {text(queue.get('policy'))}; operator policy: {text(queue.get('operator_policy'))}"
    if queue["effective_policy_definition"]:
        yield f"  together they say: {text(queue['effective_policy_definition'])}"
    if queue["arguments"]:
        yield f"arguments: {text(queue['arguments'])}"
    rules: dict[str, Any] = queue.get("explain") or {}
    yield "what holds:" if rules else "nothing is set, by argument or policy"
    for field, why in rules.items():
        yield f"  {field} = {text(why)}"
