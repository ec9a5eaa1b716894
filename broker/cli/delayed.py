"""`clusterbroker delayed`: what waits in a delayed exchange (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.cli import messages
from clusterbroker.broker.cli.commands import listing, operation, showing
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.parameters import ExchangeName, Vhost
from clusterbroker.broker.cli.tables import Column, Document, Table, moment, number, pairs
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Messages that wait in delayed exchanges.")

WAITING = Table(
    (
        Column("seq", show=number),
        Column("due", "due_ms", moment),
        Column("routing_key"),
        Column("key", "properties.headers.x-delay-key"),
        Column("bytes", "payload_bytes", number),
        Column("properties", show=pairs, wide=True),
        Column("payload", show=messages.shortened),
    ),
    name="routing_key",
)
Key = Annotated[str | None, typer.Option("--key", help="The message of this x-delay-key.")]
MS = "ms since 1970."


def _path(action: str = "") -> str:
    return "/api/exchanges/{}/{}/delayed" + action


@listing(app, "list", WAITING)
def delayed_list(
    reach: Target,
    exchange: ExchangeName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=messages.PAGE, help="At most so many.")] = 50,
    only: messages.Filter = "",
    due_from: Annotated[int, typer.Option("--due-from", min=0, help=f"Due then or later: {MS}")] = 0,
    due_to: Annotated[int | None, typer.Option("--due-to", min=0, help=f"Due then or before: {MS}")] = None,
    vhost: Vhost = "/",
) -> list[Document]:
    """Waiting messages in the order of their due times."""
    query = {"count": str(count), "filter": only, "due_from": str(due_from)}
    if due_to is not None:
        query["due_to"] = str(due_to)
    found: list[Document] = reach.api.get(_path(), vhost, exchange, query=query)["items"]
    return found


@showing(app, "show", WAITING)
def delayed_show(
    reach: Target, exchange: ExchangeName, key: Annotated[str, typer.Argument(metavar="KEY")], vhost: Vhost = "/"
) -> Document:
    """The message that waits under a key."""
    found: list[Document] = reach.api.get(_path(), vhost, exchange, query={"key": key})["items"]
    if not found:
        raise Failed(f"no message waits under key '{key}'", FAILED)
    return found[0]


@operation(app, "cancel")
def delayed_cancel(
    reach: Target,
    exchange: ExchangeName,
    key: Key = None,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    vhost: Vhost = "/",
) -> str:
    """Cancel waiting messages."""
    return _treated(reach, vhost, exchange, "/delete", "deleted", "cancelled", _which(key, seq, only))


@operation(app, "send-now")
def delayed_send_now(
    reach: Target,
    exchange: ExchangeName,
    key: Key = None,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    vhost: Vhost = "/",
) -> str:
    """Send waiting messages now."""
    return _treated(reach, vhost, exchange, "/send-now", "sent", "sent", _which(key, seq, only))


@operation(app, "reschedule")
def delayed_reschedule(
    reach: Target,
    exchange: ExchangeName,
    at: Annotated[int, typer.Option("--at", min=1, help=f"The new due time: {MS}")],
    key: Key = None,
    seq: messages.Seqs = None,
    only: messages.Wanted = None,
    vhost: Vhost = "/",
) -> str:
    """Give waiting messages another due time."""
    which = {**_which(key, seq, only), "deliver_at": at}
    return _treated(reach, vhost, exchange, "/reschedule", "rescheduled", "rescheduled", which)


def _which(key: str | None, seqs: list[int] | None, only: str | None) -> dict[str, Any]:
    said = {name: value for name, value in (("key", key), ("seqs", seqs), ("filter", only)) if value is not None}
    if len(said) != 1:
        raise Failed("say which messages: --key KEY, --seq NUMBER (repeatable), or --only FILTER ('' is all)", USAGE)
    return said


def _treated(
    reach: Target, vhost: str, exchange: str, action: str, counted: str, said: str, which: dict[str, Any]
) -> str:
    """Does it to all of them: by a filter, in as many requests as it takes, to what waited at the first one."""
    done, last = 0, 0
    at: int | None = 1
    while at:
        span = {"from": at, "to": last} if "filter" in which else {}
        answer = reach.api.post(_path(action), vhost, exchange, body={**which, **span})
        done += answer[counted]
        at, last = (answer["next"] if span else None), answer["last"]
    if not done:
        raise Failed("no such message waits", FAILED)
    return f"{done} {said}"
