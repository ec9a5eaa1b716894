"""Frames of a peer that is broken or lies: every message type, every field plausible, extreme or of a wrong type."""

from __future__ import annotations

import random
import types
import typing
from functools import cache
from typing import Any

import msgspec

from clusterbroker.broker.node.hub import HEADS
from clusterbroker.broker.remote import messages as p
from clusterbroker.broker.wire.amqp091.codec import make_message
from clusterbroker.broker.wire.amqp091.properties import Properties, encode
from clusterbroker.journal.record import GroupWriter, Message, RecordBuffer
from tests.unit.broker.node.node_cluster import Cluster

TYPES: tuple[Any, ...] = typing.get_args(HEADS.type)
"""Every type of message on the data channel."""
EXTREME = (0, 1, -1, 2**31, 2**32, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
WRONG: tuple[Any, ...] = (None, True, 1.5, "x", b"x", [], [[]], {"a": 1}, [[1, 2, 3, 4, 5, 6, 7]])


def message(body: bytes = b"hostile") -> Message:
    made = make_message(b"\0\1q", encode(Properties()), body, 1)
    assert isinstance(made, Message)
    return made


def publishes(queue_id: int, first: int, count: int) -> bytes:
    """ENQ records with right checksums."""
    buffer = RecordBuffer()
    for seq in range(first, first + count):
        buffer.enqueue(queue_id, 1, seq, message(), 0, False)
    return buffer.take()


def other_records(queue_id: int, epoch: int) -> bytes:
    """One of each other kind, with right checksums."""
    writer = GroupWriter(0, 0)
    start = writer.size
    writer.settle(queue_id, epoch, [(1, 2**61)])
    writer.reserve(queue_id, epoch, 2**61)
    writer.count_delivery(queue_id, epoch, 3, 65535)
    writer.dead(queue_id, epoch, 2, 1 << 8)
    writer.cut(queue_id, epoch, 1)
    writer.set_attribute(queue_id, epoch, b"n" * 10, 2**64 - 1)
    writer.begin_epoch(queue_id, epoch, 5)
    return bytes(writer.span(start, writer.size))


fields_of = cache(msgspec.structs.fields)
"""Its types are found by names: as dear as the frame is."""


class Hostile:
    """Makes up frames. `spared`: a queue that it never takes anything from by right."""

    BY_RIGHT = (p.Attach, p.Settle, p.Consume, p.Credit, p.Ask)
    """With these a member may take messages from a queue, as a consumer's node or as its owner."""

    def __init__(self, cluster: Cluster, name: str, seed: int, spared: int) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random.Random(seed)
        self.spared = spared
        self.node = cluster[name].node

    def frame(self) -> tuple[Any, int, bytes, bytes]:
        """(type, index, head, payload)."""
        kind = self.random.choice(TYPES)
        may_spare = kind in self.BY_RIGHT
        queues = [queue for queue in self.node.map.queues("/") if not (may_spare and queue.queue_id == self.spared)]
        self.queue = self.random.choice(queues)
        payload = self._payload()
        fields = [self._field(field.name, field.type) for field in fields_of(kind)]
        for at, field in enumerate(fields_of(kind)):
            if field.name == "parts" and isinstance(fields[at], list) and self.random.random() < 0.8:
                fields[at] = self._filled(fields[at], payload)
        if kind is p.Ask and self.random.random() < 0.9:  # a word makes the question one about a lease
            fields[4] = fields[4] % 5 if fields[-1] is None else p.ASK_LEASE
        if may_spare:
            fields = _without(fields, self.spared)
        if self.random.random() < 0.1 and fields:
            fields[self.random.randrange(len(fields))] = self.random.choice(WRONG)
        if self.random.random() < 0.03:
            fields = fields[: self.random.randrange(len(fields) + 1)]
        tag = kind.__struct_config__.tag if self.random.random() > 0.01 else self.random.choice((0, 8, 99, "x"))
        head = msgspec.msgpack.encode([tag, *fields])
        if self.random.random() < 0.03:
            head = head[: self.random.randrange(len(head))]
        if self.random.random() < 0.03:
            at = self.random.randrange(max(1, len(head)))
            head = head[:at] + bytes((self.random.randrange(256),)) + head[at + 1 :]
        index = self.node.map.applied + (self.random.choice((0, 0, 1, 1000)) if self.random.random() < 0.02 else 0)
        if may_spare:
            index = min(index, self.node.map.applied)
        return kind, index, head, payload

    def _payload(self) -> bytes:
        queue_id, epoch = self.queue.queue_id, self.queue.epoch
        kind = self.random.randrange(7)
        if kind == 0:
            return b""
        if kind == 1:
            return self.random.randbytes(self.random.randrange(200))
        if kind == 2:
            return other_records(queue_id, epoch)
        if kind == 3:
            return publishes(queue_id + 1, 1, 2)
        data = publishes(
            queue_id, self.random.choice((1, 2, 5, 2**40, 2**62 - 9, 2**63)), self.random.choice((1, 1, 3))
        )
        if kind == 4:
            at = self.random.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << self.random.randrange(8),)) + data[at + 1 :]
        return data if kind == 5 else data + b"\0" * 8

    def _filled(self, parts: list[Any], payload: bytes) -> list[Any]:
        if not parts or not all(isinstance(part, list) and part for part in parts):
            return parts
        for part in parts:
            part[-1] = 0
        parts[0][-1] = len(payload)
        return parts[:1] if self.random.random() < 0.7 else parts

    def _field(self, name: str, kind: Any) -> Any:
        if self.random.random() < 0.03:
            return self.random.choice(EXTREME)
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        if typing.get_origin(kind) is tuple:
            inner = typing.get_args(kind)
            if inner[-1] is Ellipsis:
                return [self._field("", inner[0]) for _ in range(self.random.choice((0, 1, 1, 2, 5)))]
            values = [self._field("", one) for one in inner]
            if len(values) == 2 and all(isinstance(value, int) for value in values) and self.random.random() < 0.9:
                values.sort()
            if len(values) > 2:  # a part begins with its queue
                values[: min(3, len(values))] = [self.queue.queue_id, self.queue.epoch, self._gen()][: len(values)]
            return values
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            return self._field(name, self.random.choice(typing.get_args(kind)))
        if kind is types.NoneType:
            return None
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            tag = [kind.__struct_config__.tag] if isinstance(kind.__struct_config__.tag, str) else []
            return tag + [self._field(field.name, field.type) for field in fields_of(kind)]
        if kind is bytes:
            return self.random.choice((b"p", b"x" * 1024, b"", b"\0dead"))
        if kind is str:
            return self.random.choice(("", "t", "gap", "unknown", "q.reply-to.a-1-1"))
        if kind is bool:
            return self.random.random() < 0.5
        if kind is int:
            return self._number(name)
        return {}

    def _gen(self) -> int:
        return self.random.choice((1, 2, 3, self.random.randrange(12)))

    def _number(self, name: str) -> int:
        member = self.node.map.member(self.name)
        assert member is not None
        known = {
            "queue_id": self.queue.queue_id, "epoch": self.queue.epoch, "incarnation": member.incarnation,
            "index": self.node.map.applied, "gen": self._gen(), "sync": self.random.randrange(1, 8),
            "group": self.random.randrange(1, 60),
        }  # fmt: skip
        if name in known and self.random.random() < 0.9:
            return known[name]
        return self.random.choice((0, 1, 2, 3, 4, 5, 10, 100, 5000))


def _without(fields: list[Any], spared: int) -> list[Any]:
    """Small numbers may happen to name the spared queue."""
    return [
        _without(field, spared) if isinstance(field, list) else field + 1000 if field is not True and field == spared
        else field for field in fields
    ]  # fmt: skip
