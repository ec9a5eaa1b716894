"""Some messages of a queue, chosen by number or by filter, for the commands of `queues` (waits)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli.complete import exchanges as complete_exchanges
from clusterbroker.broker.cli.complete import queues as complete_queues
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.messages import shortened
from clusterbroker.broker.cli.tables import Column, Document, Table, moment, number, pairs, quoted
from clusterbroker.broker.cli.target import Target

PAGE: Final = 500
PATIENCE_S: Final = 60.0
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
Filter = Annotated[str, typer.Option("--only", help=f"Only matching messages: {_FILTER}")]
Wanted = Annotated[str | None, typer.Option("--only", help=f"All matching messages; '' is all. {_FILTER}")]
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

MESSAGES: Final = Table(
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
        answer = reach.change(f"queues.{what}-messages", PATIENCE_S, vhost=vhost, queue=queue, **chosen, **where)
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
