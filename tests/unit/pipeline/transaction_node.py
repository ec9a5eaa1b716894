"""A real node in the place of the model (`transaction_broker`): what is staged, committed and seen at it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import quote

import pika

from clusterbroker.pipeline.options import Options, parse
from clusterbroker.pipeline.transactions import status
from tests.conftest import RunningNode

EXCHANGES = ("target", "usual", "a", "b", "graves")
_vhosts = count(1)


class TransactionNode:
    """A vhost of its own, with some fanout exchanges into one queue, and a queue "q"."""

    def __init__(self, node: RunningNode, http: str) -> None:
        self.port = node.port
        self.vhost = f"v{next(_vhosts)}"
        self._http = http
        self._seen: list[tuple[str, str, bytes]] = []
        self._call("PUT", f"/api/vhosts/{self.vhost}", {})
        self._call("PUT", f"/api/permissions/{self.vhost}/guest", dict.fromkeys(("configure", "write", "read"), ".*"))
        with self._channel() as channel:
            for queue in ("all", "q"):
                channel.queue_declare(queue, durable=True)
            for exchange in EXCHANGES:
                channel.exchange_declare(exchange, "fanout", durable=True)
                channel.queue_bind("all", exchange)

    def close(self) -> None:
        self._call("DELETE", f"/api/vhosts/{self.vhost}")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._http + path, None if body is None else json.dumps(body).encode(), method=method,
            headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=20) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        url = f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(self.vhost, safe='')}"
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            yield connection.channel()

    @property
    def options(self) -> dict[str, str]:
        return {"endpoints": f"127.0.0.1:{self.port}", "vhost": self.vhost}

    def _asking(self) -> Options:
        return parse({**self.options, "deliveryGuarantee": "exactly-once"})

    # -- what tests look at

    @property
    def producers(self) -> list[str]:
        """That have a segment or a commit, as the management API knows."""
        return [one["producer"] for one in self._call("GET", f"/api/producers/{self.vhost}")]

    @property
    def ledger(self) -> dict[str, int]:
        told = {name: status(self._asking(), name)["epoch"] for name in self.producers}
        return {name: epoch for name, epoch in told.items() if epoch is not None}

    def is_staged(self, name: str) -> bool:
        """Whether the segment is there, open or on its way."""
        with self._channel() as channel:
            try:
                channel.exchange_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
        return True

    def drop(self, *names: str) -> None:
        """As the commit of another attempt does."""
        with self._channel() as channel:
            for name in names:
                channel.exchange_delete(name)

    @property
    def messages(self) -> list[tuple[str, str, bytes]]:
        """All that consumers have seen until now: (exchange, key, body)."""
        end_s = time.monotonic() + 30
        while any(status(self._asking(), name)["moving"] for name in {*self.producers, "query"}):
            assert time.monotonic() < end_s, "rows arrive"
        with self._channel() as channel:
            for queue in ("all", "q"):
                while True:
                    method, _, body = channel.basic_get(queue, auto_ack=True)
                    if method is None:
                        break
                    self._seen.append((method.exchange, method.routing_key, body))
        return self._seen
