"""Sender of spans by OpenTelemetry's protocol (waits, in a thread of its library).

The library keeps at most QUEUE_MAX of them and sends them every second from a thread; spans without room, or without
a receiver, are dropped. A slow or absent receiver thus holds up no message. Credentials for the receiver come from
the environment, by the library's own variables (OTEL_EXPORTER_OTLP_HEADERS), and are never shown.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from clusterbroker.broker.node.spans import Span, Spans
from clusterbroker.broker.version import VERSION

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.server.span_options import SpanOptions

QUEUE_MAX: Final = 8192
EVERY_MS: Final = 1000
TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 2.0
KINDS: Final = {"server": SpanKind.SERVER, "producer": SpanKind.PRODUCER, "internal": SpanKind.INTERNAL}


class SpanSender:
    """The world of a node's `Spans` (`broker.node.spans.World`)."""

    def __init__(self, options: SpanOptions, node: str) -> None:
        self._resource = Resource.create(
            {"service.name": options.service_name, "service.version": VERSION, "service.instance.id": node}
        )
        self._scope = InstrumentationScope("clusterbroker", VERSION)
        for name in ("opentelemetry.sdk", "opentelemetry.exporter"):  # each failure would be a trace in the log
            logging.getLogger(name).setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=options.url, timeout=TIMEOUT_S)
        self._processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, schedule_delay_millis=EVERY_MS)

    def now_ns(self) -> int:
        return time.time_ns()

    def chance(self, bits: int) -> int:
        return secrets.randbits(bits)

    def ended(self, span: Span) -> None:
        parent = _context(span.trace_id, span.parent_id, remote=True) if span.parent_id else None
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context=_context(span.trace_id, span.span_id),
                parent=parent,
                resource=self._resource,
                attributes=span.attributes,
                kind=KINDS[span.kind],
                status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(),
                start_time=span.began_ns,
                end_time=span.ended_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Sends the rest. Blocks for CLOSE_S at most: a hanging receiver does not hold up the node's end."""
        ending = threading.Thread(target=self._processor.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)


def begin(options: SpanOptions, node: Node) -> SpanSender:
    """Sampled messages of the node have spans from now on."""
    sender = SpanSender(options, node.options.name)
    node.watching.trace(Spans(node.options, sender, options.sampled, options.messages_per_s_max))
    return sender


def _context(trace_id: int, span_id: int, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED))
