"""`clusterbroker explain queue`, `pool` and `message`: reasons, from documents of the API (waits)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli import message_story, tables
from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.parameters import QueueName, Vhost, duration
from clusterbroker.broker.cli.readable import visible
from clusterbroker.broker.cli.tables import Document, counted, number, pairs, quoted, size, text
from clusterbroker.broker.cli.target import Target

MOVES_MAX: Final = 10

app = typer.Typer(no_args_is_help=True, help="Reasons: of a queue's state, a pool's workers, a message's place.")


@app.callback()
def _explain() -> None:
    """Reasons: of a queue's state, a pool's workers, a message's place."""


@operation(app, "queue")
def explain_queue(
    reach: Target,
    queue: QueueName,
    vhost: Vhost = "/",
    as_json: Annotated[bool, typer.Option("--json", help="The queue's document, on one line.")] = False,
) -> str:
    """A queue's leader and its history, replicas that may take over, and the rule behind each setting."""
    found = reach.api.document("/api/queues/{}/{}", vhost, queue)
    if as_json:
        return tables.encoded(found)
    moves = reach.api.documents("/api/queues/{}/{}/moves", vhost, queue)
    return "\n".join((*story(found), "", *owners(moves)))


@operation(app, "message")
def explain_message(
    reach: Target,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE-ID", help="The property message_id.")],
    vhost: Vhost = "/",
    patience: Annotated[float, duration("Search this long at most.", least=1)] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="The result, on one line.")] = False,
) -> str:
    """Where a message is: queues, consumer, replicas, deliveries and deaths."""
    found = message_story.searched(reach, vhost, message_id, patience)
    return tables.encoded(found.document()) if as_json else "\n".join(message_story.story(found))


@operation(app, "pool")
def explain_pool(
    reach: Target,
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    key: Annotated[str | None, typer.Option("--key", help="This worker key alone.")] = None,
    vhost: Vhost = "/",
    as_json: Annotated[bool, typer.Option("--json", help="The answer, on one line.")] = False,
) -> str:
    """Why a worker pool has the workers that it has, why a key waits, and where each setting comes from."""
    query = {} if key is None else {"key": key}
    found = reach.api.get("/api/pools/{}/{}/reasons", vhost, pool, query=query)
    return tables.encoded(found) if as_json else "\n".join(pool_story(found))


def pool_story(pool: Document) -> Iterator[str]:
    """The lines."""
    template, state = text(pool["template"] or "noop"), text(pool["state"])
    yield f"pool '{text(pool['name'])}' in vhost '{text(pool['vhost'])}': template {template}, {state}"
    yield f"controller: {text(pool['controller'] or 'none')}"
    yield from pool["why"]
    reasons: Document = pool["reasons"] or {}
    if reasons:
        yield ""
        yield f"workers: {_counts(reasons['workers'])}; max_workers={reasons['workers_max']}"
        yield from map(_place, reasons["places"])
        for one in reasons["keys"]:
            load = f"{number(one['waiting'])} waiting, {number(one['held'])} held"
            yield f"key {quoted(one['key'])}: {load}; workers: {_counts(one['workers'])}"
            yield from (f"  {visible(why)}" for why in one["why"])
        if reasons["keys_left_out"]:
            yield f"and {counted(reasons['keys_left_out'], 'key')} more: --key KEY shows one"
    yield ""
    yield "settings:"
    for name, setting in pool["settings"].items():
        source = "default" if setting["source"] == "default" else f"declared; the default is {text(setting['default'])}"
        yield f"  {name} = {text(setting['value'])}  ({source})"


def _counts(workers: Document) -> str:
    return pairs(workers) if workers else "none"


def _place(place: Document) -> str:
    facts = [f"{counted(place['workers'], 'worker')} of {text(place['workers_max'] or 'any number')}"]
    facts.append(f"{size(place['promised_bytes'])} of {size(place['memory_bytes'])} promised")
    facts += [word for word in ("suspended", "alarm") if place[word]]
    return f"  place {text(place['name'])}: {', '.join(facts)}"


def owners(moves: list[Document]) -> Iterator[str]:
    """Leadership of a queue over time, the newest first."""
    yield "leadership:"
    for move in moves[:MOVES_MAX]:
        if move["kind"] == "move":
            before, after = (text(move[name] or "none") for name in ("from", "to"))
            yield f"  {move['at']}: {after}, previously {before}: {move['why']}"
        elif move["kind"] == "record":
            yield f"  {move['at']}: history begins ({text(move['what'])})"
    if len(moves) > MOVES_MAX:
        yield f"  and {number(len(moves) - MOVES_MAX)} earlier: clusterbroker queues leader-history"


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
        yield f"it is paused{why}: no deliveries until clusterbroker queues resume"
    if lease := queue.get("lease"):
        yield (
            f"it is leased by '{text(lease['name'])}': {counted(lease['rows'], 'message')} from number "
            f"{lease['start']} to {lease['end'] - 1}; no other consumer; without a request it ends at {lease['until']}"
        )
    if held_back := queue.get("held_back"):
        some = ", ".join(map(str, held_back[:10])) + (" and more" if len(held_back) > 10 else "")
        yield f"{number(len(held_back))} of its messages cannot be read from the disk and are held back: number {some}"
        yield "  all others are served; clusterbroker queues delete-messages --seq NUMBER deletes one"
    for reader in queue.get("stored_offsets", ()):
        yield (
            f"its reader '{text(reader['name'])}' says that it goes on with offset {reader['offset']}: "
            f"{counted(reader['lag'], 'message')} from the end"
        )
    yield from _owner(queue)
    yield from _copies(queue)
    yield ""
    yield from _rules(queue)
    if "messages" in queue:
        yield ""
        yield (
            f"it has {counted(queue['messages_ready'], 'message')} ready and "
            f"{number(queue['messages_unacknowledged'])} unacknowledged "
            f"({size(queue.get('message_bytes'))}), and {counted(queue['consumers'], 'consumer')}"
        )


def _owner(queue: Document) -> Iterator[str]:
    if queue["owner"] is None:
        waits = [name for name in queue["in_sync"] if name not in queue["online"]] or queue["in_sync"]
        yield f"leader: none; the queue waits for {text(waits)}, which may have all of its messages"
        yield "  if they never return: clusterbroker queues force-owner (messages may be lost)"
        return
    yield f"leader: {queue['owner']}, epoch {queue['epoch']} (one more with each new leader)"
    heirs = [name for name in queue["in_sync"] if name != queue["owner"] and name in queue["online"]]
    if heirs:
        yield f"  if it fails, {' or '.join(heirs)} takes over; by hand: clusterbroker queues move"
    elif len(queue["replicas"]) > 1:
        yield "  if it fails no member can take over: no other replica is in sync"
    else:
        yield "  it is the only replica: without its node the queue is unavailable"


def _copies(queue: Document) -> Iterator[str]:
    copies = {copy["node"]: copy for copy in queue.get("copies") or []}
    yield "replicas:"
    for node in queue["replicas"]:
        facts = ["in sync" if node in queue["in_sync"] else "not in sync"]
        if node not in queue["online"]:
            facts.append("its node is away")
        copy = copies.get(node)
        if copy is not None and copy["records_behind"]:
            facts.append(f"at most {counted(copy['records_behind'], 'record')} ({size(copy['bytes_behind'])}) behind")
        yield f"  {node}: {', '.join(facts)}"


def _rules(queue: Document) -> Iterator[str]:
    yield f"policy: {text(queue.get('policy'))}; operator policy: {text(queue.get('operator_policy'))}"
    if queue["effective_policy_definition"]:
        yield f"  together: {pairs(queue['effective_policy_definition'])}"
    if queue["arguments"]:
        yield f"arguments: {pairs(queue['arguments'])}"
    rules: dict[str, Any] = queue.get("explain") or {}
    yield "effective settings:" if rules else "no argument or policy sets anything"
    for field, why in rules.items():
        yield f"  {field} = {text(why)}"
