"""Deliveries to links of AMQP 1.0 are written as the model writes them: those that begin as the last one did, too."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.content.formats import BASIC, SECTIONS
from clusterbroker.broker.fronts.amqp10 import delivery as delivery_compiled
from clusterbroker.broker.queues import ring as ring_compiled
from clusterbroker.broker.wire.amqp091 import codec as codec_compiled
from clusterbroker.broker.wire.amqp10.performatives import Header, Properties, Transfer, decode
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, encode
from clusterbroker.broker.wire.amqp10.types import decode as decode_value
from clusterbroker.broker.wire.numbers import UInt64
from clusterbroker.journal import record as record_compiled
from clusterbroker.journal.layout import PERSISTENT
from tests.budget import examples
from tests.model import codec as codec_model
from tests.model import delivery10 as delivery_model
from tests.model import record as record_model
from tests.model import ring as ring_model
from tests.model import translation as translation_model

NOW = 10_000


def deliveries(side: Any) -> list[Any]:
    """What a side has sent: of each delivery its transfer, and its sections. They need not be written alike (3.2.1)."""
    found: list[Any] = []
    payload, at, frames, data = b"", 0, 0, side.sent
    while at < len(data):
        size, offset, kind, channel = struct.unpack_from(">IBBH", data, at)
        assert (offset, kind, channel) == (2, 0, 3)
        assert size <= side.frame_max
        frame = data[at + 8 : at + size]
        transfer, behind = decode(frame)
        assert isinstance(transfer, Transfer)
        if not payload:
            assert transfer.delivery_tag is not None, "of the first frame"
            found.append([transfer.handle, transfer.delivery_id, transfer.delivery_tag, transfer.settled])
        payload += frame[behind:]
        if not transfer.more:
            found[-1].append(read(payload))
            payload = b""
        at += size
        frames += 1
    assert frames == side.frames
    assert not payload, "each delivery came to its end"
    return found


def read(payload: bytes) -> Any:
    header, at = decode(payload)
    annotations, behind = decode_value(payload, at)
    return header, annotations, payload[behind:]


def data_of(body: bytes) -> bytes:
    return encode(Described(UInt64(0x75), body))


HEADERS = (b"", Header(durable=True).encoded(), Header(durable=True, priority=7).encoded())
ANNOTATIONS = (b"", *(
    encode(Described(UInt64(0x72), one)) for one in ({Symbol("x-a"): 1}, {Symbol("x-a"): 2, Symbol("x-b"): "y" * 300})
))  # fmt: skip
PROPERTIES = (b"", Properties(message_id="one").encoded(), Properties(message_id="two").encoded())
APPLICATION = (b"", encode(Described(UInt64(0x74), {"k": "v"})))
BASIC_HEADERS = (b"\0\0", b"\x10\0\2", b"\x10\x80\2\3one", b"\x18\0\2\7")
DRAWN = {
    "format": (SECTIONS, SECTIONS, BASIC), "header": HEADERS, "annotations": ANNOTATIONS, "properties": PROPERTIES,
    "application": APPLICATION, "basic": BASIC_HEADERS,
    "body": (b"", b"short", bytes(255), bytes(256), bytes(330), bytes(350), bytes(900)),
    "address": (b"\0\1q", b"\2ex\3key", b"\2ex\3kez"), "ttl_ms": (-1, -1, -1, 500),
    "redelivered": (False, False, False, True), "times": (1, 2, 3),
}  # fmt: skip
"""What may differ between messages."""


def message_of(drawn: dict[str, Any]) -> dict[str, Any]:
    same = {name: drawn[name] for name in ("address", "ttl_ms", "redelivered", "times", "format")}
    if drawn["format"] == BASIC:
        header, body = drawn["basic"], drawn["body"]
        urgent, persistent = header[0] == 0x18, header != BASIC_HEADERS[0]
    else:
        header = drawn["header"] + drawn["annotations"] + drawn["properties"] + drawn["application"]
        body = data_of(drawn["body"])
        urgent, persistent = drawn["header"] == HEADERS[2], drawn["header"] != b""
    return same | {
        "header": header, "body": body, "priority": 7 if urgent else 4, "flags": PERSISTENT if persistent else 0,
    }  # fmt: skip


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Most messages differ from the one before in one thing at most, and so begin as it did, or almost."""
    drawn = {name: draw(st.sampled_from(choices)) for name, choices in DRAWN.items()}
    steps: list[tuple[str, Any]] = []
    for kind in draw(
        st.lists(st.sampled_from((*["message"] * 9, "move", "numbered", "window")), min_size=2, max_size=14)
    ):
        if kind == "message":
            for name in draw(st.lists(st.sampled_from(sorted(DRAWN)), max_size=1)):
                drawn[name] = draw(st.sampled_from(DRAWN[name]))
            steps.append((kind, message_of(drawn)))
        elif kind == "move":
            steps.append((kind, draw(st.sampled_from((0, 1, 200, 300)))))
        elif kind == "numbered":
            steps.append((kind, draw(st.booleans())))
        else:
            steps.append((kind, draw(st.integers(0, 3))))
    return steps


class Side:
    """A link with its session, compiled or modelled, to which messages are handed as a queue hands them."""

    def __init__(self, record: Any, codec: Any, ring: Any, delivery: Any, frame_max: int, first: int) -> None:
        self.record, self.delivery = record, delivery
        self.codec, self.frame_max, self.first = codec, frame_max, first
        self.ring = ring.Ring(1)
        self.ledger = self.session()
        self.link = delivery.LinkConsumer(self.ring, self.ledger, 0, False)
        self.link.gap = 5
        self.link.limit = 1 << 40
        self.sent = b""

    def session(self) -> Any:
        out = self.codec.OutBuffer(self.frame_max)
        ledger = self.delivery.SessionLedger(3, out)
        ledger.window = 1 << 20
        for _ in range(self.first):
            ledger.skip()
        return ledger

    def step(self, kind: str, value: Any) -> None:
        before = self.ledger.next_outgoing_id
        if kind == "message":
            for _ in range(value["times"]):
                self.hand(**value)
        elif kind == "move":
            self.ledger.drain_of(self.link)
            self.ledger = self.session()
            before = 0
            self.link.move(self.ledger, value, value == 1)
        elif kind == "numbered":
            self.link.numbered = b"\xa3\x0ex-opt-sequence" if value else b""
        else:
            self.ledger.window = value
        self.sent = self.ledger.out.take()
        self.ledger.window = 1 << 20
        self.ledger.go_on()
        self.sent += self.ledger.out.take()
        self.frames = self.ledger.next_outgoing_id - before

    def hand(
        self, *, header: bytes, body: bytes, format: int, priority: int, flags: int, address: bytes, ttl_ms: int,
        redelivered: bool, times: int,
    ) -> None:  # fmt: skip
        message = self.record.Message(
            address, header + body, len(header), flags, priority, NOW - 100, ttl_ms, format
        )  # fmt: skip
        if self.record is record_model and format == BASIC:
            message = translation_model.Translation(SECTIONS).translated(message)
        self.ring.append([message])
        seq = self.ring.next_seq - 1
        if redelivered:
            taken = self.delivery.LinkConsumer(self.ring, self.session(), 9, False)
            taken.limit = 1
            self.module_dispatch(taken)
            self.ring.requeue(seq, True)
        self.module_dispatch(self.link)

    def module_dispatch(self, link: Any) -> None:
        module = ring_compiled if self.record is record_compiled else ring_model
        module.dispatch(self.ring, [link], NOW)


@settings(max_examples=examples(300), deadline=None)
@given(lives(), st.sampled_from((512, 4096)), st.sampled_from((250, 256, 256)))
def test_both_write_the_same(steps: list[tuple[str, Any]], frame_max: int, first: int) -> None:
    model = Side(record_model, codec_model, ring_model, delivery_model, frame_max, first)
    compiled = Side(record_compiled, codec_compiled, ring_compiled, delivery_compiled, frame_max, first)
    for kind, value in steps:
        for side in (model, compiled):
            side.step(kind, value)
        told = [
            (side.ledger.redelivered, side.link.delivered, side.ledger.unacked, deliveries(side))
            for side in (model, compiled)
        ]
        assert told[0] == told[1], (kind, value)
