"""`clusterbroker explain queue` and `message`: why something is as it is, from its documents (waits)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli import message_story, tables
from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.parameters import QueueName, Vhost
from clusterbroker.broker.cli.tables import Document, number, size, text
from clusterbroker.broker.cli.target import Target

MOVES_MAX: Final = 10

app = typer.Typer(no_args_is_help=True, help="Why something is as it is.")


@app.callback()
def _explain() -> None:
    """Why something is as it is."""


@operation(app, "queue")
def explain_queue(
    reach: Target,
    queue: QueueName,
    vhost: Vhost = "/",
    as_json: Annotated[bool, typer.Option("--json", help="The queue's document, on one line.")] = False,
) -> str:
    """Who owns a queue since when, which copies may take over, and which rule set which limit."""
    found = reach.api.document("/api/queues/{}/{}", vhost, queue)
    if as_json:
        return tables.encoded(found)
    moves = reach.api.documents("/api/queues/{}/{}/moves", vhost, queue)
    return "\n".join((*story(found), "", *owners(moves)))


@operation(app, "message")
def explain_message(
    reach: Target,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE-ID", help="Its property message_id.")],
    vhost: Vhost = "/",
    patience: Annotated[float, typer.Option(min=1, help="So many seconds are spent on looking.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="What was found, on one line.")] = False,
) -> str:
    """Where a message is: its queues, who has it, which copies hold it, how often it was delivered and died."""
    found = message_story.searched(reach, vhost, message_id, patience)
    return tables.encoded(found.document()) if as_json else "\n".join(message_story.story(found))


def owners(moves: list[Document]) -> Iterator[str]:
    """Who owned a queue since when, the newest first."""
    yield "who owned it:"
    for move in moves[:MOVES_MAX]:
        if move["kind"] == "move":
            before, after = (text(move[name] or "nobody") for name in ("from", "to"))
            yield f"  {move['at']}: {after}, before it {before}: {move['why']}"
        elif move["kind"] == "record":
            yield f"  {move['at']}: nothing is known of what was before ({text(move['what'])})"
    if len(moves) > MOVES_MAX:
        yield f"  and {number(len(moves) - MOVES_MAX)} before: clusterbroker queues moves"


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
    if queue.get("paused"):
        why = f" ({queue['paused_why']})" if queue.get("paused_why") else ""
        yield f"it is paused{why}: it takes messages and hands none out, until clusterbroker queues resume"
    if lease := queue.get("lease"):
        yield (
            f"it is leased by '{text(lease['name'])}': {number(lease['rows'])} messages from number {lease['start']} "
            f"to {lease['end'] - 1}; nobody else is handed anything; if nothing is heard it ends at {lease['until']}"
        )
    if held_back := queue.get("held_back"):
        some = ", ".join(map(str, held_back[:10])) + (" and more" if len(held_back) > 10 else "")
        yield f"{number(len(held_back))} of its messages cannot be read from the disk and are held back: number {some}"
        yield "  everything else is served; clusterbroker queues delete-messages --seq NUMBER deletes one"
    for reader in queue.get("stored_offsets", ()):
        yield (
            f"its reader '{text(reader['name'])}' says that it goes on with offset {reader['offset']}: "
            f"{number(reader['lag'])} messages from the end"
        )
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
