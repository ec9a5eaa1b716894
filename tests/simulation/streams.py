"""Simulated readers of a stream: from where they stood, from the beginning, in parts, in chunks, up to an end.

A reader knows how far it has read without a gap (`next`) and goes on there when its connection ends. Its deliveries are
looked at when they are written (`checkers.reading`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.record import read_records
from tests.simulation.clients import Actor
from tests.simulation.sockets import Socket, properties_of
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World

REPLY_TO = "amq.rabbitmq.reply-to"
ANSWERS = "answers"


def messages_of(said: Content) -> list[tuple[int, bytes]]:
    """(offset, body) of what a delivery of a stream holds: one message, or a chunk."""
    headers = properties_of(said).headers or {}
    offset: Any = headers["x-stream-offset"]
    if "x-stream-count" not in headers:
        return [(offset, said.body)]
    found = [(seq - 1, message.body) for seq, message, _, _ in read_records(said.body)]
    assert len(found) == headers["x-stream-count"], "a chunk holds what it says"
    assert found[0][0] == offset, "a chunk begins where it says"
    return found


class StreamReader(Actor):
    """`at`: the offset that this consumer gets next, None if it began at the end; `end`: where it is over."""

    def __init__(self, world: World, name: str, queue: str) -> None:
        self.queue = queue
        self.next = 0
        self.at: int | None = 0
        self.end: int | None = None
        self.exact = False
        self.slow_s = world.schedule.rng.choice((0.002, 0.02, 0.3))
        self._consuming = False
        self._consumers = 0
        self._shown = 0
        self._doubted: list[Content] = []
        """Answers of a node that did not know yet how long its machine had stood still."""
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        if not self._consuming:
            return "its stream"
        last = self.world.checkers.last_offset(self.queue)
        return f"{self.next} to {last} of {self.queue}" if self.world.quiet and self.next <= last else ""

    def opened(self, socket: Socket) -> None:
        socket.say(m.BasicQos(prefetch_count=self.rng.choice((1, 5, 100))))
        if self.rng.random() < 0.4:
            socket.say(m.BasicConsume(queue=REPLY_TO, consumer_tag=ANSWERS, no_ack=True))
            self._shown = self.world.checkers.shown(self.queue)
            words = json.dumps({"queue": self.queue}).encode()
            socket.send(socket.content("amq.stream", "offsets", words, reply_to=REPLY_TO))
        self._consume(socket)

    def _consume(self, socket: Socket) -> None:
        """From where it stands, as a rule."""
        rng = self.rng
        odd = 0.0 if self.world.quiet else rng.random()
        begin: Any = self.next
        if 0.6 < odd <= 0.75:
            begin = "first"
        elif 0.75 < odd <= 0.9:
            begin = rng.randrange(self.next + 1)
        elif odd > 0.9:
            begin = "next"
        self.at = {"first": 0, "next": None}.get(begin, begin)
        self.end, self.exact = None, False
        words: dict[str, Any] = {"x-stream-offset": begin}
        if begin in (self.at, "first") and odd and rng.random() < 0.5:
            assert self.at is not None, "it begins somewhere"
            self.end = words["x-stream-end"] = self.at + rng.choice((0, 1, 7, 40))
        if begin == self.at and odd and rng.random() < 0.3:
            self.exact = words["x-stream-exact"] = True
        if rng.random() < 0.3:
            words["x-stream-chunks"] = True
        self._consumers += 1
        socket.say(m.BasicConsume(queue=self.queue, consumer_tag=f"c{self._consumers}", arguments=words))

    def ended(self) -> None:
        self._consuming = False

    def handed(self, socket: Socket, channel: int, said: Content) -> None:
        if said.method.consumer_tag == ANSWERS:
            if not socket.site.owes():
                self._doubted.append(said)
            return
        for offset, body in messages_of(said):
            self.world.checkers.read(self, offset, body)
            self.at = offset + 1

    def closed(self, said: Any) -> None:
        if isinstance(said, m.ChannelClose) and said.reply_code in (404, 406):
            self.world.checkers.ended_early(self, said.reply_text)

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.BasicConsumeOk) and said.consumer_tag != ANSWERS:
            self._consuming = True
        elif isinstance(said, m.BasicCancel) and self.socket is not None:
            self._consuming = False
            self.world.checkers.read_to_the_end(self)
            self.after(self.rng.random() * 0.5, self._again, self.socket)

    def _again(self, socket: Socket) -> None:
        if self.socket is socket:
            self._consume(socket)

    def content(self, said: Content) -> None:
        if said.method.consumer_tag == ANSWERS:
            told = json.loads(said.body)
            if any(said is doubted for doubted in self._doubted):
                self._doubted.clear()
            elif told["outcome"] == "offsets":
                self.world.checkers.offsets_told(self.queue, told["first"], told["next"], self._shown)
            return
        messages = messages_of(said)
        first, last = messages[0][0], messages[-1][0]
        if first <= self.next or self.world.checkers.is_gone(self.queue, self.next, first):
            self.next = max(self.next, last + 1)
        slow_s = 0.002 if self.world.quiet else self.slow_s
        self.after(self.rng.random() * slow_s, self._acknowledge, self.socket, said.method.delivery_tag)

    def _acknowledge(self, socket: Socket, tag: int) -> None:
        if self.socket is socket:
            socket.say(m.BasicAck(tag))
