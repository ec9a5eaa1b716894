"""The load generator against a broker that misbehaves on purpose: each kind of fault must be seen and counted."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from bench import generator
from bench.generator import LoadResult

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="needs a C++ compiler")

COUNT = 500
Message = tuple[bytes, bool]  # content frames, redelivered
Mischief = Callable[[list[Message]], list[Message]]


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


PLAIN_ANSWERS = {
    (10, 40): method(0, 10, 41, b"\x00"),
    (10, 50): method(0, 10, 51),
    (20, 10): method(1, 20, 11, bytes(4)),
    (60, 10): method(1, 60, 11),
    (85, 10): method(1, 85, 11),
}


GIVES_UP: Final = ("--drain", "3")
"""For a run in which something never comes; in any other nothing is given up, however slow the machine is."""


class FakeBroker:
    """Answers the generator's conversation; keeps all publishes and delivers what `mischief` makes of them."""

    def __init__(self, mischief: Mischief, confirmed: int = COUNT, tags_from: int = 1, confirms: bool = True) -> None:
        self.mischief, self.confirmed, self.tags_from = mischief, confirmed, tags_from
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.consumer: socket.socket | None = None
        self.consumes = threading.Event()
        self.published: list[bytes] = []
        self.confirms = confirms
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        stream = peer.makefile("rb")
        stream.read(8)
        peer.sendall(method(0, 10, 10, b"\x00\x09" + bytes(4) + b"\x00\x00\x00\x05PLAIN" + b"\x00\x00\x00\x05en_US"))
        content = b""
        while len(head := stream.read(7)) == 7:
            kind, _, size = struct.unpack(">BHI", head)
            payload = stream.read(size + 1)
            if kind == 1:
                class_id, method_id = struct.unpack_from(">HH", payload)
                self._answer(peer, (class_id, method_id), payload)
            elif kind == 2:
                content = head + payload
            else:
                self.published.append(content + head + payload)
                if len(self.published) == COUNT:
                    self._let_loose(peer)

    def _answer(self, peer: socket.socket, which: tuple[int, int], payload: bytes) -> None:
        if which == (10, 11):
            peer.sendall(method(0, 10, 30, struct.pack(">HIH", 100, 131072, 0)))
        elif which == (50, 10):
            peer.sendall(method(1, 50, 11, payload[6 : 7 + payload[6]] + bytes(8)))
        elif which == (60, 20):
            peer.sendall(method(1, 60, 21, b"\x01c"))
            self.consumer = peer
            self.consumes.set()
        elif which in PLAIN_ANSWERS:
            peer.sendall(PLAIN_ANSWERS[which])

    def _let_loose(self, publisher: socket.socket) -> None:
        assert self.consumes.wait(20), "the generator's consumer comes, before its publisher or after"
        assert self.consumer is not None, "who consumes is known"
        out = b""
        for tag, (content, again) in enumerate(self.mischief([(m, False) for m in self.published]), self.tags_from):
            out += method(1, 60, 60, b"\x01c" + struct.pack(">QB", tag, again) + b"\x00\x04load") + content
        self.consumer.sendall(out)
        if self.confirms:
            publisher.sendall(method(1, 60, 80, struct.pack(">QB", self.confirmed, 1)))


@pytest.fixture
def run() -> Iterator[Callable[..., LoadResult]]:
    brokers = []

    def run_against(mischief: Mischief, options: tuple[str, ...] = (), **settings: Any) -> LoadResult:
        broker = FakeBroker(mischief, **settings)
        brokers.append(broker)
        common = ["--count", str(COUNT), "--size", "64", "--drain", "60"]
        return generator.load(broker.port, [*common, *options], timeout_s=30)

    yield run_against
    for broker in brokers:
        broker.listener.close()


def broken_body(message: Message) -> Message:
    content, again = message
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:], again


def moved(messages: list[Message], source: int, target: int) -> list[Message]:
    rest = messages[:source] + messages[source + 1 :]
    return [*rest[:target], messages[source], *rest[target:]]


def test_an_honest_broker_is_clean(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: messages)
    assert result.faults == []
    assert result.raw["clean"] is True
    assert (result.raw["published"], result.raw["confirmed"], result.raw["received"]) == (COUNT, COUNT, COUNT)


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 250, COUNT - 1])
def test_a_lost_message_is_seen(run: Callable[..., LoadResult], lost: int) -> None:
    result = run(lambda messages: messages[:lost] + messages[lost + 1 :], GIVES_UP)
    assert result.raw["lost"] == 1
    assert result.raw["clean"] is False
    assert result.raw["misordered"] == result.raw["duplicates"] == 0


@pytest.mark.long
def test_a_loss_without_confirms_is_seen(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: messages[:-3], ("--no-confirm", *GIVES_UP), confirms=False)
    assert (result.raw["lost"], result.raw["clean"]) == (3, False)


def test_a_confirm_that_nobody_asked_for_is_seen(run: Callable[..., LoadResult]) -> None:
    assert "did not ask for confirms" in run(lambda messages: messages, ("--no-confirm",)).raw["error"]


@pytest.mark.parametrize("late", [1, 400])
def test_a_duplicate_is_seen(run: Callable[..., LoadResult], late: int) -> None:
    result = run(lambda messages: [*messages[:late], messages[0], *messages[late:]])
    assert result.raw["duplicates"] == 1
    assert result.raw["clean"] is False
    assert result.raw["lost"] == result.raw["misordered"] == 0


def test_a_duplicate_does_not_hide_a_loss(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: [*messages[:-1], messages[0]], GIVES_UP)
    assert (result.raw["lost"], result.raw["duplicates"]) == (1, 1)


def test_a_redelivery_that_says_so_is_no_duplicate(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: [*messages, (messages[0][0], True)])
    assert result.faults == []
    assert result.raw["redelivered"] == 1


@pytest.mark.parametrize(("source", "target"), [(10, 11), (10, 400), (400, 10)])
def test_a_wrong_order_is_seen(run: Callable[..., LoadResult], source: int, target: int) -> None:
    result = run(lambda messages: moved(messages, source, target))
    assert result.raw["misordered"] == (1 if source < target else source - target)
    assert result.raw["clean"] is False
    assert result.raw["lost"] == result.raw["duplicates"] == 0


def test_a_changed_body_is_seen(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: [*messages[:7], broken_body(messages[7]), *messages[8:]])
    assert result.raw["corrupt"] == 1
    assert result.raw["clean"] is False


def test_a_gap_in_the_delivery_tags_is_seen(run: Callable[..., LoadResult]) -> None:
    assert run(lambda messages: messages, tags_from=2).faults == ["1 bad tags"]


@pytest.mark.long
def test_a_missing_confirm_is_seen_and_its_message_need_not_arrive(run: Callable[..., LoadResult]) -> None:
    result = run(lambda messages: messages[: COUNT - 2], GIVES_UP, confirmed=COUNT - 2)
    assert (result.raw["unconfirmed"], result.raw["lost"]) == (2, 0)
    assert result.raw["clean"] is False


@pytest.mark.long
def test_a_drain_misses_what_the_backlog_should_hold(run: Callable[..., LoadResult]) -> None:
    """Here the fake broker has no backlog at all: every expected message is lost."""
    result = run(lambda messages: messages, ("--publishers", "0", "--expect", "40", "--count", "0", *GIVES_UP))
    assert result.raw["lost"] == 40


def test_a_broker_that_is_not_there_is_an_error() -> None:
    with pytest.raises(generator.GeneratorError, match="connect"):
        generator.load(1, [], timeout_s=10)


SURVIVE_MISCHIEF: dict[str, tuple[Mischief, dict[str, int]]] = {
    "none": (lambda messages: messages, {}),
    "lost": (lambda messages: messages[1:], {"lost": 1}),
    "duplicate": (lambda messages: [*messages[:400], messages[0], *messages[400:]], {"duplicates": 1}),
    "flagged duplicate": (lambda messages: [*messages, (messages[0][0], True)], {}),
    "misordered": (lambda messages: moved(messages, 10, 400), {"misordered": 1}),
    "corrupt": (lambda messages: [*messages, broken_body(messages[7])], {"corrupt": 1}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SURVIVE_MISCHIEF)
def test_a_load_that_survives_failovers_sees_the_same(name: str) -> None:
    mischief, seen = SURVIVE_MISCHIEF[name]
    broker = FakeBroker(mischief)
    patience = GIVES_UP if "lost" in seen else ("--drain", "60")
    options = ["--count", str(COUNT), "--size", "64", *patience]
    raw = generator.answer("survive", broker.port, options, timeout_s=30)
    broker.listener.close()
    faults = {key: raw[key] for key in ("lost", "duplicates", "misordered", "corrupt", "unconfirmed") if raw[key]}
    assert faults == seen
    assert raw["clean"] is not bool(seen)
    assert raw["reconnects"] == 0
