"""Messages and bindings by the management API, for the commands of queues and of exchanges (waits)."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from clusterbroker.broker.cli.exit_codes import FAILED, Failed
from clusterbroker.broker.cli.parameters import body as body_of
from clusterbroker.broker.cli.parameters import payload, table
from clusterbroker.broker.cli.tables import Column, Document, Table, number, pairs, quoted, text
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
