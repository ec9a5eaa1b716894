"""Fixtures of the conformance suite.

CONFORMANCE_URL unset        every test runs twice: against our node, and against a cluster of three, whose nodes the
                             connections take in turn (but for ONE_NODE, what a connection and its node do alone)
CONFORMANCE_CLUSTER=1        our node alone
CONFORMANCE_CLUSTER=3        the cluster alone
CONFORMANCE_CLUSTER=a|b|c    the cluster, with all connections to that node
CONFORMANCE_URL=rabbitmq     a private RabbitMQ is started as the oracle
CONFORMANCE_URL=amqp://...   that broker; with CONFORMANCE_ORACLE=DIR it is the oracle that
                             `python -m tests.conformance.oracle DIR` started. What else there is of it:
CONFORMANCE_HTTP=http://...  its management API
CONFORMANCE_AMQPS=HOST:PORT  where it speaks AMQP inside TLS, and CONFORMANCE_AUTHORITY=DIR its certificates
                             (tests.authority): clients may show one (EXTERNAL), and need not
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import on_nodes
from .cluster_target import ClusterTarget
from .oracle import Oracle, installed
from .target import PASSWORD, Clusterbroker, HookMissing, RabbitMQ, Target
from .wire import Channel, Connection

Connect = Callable[..., Connection]
RUN = f"{os.getpid():x}{time.time_ns() // 1_000_000 % 1_000_000:x}"
_numbers = itertools.count(1)
ONE_NODE = ("test_bad_input.py", "test_handshake.py", "test_liveness.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rule(*ids): the rules of rules.txt that the test asserts")
    config.addinivalue_line(
        "markers", "differs_from_rabbitmq_3_10(why, hangs): what the oracle, an older RabbitMQ, does differently"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    oracle = os.environ.get("CONFORMANCE_URL") == "rabbitmq" or bool(os.environ.get("CONFORMANCE_ORACLE"))
    if not os.environ.get("CONFORMANCE_URL") and not os.environ.get("CONFORMANCE_CLUSTER"):
        items[:] = [item for item in items if item.path.name not in ONE_NODE or "[cluster" not in item.name]
    for item in items:
        mark = item.get_closest_marker("differs_from_rabbitmq_3_10")
        if mark is None or not oracle:
            continue
        why = f"RabbitMQ 3.10: {mark.args[0]}"
        if mark.kwargs.get("hangs"):
            item.add_marker(pytest.mark.skip(reason=why))
        else:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Judges also whether a rule was asserted on as many nodes as its test says."""
    try:
        result = yield
    except HookMissing as missing:
        if on_nodes.demands(item):
            raise
        pytest.skip(f"the target lacks a hook: {missing}")
    except pytest.skip.Exception as skipped:
        if on_nodes.demands(item):
            raise AssertionError(
                f"a rule that is asserted on one node and on three is not skipped: {skipped}"
            ) from None
        raise
    on_nodes.check(item)
    return result


def _targets() -> list[str]:
    if os.environ.get("CONFORMANCE_URL"):
        return ["url"]
    chosen = os.environ.get("CONFORMANCE_CLUSTER", "")
    if chosen not in ("", "1", "3", "a", "b", "c"):
        raise pytest.UsageError(f"CONFORMANCE_CLUSTER is {chosen!r}; it may be 1, 3, a, b or c")
    if not chosen:
        return ["node", "cluster"]
    return ["node" if chosen == "1" else "cluster" if chosen == "3" else f"node {chosen} of three"]


def _other(url: str) -> Target:
    """Any broker."""
    tls, authority = os.environ.get("CONFORMANCE_AMQPS", ""), os.environ.get("CONFORMANCE_AUTHORITY")
    http = os.environ.get("CONFORMANCE_HTTP", "").rstrip("/")
    return Target(url, http=http, tls=tls.split(), authority=Path(authority) if authority else None)


@pytest.fixture(scope="session", params=_targets())
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    url = os.environ.get("CONFORMANCE_URL", "")
    broker: Target | Clusterbroker
    if url == "rabbitmq":
        if not installed():
            pytest.skip("RabbitMQ is not installed here")
        oracle = Oracle(tmp_path_factory.mktemp("oracle"))
        oracle.start()
        yield RabbitMQ(oracle)
        oracle.stop()
        return
    if url:
        directory = os.environ.get("CONFORMANCE_ORACLE")
        broker = RabbitMQ(Oracle(Path(directory))) if directory else _other(url)
        yield broker
        return
    if request.param == "node":
        broker = Clusterbroker(tmp_path_factory.mktemp("node"))
    else:
        only = "" if request.param == "cluster" else request.param.split()[1]
        broker = ClusterTarget(tmp_path_factory.mktemp("cluster"), only)
    yield broker
    broker.stop()
    assert "Traceback" not in broker.node_log(), broker.node_log()[-4000:]


@pytest.fixture(scope="session")
def _provision_outcome(target: Target) -> str:
    try:
        target.provision()
    except HookMissing as missing:
        return str(missing)
    return ""


@pytest.fixture
def provisioned(target: Target, _provision_outcome: str) -> Target:
    """The target with its users, vhosts and policies (see target.py)."""
    if _provision_outcome:
        pytest.skip(f"the target lacks a hook: {_provision_outcome}")
    return target


@pytest.fixture
def connect(target: Target) -> Iterator[Connect]:
    """Open connections that the test's end closes."""
    opened: list[Connection] = []

    def open_one(**options: object) -> Connection:
        connection = Connection(target.address, **options)  # type: ignore[arg-type]
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.abandon()


@pytest.fixture
def connect_as(provisioned: Target, connect: Connect) -> Connect:
    """Open a connection as one of the users of target.py."""

    def open_as(user: str, **options: object) -> Connection:
        return connect(user=user, password=PASSWORD, **options)

    return open_as


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def name(target: Target) -> Iterator[Callable[[str], str]]:
    """`name("q")` is a fresh name; queues and exchanges so named are deleted when the test ends."""
    given: list[str] = []

    def fresh(stem: str = "q") -> str:
        given.append(f"{stem}-{RUN}-{next(_numbers)}")
        return given[-1]

    yield fresh
    if given:
        connection = Connection(target.address)
        channel = connection.channel()
        for one in given:
            for method in ("queue.delete", "exchange.delete"):
                channel.send(method, **{method.split(".")[0]: one})
                if not channel.answered():  # an exclusive queue of a connection that is still closing
                    channel = connection.channel()
        connection.close()


@pytest.fixture
def queue(channel: Channel, name: Callable[[str], str]) -> str:
    """A durable queue."""
    queue = name("q")
    channel.queue_declare(queue, durable=True)
    return queue
