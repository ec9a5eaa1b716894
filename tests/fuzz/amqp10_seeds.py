"""The first inputs of the fuzzers of AMQP 1.0: what clients say, right and wrong, by name."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Coordinator,
    Declare,
    DeleteOnClose,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Header,
    Modified,
    Open,
    Properties,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import Described, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import HEADER, SASL_HEADER, frame, message

BEGIN = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
LOGIN = SASL_HEADER + frame(0, SaslInit(mechanism="PLAIN", initial_response=b"\0guest\0guest"), kind=1)
ENTERED = LOGIN + HEADER + frame(0, Open(container_id="c", max_frame_size=4096, channel_max=3)) + frame(0, BEGIN)
FOREVER = {"durable": 2, "expiry_policy": "never", "timeout": 600}
OUTCOMES: tuple[Composite, ...] = (
    Accepted(), Released(), Rejected(error=Error(condition="example:no")),
    Modified(delivery_failed=True, undeliverable_here=True), Received(section_number=1, section_offset=3),
)  # fmt: skip


def said(*performatives: Composite, channel: int = 0) -> bytes:
    return b"".join(frame(channel, each) for each in performatives)


def sends(number: int, payload: bytes, handle: int = 0, parts: int = 1, **fields: object) -> bytes:
    """A delivery in so many frames."""
    step = -(-len(payload) // parts) or 1
    pieces = [payload[at : at + step] for at in range(0, len(payload), step)] or [b""]
    first = Transfer(
        handle=handle, delivery_id=number, delivery_tag=b"t%d" % number, more=len(pieces) > 1, **fields  # type: ignore[arg-type]
    )  # fmt: skip
    rest = [Transfer(handle=handle, more=place + 1 < len(pieces)) for place in range(1, len(pieces))]
    return b"".join(frame(0, head, piece) for head, piece in zip((first, *rest), pieces, strict=True))


def flow(handle: int | None = None, **fields: object) -> Flow:
    return Flow(
        next_incoming_id=0, incoming_window=100, next_outgoing_id=0, outgoing_window=100, handle=handle, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def sender(handle: int = 0, name: str = "s", **fields: object) -> Attach:
    fields = {"target": Target(address="/queues/q"), "source": Source(), "initial_delivery_count": 0, **fields}
    return Attach(name=name, handle=handle, role=False, **fields)  # type: ignore[arg-type]


def receiver(handle: int = 1, name: str = "r", **fields: object) -> Attach:
    fields = {"source": Source(address="/queues/q"), "target": Target(), **fields}
    return Attach(name=name, handle=handle, role=True, **fields)  # type: ignore[arg-type]


def full() -> bytes:
    """A message with every section."""
    return message(
        b"body", header=Header(durable=True, priority=3, ttl=5000, delivery_count=2), annotations={"x-opt-a": 1},
        properties=Properties(message_id="m", to="/queues/q", subject="s", creation_time=1), application={"k": 1.5},
    )  # fmt: skip


def asks(number: int, request: Composite) -> bytes:
    """What a controller wants of the coordinator of handle 2."""
    transfer = Transfer(handle=2, delivery_id=number, delivery_tag=b"x%d" % number)
    return frame(0, transfer, b"\0" + encode(UInt64(0x77)) + request.encoded())


def judged(role: bool, states: Iterable[Composite], first: int = 0, more: int = 0) -> bytes:
    return said(
        *(
            Disposition(role=role, first=at, last=at + more, settled=True, state=state)
            for at, state in enumerate(states, first)
        )
    )


def codec10() -> dict[str, bytes]:
    plain, value = message(b"usual"), message(sections=encode(Described(UInt64(0x76), [1])))
    woven = [*zip(_frames(sends(0, full(), parts=3)), _frames(sends(0, full(), handle=1, parts=3)), strict=True)]
    return {
        "transfers": b"".join(sends(number, plain, settled=number % 2 == 0) for number in range(6)),
        "every_section": sends(0, full(), message_format=0) + sends(1, value),
        "split": sends(0, full(), parts=4) + sends(1, plain),
        "interleaved": b"".join(each for pair in woven for each in pair),
        "aborted": _frames(sends(0, full(), parts=3))[0] + frame(0, Transfer(handle=0, aborted=True)),
        "cut": sends(0, full(), parts=3)[:-60] + frame(0, Transfer(handle=0)),
        "too_large": sends(0, message(bytes(450)), parts=3) + sends(1, plain),
        "no_message": sends(0, b"no message") + sends(1, b"") + sends(2, plain[:-1]),
        "dispositions": judged(True, OUTCOMES, more=2),
        "disposition_backwards": said(Disposition(role=True, first=9, last=2, settled=True, state=Accepted())),
        "others": said(flow(), BEGIN, sender(), Detach(handle=0, closed=True), End(), Close()),
        "empty_frames": frame(0, b"") * 3 + sends(0, plain),
        "header_again": HEADER + sends(0, plain),
        "unknown_link": sends(0, plain, handle=9),
        "no_tag": frame(0, Transfer(handle=0), plain),
        "long_tag": frame(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"x" * 33), plain),
        "dead_lengths": b"".join(struct.pack(">IBBH", size, 2, 0, 0) for size in (2**32 - 1, 701, 7)),
        "short_offset": struct.pack(">IBBH", 8, 1, 0, 0),
        "unknown_kind": struct.pack(">IBBH", 8, 2, 2, 0),
        "extended_header": struct.pack(">IBBH", 12, 3, 0, 0) + b"more" + sends(0, plain),
        "deep": frame(0, b"\0\x53\x11" + b"\xc0\xff\x01" * 90),
        "no_performative": frame(0, encode("text")) + frame(0, b"\0\x53\x99\x45"),
        "sasl_inside": frame(0, SaslInit(mechanism="PLAIN"), kind=1),
    }


def front10() -> dict[str, bytes]:
    return {**_entering(), **_links(), **_lasting(), **_wrong()}


def _entering() -> dict[str, bytes]:
    def init(mechanism: str, response: bytes | None = None) -> bytes:
        return SASL_HEADER + frame(0, SaslInit(mechanism=mechanism, initial_response=response), kind=1)

    return {
        "plain": ENTERED + said(Close()),
        "wrong_password": init("PLAIN", b"\0guest\0no"),
        "anonymous": init("ANONYMOUS") + HEADER,
        "external": init("EXTERNAL", b""),
        "no_such_mechanism": init("SCRAM-SHA-1"),
        "response_unasked": SASL_HEADER + frame(0, SaslResponse(response=b"x"), kind=1),
        "no_sasl": HEADER + said(Open(container_id="c"), BEGIN),
        "tls_header": b"AMQP\x02\x01\x00\x00",
        "no_such_version": b"AMQP\x00\x02\x00\x00",
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "begin_before_open": LOGIN + HEADER + said(BEGIN),
        "open_twice": ENTERED + said(Open(container_id="d")),
        "no_such_vhost": LOGIN + HEADER + said(Open(container_id="c", hostname="vhost:none")),
    }


def _links() -> dict[str, bytes]:
    published = ENTERED + said(sender()) + b"".join(sends(number, full()) for number in range(3))
    read = published + said(receiver(), flow(1, delivery_count=0, link_credit=10))
    second = said(receiver(rcv_settle_mode=1), flow(1, delivery_count=0, link_credit=2))
    decided = said(Disposition(role=True, first=0, state=Accepted()), Disposition(role=True, first=0, settled=True))
    dynamic = Source(dynamic=True, dynamic_node_properties={"lifetime-policy": DeleteOnClose()})
    request = Properties(message_id="1", to="/queues/new", subject="PUT", reply_to="$me")
    managed = message(properties=request, sections=encode(Described(UInt64(0x77), {})))
    ends: dict[str, object] = {"source": Source(address="/management"), "target": Target(address="/management")}
    ends["properties"] = {"paired": True}
    pair = said(sender(0, "pair", **ends), receiver(1, "pair", **ends), flow(1, delivery_count=0, link_credit=5))
    return {
        "publishes": published + said(Detach(handle=0, closed=True), End(), Close()),
        "published_in_parts": ENTERED + said(sender()) + sends(0, full(), parts=3) + sends(1, full(), settled=True),
        "reads": read + judged(True, OUTCOMES[:4]),
        "drains": read + said(flow(1, delivery_count=3, link_credit=5, drain=True, echo=True), Detach(handle=1)),
        "second_mode": published + second + decided,
        "dynamic": ENTERED + said(receiver(source=dynamic)),
        "management": ENTERED + pair + sends(0, managed, settled=True),
        "two_sessions": ENTERED + frame(1, BEGIN) + frame(1, sender()) + said(sender(), End()) + frame(1, End()),
    }


def _lasting() -> dict[str, bytes]:
    """Recoverable links, and transactions."""
    coordinator = Attach(
        name="x", handle=2, role=False, source=Source(), target=Coordinator(), initial_delivery_count=0
    )
    number = b"\0" * 7 + b"\1"
    inside = TransactionalState(txn_id=number)
    begun = ENTERED + said(coordinator) + asks(0, Declare())
    map_ = {b"t0": None, b"t1": Accepted(), b"t2": Received(section_number=0, section_offset=4)}
    kept, held = Source(**FOREVER), Target(**FOREVER)  # type: ignore[arg-type]
    sent = ENTERED + said(sender(source=kept)) + sends(0, full()) + said(Detach(handle=0))
    read = said(receiver(target=held), flow(1, delivery_count=0, link_credit=3))
    again = receiver(target=held, unsettled=map_, incomplete_unsettled=True)
    return {
        "transaction": begun + said(sender()) + sends(0, full(), state=inside) + asks(1, Discharge(txn_id=number)),
        "rolled_back": begun + asks(1, Discharge(txn_id=number, fail=True)) + asks(2, Discharge(txn_id=b"none")),
        "unknown_transaction": begun + said(sender()) + sends(1, full(), state=TransactionalState(txn_id=b"no")),
        "left_open": begun + said(sender()) + sends(1, full(), state=inside) + said(Detach(handle=2, closed=True)),
        "recoverable_sender": sent + said(sender(source=kept, unsettled=map_)) + sends(1, full(), resume=True),
        "recoverable_receiver": ENTERED + said(sender()) + sends(0, full()) + read + said(Detach(handle=1), again),
        "stolen": ENTERED + said(sender()) + sends(0, full()) + read + frame(1, BEGIN) + frame(1, again),
    }


def _wrong() -> dict[str, bytes]:
    names = ("/queues/none", "/exchanges/", "nonsense", "", "/queues/%zz", None)
    attaches = (sender(place, f"s{place}", target=Target(address=name)) for place, name in enumerate(names))
    empty = b"".join(sends(number, message(b""), settled=True) for number in range(30))
    return {
        "bad_addresses": ENTERED + said(*attaches),
        "handle_in_use": ENTERED + said(sender(), receiver(0)),
        "name_in_use": ENTERED + said(sender(), sender(1)),
        "no_such_session": ENTERED + frame(3, sender()) + frame(9, BEGIN),
        "no_such_handle": ENTERED + sends(0, full(), handle=7),
        "without_credit": ENTERED + said(sender()) + empty,
        "out_of_order": ENTERED + said(sender()) + sends(5, full()) + sends(2, full()) + said(flow(0)),
    }


def _frames(data: bytes) -> list[bytes]:
    from tests.fuzz.fuzz_amqp10 import frames_of

    return frames_of(data)
