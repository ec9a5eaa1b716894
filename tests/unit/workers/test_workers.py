"""Workers and callers of the library against a real broker: answers, statuses, deadlines, and processes that die."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.embedded import Broker
from clusterbroker_workers import CallTimeout, Pool, Unserved, Unsure, WorkerFailed

from .protocol import HandMade, WorkerProcess, until, worker

pytestmark = pytest.mark.processes


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def made(broker: Broker) -> Iterator[HandMade]:
    made = HandMade(broker.url, "core")
    yield made
    made.close()


@pytest.fixture
def pool(broker: Broker) -> Iterator[Pool]:
    with Pool(broker.url, "core") as pool:
        yield pool


def notes(directory: Path, name: str) -> list[str]:
    path = directory / name
    return path.read_text().split() if path.exists() else []


def test_call_and_answers(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path) as process:
        answer = pool.call("42", b"\x00\xff", path="echo")
        assert answer.body == b"\x00\xff"
        assert bytes(answer.headers["x-status"]) == b"ok"
        assert isinstance(answer.headers["x-status"], (bytes, bytearray)), "a byte array, as OSRD's clients demand"
        told = pool.call("42", path="describe").body.decode().split()
        assert told[:4] == ["42", "42", "0", "True"]
        assert told[4].count("-") == 3, "a traceparent"
        assert pool.call("42", path="describe", headers={"traceparent": "00-aa-bb-01"}).body.endswith(b" 00-aa-bb-01")
        for path, status, body in (
            ("fail", "worker_error", b"no such train"),
            ("own-status", "core_error", b"not here"),
            ("bug", "worker_error", b"ZeroDivisionError: of mine"),
            ("number", "worker_error", b"Sample.handle returned int: return bytes, str or None"),
        ):
            with pytest.raises(WorkerFailed) as failed:
                pool.call("42", path=path)
            assert (failed.value.status, failed.value.body) == (status, body)
        assert pool.call("42", path="retry").body == b"2", "two delays, and the caller's reply address lives on"
        pool.cast("42", b"0", path="long")
        until(lambda: notes(tmp_path, "ended"), "a request without an answer is done")
        process.term()
        assert process.exit() == 0, process.text
    events = made.events()
    assert events[:2] == ["started", "ready"]
    assert events.count("request-received") == 11, "two of them are retries"
    assert "progress" in events
    assert events[-1] == "draining"
    assert made.depth("core-req-42") == 0
    assert made.get("core-dl") is None


def test_a_retry_is_the_request_as_its_caller_sent_it(made: HandMade, tmp_path: Path) -> None:
    """All properties go along. The time to live is what the deadline leaves then; without a deadline, the caller's."""
    made.group("42")
    made.channel.queue_declare("spy", durable=True)
    made.channel.queue_bind("spy", "core-delayed")
    came: list[Any] = []
    made.channel.basic_consume(
        "spy", lambda _channel, _method, properties, _body: came.append(properties), auto_ack=True
    )
    sent = {
        "content_type": "text/plain", "content_encoding": "identity", "priority": 3, "correlation_id": "c-1",
        "reply_to": "answers", "message_id": "m-1", "timestamp": 1_700_000_000, "type": "ask", "app_id": "mine",
    }  # fmt: skip

    def publish(expiration_ms: int, **headers: object) -> None:
        properties = made.properties({"x-rpc-path": "retry", "x-attempt": 1, **headers})
        for name, value in {**sent, "expiration": str(expiration_ms)}.items():
            setattr(properties, name, value)
        made.channel.basic_publish("core-req-xchg", "42", b"body", properties)

    made.channel.queue_declare("answers", durable=True)
    with worker(made, "42", "Sample", tmp_path):
        publishes = {"x-producer": "p", "x-seq": 1, "x-delay-key": "k", "CC": ["43"], "x-delivery-count": 2}
        for headers, least_ms, most_ms in (
            (publishes, 60_000, 60_000),
            ({"x-deadline": round((time.time() + 60) * 1_000)}, 40_000, 59_700),
        ):
            publish(60_000, **headers)
            until(lambda: made.channel.connection.process_data_events(0.01) or came, "the request comes back")
            properties = came.pop()
            assert {name: getattr(properties, name) for name in sent} == sent
            assert (properties.headers["x-attempt"], properties.headers["x-delay"]) == (2, -300)
            assert publishes.keys().isdisjoint(properties.headers)
            assert least_ms <= int(properties.expiration) <= most_ms
        until(lambda: made.depth("answers") == 2, "both are answered behind their delay")
        for _ in range(10):  # a request that came too late for its deadline is not begun
            publish(60_000, **{"x-rpc-path": "later", "x-deadline": round((time.time() + 3) * 1_000)})
            end_s = time.monotonic() + 6
            while not came and time.monotonic() < end_s:
                made.channel.connection.process_data_events(0.05)
            if came:
                break
        assert came, "a delay that ends with the deadline"
        assert -3_000 <= came[0].headers["x-delay"] < 0
        assert came[0].expiration == "0"


def test_answers_that_are_the_brokers(made: HandMade, broker: Broker, pool: Pool, tmp_path: Path) -> None:
    """Nobody serves: timeout; the words of the broker, as a dead letter responder says them; a full queue; no pool."""
    made.group("1", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    begin_s = time.monotonic()
    with pytest.raises(CallTimeout):
        pool.call("1", timeout_s=0.3)
    assert time.monotonic() - begin_s < 10
    message = until(lambda: made.get("core-dl"), "the request expires with its caller's patience")
    assert message[0].expiration is None, "removed by dead lettering"
    pool.cast("1")
    with pytest.raises(Unserved, match="refused"):
        pool.cast("1")
    with Pool(broker.url, "nowhere") as other, pytest.raises(Unserved) as unserved:
        other.call("1")
    assert unserved.value.reason == "no_pool"

    made.group("2")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(pool.call, "2")
        properties, _ = until(lambda: made.get("core-req-2"), "the request")
        answer = type(properties)(
            correlation_id=properties.correlation_id,
            headers={"x-status": b"start_failed", "x-pool": "core", "x-detail": "exit status 70"},
        )
        made.channel.basic_publish("", properties.reply_to, b"", answer)
        made.channel.basic_publish("", properties.reply_to, b"late", answer)
        with pytest.raises(Unserved, match=r"start_failed \(exit status 70\)"):
            call.result(30)
        assert properties.delivery_mode == 2
        assert properties.headers["x-deadline"] > time.time() * 1_000


def test_busy_counts_until_the_delivery_limit(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("7", **{"x-queue-type": "quorum", "x-delivery-limit": 3})
    with worker(made, "7", "Sample", tmp_path):
        with pytest.raises(CallTimeout):
            pool.call("7", path="busy", timeout_s=3)
        until(lambda: made.get("core-dl"), "the request is a dead letter")
        assert len(notes(tmp_path, "busy")) == 4
        assert pool.call("7", b"next").body == b"next"


def test_a_worker_that_is_killed_amid_a_request_gives_it_back(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path) as first, ThreadPoolExecutor(1) as threads:
        call = threads.submit(pool.call, "42", path="once")
        until(lambda: notes(tmp_path, "began"), "the request has begun")
        first.kill()
        with worker(made, "42", "Sample", tmp_path):
            assert call.result(60).body == b"second"
    assert len(notes(tmp_path, "began")) == 2


def test_term_finishes_what_is_at_work(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path) as process, ThreadPoolExecutor(2) as threads:
        call = threads.submit(pool.call, "42", b"2", path="long")
        until(lambda: notes(tmp_path, "began"), "the request has begun")
        process.term()
        until(lambda: not made.consumers("core-req-42"), "the worker takes no more")
        waiting = threads.submit(pool.call, "42", b"later")
        assert call.result(60).body == b"done"
        assert process.exit() == 0, process.text
        with worker(made, "42", "Sample", tmp_path):
            assert waiting.result(60).body == b"later", "left for the next worker"


def test_term_beyond_its_grace_gives_the_request_back(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path, WORKER_GRACE_S="0.2") as process:
        pool.cast("42", b"600", path="long")
        until(lambda: notes(tmp_path, "began"), "the request has begun")
        process.term()
        assert process.exit() == 1, process.text
    until(lambda: made.depth("core-req-42") == 1, "the request is back")


def test_heartbeats_go_on_under_a_long_handler(tmp_path: Path) -> None:
    """A blocking handler of many heartbeats' length: the broker would cut a silent connection after two."""
    with Broker(heartbeat_s=1) as broker:
        made = HandMade(f"{broker.url}?heartbeat=0", "core")
        made.group("42")
        with (
            worker(made, "42", "Sample", tmp_path, url=f"{broker.url}?heartbeat=1") as process,
            Pool(broker.url, "core") as pool,
        ):
            assert pool.call("42", b"6", path="long").body == b"done"
            assert "connection lost" not in process.text
        assert len(notes(tmp_path, "began")) == 1
        made.close()


def test_a_worker_outlives_its_broker(tmp_path: Path) -> None:
    """What was computed while the broker was away is answered under the delivery that comes again, and not twice."""
    with Broker(tmp_path / "data") as broker:
        made = HandMade(broker.url, "core")
        made.group("42")
        with worker(made, "42", "Sample", tmp_path) as process, Pool(broker.url, "core") as pool:
            errors: list[BaseException] = []

            def ask() -> None:
                try:
                    pool.call("42", b"2", path="long")
                except Unsure as error:
                    errors.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: notes(tmp_path, "began"), "the request has begun")
            made.close()
            broker.stop()
            thread.join(30)
            assert len(errors) == 1, "the caller cannot know"
            broker.start()
            made = HandMade(broker.url, "core")
            until(lambda: made.consumers("core-req-42"), "the worker is back")
            until(lambda: notes(tmp_path, "ended"), "the handler ends")
            assert pool.call("42", b"again", path="echo").body == b"again"
            until(lambda: made.depth("core-req-42") == 0, "all are settled")
            process.term()
            assert process.exit() == 0, process.text
        assert len(notes(tmp_path, "began")) == 1, "computed once"
        assert len(notes(tmp_path, "loaded")) == 1
        made.close()


def test_an_idempotent_call_is_repeated(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        made = HandMade(broker.url, "core")
        made.group("42")
        with Pool(broker.url, "core") as pool, ThreadPoolExecutor(1) as threads:
            call = threads.submit(pool.call, "42", b"x", path="echo", idempotent=True)
            until(lambda: made.depth("core-req-42"), "the request waits")
            made.close()
            broker.stop()
            broker.start()
            made = HandMade(broker.url, "core")
            with worker(made, "42", "Sample", tmp_path):
                assert call.result(60).body == b"x"
        made.close()


async def test_many_at_once(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    for key in ("a", "b", "c"):
        made.group(key)
    with (
        worker(made, "a", "Async", tmp_path, WORKER_PREFETCH="8"),
        worker(made, "b", "Async", tmp_path),
        worker(made, "c", "Async", tmp_path),
    ):
        keys = ["a", "b", "c"] * 10
        got = await asyncio.to_thread(lambda: [each.body.decode() for each in pool.map(keys, b"0", at_once=7)])
        assert got == keys, "answers in the order of the keys, each by a worker of its key"
        answers = await asyncio.gather(*(pool.call_async("a", b"0.5") for _ in range(8)))
        assert [each.body for each in answers] == [b"a"] * 8
        call = asyncio.create_task(pool.call_async("b", b"30"))
        await asyncio.to_thread(until, lambda: len(notes(tmp_path, "began")) == 39, "the call has begun")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


def test_what_nobody_waits_for_is_not_begun(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    made.channel.basic_publish(
        "core-req-xchg",
        "42",
        b"0",
        made.properties({"x-deadline": round(time.time() * 1_000) - 1, "x-rpc-path": "long"}, reply_to="late"),
    )
    made.channel.queue_declare("late")
    with worker(made, "42", "Sample", tmp_path) as process:
        assert pool.call("42", b"x").body == b"x"
        process.term()
        assert process.exit() == 0, process.text
    assert notes(tmp_path, "began") == []
    assert made.depth("core-req-42") == 0
    assert made.channel.basic_get("late", auto_ack=True)[1].headers["x-status"] == b"expired"


def test_a_delayed_call(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path):
        begin_s = time.monotonic()
        assert pool.call("42", b"x", path="echo", after_s=1.0, timeout_s=30).body == b"x"
        assert time.monotonic() - begin_s >= 0.9


def test_a_worker_that_cannot_load(made: HandMade, tmp_path: Path) -> None:
    made.group("42")
    process = WorkerProcess(made, "42", "tests.unit.workers.sample:Unloadable", tmp_path)
    assert process.exit() == 70
    assert "infrastructure 42" in process.text
    assert made.consumers("core-req-42") == 0
    assert made.events() == ["started"]


def test_term_ends_a_load(made: HandMade, tmp_path: Path) -> None:
    made.group("42")
    process = WorkerProcess(made, "42", "tests.unit.workers.sample:Slow", tmp_path)
    until(lambda: notes(tmp_path, "loading"), "it is loading")
    process.term()
    assert process.exit() == 0, process.text


@pytest.mark.parametrize(
    ("worker_name", "variables", "line"),
    [
        ("nonsense", {}, "'nonsense' names no worker: give module:Class"),
        ("tests.unit.workers.sample:Nothing", {}, "'tests.unit.workers.sample:Nothing' is not there"),
        ("tests.unit.workers.sample:note", {}, "is no worker: derive it from clusterbroker_workers.Worker"),
        ("tests.unit.workers.sample:Sample", {"WORKER_PREFETCH": "none"}, "WORKER_PREFETCH is 'none': give a number"),
    ],
)
def test_mistakes_are_told_in_one_line(
    made: HandMade, tmp_path: Path, worker_name: str, variables: dict[str, str], line: str
) -> None:
    process = WorkerProcess(made, "42", worker_name, tmp_path, **variables)
    assert process.exit() == 64
    assert line in process.text
    assert process.text.count("\n") == 1


def test_a_worker_whose_user_is_refused(made: HandMade, broker: Broker, tmp_path: Path) -> None:
    url = broker.url.replace("guest:guest", "worker:revoked")
    process = WorkerProcess(made, "42", "tests.unit.workers.sample:Sample", tmp_path, url=url)
    assert process.exit() == 77
    assert "refuses worker w1-42" in process.text


def test_a_group_that_is_dropped_ends_its_worker(made: HandMade, pool: Pool, tmp_path: Path) -> None:
    made.group("42")
    with worker(made, "42", "Sample", tmp_path) as process:
        made.channel.queue_delete("core-req-42")
        assert process.exit() == 0, process.text
