"""A worker that serves several keys, over real AMQP frames: it asks for its keys, loads each, and gives each back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Content

from .agents import ANSWERS, REPLY_TO, Process, Request

if TYPE_CHECKING:
    from clusterbroker.broker.foreman.spec import WorkerSpec

    from .places import SimDriver
    from .world import World

ASKING: Final = 1
LOAD_MS: Final = (0, 1_000)
UNLOAD_MS: Final = (0, 1_500)
"""So late it takes note that a key was given back."""
FAILS: Final = 0.05
"""Chance that a key cannot be loaded."""


class _Key:
    """One key, on a channel of its own."""

    def __init__(self, channel: int, queue: str, since: int, due_ms: int) -> None:
        self.channel = channel
        self.queue = queue
        self.since = since
        self.due_ms: int | None = due_ms
        """It is loaded then; None: it is."""
        self.over_ms: int | None = None
        """It is given back then, or as soon as it holds nothing."""
        self.held: dict[int, Request] = {}
        self.work: dict[int, int] = {}
        self.answers: dict[int, int] = {}
        self.published = 0


class SeveralProcess(Process):
    """See the module. `keys` are those that it is to serve, as far as it has taken note."""

    def __init__(self, world: World, driver: SimDriver, spec: WorkerSpec, start_ms: int, **temper: Any) -> None:
        super().__init__(world, driver, spec, start_ms, **temper)
        self.keys: dict[str, _Key] = {}
        self._told: dict[str, tuple[str, int]] = {}
        self._channel = ASKING

    def first(self) -> list[Any]:
        self.keys = {}
        self._told = {}
        self._channel = ASKING
        return [m.BasicConsume(queue=REPLY_TO, consumer_tag="keys", no_ack=True)]

    def _ask(self) -> None:
        assert self.socket is not None, "it asks over its connection"
        body = json.dumps({"known": {key: since for key, (_, since) in self._told.items()}}).encode()
        self.socket.raw(self.socket.content("amq.worker", "key", body, reply_to=REPLY_TO))

    def poll(self) -> None:
        super().poll()
        if self.alive and self.socket is not None:
            for key, one in list(self.keys.items()):
                self._advance(key, one)
                if not self.alive or self.socket is None:
                    return

    def _advance(self, key: str, one: _Key) -> None:
        now_ms, socket = self.world.now_ms, self.socket
        assert socket is not None, "it works while it is connected"
        for tag in [tag for tag, due_ms in one.work.items() if due_ms <= now_ms]:
            del one.work[tag]
            if one.held[tag].poison:
                self.end(139)
                return
            self._answer(one, tag)
        if one.over_ms is not None and now_ms >= one.over_ms and not one.held:
            if one.due_ms is None:
                socket.raw_method(one.channel, m.ChannelClose(200, "given back", 0, 0))
            del self.keys[key]
            self._take_up(key)
        elif one.over_ms is None and one.due_ms is not None and now_ms >= one.due_ms and self.term_ms is None:
            one.due_ms = None
            if self.world.rng.random() < FAILS and not self.world.calm:
                body = json.dumps({"key": key, "reason": "a test"}).encode()
                socket.raw(socket.content("amq.worker", "failed", body, reply_to=REPLY_TO, correlation_id="failed"))
                return
            begin = (
                m.ChannelOpen(), m.ConfirmSelect(), m.BasicQos(prefetch_count=self.spec.prefetch),
                m.BasicConsume(queue=one.queue, consumer_tag=key),
            )  # fmt: skip
            for method in begin:
                socket.raw_method(one.channel, method)

    def _answer(self, one: _Key, tag: int) -> None:
        request = one.held[tag]
        assert self.socket is not None, "it works while it is connected"
        one.published += 1
        one.answers[one.published] = tag
        request.doubts += 1
        headers = {"x-status": "ok"}
        number = str(request.number)
        said = self.socket.content("", ANSWERS, b"ok", channel=one.channel, correlation_id=number, headers=headers)
        self.socket.raw(said)

    def _take_up(self, key: str) -> None:
        """If it is told of it, and has given it back."""
        if key in self._told and key not in self.keys:
            self._channel += 1
            due_ms = self.world.now_ms + self.world.rng.randint(*LOAD_MS)
            self.keys[key] = _Key(self._channel, *self._told[key], due_ms)

    def heard(self, channel: int, said: Any) -> None:
        if channel == ASKING:
            self._heard_of_keys(said)
            return
        one = next((one for one in self.keys.values() if one.channel == channel), None)
        if one is None:
            return
        if isinstance(said, Content) and isinstance(said.method, m.BasicDeliver):
            request = self.world.requests[int(said.body.split(b":")[0])]
            self.world.checkers.handed(request, self)
            request.handed.append((self.world.now_ms, self.spec.worker_id))
            tag = said.method.delivery_tag
            one.held[tag] = self.held[channel << 32 | tag] = request
            one.work[tag] = self.world.now_ms + self.world.service_ms(request)
        elif isinstance(said, m.BasicAck | m.BasicNack):
            up_to = said.delivery_tag
            for number in [n for n in one.answers if n == up_to or (said.multiple and n < up_to)]:
                self._settle(one, one.answers.pop(number))

    def _settle(self, one: _Key, tag: int) -> None:
        request = one.held.pop(tag)
        del self.held[one.channel << 32 | tag]
        assert self.socket is not None, "it works while it is connected"
        self.socket.raw_method(one.channel, m.BasicAck(tag))
        self.world.acknowledged(request, self, self.socket)

    def _heard_of_keys(self, said: Any) -> None:
        if isinstance(said, m.BasicConsumeOk):
            if not self.ready:
                self.ready = True
                self.driver.changed()
            self._ask()
        elif isinstance(said, Content) and said.properties.correlation_id != "failed":
            answer = json.loads(said.body)
            self._told = {one["key"]: (one["queue"], one["since"]) for one in answer["keys"]}
            self.world.counts["told of keys"] += 1
            for key, one in self.keys.items():
                if (one.queue, one.since) != self._told.get(key) and one.over_ms is None:
                    one.over_ms = self.world.now_ms + self.world.rng.randint(*UNLOAD_MS)
            for key in self._told:
                self._take_up(key)
            self._ask()

    def refused(self, channel: int) -> bool:
        """A key was given back before it was consumed."""
        return channel != ASKING

    def ended(self) -> None:
        super().ended()
        self.keys = {}
