"""A broker inside the process: blocking, asynchronous, restarted, and as a fixture."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker import Broker
from clusterbroker_workers import Pool

pytest_plugins = ["pytester"]


def count(url: str, queue: str = "q") -> int:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return int(connection.channel().queue_declare(queue, durable=True).method.message_count)
    finally:
        connection.close()


def publish(url: str, queue: str = "q") -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
    connection.close()


def test_with() -> None:
    before = threading.active_count()
    with Broker() as broker:
        assert broker.url == f"amqp://guest:guest@127.0.0.1:{broker.port}/"
        publish(broker.url)
        assert count(broker.url) == 1
    assert not broker.running
    assert threading.active_count() == before
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        count(broker.url)


async def test_async_with_on_the_running_loop() -> None:
    before = threading.active_count()
    async with Broker() as broker:
        assert await asyncio.to_thread(count, broker.url) == 0
    assert threading.active_count() <= before + 2, "asyncio's own threads, none of the broker's"


def managed(broker: Broker, path: str, verb: str = "GET", said: Any = None) -> Any:
    password = base64.b64encode(b"guest:guest").decode()
    body = None if said is None else json.dumps(said).encode()
    request = urllib.request.Request(
        broker.http_url + path,
        body,
        {"authorization": f"Basic {password}", "content-type": "application/json"},
        method=verb,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def refused(broker: Broker, path: str, said: Any) -> str:
    """Why, of a 400."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        managed(broker, path, "POST", said)
    assert caught.value.code == 400
    return str(json.load(caught.value)["reason"])


@pytest.mark.processes
def test_definitions_have_pools() -> None:
    rights = {"user": "guest", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    queues = [{"vhost": "shop", "name": "reports"}]
    vhost = {"vhosts": [{"name": "shop"}], "permissions": [rights], "queues": queues}
    core = {"vhost": "shop", "name": "core", "max": 4, "activity_bindings": [{"destination": "reports"}]}
    with Broker(http=True) as one, Broker(http=True) as two:
        managed(one, "/api/definitions", "POST", vhost | {"pools": [core]})
        document = managed(one, "/api/definitions")
        assert [(pool["name"], pool["max"]) for pool in document["pools"]] == [("core", 4)]
        assert [bound["destination"] for bound in document["pools"][0]["activity_bindings"]] == ["reports"]
        for new in (1, 0):
            trial = managed(two, "/api/definitions?dry_run=true", "POST", document)
            assert trial["obstacles"] == []
            assert (trial["pools"]["new"], trial["bindings"]["new"]) == (new, new)
            managed(two, "/api/definitions", "POST", document)
            assert managed(two, "/api/definitions")["pools"] == document["pools"]
        more = {"queues": [{"vhost": "shop", "name": "more"}]}
        why = refused(two, "/api/definitions", more | {"pools": [core | {"max": 5}]})
        assert why == "pool 'core' in vhost 'shop' has max 4, and not 5: change it with set"
        names = [queue["name"] for queue in managed(two, "/api/queues/shop")]
        assert "more" not in names, "what is known before refuses the whole"
        why = refused(two, "/api/definitions/shop", more | {"pools": [{"name": "other", "template": "nobody"}]})
        assert why.startswith("pool 'other' in vhost 'shop': no template 'nobody': known are noop")
        assert managed(two, "/api/queues/shop/more")["name"] == "more", "what only the node knows does not"


@pytest.mark.processes
def test_with_its_management_api(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        with Broker(directory, http=True) as broker:
            publish(broker.url)
            assert managed(broker, "/api/queues/%2F/q")["durable"]
            assert [row["name"] for row in managed(broker, "/api/nodes")] == ["embedded"]
            where = broker.http_url
        with pytest.raises(urllib.error.URLError):
            managed(broker, "/api/overview")
    with Broker(tmp_path, http=True, http_port=broker.http_port) as again:
        assert again.http_url == where
        assert managed(again, "/api/queues/%2F/q")["name"] == "q"


def test_without_a_management_api_nothing_of_it_is_imported() -> None:
    script = (
        "import sys\n"
        "from clusterbroker import Broker\n"
        "with Broker() as broker: pass\n"
        "rooms = ('http', 'stats.rows', 'server.control.service', 'server.management', 'management')\n"
        "found = ('fastapi', 'uvicorn', 'starlette', *(f'clusterbroker.broker.{room}' for room in rooms))\n"
        "print([name for name in found if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
    with Broker() as broker, pytest.raises(AssertionError, match="made without the management API"):
        broker.http_url  # noqa: B018


def test_two_at_once() -> None:
    with Broker() as one, Broker() as two:
        assert one.port != two.port
        publish(one.url)
        assert (count(one.url), count(two.url)) == (1, 0)


def test_in_memory_a_restart_is_a_new_broker_on_the_same_port() -> None:
    broker = Broker()
    for _ in range(2):
        broker.start()
        port = broker.port
        assert count(broker.url) == 0
        publish(broker.url)
        broker.stop()
        assert broker.port == port
    broker.stop()


def test_with_a_directory_a_restart_remembers(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for round_ in range(3):
        with broker:
            assert count(broker.url) == round_
            publish(broker.url)


def test_stop_does_not_wait_for_clients_that_do_not_listen() -> None:
    with Broker() as broker:
        idle = pika.BlockingConnection(pika.URLParameters(broker.url))
    with pytest.raises(pika.exceptions.AMQPError):
        idle.process_data_events(1)


def test_limits() -> None:
    with Broker(message_bytes_max=10) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.basic_publish("", "q", b"x" * 11)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="larger than configured max size 10"):
            channel.queue_declare("q")
        connection.close()


def test_trouble_on_request() -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        blocked: list[str] = []
        connection.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method.reason))
        connection.channel().basic_publish("", "q", b"x")
        broker.set_alarm("memory", True)
        while not blocked:
            connection.process_data_events(1)
        broker.set_alarm("memory", False)
        broker.close_connections("maintenance")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance"):
            while True:
                connection.process_data_events(1)


def test_a_port_that_is_taken() -> None:
    with Broker() as broker, pytest.raises(OSError, match="cannot listen"):
        Broker(port=broker.port).start()


def test_it_logs_as_a_library_does(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "clusterbroker"),
        Broker() as broker,
        pytest.raises(pika.exceptions.ProbableAuthenticationError),
    ):
        count(f"amqp://guest:wrong@127.0.0.1:{broker.port}/")
    assert any(message.startswith("client.refused") for message in caplog.messages)
    assert "wrong" not in caplog.text


def test_the_url_of_a_vhost() -> None:
    with Broker() as broker:
        assert broker.vhost_url("a/b").endswith("/a%2Fb")
    with pytest.raises(AssertionError, match="has not been started"):
        _ = Broker().url


@pytest.mark.processes
def test_the_fixtures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    pytester.makepyfile(
        """
        import sys
        import pika

        def declared(url):
            connection = pika.BlockingConnection(pika.URLParameters(url))
            channel = connection.channel()
            found = channel.queue_declare("q").method.message_count
            channel.basic_publish("", "q", b"x")
            connection.close()
            return found

        def test_nothing_is_imported_before_it_is_needed():
            assert "clusterbroker.broker.embedded" not in sys.modules
            assert "uvloop" not in sys.modules

        def test_fresh(clusterbroker):
            assert declared(clusterbroker.url) == 0

        def test_fresh_again(clusterbroker):
            assert declared(clusterbroker.url) == 0

        def test_shared(clusterbroker_session):
            assert declared(clusterbroker_session.url) == 0

        def test_shared_again(clusterbroker_session):
            assert declared(clusterbroker_session.url) == 1
        """
    )
    run(pytester).assert_outcomes(passed=5)


@pytest.mark.processes
def test_what_fixtures_are_made_with(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    pytester.makepyfile(
        """
        import pytest
        from clusterbroker_workers import Pool, Worker

        class Shout(Worker):
            def handle(self, request):
                return request.body.upper()

        def shouted(url, name):
            with Pool(url, name) as pool:
                return pool.call("42", b"asked", timeout_s=60).body

        @pytest.fixture(scope="session")
        def clusterbroker_options():
            return {"pools": {"core": Shout}, "name": "ours"}

        def test_options(clusterbroker):
            assert shouted(clusterbroker.url, "core") == b"ASKED"

        @pytest.mark.clusterbroker(pools={"other": Shout})
        def test_its_own_mark(clusterbroker):
            assert shouted(clusterbroker.url, "other") == b"ASKED"

        @pytest.mark.clusterbroker(name="nearest", heartbeat_s=3)
        class TestMarks:
            @pytest.mark.clusterbroker(heartbeat_s=7)
            def test_of_class_and_test(self, clusterbroker):
                assert clusterbroker._name == "nearest"
                assert clusterbroker._limits == {"heartbeat_s": 7}

        def test_of_the_session(clusterbroker_session):
            assert shouted(clusterbroker_session.url, "core") == b"ASKED"

        @pytest.mark.clusterbroker("core")
        def test_wrong(clusterbroker):
            pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*clusterbroker(...) takes keyword arguments of Broker, as pools=*"])


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    flags = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:benchmark"]
    if not any(entry.name == "clusterbroker" for entry in _plugins()):
        flags += ["-p", "clusterbroker.pytest_plugin"]
    return pytester.runpytest_subprocess("--strict-markers", *flags)


def _plugins() -> list[object]:
    from importlib.metadata import entry_points

    return list(entry_points(group="pytest11"))


def test_definitions_from_the_start(tmp_path: Path) -> None:
    document = {"queues": [{"vhost": "/", "name": "orders"}]}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))
    for given in (document, file, str(file)):
        with Broker(definitions=given) as broker:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            connection.channel().queue_declare("orders", passive=True)
            connection.close()
    with pytest.raises(ValueError, match=r"definitions: queues\[0\]"), Broker(definitions={"queues": [{}]}):
        pass


def test_a_limit_that_there_is_not() -> None:
    with pytest.raises(TypeError, match=r"no limit 'heartbeats': choose of .*heartbeat_s"):
        Broker(heartbeats=1)


def answer(url: str, queue: str, answered: threading.Event) -> None:
    """A worker that came by itself, for one request."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    while True:
        channel = connection.channel()
        try:
            channel.queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            continue  # the first request of its key makes it
        for method, properties, body in channel.consume(queue):
            about = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body.upper(), about)
            channel.basic_ack(method.delivery_tag)
            answered.set()
            connection.close()
            return


def test_worker_pools() -> None:
    with Broker(pools={"core": {"request_ttl_ms": 60_000}}) as broker, Pool(broker.url, "core") as pool:
        answered = threading.Event()
        worker = threading.Thread(target=answer, args=(broker.url, "core-req-42", answered))
        worker.start()
        assert pool.call("42", b"asked", timeout_s=30).body == b"ASKED"
        worker.join()
        assert answered.is_set()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"nothing": 1}, TypeError, "pool 'core' has no setting 'nothing'"),
        ({"min": 2, "max": 1}, ValueError, "pool 'core': min is 2 and max 1"),
    ],
)
def test_a_pool_that_cannot_be(settings: dict[str, int], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Broker(pools={"core": settings}).start()


def test_a_kept_pool_is_there_again(tmp_path: Path) -> None:
    for _ in range(2):
        with Broker(tmp_path, pools={"core": {"max_length": 5}}) as broker, Pool(broker.url, "core") as pool:
            pool.cast("42", b"waits")
    with pytest.raises(ValueError, match="has max_length 5, and not 6"):
        Broker(tmp_path, pools={"core": {"max_length": 6}}).start()
