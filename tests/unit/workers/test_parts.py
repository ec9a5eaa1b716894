"""Names, headers, variables and messages of the library, without a broker."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aio_pika.exceptions import ChannelInvalidStateError, DeliveryError
from pamqp.commands import Basic

from clusterbroker_workers import Fail, Pool, Retry, Unserved, WorkerFailed, names
from clusterbroker_workers import headers as h
from clusterbroker_workers.__main__ import find
from clusterbroker_workers.connecting import addresses
from clusterbroker_workers.environment import Environment, Misconfigured
from clusterbroker_workers.pool import _answer, _Line, _Lost, _question
from clusterbroker_workers.runner import Runner
from clusterbroker_workers.worker import Worker


def test_a_class_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text("ANSWER = 42\n")
    file = tmp_path / "of_a_file.py"
    file.write_text(
        "import beside_it\nfrom clusterbroker_workers import Worker\n"
        "class Core(Worker):\n    answer = beside_it.ANSWER\n"
    )
    assert find(f"{file}:Core").answer == 42  # type: ignore[attr-defined]
    with pytest.raises(Misconfigured, match=r"nothing\.py:Core' is not there"):
        find(f"{tmp_path}/nothing.py:Core")


def test_names() -> None:
    assert names.requests_queue("core", "42") == "core-req-42"
    assert names.requests_queue("a-req", "b") != names.requests_queue("a", "req-b"), "parts cannot meet"
    assert names.requests_queue("core", "infra=42,\u00e9") == "core-req-infra%3D42%2C%C3%A9"
    assert names.requests_queue("core", "a b") != names.requests_queue("core", "a%20b")
    assert names.requests_queue("core", "") == "core-req-"
    long = names.requests_queue("core", "%" * 100)
    assert long.startswith("core-req-~")
    assert len(long) == len("core-req-~") + 40
    assert len(names.requests_queue("core", "k" * 246)) == 255
    assert names.requests_queue("core", "k" * 247).startswith("core-req-~")


def test_headers_are_understood_whoever_wrote_them() -> None:
    for value in ("7", b"7", bytearray(b"7"), 7, 7.0, "7.0"):
        assert h.number({"n": value}, "n") == 7
    assert h.number({"n": 2**62}, "n") == 2**62
    for value in ("seven", "inf", "nan", None, b"\xff", "1e300", "-1e19", 2**63):
        assert h.number({"n": value}, "n") is None
    assert h.text({"s": b"ok"}, "s") == h.text({"s": "ok"}, "s") == "ok"
    assert h.text({}, "s") is None
    version, trace, span, flags = h.new_trace().split("-")
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")


def test_variables() -> None:
    found = Environment.read({"WORKER_POOL": "core", "WORKER_KEY": "42", "WORKER_AMQP_URIS": "amqp://a/, amqp://b/"})
    assert (found.requests_queue, found.activity_exchange) == ("core-req-42", "core-activity-xchg")
    assert found.urls == ("amqp://a/", "amqp://b/")
    assert (found.prefetch, found.grace_s) == (1, 30.0)
    assert found.id
    assert not found.replica
    for variables, line in (
        ({}, "WORKER_POOL is not set"),
        ({"WORKER_POOL": "p", "WORKER_PREFETCH": "0"}, "WORKER_PREFETCH is '0'"),
        ({"WORKER_POOL": "p", "WORKER_GRACE_S": "soon"}, "WORKER_GRACE_S is 'soon'"),
        ({"WORKER_POOL": "p", "WORKER_GRACE_S": "nan"}, "WORKER_GRACE_S is 'nan'"),
    ):
        with pytest.raises(Misconfigured, match=line):
            Environment.read(variables)
    with pytest.raises(ValueError, match="no address"):
        addresses(" , ")


def test_a_request_as_it_is_sent() -> None:
    question = _question("42", "\u00e9", 30.0, "/v2", {"mine": 1, "traceparent": "00-1-2-01"}, 2.5, "text/plain", 3)
    message = question.message("amq.rabbitmq.reply-to", 29.5, 2.5)
    assert message.body == "\u00e9".encode()
    assert (message.correlation_id, message.reply_to) == (question.correlation_id, "amq.rabbitmq.reply-to")
    assert (message.content_type, message.priority) == ("text/plain", 3)
    assert message.properties.expiration == "29500"
    assert message.properties.delivery_mode == 2
    assert {name: message.headers[name] for name in ("x-rpc-path", "x-delay", "mine", "traceparent")} == {
        "x-rpc-path": "/v2", "x-delay": 2_500, "mine": 1, "traceparent": "00-1-2-01",
    }  # fmt: skip
    assert abs(message.headers["x-deadline"] / 1_000 - time.time() - 32) < 5
    again = question.message(None, 1.0)
    assert again.message_id != message.message_id
    assert again.correlation_id == message.correlation_id


def test_words_of_the_broker_and_of_workers() -> None:
    class Message:
        def __init__(self, **headers: object) -> None:
            self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
            self.body, self.correlation_id = b"body", "1"

    assert _answer(Message(x_status=b"ok")).body == b"body"  # type: ignore[arg-type]
    assert _answer(Message()).body == b"body"  # type: ignore[arg-type]
    with pytest.raises(WorkerFailed, match="core_error"):
        _answer(Message(x_status=b"core_error"))  # type: ignore[arg-type]
    with pytest.raises(Unserved, match="maxlen"):
        _answer(Message(x_status="maxlen"))  # type: ignore[arg-type]
    with pytest.raises(Unserved, match="a-new-word"):
        _answer(Message(x_status="a-new-word", x_pool="core"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("CC", True), ("BCC", True), ("x-seq", True), ("x-death", True), ("x-death-older", True),
        ("x-first-death-queue", True), ("X-Last-Death-Reason", True), ("x-lost-1", True), ("x-last-return", True),
        ("ccNumber", False), ("bccs", False), ("x-sequence", False), ("x-producer-name", False),
        ("x-death-star", False),
    ],
)  # fmt: skip
def test_headers_of_one_publish_have_exact_names(name: str, gone: bool) -> None:
    assert h.is_of_one_publish(name) is gone


def delivered(**about: Any) -> Any:
    """A delivery, and what was said of it."""
    said: list[str] = []

    class Delivery(SimpleNamespace):
        async def ack(self) -> None:
            said.append("ack")

        async def reject(self, requeue: bool = False) -> None:
            said.append("requeue" if requeue else "reject")

    facts = {
        "correlation_id": "c", "reply_to": "r", "message_id": "m", "body": b"", "redelivered": False,
        "exchange": "core", "routing_key": "42",
        "content_type": None, "content_encoding": None, "priority": None, "expiration": None,
        "timestamp": None, "type": None, "app_id": None, "headers": {}, "said": said,
    }  # fmt: skip
    return Delivery(**{**facts, **about})


def made_runner(handle: Any) -> Runner:
    class Made(Worker):
        def handle(self, request: Any) -> Any:
            return handle(request)

    return Runner(Made(), Environment.read({"WORKER_POOL": "core", "WORKER_KEY": "42"}))


async def test_the_same_request_to_two_keys_is_computed_for_each() -> None:
    runner = made_runner(lambda request: request.key)
    assert (await runner._outcome(delivered(routing_key="42"))).body == b"42"  # type: ignore[union-attr]
    assert (await runner._outcome(delivered(routing_key="43"))).body == b"43"  # type: ignore[union-attr]
    again = delivered(routing_key="42", redelivered=True)
    assert (await runner._outcome(again)).body == b"42"  # type: ignore[union-attr]


async def test_a_request_whose_delay_is_not_taken_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker_workers.runner.REFUSED_S", 0.0)

    class Refusing:
        async def get_exchange(self, *_: Any, **__: Any) -> Any:
            return self

        async def publish(self, *_: Any, **__: Any) -> None:
            raise DeliveryError(None, Basic.Nack(1))

    def later(_: Any) -> None:
        raise Retry(1)

    message = delivered()
    await made_runner(later)._process(Refusing(), message)  # type: ignore[arg-type]
    assert message.said == ["requeue"]


async def test_a_delayed_call_begins_when_it_was_to_begin_however_late_it_is_published() -> None:
    published: list[tuple[str, Any]] = []

    class Line:
        async def publish(self, exchange: str, _: str, message: Any) -> None:
            published.append((exchange, message))

    pool, now_s = Pool("amqp://localhost:1/", "core"), asyncio.get_running_loop().time()
    question = _question("42", b"x", 1.0, None, None, 2.0, None, None)
    for begin_s in (now_s + 2.0, now_s + 0.5, now_s - 0.5):
        await pool._publish(Line(), question, "r", begin_s)  # type: ignore[arg-type]
    assert [exchange for exchange, _ in published] == ["core-delayed", "core-delayed", "core-req-xchg"]
    delays = [message.headers.get("x-delay", 0) for _, message in published]
    assert [round(delay / 100) for delay in delays] == [20, 5, 0]
    assert [round(message.expiration.total_seconds(), 1) for _, message in published] == [1.0, 1.0, 0.5]
    ends = [message.headers["x-deadline"] / 1_000 - time.time() for _, message in published]
    assert [round(end, 1) for end in ends] == [3.0, 1.5, 0.5]
    pool.close()


def test_mistakes_of_authors() -> None:
    with pytest.raises(ValueError, match="word of the broker"):
        Fail("text", status="expired")
    with pytest.raises(ValueError, match="positive"):
        Retry(0)
    with Pool("amqp://localhost:1/", "core") as pool:
        with pytest.raises(ValueError, match="timeout_s"):
            pool.call("42", timeout_s=0)
        with pytest.raises(ValueError, match="255 bytes"):
            pool.call("k" * 256)
        with pytest.raises(ValueError, match="at_once"):
            next(pool.map(["42"], at_once=0))
    with pytest.raises(RuntimeError, match="closed"):
        pool.call("42")
    pool.close()


async def test_a_pool_that_nobody_used_is_closed() -> None:
    async with Pool("amqp://localhost:1/", "core") as pool:
        await asyncio.sleep(0)
    assert pool.name == "core"


class Closing:
    """A connection, or a channel of it, that is being closed: aio-pika knows no better word for it."""

    is_closed = False

    def __init__(self) -> None:
        self.asked = 0

    async def get_exchange(self, name: str, ensure: bool) -> None:
        self.asked += 1
        raise ChannelInvalidStateError("writer is None")


async def test_one_of_several_with_one_id_says_which_it_is() -> None:
    """The broker has the one that holds a request leave last."""
    variables = {"WORKER_POOL": "core", "WORKER_ID": "w1-0"}
    alone, replica = (Environment.read(one) for one in (variables, {**variables, "WORKER_REPLICA": "pod-1"}))
    assert Runner(Worker(), alone)._dialler._properties == {"connection_name": "worker w1-0", "worker-id": "w1-0"}
    assert Runner(Worker(), replica)._dialler._properties == {
        "connection_name": "worker pod-1", "worker-id": "w1-0", "worker-replica": "pod-1",
    }  # fmt: skip


async def test_a_report_on_a_channel_that_is_being_closed_ends_nothing() -> None:
    runner = Runner(Worker(), Environment.read({"WORKER_POOL": "core"}))
    runner._activity = channel = Closing()  # type: ignore[assignment]
    await runner._report("draining")
    assert channel.asked == 1


async def test_a_call_on_a_channel_that_is_being_closed_is_lost() -> None:
    line = _Line(None)  # type: ignore[arg-type]
    line._channel = Closing()  # type: ignore[assignment]
    with pytest.raises(_Lost):
        await line.publish("core", "42", _question("42", b"", 1.0, None, None, 0.0, None, None).message(None, 1.0))


def test_the_key_of_a_queues_name() -> None:
    for key in ("", "42", "a b%", "\u00e9/"):
        assert names.key_of("my pool", names.requests_queue("my pool", key)) == key
    assert names.key_of("core", "core-orphan") is None
    assert names.key_of("core", names.requests_queue("core", "k" * 300)) is None
