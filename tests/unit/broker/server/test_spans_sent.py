"""Spans on their way: a node, a client of its own kind, and a receiver of OpenTelemetry's protocol."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pika
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError
from server_support import until

from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.server.span_options import SpanOptions

Start = Callable[..., Awaitable[NodeShell]]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """What an OTLP receiver is told. `hangs`: it takes connections, and never answers."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, str], Any]] = []
        self.hangs = threading.Event()
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.paths.append(self.path)
                while collector.hangs.is_set():
                    time.sleep(0.05)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    about = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        collector.spans += [(about, span) for span in scope.spans]
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def names(self) -> list[str]:
        return sorted(span.name for _, span in self.spans)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.hangs.clear()
    found.server.shutdown()
    found.server.server_close()


def conversation(port: int, count: int) -> None:
    """A client publishes, confirms, consumes, acknowledges."""
    where = pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=10)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        for _ in range(count):
            channel.basic_publish("", "q", b"body", pika.BasicProperties(headers=headers, delivery_mode=2))
        for _ in range(count):
            method, properties, body = channel.basic_get("q")
            assert (body, properties.headers) == (b"body", headers)
            channel.basic_ack(method.delivery_tag)
        channel.queue_delete("q")


def port_of(shell: NodeShell) -> int:
    return int(shell.listeners[0].addresses[0].port)


async def test_spans_arrive_with_what_they_say(start: Start, collector: Collector) -> None:
    shell = await start(spans=SpanOptions(endpoint=collector.endpoint))
    await asyncio.to_thread(conversation, port_of(shell), 1)
    await until(lambda: len(collector.spans) == 4)
    assert collector.paths[0] == "/v1/traces"
    assert collector.names() == ["commit amq.default", "deliver q", "publish amq.default", "settle q"]
    by_name = {span.name.split()[0]: span for _, span in collector.spans}
    assert {span.trace_id.hex() for span in by_name.values()} == {TRACE}
    assert by_name["publish"].parent_span_id.hex() == by_name["deliver"].parent_span_id.hex() == PARENT
    assert by_name["commit"].parent_span_id == by_name["publish"].span_id
    assert by_name["settle"].parent_span_id == by_name["deliver"].span_id
    about = collector.spans[0][0]
    assert (about["service.name"], about["service.instance.id"]) == ("clusterbroker", shell.options.node.name)
    attributes = {pair.key: pair.value.string_value for pair in by_name["publish"].attributes}
    assert attributes["messaging.rabbitmq.destination.routing_key"] == "q"
    assert by_name["commit"].end_time_unix_nano > by_name["commit"].start_time_unix_nano


async def test_the_last_spans_are_sent_when_the_node_stops(start: Start, collector: Collector) -> None:
    shell = await start(spans=SpanOptions(endpoint=collector.endpoint))
    await asyncio.to_thread(conversation, port_of(shell), 2)
    await shell.stop()
    assert len(collector.spans) == 8


@pytest.mark.long
async def test_a_receiver_that_hangs_holds_up_no_message(start: Start, collector: Collector) -> None:
    collector.hangs.set()
    shell = await start(spans=SpanOptions(endpoint=collector.endpoint, messages_per_s_max=100_000))
    await asyncio.to_thread(conversation, port_of(shell), 300)
    began_s = time.monotonic()
    await shell.stop()
    assert time.monotonic() - began_s < 6


@pytest.mark.long
async def test_a_receiver_that_is_not_there_is_no_fault(start: Start, lines: Any) -> None:
    shell = await start(spans=SpanOptions(endpoint="http://127.0.0.1:9"))
    await asyncio.to_thread(conversation, port_of(shell), 3)
    await shell.stop()
    assert not [line for line in lines.lines if line[0] in ("error", "critical")]


def test_the_path_of_traces_is_added_unless_there_is_one() -> None:
    assert SpanOptions(endpoint="http://h:4318/").url == "http://h:4318/v1/traces"
    assert SpanOptions(endpoint="https://h/otlp/v1/traces").url == "https://h/otlp/v1/traces"


@pytest.mark.parametrize("endpoint", ["h:4318", "ftp://h", "http://", "4318"])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="is no address: write http://HOST:4318"):
        SpanOptions(endpoint=endpoint)
