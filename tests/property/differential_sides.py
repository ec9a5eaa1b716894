"""The two brokers of a differential run, one node and three, and what their clients hear, made comparable."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World
from tests.unit.broker.node.node_cluster import Cluster

CLIENTS: Final = 3
SETTLE_MS: Final = 100
"""After each step, so that what crosses between nodes has arrived."""

Letter = tuple[bytes, str]
"""A content that is compared without its place: body, and what its headers say."""


class Difference(AssertionError):
    """A client of the cluster hears something else than the same client of one node."""


class Heard:
    """What one client heard in one step. `answers`: methods in their order; `contents`: deliveries and got messages in
    theirs; `acked` and `nacked` are what this step settled of its publishes."""

    def __init__(self, said: list[Any]) -> None:
        self.answers: list[Any] = []
        self.contents: list[Content] = []
        self.confirms: list[Any] = []
        for one in said:
            if isinstance(one, Content):
                self.contents.append(one)
            elif isinstance(one, m.BasicAck | m.BasicNack):
                self.confirms.append(one)
            else:
                self.answers.append(one)

    @property
    def channel_closed(self) -> bool:
        return any(isinstance(answer, m.ChannelClose) for answer in self.answers)

    @property
    def connection_closed(self) -> bool:
        return any(isinstance(answer, m.ConnectionClose) for answer in self.answers)


class Side:
    """One broker with its clients."""

    def __init__(self, places: list[str], three: bool) -> None:
        self.places = places
        self.cluster = Cluster("a", "b", "c") if three else None
        self.world = None if three else World()
        self.clients: list[Client] = [self._client(number) for number in range(CLIENTS)]
        self.settled: list[dict[int, bool]] = [{} for _ in range(CLIENTS)]  # publish number -> confirmed or refused

    def _client(self, number: int) -> Client:
        if self.cluster is not None:
            return self.cluster[self.places[number]].client()
        assert self.world is not None
        return self.world.client()

    def wait(self, time_ms: int) -> None:
        broker = self.cluster or self.world
        assert broker is not None
        broker.wait(time_ms)

    def begin(self, number: int, mode: str) -> None:
        """A new channel has its mode."""
        self.settled[number] = {}
        if mode == "confirm":
            self.clients[number].ask(m.ConfirmSelect())
        elif mode == "tx":
            self.clients[number].ask(m.TxSelect())

    def renew(self, number: int, gone: bool = False) -> None:
        """The client leaves, unless it is gone with its node, and another one comes in its place."""
        if not gone:
            self.clients[number].leave()
        self.clients[number] = self._client(number)

    def hear(self, number: int, said: list[Any]) -> Heard:
        """All that the client heard in this step: `said` came at once, the rest since."""
        client = self.clients[number]
        heard = Heard([*said, *client.hear(1), *client.hear(0)])
        settled = self.settled[number]
        for confirm in heard.confirms:
            lowest = 1 if confirm.multiple else confirm.delivery_tag
            for publish in range(lowest, confirm.delivery_tag + 1):
                settled.setdefault(publish, isinstance(confirm, m.BasicAck))
        return heard

    def drain(self, queue: str) -> Counter[Letter]:
        """Takes all that is ready in the queue."""
        client = self._client(0)
        letters: Counter[Letter] = Counter()
        while True:
            said = client.say(m.BasicGet(queue=queue, no_ack=True))
            for _ in range(20):
                if said:
                    break
                self.wait(SETTLE_MS)
                said = client.hear(1)
            if not isinstance(said[0], Content):
                return letters
            letters[said[0].body, headers(said[0], faults=True)] += 1


def headers(content: Content, faults: bool) -> str:
    """What a content's headers say, without the time of its deaths, and with faults without `x-acquired-count`."""
    table: dict[str, Any] = dict(content.properties.headers or {})
    if faults:
        table.pop("x-acquired-count", None)
    deaths = table.get("x-death")
    if isinstance(deaths, list):
        table["x-death"] = [{key: value for key, value in death.items() if key != "time"} for death in deaths]
    return repr(sorted(table.items()))


def _story(content: Content, faults: bool) -> tuple[Any, ...]:
    """A content without its flag."""
    method = content.method
    return (
        type(method).__name__,
        getattr(method, "delivery_tag", None),
        method.routing_key,
        getattr(method, "message_count", None),
        content.body,
        headers(content, faults),
        content.properties.expiration,
    )


def compare(number: int, one: Heard, three: Heard, faults: bool) -> None:
    """A step of one client, at both."""
    told = f"client {number}:"
    if one.answers != three.answers:
        raise Difference(f"{told}\n one   {one.answers}\n three {three.answers}")
    if any(isinstance(said, m.ConnectionClose) and said.reply_code == 541 for said in one.answers):
        return  # a refused commit: what else comes before the end is not compared
    stories = [[_story(content, faults) for content in heard.contents] for heard in (one, three)]
    if stories[0] != stories[1]:
        raise Difference(f"{told}\n one   {stories[0]}\n three {stories[1]}")
    for here, there in zip(one.contents, three.contents, strict=True):
        flags = [getattr(content.method, "redelivered", False) for content in (here, there)]
        if flags[0] != flags[1] and not (faults and flags[1]):
            raise Difference(f"{told} {here.body!r} is flagged {flags[0]} by one node and {flags[1]} by three")
