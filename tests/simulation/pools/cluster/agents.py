"""Who uses a pool in the simulation: callers, and workers as their drivers' processes, over real AMQP frames."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Content

from .nodes import Socket
from .places import CLUSTER, SimDriver

if TYPE_CHECKING:
    from .world import World

POOL: Final = "core"
REPLY_TO: Final = "amq.rabbitmq.reply-to"
ANSWERS: Final = "answers"


@dataclass(slots=True)
class Request:
    """One call, and all that became of it."""

    number: int
    key: str
    published_ms: int
    ttl_ms: int
    deadline_ms: int = 1 << 60
    """From its confirm on: before it may be on its way to its queue."""
    poison: bool = False
    by_name: bool = False
    """Published to its queue's name, past the pool's exchange."""
    later_ms: int = 0
    """For so long it is delayed; how long it waits from then on nobody promises, for its owner may be away."""
    confirmed: bool = False
    refused: bool = False
    """Nacked or returned: it may be there all the same, if its publisher did not hear of it in time."""
    acks: int = 0
    """That workers have said."""
    doubts: int = 0
    """Answers of workers whose acknowledgement may be lost: it may come again, and be answered twice."""
    handed: list[tuple[int, str]] = field(default_factory=list)
    """When, and to which worker."""
    oks: int = 0
    errors: list[str] = field(default_factory=list)
    """Words of the pool's answers in the reply queue."""

    @property
    def ended(self) -> bool:
        return bool(self.oks or self.errors)


class Agent:
    """A client of some node; `poll` once a tick."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.socket: Socket | None = None
        self.again_ms = 0

    def poll(self) -> None:
        socket = self.socket
        if socket is None:
            if self.world.now_ms >= self.again_ms:
                self.again_ms = self.world.now_ms + 300
                self.connect()
            return
        for channel, said in socket.take():
            if self.socket is not socket:
                return
            if isinstance(said, m.ChannelClose) and self.refused(channel):
                socket.raw_method(channel, m.ChannelCloseOk())
                continue
            if isinstance(said, m.ConnectionClose | m.ChannelClose):
                self.closed(said)
                socket.raw_method(channel, m.ConnectionCloseOk() if channel == 0 else m.ChannelCloseOk())
                self.drop()
                return
            self.heard(channel, said)
        if self.socket is socket and not socket.open:
            self.drop()

    def connect(self) -> None:
        sites = [site for site in self.world.nodes.sites.values() if site.accepting]
        if sites:
            self._enter(self.world.rng.choice(sites), b"\0guest\0guest")

    def _enter(self, site: Any, plain: bytes) -> None:
        socket = self.socket = Socket(site)
        socket.raw(HEADER)
        start = m.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", plain)
        for method in (start, m.ConnectionTuneOk(2047, 131072, 0), m.ConnectionOpen("/")):
            socket.raw_method(0, method)
        socket.raw_method(1, m.ChannelOpen())
        for method in self.first():
            socket.raw_method(1, method)

    def drop(self) -> None:
        """The connection is over, by either side."""
        socket, self.socket = self.socket, None
        if socket is not None:
            if socket.open and socket.world.alive:
                socket.world.clients.pop(socket.connection, None)
                socket.connection.lost(socket.world.now_ms)
                socket.ended = "left"
            self.ended()

    # -- for subclasses

    def first(self) -> list[Any]:
        """Methods of the channel's beginning."""
        return []

    def heard(self, channel: int, said: Any) -> None:
        pass

    def refused(self, channel: int) -> bool:
        """Whether an error of this channel is no end of the others."""
        return False

    def closed(self, said: Any) -> None:
        pass

    def ended(self) -> None:
        pass


class Caller(Agent):
    """Publishes requests with confirms."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: dict[int, Request] = {}
        self._tag = 0

    def first(self) -> list[Any]:
        self._tag = 0
        self._open.clear()
        return [m.ConfirmSelect()]

    def call(self, key: str, poison: bool, expiration_ms: int, by_name: bool) -> None:
        world, socket = self.world, self.socket
        if socket is None or not socket.open or not socket.world.works:
            return
        later_ms = 0 if by_name else world.put_off_ms()
        ttl_ms = min(world.ttl_ms, expiration_ms or world.ttl_ms) + later_ms
        request = world.request(key, poison, ttl_ms, by_name, later_ms)
        self._tag += 1
        self._open[self._tag] = request
        more: dict[str, Any] = {"expiration": str(expiration_ms)} if expiration_ms else {}
        meant = world.meant(key)
        if meant or later_ms:
            more["headers"] = {**({"x-sticky": meant} if meant else {}), **({"x-delay": later_ms} if later_ms else {})}
        exchange, address = (f"{POOL}-delayed" if later_ms else POOL), key
        if by_name:
            exchange, address = "", f"{POOL}-req-{key}"
        socket.raw(
            socket.content(
                exchange, address, b"%d:%s" % (request.number, key.encode()), mandatory=True, reply_to=ANSWERS,
                correlation_id=str(request.number), **more,
            )
        )  # fmt: skip

    def heard(self, channel: int, said: Any) -> None:
        if isinstance(said, Content) and isinstance(said.method, m.BasicReturn):
            self.world.requests[int(said.properties.correlation_id or 0)].refused = True
        elif isinstance(said, m.BasicAck | m.BasicNack):
            tags = [
                tag for tag in self._open if tag == said.delivery_tag or (said.multiple and tag < said.delivery_tag)
            ]
            for tag in tags:
                request = self._open.pop(tag)
                if isinstance(said, m.BasicNack):
                    request.refused = True
                elif not request.refused:
                    request.confirmed = True
                    if not request.later_ms:
                        request.deadline_ms = self.world.now_ms + request.ttl_ms

    def closed(self, said: Any) -> None:
        if isinstance(said, m.ChannelClose) or said.reply_code != 320:
            raise AssertionError(f"a caller is closed: {said}")


class Process(Agent):
    """A worker, from its start to its end. `hangs`: it never consumes. `deaf`: it hears no TERM."""

    def __init__(
        self, world: World, driver: SimDriver, spec: WorkerSpec, start_ms: int, *, hangs: bool, deaf: bool
    ) -> None:
        super().__init__(world)
        self.driver = driver
        self.spec = spec
        self.alive = True
        self.exit: int | None = None
        self.ready = False
        self.term_ms: int | None = None
        self.begun_ms = world.now_ms
        self.held: dict[int, Request] = {}
        self._hangs, self._deaf = hangs, deaf
        self._work: dict[int, int] = {}
        """Delivery tag -> when it is done."""
        self._answers: dict[int, int] = {}
        """Number of the publish -> delivery tag."""
        self._tag = 0
        self.again_ms = world.now_ms + start_ms

    @property
    def seen(self) -> Seen:
        state = State.EXITED if not self.alive else State.RUNNING if self.ready else State.STARTING
        return Seen(
            self.spec.worker_id, state, CLUSTER, self.driver.place, pool=self.spec.pool, exit=self.exit,
            template=self.spec.template,
        )  # fmt: skip

    def connect(self) -> None:
        if self._hangs:
            return
        for uri in self.spec.uris:
            parts = urlsplit(uri)
            site = self.world.nodes.sites.get(parts.hostname or "")
            if site is not None and site.accepting:
                user, password = unquote(parts.username or ""), unquote(parts.password or "")
                self._enter(site, b"\0%s\0%s" % (user.encode(), password.encode()))
                return

    def first(self) -> list[Any]:
        self._tag = 0
        if self.spec.spare:
            return [m.BasicConsume(queue=REPLY_TO, consumer_tag="key", no_ack=True)]
        return [
            m.ConfirmSelect(), m.BasicQos(prefetch_count=self.spec.prefetch),
            m.BasicConsume(queue=self.spec.queue, consumer_tag="c"),
        ]  # fmt: skip

    def _heard_as_spare(self, said: Any) -> None:
        """It asks for its key, and begins with it."""
        assert self.socket is not None, "it hears over its connection"
        if isinstance(said, m.BasicConsumeOk):
            self.socket.raw(self.socket.content("amq.worker", "key", b"{}", reply_to=REPLY_TO))
        elif isinstance(said, Content):
            told = json.loads(said.body)
            self.world.counts["spares"] += 1
            self.spec = replace(self.spec, key=told["key"], queue=told["queue"], spare=False)
            for method in self.first():
                self.socket.raw_method(1, method)

    def poll(self) -> None:
        if not self.alive:
            return
        super().poll()
        if self.socket is None or not self.alive:
            return
        now_ms = self.world.now_ms
        for tag in [tag for tag, due_ms in self._work.items() if due_ms <= now_ms]:
            del self._work[tag]
            self._done(tag)
            if not self.alive:
                return
        if self.term_ms is not None and not self.held:
            self.end(0)

    def heard(self, channel: int, said: Any) -> None:
        world = self.world
        if self.spec.spare:
            self._heard_as_spare(said)
        elif isinstance(said, m.BasicConsumeOk):
            if not self.ready:
                self.ready = True
                self.driver.changed()
        elif isinstance(said, m.BasicCancel):
            self.drop()
        elif isinstance(said, Content) and isinstance(said.method, m.BasicDeliver):
            request = world.requests[int(said.body.split(b":")[0])]
            world.checkers.handed(request, self)
            request.handed.append((world.now_ms, self.spec.worker_id))
            tag = said.method.delivery_tag
            self.held[tag] = request
            self._work[tag] = world.now_ms + world.service_ms(request)
        elif isinstance(said, m.BasicAck | m.BasicNack):
            for number in [
                n for n in self._answers if n == said.delivery_tag or (said.multiple and n < said.delivery_tag)
            ]:
                self._ack(self._answers.pop(number))

    def _done(self, tag: int) -> None:
        request = self.held[tag]
        if request.poison:
            self.end(139)
            return
        assert self.socket is not None, "it works while it is connected"
        self._tag += 1
        self._answers[self._tag] = tag
        request.doubts += 1
        self.socket.raw(
            self.socket.content("", ANSWERS, b"ok", correlation_id=str(request.number), headers={"x-status": "ok"})
        )

    def _ack(self, tag: int) -> None:
        """Its answer is confirmed, and the request goes."""
        request = self.held.pop(tag)
        assert self.socket is not None, "it works while it is connected"
        self.socket.raw_method(1, m.BasicAck(tag))
        self.world.acknowledged(request, self, self.socket)

    def ended(self) -> None:
        for request in self.held.values():
            if request.handed:
                self.world.checkers.returned(request, self)
        self.held.clear()
        self._work.clear()
        self._answers.clear()
        self.again_ms = self.world.now_ms + 200

    def term(self) -> None:
        if self.alive and not self._deaf and self.term_ms is None:
            self.term_ms = self.world.now_ms
            if not self.held:
                self.end(0)

    def end(self, exit_status: int | None) -> None:
        if self.alive:
            self.alive = False
            self.exit = exit_status
            self.drop()
            self.world.checkers.process_ended(self)
            self.driver.changed()
