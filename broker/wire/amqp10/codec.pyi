from typing import Any

from clusterbroker.broker.wire.amqp10.errors import Amqp10Error
from clusterbroker.broker.wire.amqp10.tags import Tags
from clusterbroker.journal.record import Message

class HeaderReceived:
    data: bytes
    def __init__(self, data: bytes) -> None: ...

class FrameReceived:
    channel: int
    sasl: bool
    payload: bytes
    def __init__(self, channel: int, sasl: bool, payload: bytes) -> None: ...

class IncomingLink:
    channel: int
    handle: int
    address: bytes
    owner: Any
    raw: bool
    partial: bool
    delivery_id: int
    tag: bytes
    settled: bool
    def __init__(self, channel: int, handle: int, address: bytes, owner: Any = None) -> None: ...

class Transferred:
    link: IncomingLink
    messages: list[Message]
    tags: Tags
    first_id: int
    frames: int
    settled: bool
    flags: int
    size: int
    refusal: Amqp10Error | None
    def __init__(self, link: IncomingLink, first_id: int, settled: bool) -> None: ...

class Disposed:
    channel: int
    outcome: int
    settled: bool
    def __init__(self, channel: int, outcome: int, settled: bool) -> None: ...
    def add(self, first: int, last: int) -> None: ...
    @property
    def ranges(self) -> list[tuple[int, int]]: ...

Event = HeaderReceived | FrameReceived | Transferred | Disposed | Amqp10Error

class FrameDecoder:
    frame_max: int
    message_bytes_max: int
    partial_bytes_max: int
    partial_bytes: int
    failed: bool
    heard: bool
    rest: bytes
    def __init__(self, frame_max: int = ..., message_bytes_max: int = ...) -> None: ...
    def open_link(self, channel: int, handle: int, address: bytes, owner: Any = None) -> IncomingLink: ...
    def close_link(self, link: IncomingLink) -> None: ...
    def abort(self, link: IncomingLink) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Event]: ...
    def take(self, link: IncomingLink) -> None: ...
    def begin(self, link: IncomingLink, delivery_id: int, tag: bytes, settled: bool) -> None: ...
    def extend(self, link: IncomingLink, data: bytes, settled: bool = False) -> None: ...
    def part_of(self, link: IncomingLink) -> bytes: ...
    def finish(self, link: IncomingLink, now_ms: int) -> Transferred: ...
