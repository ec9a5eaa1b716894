"""The load generator as a client of AMQP 1.0, against a broker that misbehaves on purpose: each fault must be seen."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from bench import generator
from bench.generator import LoadResult
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Error,
    Flow,
    Header,
    Open,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from tests.support.amqp10 import HEADER, SASL_HEADER, Frame, Reader, frame, message

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="needs a C++ compiler")

COUNT: Final = 500
CREDIT: Final = 170
"""Less than the generator's window, as other brokers have it: a sender that takes no heed is seen."""
GIVES_UP: Final = ("--drain", "3")


class Delivery(NamedTuple):
    body: bytes
    again: bool = False


Mischief = Callable[[list[Delivery]], list[Delivery]]


class FakeBroker:
    """Grants credit as publishes come, keeps them all, and delivers what `mischief` makes of them."""

    def __init__(
        self,
        mischief: Mischief,
        refused: range = range(0),
        silent_from: int = COUNT,
        ids_from: int = 0,
        detaches: bool = False,
    ) -> None:
        self.mischief, self.refused, self.silent_from, self.ids_from = mischief, refused, silent_from, ids_from
        self.detaches = detaches
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.receiver: socket.socket | None = None
        self.granted, self.overdrawn = CREDIT, False
        self.receives = threading.Event()
        self.published: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        reader = Reader()
        with contextlib.suppress(OSError):  # the generator has gone
            while data := peer.recv(65536):
                for each in reader.feed(data):
                    self._answer(peer, each)

    def _answer(self, peer: socket.socket, each: Frame) -> None:
        match each.body:
            case bytes() if each.body == SASL_HEADER:
                peer.sendall(SASL_HEADER + frame(0, SaslMechanisms(("PLAIN",)), kind=1))
            case bytes():
                peer.sendall(HEADER)
            case SaslInit():
                peer.sendall(frame(0, SaslOutcome(0), kind=1))
            case Open():
                peer.sendall(frame(0, Open("fake")))
            case Begin():
                peer.sendall(
                    frame(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=CREDIT, outgoing_window=9))
                )
            case Attach(role=receives):
                attach = Attach(each.body.name, 0, not receives, 0, 0, each.body.source, each.body.target)
                if receives:
                    attach.initial_delivery_count = 0
                peer.sendall(frame(0, attach))
                if not receives:
                    peer.sendall(self._credit())
            case Flow(link_credit=int()):
                self.receiver = peer
                self.receives.set()
            case Transfer():
                self._take(peer, each)
            case Close():
                peer.sendall(frame(0, Close()))

    def _credit(self) -> bytes:
        come = len(self.published)
        return frame(
            0,
            Flow(
                next_incoming_id=come, incoming_window=CREDIT, next_outgoing_id=0, outgoing_window=9, handle=0,
                delivery_count=come, link_credit=self.granted - come, echo=True,
            ),
        )  # fmt: skip

    def _take(self, publisher: socket.socket, each: Frame) -> None:
        number = len(self.published)
        self.overdrawn |= number >= self.granted or each.body.delivery_id != number
        self.published.append(each.payload)
        if self.detaches:
            publisher.sendall(frame(0, Detach(0, True, Error("amqp:resource-deleted", "gone"))))
        elif len(self.published) == COUNT:
            self._let_loose(publisher, each.body.settled)
        elif number == self.granted - CREDIT // 2:
            self.granted += CREDIT // 2
            publisher.sendall(self._credit())

    def _let_loose(self, publisher: socket.socket, settled: bool) -> None:
        assert self.receives.wait(20), "the generator's receiver comes before its publisher"
        assert self.receiver is not None, "its socket is known"
        out = b""
        for number, (payload, again) in enumerate(self.mischief([Delivery(one) for one in self.published])):
            body = message(payload[-64:], header=Header(True, first_acquirer=not again))
            tag = number.to_bytes(4, "big")
            # one of them in two frames
            first, rest = (body[:40], body[40:]) if number == 3 else (body, b"")
            out += frame(0, Transfer(0, number + self.ids_from, tag, 0, False, bool(rest)), first)
            out += frame(0, Transfer(0), rest) if rest else b""
        self.receiver.sendall(out)
        if settled:
            return
        for number in range(self.silent_from):
            state = Rejected() if number in self.refused else Accepted()
            if number % 2:  # every second one alone, the first half of the others is in ranges of one
                publisher.sendall(frame(0, Disposition(True, number, None, True, state)))
            else:
                publisher.sendall(frame(0, Disposition(True, number, number, True, state)))


@pytest.fixture
def run() -> Iterator[Callable[..., tuple[LoadResult, FakeBroker]]]:
    brokers = []

    def run_against(
        mischief: Mischief = list, options: tuple[str, ...] = (), **settings: Any
    ) -> tuple[LoadResult, FakeBroker]:
        broker = FakeBroker(mischief, **settings)
        brokers.append(broker)
        common = ["--protocol", "1.0", "--no-declare", "--count", str(COUNT), "--size", "64", "--drain", "60"]
        return generator.load(broker.port, [*common, *options], timeout_s=30), broker

    yield run_against
    for broker in brokers:
        broker.listener.close()


Run = Callable[..., tuple[LoadResult, FakeBroker]]


@pytest.mark.parametrize("options", [(), ("--no-confirm", "--auto-ack"), ("--threads", "2")])
def test_an_honest_broker_is_clean_and_its_credit_is_kept(run: Run, options: tuple[str, ...]) -> None:
    result, broker = run(options=options)
    assert result.faults == []
    assert (result.raw["published"], result.raw["received"]) == (COUNT, COUNT)
    assert not broker.overdrawn, "no transfer is sent without credit, and none has another's number"


FAULTS: Final[dict[str, tuple[Mischief, dict[str, Any], dict[str, int]]]] = {
    "lost": (lambda all_: all_[1:], {}, {"lost": 1}),
    "duplicate": (lambda all_: [*all_, all_[0]], {}, {"duplicates": 1}),
    "duplicate that says so": (lambda all_: [*all_, Delivery(all_[0].body, True)], {}, {}),
    "misordered": (lambda all_: [all_[1], all_[0], *all_[2:]], {}, {"misordered": 1}),
    "corrupt": (lambda all_: [Delivery(all_[0].body[:-1] + b"?"), *all_[1:]], {}, {"corrupt": 1}),
    "ids with a gap": (list, {"ids_from": 1}, {"bad_tags": COUNT}),
    "no outcome": (list, {"silent_from": COUNT - 2}, {"unconfirmed": 2}),
    "refused": (lambda all_: all_[3:], {"refused": range(3)}, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(run: Run, name: str) -> None:
    mischief, settings, expected = FAULTS[name]
    result, _ = run(mischief, GIVES_UP if {"lost", "unconfirmed"} & set(expected) else (), **settings)
    assert {key: result.raw[key] for key in generator.FAULT_COUNTS if result.raw[key]} == expected
    assert result.raw["nacked"] == (3 if name == "refused" else 0)
    assert result.raw["redelivered"] == (1 if name == "duplicate that says so" else 0)


def test_a_link_that_is_ended_is_an_error_with_the_brokers_words(run: Run) -> None:
    result, _ = run(detaches=True)
    assert result.raw["error"] == "ended by the broker: amqp:resource-deleted: gone"


def test_a_broker_that_keeps_no_state_of_links_is_no_broker_for_recoverable_ones() -> None:
    broker = FakeBroker(list)
    with pytest.raises(generator.GeneratorError, match="does not offer clusterbroker:link-recovery"):
        generator.load(broker.port, ["--protocol", "1.0", "--no-declare", "--recoverable"], timeout_s=30)
    broker.listener.close()
