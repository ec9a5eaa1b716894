"""Calls of the load generator: to a node, and through a relay that misbehaves on purpose. Each fault must be seen."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest

from bench import generator
from bench.generator import FAULT_COUNTS, LoadResult
from clusterbroker.broker.embedded import Broker

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="needs a C++ compiler")

KEYS: Final = 10
CALLS: Final = 50
"""Of each of two callers."""
AT: Final = 7
"""Which delivery of one connection the relay spoils."""


@dataclass(frozen=True)
class Content:
    """A delivery: three frames as they are on the wire."""

    method: bytes
    header: bytes
    body: bytes

    @property
    def is_answer(self) -> bool:
        """Callers consume as `c`, workers as the number of a key."""
        return self.method[11:13] == b"\x01c"

    @property
    def frames(self) -> bytes:
        return self.method + self.header + self.body


class Relay:
    """Between the generator and a node. Each connection has a mischief of its own, which gets all of its deliveries."""

    def __init__(self, port: int, mischief: Callable[[], Callable[[Content], list[Content]]]) -> None:
        self._node_port, self._mischief = port, mischief
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                node = socket.create_connection(("127.0.0.1", self._node_port))
                threading.Thread(target=self._up, args=(peer, node), daemon=True).start()
                threading.Thread(target=self._down, args=(node, peer), daemon=True).start()

    def _up(self, peer: socket.socket, node: socket.socket) -> None:
        with contextlib.suppress(OSError), peer, node:
            with contextlib.suppress(OSError):
                while some := peer.recv(65536):
                    node.sendall(some)
            node.shutdown(socket.SHUT_RDWR)  # its reader has it open as well: consumers would stay at their queues

    def _down(self, node: socket.socket, peer: socket.socket) -> None:
        stream, mischief, parts = node.makefile("rb"), self._mischief(), list[bytes]()
        with contextlib.suppress(OSError), peer, stream:
            while len(head := stream.read(7)) == 7:
                frame = head + stream.read(struct.unpack(">I", head[3:])[0] + 1)
                if parts or frame[7:11] == struct.pack(">HH", 60, 60):
                    parts.append(frame)
                    if len(parts) < 3:
                        continue
                    frame, parts = b"".join(each.frames for each in mischief(Content(*parts))), []
                peer.sendall(frame)


def at_one(
    of_answers: bool, spoilt: Callable[[Content], list[Content]]
) -> Callable[[], Callable[[Content], list[Content]]]:
    """Spoils one delivery of the first connection that comes so far."""
    done = threading.Event()

    def of_connection() -> Callable[[Content], list[Content]]:
        seen = 0

        def mischief(content: Content) -> list[Content]:
            nonlocal seen
            seen += content.is_answer is of_answers
            if content.is_answer is not of_answers or seen != AT or done.is_set():
                return [content]
            done.set()
            return spoilt(content)

        return mischief

    return of_connection


def changed_body(content: Content) -> list[Content]:
    """Its caller's number is another."""
    return [replace(content, body=content.body[:8] + bytes([content.body[8] ^ 1]) + content.body[9:])]


def changed_correlation(content: Content) -> list[Content]:
    """Its last digit is another."""
    digits = content.body[7:15].hex().encode()
    assert digits in content.header, "the correlation id says what the body says"
    other = digits[:-1] + (b"1" if digits.endswith(b"0") else b"0")
    return [replace(content, header=content.header.replace(digits, other))]


def of_another_key(content: Content) -> list[Content]:
    """Its consumer's tag is the next digit."""
    digit = b"%d" % ((int(content.method[12:13]) + 1) % KEYS)
    return [replace(content, method=content.method[:12] + digit + content.method[13:])]


Spoilt = Callable[[Content], list[Content]]
MISCHIEF: Final[dict[str, tuple[bool, Spoilt, dict[str, int]]]] = {
    "answer dropped": (True, lambda _: [], {"lost": 1}),
    "answer doubled": (True, lambda content: [content] * 2, {"duplicates": 1}),
    "answer with another body": (True, changed_body, {"lost": 1, "corrupt": 1}),
    "answer of another call": (True, changed_correlation, {"lost": 1, "corrupt": 1}),
    "request doubled": (False, lambda content: [content] * 2, {"duplicates": 2, "bad_tags": 1}),
    "request of another key": (False, of_another_key, {"lost": 1, "corrupt": 1}),
}
"""Whether it is of answers, what is done, what is seen. A request that comes twice is answered twice."""


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as running:
        declared = ["--queue", "calls.", "--count", str(KEYS), "--bind", "amq.direct"]
        generator.answer("declare", port_of(running), declared, timeout_s=60)
        yield running


def port_of(broker: Broker) -> int:
    return int(broker.url.rsplit(":", 1)[1].split("/")[0])


def calls(port: int, *options: str) -> LoadResult:
    """By two callers and two connections of workers."""
    common = ["--publishers", "2", "--consumers", "2", "--keys", str(KEYS), "--window", "16", "--drain", "60"]
    return LoadResult(generator.answer("calls", port, [*common, *options], timeout_s=90))


def to_queues(port: int, *options: str) -> LoadResult:
    """To plain queues."""
    return calls(port, "--exchange", "amq.direct", "--key-prefix", "key.calls.", "--queue", "calls.", *options)


def faults(result: LoadResult) -> dict[str, Any]:
    return {name: result.raw[name] for name in FAULT_COUNTS if result.raw.get(name)}


@pytest.mark.parametrize("answers", [(), ("--reply-queues",)])
def test_calls_to_queues_are_answered_once(node: Broker, answers: tuple[str, ...]) -> None:
    result = to_queues(port_of(node), "--count", str(CALLS), *answers)
    assert (result.faults, result.raw["clean"]) == ([], True)
    assert result.raw["calls"] == result.raw["answered"] == result.raw["latency_us"]["count"] == 2 * CALLS


@pytest.mark.parametrize("name", MISCHIEF)
def test_a_fault_is_seen(node: Broker, name: str) -> None:
    of_answers, spoilt, seen = MISCHIEF[name]
    relay = Relay(port_of(node), at_one(of_answers, spoilt))
    patience = ("--drain", "2") if "lost" in seen else ()
    result = to_queues(relay.port, "--count", str(CALLS), *patience)
    relay.close()
    assert (faults(result), result.raw["clean"]) == (seen, False), result.raw
    assert ("no progress" in result.raw["error"]) is ("lost" in seen)
    assert result.raw["answered"] == 2 * CALLS - seen.get("lost", 0)


def test_calls_to_a_pool_for_a_second() -> None:
    with Broker(http=True) as node:
        declare(node, "fine")
        pool = ("--exchange", "fine", "--queue", "fine-req-k", "--warm", "0.1", "--seconds", "1")
        result = calls(port_of(node), *pool)
        assert (result.faults, result.raw["clean"], result.raw["refused"]) == ([], True, 0)
        assert result.raw["answered"] == result.raw["calls"] > KEYS
        declare(node, "full", max_length=1)
        one = ("--exchange", "full", "--queue", "full-req-k", "--keys", "1", "--prefetch", "1", "--count", str(CALLS))
        result = calls(port_of(node), *one)
    assert (faults(result), result.raw["clean"], result.raw["refusal"]) == ({}, False, "maxlen")
    assert result.raw["answered"] + result.raw["refused"] == result.raw["calls"] == 2 * CALLS


def declare(node: Broker, pool: str, **settings: Any) -> None:
    url = f"{node.http_url}/api/pools/%2F/{pool}"
    httpx.put(url, json=settings, auth=("guest", "guest"), timeout=30).raise_for_status()
