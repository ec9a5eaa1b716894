"""oslo.messaging with its rabbit driver: RPC calls and casts, fanout, notifications, as OpenStack uses them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.node import NodeProcess

cfg = pytest.importorskip("oslo_config.cfg", reason="oslo.messaging is not installed")
oslo_messaging = pytest.importorskip("oslo_messaging", reason="oslo.messaging is not installed")

Name = Callable[[str], str]


@pytest.fixture(params=[False, True], ids=["classic", "quorum"])
def conf(request: pytest.FixtureRequest) -> Iterator[Any]:
    oslo_messaging.set_transport_defaults("openstack-quorum" if request.param else "openstack-classic")
    conf = cfg.CONF
    conf([])
    rabbit = pytest.importorskip("oslo_messaging._drivers.impl_rabbit")
    conf.register_opts(rabbit.rabbit_opts, group="oslo_messaging_rabbit")
    conf.set_override("rabbit_quorum_queue", request.param, group="oslo_messaging_rabbit")
    conf.set_override("heartbeat_timeout_threshold", 3, group="oslo_messaging_rabbit")
    conf.set_override("kombu_reconnect_delay", 0.1, group="oslo_messaging_rabbit")
    yield conf
    conf.reset()


@pytest.fixture
def transport_url(node: NodeProcess) -> str:
    return node.url.replace("amqp://", "rabbit://")


class Endpoint:
    """What the server offers."""

    def __init__(self) -> None:
        self.cast_with: queue.Queue[Any] = queue.Queue()

    def add(self, context: dict[str, Any], x: int, y: int) -> int:
        return x + y

    def fail(self, context: dict[str, Any]) -> None:
        raise ValueError("as asked")

    def note(self, context: dict[str, Any], text: str) -> None:
        self.cast_with.put(text)


@pytest.fixture
def served(conf: Any, transport_url: str, name: Name) -> Iterator[tuple[Any, str, list[Endpoint]]]:
    """A transport, a topic, and two servers of it."""
    topic = name("oslo")
    endpoints = [Endpoint(), Endpoint()]
    servers = []
    for place, endpoint in enumerate(endpoints):
        transport = oslo_messaging.get_rpc_transport(conf, url=transport_url)
        target = oslo_messaging.Target(topic=topic, server=f"server{place}")
        server = oslo_messaging.get_rpc_server(transport, target, [endpoint], executor="threading")
        server.start()
        servers.append((server, transport))
    transport = oslo_messaging.get_rpc_transport(conf, url=transport_url)
    yield transport, topic, endpoints
    for server, own in servers:
        server.stop()
        server.wait()
        own.cleanup()
    transport.cleanup()


def test_rpc(served: tuple[Any, str, list[Endpoint]]) -> None:
    transport, topic, endpoints = served
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic=topic), timeout=10)
    assert [client.call({}, "add", x=n, y=1) for n in range(10)] == list(range(1, 11))
    with pytest.raises(ValueError, match="as asked"):
        client.call({}, "fail")
    client.cast({}, "note", text="to any")
    assert _first(endpoints) == "to any"
    client.prepare(server="server1").cast({}, "note", text="to one")
    assert endpoints[1].cast_with.get(timeout=10) == "to one"
    client.prepare(fanout=True).cast({}, "note", text="to all")
    assert [endpoint.cast_with.get(timeout=10) for endpoint in endpoints] == ["to all", "to all"]


def _first(endpoints: list[Endpoint]) -> Any:
    for _ in range(1000):
        for endpoint in endpoints:
            try:
                return endpoint.cast_with.get(timeout=0.01)
            except queue.Empty:
                pass
    raise TimeoutError("no server got the cast")


def test_notifications(conf: Any, transport_url: str, name: Name) -> None:
    topic = name("notifications")
    transport = oslo_messaging.get_notification_transport(conf, url=transport_url)
    heard: queue.Queue[tuple[str, Any]] = queue.Queue()
    times: list[str] = []

    class Listening:
        def info(self, context: Any, publisher: str, event: str, payload: Any, metadata: Any) -> Any:
            first = not times
            times.append(event)
            heard.put((event, payload))
            return oslo_messaging.NotificationResult.REQUEUE if first else oslo_messaging.NotificationResult.HANDLED

    listener = oslo_messaging.get_notification_listener(
        transport, [oslo_messaging.Target(topic=topic)], [Listening()], executor="threading", allow_requeue=True
    )
    listener.start()
    notifier = oslo_messaging.Notifier(transport, publisher_id="here", driver="messagingv2", topics=[topic])
    notifier.info({}, "compute.start", {"id": 1})
    for _ in range(2):  # it is requeued once
        assert heard.get(timeout=10) == ("compute.start", {"id": 1})
    listener.stop()
    listener.wait()
    transport.cleanup()
