"""What `journal export` wrote comes back into a queue, with all that a consumer sees of it (operator a2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pika
import pytest

from tests.faults.node import NodeProcess, command

HEADERS = {
    "text": "tätä", "n": -5, "big": 2**40, "list": [1, {"x": None}], "octets": b"\xff\x00", "yes": True,
    "money": Decimal("1.25"), "when": datetime(2026, 1, 2, 3, 4, 5),
}  # fmt: skip
PROPERTIES = pika.BasicProperties(
    content_type="text/plain", content_encoding="utf-8", headers=HEADERS, delivery_mode=2, priority=3, message_id="m",
    correlation_id="c", reply_to="r", timestamp=1_700_000_000, type="t", app_id="app", user_id="guest",
)  # fmt: skip
BODIES = [b"", b"one", b"\xff\x00\n", b"x" * 300_000]


def taken(channel: Any, queue: str) -> list[tuple[dict[str, Any], bytes]]:
    found = []
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(({name: value for name, value in vars(message[1]).items() if name != "user_id"}, message[2]))
    return found


@pytest.mark.parametrize(
    "kind", ["jsonl", pytest.param("csv", marks=pytest.mark.matrix), pytest.param("parquet", marks=pytest.mark.matrix)]
)
def test_what_was_exported_is_imported(make_node: Callable[..., NodeProcess], kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    node = make_node().start()
    data, file = str(node.data_dir), node.data_dir.parent / f"saved.{kind}"
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in ("orders", "again", "copied"):
            channel.queue_declare(name, durable=True)
        for body in BODIES:
            channel.basic_publish("", "orders", body, PROPERTIES)
        channel.basic_publish("", "orders", b"last", pika.BasicProperties(delivery_mode=2, headers={"CC": ["copied"]}))
        channel.queue_purge("copied")
        assert command("journal", "export", data, "orders", "--to", str(file))[0] == 0
        code, said = command("journal", "import", str(file), "again", "--amqp", node.url)
        assert (code, said) == (0, "imported 5 messages into again\n")
        before, after = taken(channel, "orders"), taken(channel, "again")
        assert after[:-1] == before[:-1]
        assert [body for _, body in after] == [*BODIES, b"last"]
        assert taken(channel, "copied") == [], "it is published to no other queue"
        code, said = command("journal", "import", str(file), "again", "--amqp", node.url, "--skip", "4")
        assert [body for _, body in taken(channel, "again")] == [b"last"]
    code, said = command("journal", "import", str(file), "nowhere", "--amqp", node.url)
    assert (code, "NOT_FOUND" in said, "Confirmed: 0." in said) == (1, True, True), said
    assert "--skip" not in said, "nothing is to be skipped"
    for who in ("guest:wrong", "nobody:guest"):
        code, said = command("journal", "import", str(file), "again", "--amqp", node.url.replace("guest:guest", who))
        refused = f"the login as user '{who.partition(':')[0]}' was refused (closed by the broker: 403 ACCESS_REFUSED"
        assert (code, refused in said, "--skip" in said) == (1, True, False), said
    if kind == "jsonl":
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0], json.dumps({"body": "?"})]) + "\n")
        code, said = command("journal", "import", str(file), "again", "--amqp", node.url)
        assert (code, "message 2 cannot be read" in said) == (2, True), said
