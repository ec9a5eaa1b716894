"""Frames of AMQP 1.0 to batches of events: the specification of `broker/wire/amqp10/codec.pyx`.

    frame      0 u32 size   4 u8 data offset in words   5 u8 type (0 AMQP, 1 SASL)   6 u16 channel
               4 * offset   performative | payload
    header     "AMQP" u8 protocol id, u8 major, u8 minor, u8 revision; no frame is so long
    delivery   transfers of one link, the first with delivery-id and delivery-tag, until one without `more` (2.6.14)

The decoder turns one socket read into few events: neighbouring deliveries of a link that are settled alike and whose
ids follow each other become one `Transferred`, neighbouring dispositions of one state one `Disposed`. A transfer of a
link that the front has not announced, or that is out of the ordinary (a state, a resumed or aborted delivery, another
message format, a tag or id that is missing or contradicts), and every other performative is handed on undecoded as a
`FrameReceived`. The first fault ends it: the error is the last event, and later bytes are ignored.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from clusterbroker.broker.wire.amqp10.errors import (
    DECODE_ERROR,
    MESSAGE_SIZE,
    RESOURCE_LIMIT,
    Amqp10Error,
    ConnectionFault10,
    LinkError,
    framing_error,
)
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Disposition, Released, Transfer
from clusterbroker.broker.wire.amqp10.performatives import decode as decode_performative
from clusterbroker.broker.wire.amqp10.types import DecodeError
from tests.model.record import Message
from tests.model.sections10 import make_message
from tests.model.tags10 import Tags

FRAME_HEAD: Final = 8
TAG_MAX: Final = 32
IDS: Final = 1 << 32
_HEAD: Final = struct.Struct(">IBBH")


class HeaderReceived:
    """A protocol header: 8 bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class FrameReceived:
    """A frame that the front reads itself; `payload`: behind the frame's header and extended header."""

    def __init__(self, channel: int, sasl: bool, payload: bytes) -> None:
        self.channel = channel
        self.sasl = sasl
        self.payload = payload


class IncomingLink:
    """What the decoder keeps of a link whose sender is the client. `partial`: a delivery of it is not whole yet, of
    which `delivery_id`, `tag` and `settled` are known. `raw`: what it brings is for no queue, and nobody looks
    whether it is a message."""

    def __init__(self, channel: int, handle: int, address: bytes, owner: Any = None) -> None:
        self.channel = channel
        self.handle = handle
        self.address = address
        self.owner = owner
        self.raw = False
        self.store = b""
        self.partial = False
        self.delivery_id = 0
        self.tag: bytes | None = None
        self.settled = False
        self.too_large = self.by_front = False
        self.behind = 0
        """Frames that the front has not read yet: those that follow go there too, in their order."""

    def forget(self) -> None:
        self.store = b""
        self.partial = self.too_large = self.by_front = False
        self.tag = None


class Transferred:
    """Neighbouring transfers on one link.

    first_id   of the first delivery; the others follow
    frames     transfers that this came in, for the session's window; some may have brought no message yet
    flags      all messages' flags joined by "or"
    size       bytes of all payloads
    refusal    the error that the one delivery deserves; messages is then empty, tags is not
    """

    def __init__(self, link: IncomingLink, first_id: int, settled: bool) -> None:
        self.link = link
        self.first_id = first_id
        self.settled = settled
        self.messages: list[Message] = []
        self.tags = Tags()
        self.frames = self.flags = self.size = 0
        self.refusal: Amqp10Error | None = None


class Disposed:
    """Neighbouring dispositions of a receiver with one state. `outcome`: its descriptor; 0: there is none."""

    def __init__(self, channel: int, outcome: int, settled: bool) -> None:
        self.channel = channel
        self.outcome = outcome
        self.settled = settled
        self.ranges: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        if self.ranges and first and self.ranges[-1][1] + 1 == first:
            self.ranges[-1] = (self.ranges[-1][0], last)
        else:
            self.ranges.append((first, last))


class FrameDecoder:
    """Bytes of one connection in, events out."""

    def __init__(self, frame_max: int = 512, message_bytes_max: int = 16 << 20) -> None:
        self.frame_max = frame_max
        self.message_bytes_max = message_bytes_max
        self.partial_bytes_max = max(32 << 20, 2 * message_bytes_max)
        self.partial_bytes = 0
        self.failed = self.heard = False
        self.rest = b""
        self._links: dict[tuple[int, int], IncomingLink] = {}
        self._events: list[Any] = []
        self._batch: Transferred | None = None
        self._disposed: Disposed | None = None

    def open_link(self, channel: int, handle: int, address: bytes, owner: Any = None) -> IncomingLink:
        """Transfers with this handle are read here from now on."""
        link = self._links[channel, handle] = IncomingLink(channel, handle, address, owner)
        return link

    def close_link(self, link: IncomingLink) -> None:
        """No more; what is not whole is passed over."""
        self.abort(link)
        self._links.pop((link.channel, link.handle), None)

    def abort(self, link: IncomingLink) -> None:
        """The delivery that is not whole yet is passed over."""
        self.partial_bytes -= len(link.store)
        link.forget()

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Any]:
        """Events of `data` (which starts with `rest`); what is left over becomes the new `rest`."""
        if len(data) > len(self.rest):
            self.heard = True
        self.rest = b""
        if self.failed:
            return []
        events = self._events = []
        try:
            self.rest = self._walk(bytes(data), now_ms)
        except Amqp10Error as fault:
            self.failed = True
            events.append(fault)
        self._events, self._batch, self._disposed = [], None, None
        return events

    def _walk(self, data: bytes, now_ms: int) -> bytes:
        at = 0
        while len(data) - at >= FRAME_HEAD:
            if data[at : at + 4] == b"AMQP":
                self._tell(HeaderReceived(data[at : at + 8]))
                at += 8
                continue
            size, offset, kind, channel = _HEAD.unpack_from(data, at)
            skipped = 4 * offset
            if size < FRAME_HEAD or skipped < FRAME_HEAD or skipped > size:
                raise framing_error(f"a frame of {size} bytes with a data offset of {offset}")
            if kind > 1:
                raise framing_error(f"unknown frame type {kind}")
            if size > self.frame_max:
                raise framing_error(f"a frame of {size} bytes, {self.frame_max} are allowed")
            if len(data) - at < size:
                break
            payload = data[at + skipped : at + size]
            if (kind or payload) and (kind or not self._quick(channel, payload, now_ms)):
                self._tell(FrameReceived(channel, kind == 1, payload))
            at += size
        return data[at:]

    def _tell(self, event: Any) -> None:
        self._events.append(event)
        self._batch = self._disposed = None

    def _quick(self, channel: int, payload: bytes, now_ms: int) -> bool:
        """Whether the frame was read; the front reads all others."""
        if payload[:3] not in (b"\0\x53\x14", b"\0\x53\x15") or payload[3:4] not in (b"\xc0", b"\xd0"):
            return False
        try:
            performative, end = decode_performative(payload)
        except DecodeError:
            return False
        if isinstance(performative, Transfer):
            return self._transfer(channel, performative, payload[end:], now_ms)
        assert isinstance(performative, Disposition), "so its descriptor says"
        return end == len(payload) and self._disposition(channel, performative)

    def _transfer(self, channel: int, transfer: Transfer, payload: bytes, now_ms: int) -> bool:
        link = self._links.get((channel, transfer.handle))
        if link is None:
            return False
        if link.behind or (link.partial and link.by_front) or not self._is_usual(link, transfer):
            link.behind += 1
            return False
        tag = transfer.delivery_tag
        if link.partial:
            link.settled = link.settled or transfer.settled is True
        else:
            assert transfer.delivery_id is not None, "it is usual"
            assert tag is not None, "it is usual"
            if not transfer.more:
                self._deliver(link, transfer.delivery_id, bool(transfer.settled), tag, payload, now_ms)
                assert self._batch is not None, "a delivery has an event"
                self._batch.frames += 1
                return True
            self._begin(link, transfer.delivery_id, tag, bool(transfer.settled))
        self._gather(link, payload)
        self._join(link, link.delivery_id, link.settled).frames += 1
        if not transfer.more:
            self._complete(link, now_ms)
        return True

    @staticmethod
    def _is_usual(link: IncomingLink, transfer: Transfer) -> bool:
        """Whether it is the first frame of a delivery, or goes on with the one that is not whole, and no more."""
        if transfer.rcv_settle_mode is not None or transfer.state is not None or transfer.resume:
            return False
        if transfer.aborted or transfer.message_format:
            return False
        tag = transfer.delivery_tag
        if link.partial:
            return transfer.delivery_id in (None, link.delivery_id) and tag in (None, link.tag)
        return transfer.delivery_id is not None and tag is not None and len(tag) <= TAG_MAX

    def _gather(self, link: IncomingLink, payload: bytes) -> None:
        if link.too_large:
            return
        if len(link.store) + len(payload) > self.message_bytes_max:
            self.partial_bytes -= len(link.store)
            link.store = b""
            link.too_large = True
            return
        link.store += payload
        self.partial_bytes += len(payload)
        if self.partial_bytes > self.partial_bytes_max:
            raise ConnectionFault10(RESOURCE_LIMIT, "incomplete deliveries exceed the connection's limit")

    def _complete(self, link: IncomingLink, now_ms: int) -> None:
        delivery_id, settled, tag, store, too_large = (
            link.delivery_id,
            link.settled,
            link.tag,
            link.store,
            link.too_large,
        )
        assert tag is not None, "a delivery has a tag"
        self.abort(link)
        if too_large:
            self._refuse(link, delivery_id, settled, tag, self._too_large())
        else:
            self._deliver(link, delivery_id, settled, tag, store, now_ms)

    def _too_large(self) -> LinkError:
        return LinkError(MESSAGE_SIZE, f"a message of more than {self.message_bytes_max} bytes")

    def _deliver(
        self, link: IncomingLink, delivery_id: int, settled: bool, tag: bytes, payload: bytes, now_ms: int
    ) -> None:
        if len(payload) > self.message_bytes_max:
            self._refuse(link, delivery_id, settled, tag, self._too_large())
            return
        message = Message(link.address, payload, 0) if link.raw else make_message(link.address, payload, now_ms)
        if message is None:
            self._refuse(link, delivery_id, settled, tag, LinkError(DECODE_ERROR, "the sections are no message"))
            return
        batch = self._join(link, delivery_id, settled)
        batch.messages.append(message)
        batch.tags.append(tag)
        batch.flags |= message.flags
        batch.size += len(payload)

    def _refuse(self, link: IncomingLink, delivery_id: int, settled: bool, tag: bytes, refusal: LinkError) -> None:
        refused = Transferred(link, delivery_id, settled)
        refused.refusal = refusal
        refused.tags.append(tag)
        self._tell(refused)
        self._batch = refused

    def _join(self, link: IncomingLink, delivery_id: int, settled: bool) -> Transferred:
        """The batch that a delivery, or a part of one, belongs to."""
        batch = self._batch
        if (
            batch is None
            or batch.link is not link
            or batch.settled is not settled
            or batch.refusal is not None
            or (batch.first_id + len(batch.messages)) % IDS != delivery_id
        ):
            batch = Transferred(link, delivery_id, settled)
            self._tell(batch)
            self._batch = batch
        return batch

    def _disposition(self, channel: int, disposition: Disposition) -> bool:
        state = disposition.state
        if not disposition.role or not isinstance(state, (Accepted, Released, type(None))):
            return False
        first = int(disposition.first)
        last = first if disposition.last is None else int(disposition.last)
        if (last - first) % IDS > 0x7FFFFFFF:
            return False
        outcome = 0 if state is None else state.CODE
        event = self._disposed
        if event is None or (event.channel, event.outcome, event.settled) != (channel, outcome, disposition.settled):
            event = Disposed(channel, outcome, disposition.settled)
            self._tell(event)
            self._disposed = event
        event.add(first, last)
        return True

    def take(self, link: IncomingLink) -> None:
        """The front reads a frame of the link that was handed to it."""
        link.behind = max(0, link.behind - 1)

    def begin(self, link: IncomingLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        """A delivery whose first frame the front has read: it reads the others as well."""
        self._begin(link, delivery_id, tag, settled)
        link.by_front = True

    @staticmethod
    def _begin(link: IncomingLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        assert not link.partial, "one delivery of a link at a time"
        link.partial = True
        link.delivery_id, link.tag, link.settled = int(delivery_id), tag, settled

    def extend(self, link: IncomingLink, data: bytes, settled: bool = False) -> None:
        """A part of a delivery that the front has read. `settled`: so its frame says."""
        link.settled = link.settled or settled
        self._gather(link, data)

    def part_of(self, link: IncomingLink) -> bytes:
        """What has come of the delivery that is not whole; nothing of one that is too large."""
        return bytes(link.store)

    def finish(self, link: IncomingLink, now_ms: int) -> Transferred:
        """The delivery is whole: its event, which neighbours do not join."""
        events = self._events = []
        self._batch = None
        self._complete(link, now_ms)
        self._events, self._batch, self._disposed = [], None, None
        event: Transferred = events[0]
        return event
