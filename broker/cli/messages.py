"""Messages and bindings by the management API, for the commands of queues and of exchanges (waits).

Some messages of a queue are chosen by number or by filter (`browsed`, `treated`).
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from clusterbroker.broker.cli.complete import exchanges as complete_exchanges
from clusterbroker.broker.cli.complete import queues as complete_queues
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.parameters import body as body_of
from clusterbroker.broker.cli.parameters import payload, table
from clusterbroker.broker.cli.tables import Column, Document, Table, moment, number, pairs, quoted, text
from clusterbroker.broker.cli.target import Target

DEFAULT_EXCHANGE: Final = "amq.default"
SHOWN_MAX: Final = 200
"""Characters of a body in a table; --json and --body-only have all of it."""

Body = Annotated[str | None, typer.Argument(metavar="[BODY]", help="None: --file, or standard input.")]
File = Annotated[Path | None, typer.Option("--file", "-f", help="The body; -: standard input.")]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="KEY=VALUE", help="content_type, message_id, priority, ... (repeatable)"),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="KEY=VALUE", help="VALUE: JSON, else text (repeatable)."),
]
Persistent = Annotated[bool, typer.Option("--persistent/--transient", help="Survives a restart, or not.")]


def shortened(value: Any) -> str:
    """A body for a table."""
    shown = text(value)
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."


MESSAGES: Final = Table(
    (
        Column("exchange", show=quoted),
        Column("routing_key"),
        Column("redelivered"),
        Column("left", "message_count", number),
        Column("bytes", "payload_bytes", number),
        Column("properties", show=pairs),
        Column("payload", show=shortened),
    ),
    name="routing_key",
)


def publish(
    reach: Target,
    vhost: str,
    exchange: str,
    routing_key: str,
    body: tuple[str | None, Path | None],
    properties: list[str] | None,
    headers: list[str] | None,
    persistent: bool,
) -> str:
    """Publishes one message. Failed when no queue got it."""
    given: dict[str, Any] = {"delivery_mode": 2 if persistent else 1, **table(properties, "--property")}
    if headers:
        given["headers"] = table(headers, "--header")
    message = {"routing_key": routing_key, "properties": given, **payload(body_of(*body))}
    answer = reach.api.post("/api/exchanges/{}/{}/publish", vhost, exchange or DEFAULT_EXCHANGE, body=message)
    if not answer["routed"]:
        raise Failed("no queue got the message: nothing is bound for this routing key", FAILED)
    return "published, and confirmed"


def write_bodies(found: Sequence[Document]) -> None:
    """Bodies that came as base64, to standard output, with nothing between them."""
    for message in found:
        sys.stdout.buffer.write(base64.b64decode(message["payload"]))
    sys.stdout.buffer.flush()


def bind(
    reach: Target,
    vhost: str,
    source: str,
    kind: Literal["q", "e"],
    destination: str,
    routing_key: str,
    arguments: dict[str, Any],
) -> None:
    """Makes a binding; one that is there already is one."""
    body = {"routing_key": routing_key, "arguments": arguments}
    reach.api.post("/api/bindings/{}/e/{}/" + kind + "/{}", vhost, source, destination, body=body)


def unbind(
    reach: Target,
    vhost: str,
    source: str,
    kind: Literal["q", "e"],
    destination: str,
    routing_key: str,
    arguments: dict[str, Any],
) -> None:
    """Takes the binding with this routing key and these arguments away. Failed when there is none."""
    place = "/api/bindings/{}/e/{}/" + kind + "/{}"
    source = source or DEFAULT_EXCHANGE
    for binding in reach.api.get(place, vhost, source, destination):
        if (binding["routing_key"], binding["arguments"]) == (routing_key, arguments):
            reach.api.delete(place + "/{}", vhost, source, destination, binding["properties_key"])
            return
    raise Failed(f"'{destination}' has no binding from '{source}' with this routing key and these arguments")


# -- some messages of a queue ------------------------------------------------------------------------------------

PAGE: Final = 500
CHOSEN_PATIENCE_S: Final = 60.0
SAID: Final = {"delete": "deleted", "move": "moved", "replay": "replayed"}
WHY: Final = {
    "not_ready": "gone, or in a consumer's hands",
    "unroutable": "no queue is bound for it",
    "damaged": "it cannot be read from the disk: delete it by its number",
    "refused": "refused by a full queue",
    "no_origin": "not dead-lettered, or from a queue that is gone",
    "unconfirmed": "not confirmed in time, and perhaps moved later",
}

_FILTER: Final = "routing_key=a.* AND header.x=1 AND payload~text AND age>5m AND size<1k ..."
Filter = Annotated[str, typer.Option("--only", "--filter", help=f"Only matching messages: {_FILTER}")]
Wanted = Annotated[str | None, typer.Option("--only", "--filter", help=f"All matching messages; '' is all. {_FILTER}")]
First = Annotated[int, typer.Option("--from", min=1, help="The first number to examine.")]
Seqs = Annotated[list[int] | None, typer.Option("--seq", "-s", min=1, help="Message number (repeatable).")]
ToQueue = Annotated[
    str | None, typer.Option("--to-queue", metavar="QUEUE", help="Into this queue.", autocompletion=complete_queues)
]
ToExchange = Annotated[
    str | None,
    typer.Option("--exchange", metavar="EXCHANGE", help="To this exchange.", autocompletion=complete_exchanges),
]
Key = Annotated[str | None, typer.Option("--routing-key", "-k", help="With --exchange; else each message's own.")]
ToOrigin = Annotated[bool, typer.Option("--to-origin", help="Dead letters: to the queue of their first death.")]

BROWSED: Final = Table(
    (
        Column("seq", show=number),
        Column("state"),
        Column("node", wide=True),
        Column("stored", "timestamp_ms", moment),
        Column("exchange", show=quoted),
        Column("routing_key"),
        Column("redelivered", wide=True),
        Column("delivery_count", wide=True),
        Column("bytes", "payload_bytes", number),
        Column("properties", show=pairs),
        Column("payload", show=shortened),
    ),
    name="routing_key",
)


def browsed(
    reach: Target, vhost: str, queue: str, count: int, only: str, first: int, truncate: int, encoding: str
) -> list[Document]:
    """The first so many messages that match, in as many requests as it takes."""
    found: list[Document] = []
    at, last = first, 0
    while at and len(found) < count:
        asked = {"from": at, "to": last, "count": min(PAGE, count - len(found)), "truncate": truncate}
        query = {name: str(value) for name, value in asked.items()} | {"filter": only, "encoding": encoding}
        answer = reach.api.get("/api/queues/{}/{}/messages", vhost, queue, query=query)
        found.extend(answer["items"])
        at, last = answer["next"], answer["last"]
    return found


def destination(queue: str | None, exchange: str | None, key: str | None, origin: bool) -> dict[str, Any]:
    """Where to, as the API is told. Failed when it is not said, or twice."""
    said: dict[str, Any] = {"to_queue": queue, "exchange": exchange, "to_origin": origin or None}
    where = {name: value for name, value in said.items() if value is not None}
    if len(where) != 1 or (key is not None and exchange is None):
        raise Failed("say where to: --to-queue QUEUE, --exchange EXCHANGE [--routing-key KEY], or --to-origin", USAGE)
    return where if key is None else {**where, "routing_key": key}


def treated(
    reach: Target,
    vhost: str,
    queue: str,
    what: str,
    seqs: list[int] | None,
    only: str | None,
    first: int,
    where: dict[str, Any],
) -> str:
    """Does it to all of them, in as many requests as it takes. Failed when some were left out."""
    if (seqs is None) == (only is None):
        raise Failed("say which messages: --seq NUMBER (repeatable), or --only FILTER ('' is all)", USAGE)
    done, skipped, at, last = 0, dict[str, int](), first, 0
    while at:
        chosen: dict[str, Any] = {"seqs": seqs} if seqs is not None else {"filter": only, "from": at, "to": last}
        answer = reach.change(f"queues.{what}-messages", CHOSEN_PATIENCE_S, vhost=vhost, queue=queue, **chosen, **where)
        done += answer[SAID[what]]
        for why, left_out in answer["skipped"].items():
            skipped[why] = skipped.get(why, 0) + len(left_out)
        at, last = answer["next"], answer["last"]
        if seqs is not None:
            seqs = [seq for seq in seqs if at and seq >= at]
    said = f"{done} {SAID[what]}"
    if skipped:
        left = ", ".join(f"{count} {WHY.get(why, why)}" for why, count in sorted(skipped.items()))
        raise Failed(f"{said}; left where they are: {left}", FAILED)
    return said
