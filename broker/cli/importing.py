"""What `journal export` wrote, back into a queue: rows of a file as messages, published and confirmed (waits).

    rows(path)        the messages of a .jsonl, .csv or .parquet file, in the order of the file
    publish(...)      through the default exchange, at most WINDOW at a time unconfirmed; how many were confirmed

Properties, headers and body are those that were exported. Left out are what would make the broker do more than store
the message again: CC (it would go to other queues too), and a user-id, which must be that of who publishes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import csv
import json
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from clusterbroker.broker.cli.export import PARQUET, SHEETS, ExportImpossible
from clusterbroker.broker.extras import wanting
from clusterbroker.broker.trial.client import Client, ClientLost, Target
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES, Properties
from clusterbroker.journal.values import Timestamp

WINDOW: Final = 1000
CONFIRM_S: Final = 60.0
LEFT_OUT: Final = ("CC", "BCC")
_DOMAINS: Final = dict(PROPERTIES)


class Row(NamedTuple):
    """A message as it is published."""

    properties: Properties
    body: bytes


class NotImported(Exception):
    """One line says where it ended, and why."""


def rows(path: Path) -> Iterator[Row]:
    """Raises ExportImpossible for a file that is none of ours, OSError."""
    kind = path.suffix.lower()
    if kind not in SHEETS:
        raise ExportImpossible(
            f"cannot import {path}: a file that `journal export` wrote ends in .parquet, .csv or .jsonl"
        )
    for number, raw in enumerate(_READERS[kind](path), start=1):
        try:
            yield _row(raw)
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            raise ExportImpossible(f"{path}: message {number} cannot be read ({error})") from error


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                raw = json.loads(line)
            except ValueError as error:
                raise ExportImpossible(f"{path}: line {number} is not JSON ({error})") from error
            yield raw


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(1 << 31)
    with path.open(encoding="utf-8", newline="") as file:
        for raw in csv.DictReader(file):
            yield {name: value for name, value in raw.items() if value not in ("", None) or name == "body"}


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ExportImpossible(wanting(*PARQUET)) from None
    with pyarrow.parquet.ParquetFile(str(path)) as file:
        for batch in file.iter_batches(batch_size=1000):
            yield from batch.to_pylist()


_READERS: Final[dict[str, Callable[[Path], Iterator[dict[str, Any]]]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _row(raw: dict[str, Any]) -> Row:
    body = raw["body"]
    found: dict[str, Any] = {}
    for name, domain in _DOMAINS.items():
        value = raw.get(name)
        if value is None or name == "user_id":
            continue
        if domain == "table":
            table = json.loads(value) if isinstance(value, str) else value
            found[name] = {key: amqp(inner) for key, inner in table.items() if key not in LEFT_OUT}
        else:
            found[name] = str(value) if domain == "shortstr" else int(value)
    return Row(Properties(**found), body if isinstance(body, bytes) else base64.b64decode(body, validate=True))


def amqp(value: Any) -> Any:
    """What `readable.jsonable` made JSON of."""
    if isinstance(value, list):
        return [amqp(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, inner),) = value.items()
        if kind in _KINDS and isinstance(inner, str | int):
            return _KINDS[kind](inner)
    return {name: amqp(inner) for name, inner in value.items()}


_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "$binary": lambda text: base64.b64decode(text, validate=True),
    "$timestamp": lambda seconds: Timestamp(int(seconds)),
    "$decimal": Decimal,
    "$float": float,
}


async def publish(where: Target, queue: str, messages: Iterator[Row], skip: int, tell: Callable[[int], object]) -> int:
    """How many are confirmed, those that were skipped not counted. Raises NotImported, ExportImpossible, OSError."""
    client: Client | None = None
    confirmed = 0
    waiting: deque[int] = deque()
    refused: list[int] = []
    moved = asyncio.Event()

    def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
        nonlocal confirmed
        if not ack:
            refused.append(tag)
        if multiple:
            while waiting and waiting[0] <= tag:
                waiting.popleft()
                confirmed += 1
        elif tag in waiting:
            waiting.remove(tag)
            confirmed += 1
        moved.set()

    async def until(fewer_than: int) -> None:
        while len(waiting) >= fewer_than and not refused:
            moved.clear()
            waits = [asyncio.ensure_future(moved.wait()), asyncio.ensure_future(client.lost.wait())]  # type: ignore[union-attr]
            done, _ = await asyncio.wait(waits, timeout=CONFIRM_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if client is not None and client.lost.is_set():
                raise ClientLost(client.why)
            if not done:
                raise ClientLost(f"nothing was confirmed for {CONFIRM_S:g} s")
        if refused:
            raise ClientLost("the broker refused a message (nack): does the queue reject what is too much?")
        tell(confirmed)

    try:
        for _ in range(skip):
            next(messages, None)
        client = await Client.open(where, heartbeat_s=30)
        client.on_confirm = on_confirm
        await client.call(m.QueueDeclare(queue=queue, passive=True))
        await client.call(m.ConfirmSelect())
        for row in messages:
            waiting.append(client.publish(queue, row.body, properties=row.properties))
            if len(waiting) >= WINDOW:
                await until(WINDOW)
        await until(1)
    except ClientLost as error:
        go_on = f" To go on behind them: --skip {skip + confirmed}" if confirmed else ""
        raise NotImported(f"{error}. Confirmed: {confirmed}.{go_on}") from None
    finally:
        if client is not None:
            await client.close()
    return confirmed
