"""A worker pool for each test, declared over the management API and deleted at its end; nodes that start workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from clusterbroker.cluster.wiring.pool_names import PoolNames

from ..channel import Channel
from ..conftest import Connect
from ..on_nodes import BOTH
from ..target import Target
from ..wire import Method, eventually
from .started import StartedNodes

Name = Callable[[str], str]
_numbers = itertools.count(1)


@dataclass
class PoolOfTest:
    """A pool, a channel with confirms of a caller, and connections for workers."""

    target: Target
    connect: Connect
    channel: Channel
    name: str
    names: PoolNames = field(init=False)

    def __post_init__(self) -> None:
        self.names = PoolNames(self.name)
        self.channel.confirm_select()
        self._answers = ""
        self._published = 0

    @property
    def path(self) -> str:
        return f"pools/%2F/{quote(self.name, safe='')}"

    def document(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.target.api("GET", self.path).raise_for_status().json()
        return answer

    def set(self, **settings: Any) -> None:
        self.target.api("POST", f"{self.path}/set", settings).raise_for_status()

    def act(self, action: str) -> None:
        self.target.api("POST", f"{self.path}/{action}", {}).raise_for_status()

    def groups(self) -> dict[str, dict[str, Any]]:
        """As the map has them: by key."""
        rows = self.target.api("GET", f"{self.path}/groups").raise_for_status().json()
        return {row["key"]: row for row in rows}

    def call(self, key: str | bytes, body: bytes = b"x", exchange: str | None = None, **more: Any) -> None:
        """Publishes a request, and waits for its confirm."""
        assert self.confirmed(key, body, exchange, **more) == "ack"

    def confirmed(self, key: str | bytes, body: bytes = b"x", exchange: str | None = None, **more: Any) -> str:
        """Publishes a request: `ack` or `nack`."""
        self.channel.basic_publish(self.names.exchange if exchange is None else exchange, key, body, **more)
        self._published += 1
        return self.channel.confirms(self._published)[-1]

    def answering(self) -> str:
        """A queue for answers, which the caller's channel consumes."""
        if not self._answers:
            self._answers = str(self.channel.queue_declare("", exclusive=True).queue)
            self.channel.consume(self._answers, no_ack=True)
        return self._answers

    def answer(self, timeout_s: float = 10.0) -> Method:
        return self.channel.delivery(timeout_s)

    def worker(self, key: str, prefetch: int = 0, **options: Any) -> Channel:
        """A worker that came by itself, perhaps at another node."""
        channel: Channel = self.connect(**options).channel()
        if prefetch:
            channel.basic_qos(prefetch_count=prefetch)
        channel.consume(self.names.request_queue(key))
        return channel

    def has_group(self, key: str) -> None:
        eventually(lambda: key in self.groups())


def status(answer: Method) -> Any:
    return answer.headers["x-status"]


@pytest.fixture
def declare(target: Target, connect: Connect, name: Name) -> Iterator[Callable[..., PoolOfTest]]:
    """`declare(**settings)`; `called`: its name, a fresh one without."""
    made: list[PoolOfTest] = []

    def one(called: str = "", **settings: Any) -> PoolOfTest:
        pool = PoolOfTest(target, connect, connect().channel(), called or name("p").replace("-", ""))
        # one of this name may be on its way out
        eventually(lambda: target.api("PUT", pool.path, settings).is_success)
        made.append(pool)
        return pool

    yield one
    for pool in made:
        target.api("DELETE", f"{pool.path}?force=true")


@pytest.fixture
def pool(declare: Callable[..., PoolOfTest]) -> PoolOfTest:
    return declare()


@pytest.fixture(scope="session", **BOTH)
def nodes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[StartedNodes]:
    """All run when a test begins, and when it ends."""
    made = StartedNodes(tmp_path_factory.mktemp("nodes"), *request.param)
    try:
        made.start()
        made.begin_hopeless()
        yield made
    finally:
        made.close()


@pytest.fixture
def pool_name(nodes: StartedNodes) -> Iterator[str]:
    """Of a pool that the test may declare; no other test has it."""
    called = f"p{next(_numbers)}"
    yield called
    nodes.fails.unlink(missing_ok=True)
    nodes.api("DELETE", f"pools/%2F/{called}?force=true")
