"""Delays of messages of AMQP 1.0: the annotations of JMS clients and ours, between both protocols."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message

from ..amqp10.conftest import connect10  # noqa: F401
from ..amqp10.wire import Peer
from ..marks import rule
from .conftest import LATE_S, Delayed


def annotated(body: bytes, **annotations: Any) -> bytes:
    named = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return encode(Described(UInt64(0x72), named)) + message(body)


@rule("75", "83")
@pytest.mark.parametrize("annotation", ["x_opt_delivery_delay", "x_delay", "x_opt_delivery_time", "x_deliver_at"])
def test_an_annotation_delays(delayed: Delayed, connect10: Any, annotation: str) -> None:  # noqa: F811
    peer: Peer = connect10()
    sender = peer.session().sender(f"/exchanges/{delayed.exchange}/{delayed.key}")
    began_ms = int(time.time() * 1000)
    absolute = annotation in ("x_opt_delivery_time", "x_deliver_at")
    number = sender.transfer(annotated(b"x", **{annotation: 400 + (began_ms if absolute else 0)}))
    assert sender.outcome(number) == Accepted()
    receiver = peer.session().receiver(f"/queues/{delayed.queue}", credit=1)
    got = receiver.delivery()
    late_s = time.time() - began_ms / 1000 - 0.4
    assert -0.01 <= late_s < LATE_S + 4, "and the time that the links took"
    assert got.message.body == b"x"
    if not absolute:
        assert got.message.annotations[annotation.replace("_", "-")] == -400


@rule("75")
def test_a_consumer_of_the_other_protocol_reads_the_negated_delay(delayed: Delayed, connect10: Any) -> None:  # noqa: F811
    sender = connect10().session().sender(f"/exchanges/{delayed.exchange}/{delayed.key}")
    assert sender.outcome(sender.transfer(annotated(b"x", x_delay=100))) == Accepted()
    delayed.listen()
    assert delayed.comes().headers["x-delay"] == -100
