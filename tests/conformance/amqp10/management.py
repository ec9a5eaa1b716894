"""A client's pair of links to `/management`.

pair = Pair(session)
status, body = pair.ask("PUT", "/queues/q", {"durable": True})
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from clusterbroker.broker.wire.amqp10.performatives import Properties, Source, composed
from clusterbroker.broker.wire.amqp10.types import Described, encode
from clusterbroker.broker.wire.amqp10.types import decode as decode_value
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message

from .wire import Receiver, Session

MANAGEMENT = "/management"
PAIRED = {"paired": True}
_numbers = itertools.count(1)


class Answer(NamedTuple):
    status: int
    body: Any


class Response(NamedTuple):
    properties: Properties
    application: dict[str, Any]
    body: Any


def value(body: Any) -> bytes:
    return encode(Described(UInt64(0x77), body))


def request(method: Any, path: Any, body: Any = None, **properties: Any) -> bytes:
    """The sections of a request."""
    known = {"reply_to": "$me", "message_id": "1", **properties}
    return message(sections=value(body), properties=Properties(subject=method, to=path, **known))


def read(payload: bytes) -> Response:
    sections, at = [], 0
    while at < len(payload):
        section, at = decode_value(payload, at)
        sections.append(section)
    properties, application, body = sections
    assert (application.descriptor, body.descriptor) == (0x74, 0x77)
    return Response(composed(properties), application.value, body.value)


class Pair:
    def __init__(self, session: Session, credit: int = 100, settle: int = 1) -> None:
        self.session = session
        self.name = f"pair-{next(_numbers)}"
        self.settled = settle == 1
        self.sender = session.sender(
            MANAGEMENT, name=self.name, settle=settle, properties=PAIRED, source=Source(address=MANAGEMENT)
        )
        self.receiver: Receiver = session.receiver(MANAGEMENT, name=self.name, settle=1, properties=PAIRED)
        if credit:
            self.receiver.grant(credit)

    def post(self, method: Any, path: Any, body: Any = None, **properties: Any) -> int:
        return self.sender.transfer(request(method, path, body, **properties), settled=self.settled)

    def response(self) -> Response:
        frame = self.receiver.frames()
        payload = frame.payload
        assert frame.body.settled
        while frame.body.more:
            frame = self.receiver.frames()
            payload += frame.payload
        self.receiver.count += 1
        return read(payload)

    def answer(self) -> Answer:
        found = self.response()
        assert found.application == {"http:response": "1.1"}
        return Answer(int(found.properties.subject or ""), found.body)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        self.post(method, path, body)
        return self.answer()

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self.ask(method, path, body).status
