"""A node in memory, its disk, its clock and its clients, so that tests read as conversations.

    world = World()
    alice = world.client()
    alice.ask(m.QueueDeclare(queue="q"))            says it, lets the node work, returns the one answer
    alice.publish("", "q", b"hello")
    alice.say(m.BasicConsume(queue="q"))            returns all that was heard since: methods, and Content
    world.crash()                                   a new node from what was synced

Nothing happens by itself: `World.turn` does what `broker.server.shell` does in its turn. The disk answers at once
unless `disk_waits` is set; then `commit` completes the group under way. Likewise the wiring log (`wiring_waits`,
`order`), passwords (`passwords_wait`, `answer_passwords`) and reads (`reads_wait`, `answer_reads`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.node.core import Entropy, Group, Load, Node
from clusterbroker.broker.node.driver import Driver, Proposal
from clusterbroker.broker.node.effects import GOOD, WRONG, Verdict
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.patience import PATIENCE_MS
from clusterbroker.broker.server.recovery import recovered
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.ids import LOCAL_NODE
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.cluster.wiring_log import MemoryWiringLog
from clusterbroker.journal.record import GroupWriter, Message
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal

HEADER = b"AMQP\0\0\x09\x01"
CAPABILITIES = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True}


def entropy(seed: int = 0) -> Entropy:
    """Chance that is the same at each run."""
    return random.Random(seed).randbytes


class Content(NamedTuple):
    """basic.deliver, get-ok or return with what came with it."""

    method: Any
    properties: Properties
    body: bytes


class Story:
    """The node's log."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, AmqpError]] = []
        self.cuts: list[str] = []
        self.refusals: list[tuple[str, str, str]] = []
        self.lost_rows: list[tuple[str, int]] = []
        self.late_streams: list[tuple[str, int]] = []
        self.alerts: list[tuple[bool, str, str]] = []
        self.failing: list[tuple[str, str]] = []
        self.leaving: list[tuple[str, bool, str]] = []
        self.ready: list[tuple[str, str]] = []
        self.lost_places: list[tuple[str, int]] = []
        self.forgives = False
        """Whether mistakes of ours are told in `mistakes` and not raised."""
        self.mistakes: list[tuple[str, int, BaseException]] = []
        """(queue, client or peer; seq; error)"""

    def _mistake(self, who: str, seq: int, error: BaseException) -> None:
        if not self.forgives:
            raise error
        self.mistakes.append((who, seq, error))

    def starts_fail(self, pool: Any, key: str, for_s: int, why: str) -> None:
        self.failing.append((key, why))

    def workers_leave(self, pool: Any, revoked: bool, workers: Any, why: str) -> None:
        self.leaving += [(worker, revoked, why) for worker in workers]

    def worker_ready(self, pool: Any, one: Any) -> None:
        self.ready.append((one.worker_id, one.key))

    def place_lost(self, pool: Any, place: str, workers: int) -> None:
        self.lost_places.append((place, workers))

    def crashed(self, peer: str, error: BaseException) -> None:
        self._mistake(peer, 0, error)

    def link_crashed(self, peer: str, error: BaseException) -> None:
        self._mistake(peer, 0, error)

    def set_aside(self, queue: Any, seq: int, error: Exception) -> None:
        self._mistake(queue.name, seq, error)

    def fault(self, peer: str, user: str, channel: int, error: AmqpError) -> None:
        self.faults.append((channel, error))

    def cut(self, peer: str, user: str, why: str) -> None:
        self.cuts.append(why)

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        self.refusals.append((user, mechanism, why))

    def unroutable(self, segment: Segment, rows: int) -> None:
        self.lost_rows.append((segment.name, rows))

    def begins_late(self, vhost: str, queue: str, offset: int) -> None:
        self.late_streams.append((queue, offset))

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        self.alerts.append((raised, kind, subject))


class World:
    """One node and all around it."""

    def __init__(self, *, journaled: bool = True, segment_bytes: int = 64 << 10, **options: Any) -> None:
        self.now_ms = 1_000_000
        self.story = Story()
        self.passwords = {"guest": b"guest", "eve": b"eve"}
        self.tokens: dict[bytes, Any] = {}
        self.journal = MemoryJournal(segment_bytes) if journaled else None
        self.checkpoint_due = False
        self.disk_waits = self.wiring_waits = self.passwords_wait = self.reads_wait = False
        self.clients: dict[Connection, Client] = {}
        self.group: Group | None = None
        self.loads: list[tuple[Load, list[Message | None]]] = []
        self.checks: list[Any] = []
        self._options = options
        self._incarnation = 0
        self.wiring = MemoryWiringLog()
        for user in self.passwords:
            self.wiring.propose(c.PutUser(name=user, password_hash=user, hash_algorithm="scrypt"))
            self.wiring.propose(c.SetPermission(user=user, vhost="/", configure=".*", write=".*", read=".*"))
        self._start()

    def _start(self) -> None:
        """As broker.server.storage: the wiring first, then the journal, then the node."""
        self._incarnation += 1
        options = NodeOptions(incarnation=self._incarnation, **self._options)
        self.wiring.propose(c.ForgetTransient(node=LOCAL_NODE))
        self.pass_time()
        use = self.journal.use if self.journal else None
        node = self.node = Node(options, self.wiring.map, use, self.story, entropy=entropy())
        node.now_ms = self.now_ms
        self.driver = Driver(node, self, lambda: self.now_ms, lazy_ms=0)
        if self.journal is None:
            node.adopt({})
        else:
            recovered(node, self.journal).adopt_into(node)
        self.wiring.listen(lambda applied: node.apply(applied.changes))

    # -- the shell's part

    def turn(self) -> None:
        """Turns of the loop until nothing moves any more."""
        while True:
            self._turn()
            moved = self.node.busy or (self.node.proposals and not self.wiring_waits) or self.node.sending
            moved = moved or (self.loads and not self.reads_wait)
            if not self.disk_waits and self.journal is not None and not self.journal.idle:
                self.complete()
                moved = True
            for client in tuple(self.clients.values()):
                moved = client.deliver() or moved
            if not moved:
                return

    def _turn(self) -> None:
        if not self.reads_wait:
            self.answer_reads()
        if not self.passwords_wait:
            self.answer_passwords()
        self.driver.turn(self.now_ms)

    # -- the world of a turn (`driver.World`)

    may_speak = True

    def order(self, proposals: Sequence[Proposal]) -> None:
        if self.wiring_waits:
            self.node.proposals[:0] = proposals
        else:
            self.propose(proposals)

    def read(self, loads: Sequence[Any]) -> None:
        assert self.journal is not None, "only a journaled queue loads"
        self.loads += [(load, self.journal.read(load.queue_id, load.locations)) for load in loads]

    def verify(self, checks: Sequence[Any]) -> None:
        self.checks += checks
        if not self.passwords_wait:
            self.answer_passwords()

    def file(self) -> None:
        assert self.journal is not None, "there is a disk"
        if self.checkpoint_due and self.journal.checkpoint is None:
            self.checkpoint_due = False
            self.begin_checkpoint()

    def submit(self, writer: GroupWriter, group: Group) -> None:
        assert self.journal is not None, "there is a disk"
        self.journal.submit(writer, group.sync, self.now_ms)
        self.group = group

    def later(self, delay_ms: int) -> None:
        """Turns are taken until nothing moves; then the test says how time goes on."""

    def send(self, now_ms: int) -> None:
        for connection in tuple(self.node.sending):
            del self.node.sending[connection]
            client = self.clients.get(connection)
            if client is not None:
                client.flush()

    def exchange(self) -> None:
        """One node, or a cluster that carries frames itself."""

    # -- answers

    def propose(self, proposals: Sequence[Proposal]) -> None:
        for command, done in proposals:
            self.wiring.propose(command, done)

    def answer_proposals(self) -> None:
        """The wiring log answers all that was proposed."""
        proposals, self.node.proposals = self.node.proposals, []
        self.propose(proposals)

    def answer_reads(self) -> None:
        loads, self.loads = self.loads, []
        for load, messages in loads:
            damaged = [where[0] for where, found in zip(load.locations, messages, strict=True) if found is None]
            if damaged:  # as broker.server.scrub, which has read them one by one
                self.node.damages.found(load.queue_id, damaged, "a test", partial(load.unread, messages))
            else:
                self.node.loaded(load, messages)

    def answer_passwords(self) -> None:
        checks, self.checks = self.checks, []
        for check in checks:
            token = self.tokens.get(check.secret)
            if token is not None:
                check.then(Verdict(token=token, until_ms=int(token.expires_s * 1000)))
            else:
                known = check.user is not None and self.passwords.get(check.user.name) == check.secret
                check.then(GOOD if known else WRONG)

    def complete(self) -> None:
        """The group under way is written, and flushed if it had to be."""
        assert self.journal is not None
        self.journal.complete_group()
        group, self.group = self.group, None
        assert group is not None, "a group is under way"
        self.node.group_committed(group, self.now_ms)

    def commit(self) -> None:
        """Completes the group under way and lets the node work on."""
        self.complete()
        self.turn()

    def begin_checkpoint(self) -> None:
        assert self.journal is not None
        self.journal.begin_checkpoint(*self.node.checkpoint())

    def checkpoint(self) -> None:
        self.begin_checkpoint()
        assert self.journal is not None
        self.journal.complete_checkpoint()

    def copy_forward(self, segment: int) -> None:
        assert self.journal is not None
        for queue_id, seq, offset, message in self.journal.old_messages(segment):
            queue = self.node.queues.get(queue_id)
            if queue is not None and not queue.deleted:
                queue.ring.rewrite(seq, segment, offset, message)

    def crash(self, kept: int = 0) -> None:
        """The power fails and the node starts again; `kept` of the groups that were not synced survive."""
        for client in self.clients.values():
            client.ended = "crash"
        self.clients = {}
        if self.journal is not None:
            self.journal.crash(kept)
        self.group, self.loads, self.checks = None, [], []
        self.wiring = MemoryWiringLog(self.wiring.map)  # type: ignore[arg-type]
        self._start()

    # -- time

    def pass_time(self) -> None:
        """As broker.server.upkeep, with a wall clock that is right."""
        lived_ms = self.wiring.map.time.lived_ms
        self.wiring.propose(c.PassTime(after_ms=lived_ms, lived_ms=lived_ms + 1, wall_ms=self.now_ms))

    def wait(self, time_ms: int) -> None:
        """The clock moves, as the shell lets it: the node is woken when it wants to be, and connections tick."""
        end_ms = self.now_ms + time_ms
        self.turn()
        while True:
            wake_ms = self.node.next_wake_ms
            tick_ms = self.now_ms // 500 * 500 + 500
            at_ms = min(end_ms, tick_ms, end_ms if wake_ms is None else max(wake_ms, self.now_ms))
            if self.node.writes:
                at_ms = min(at_ms, self.now_ms + PATIENCE_MS)
            self.now_ms = at_ms
            if at_ms == tick_ms:
                for connection in tuple(self.node.clients.values()):
                    connection.tick(at_ms)
            self.turn()
            if at_ms >= end_ms:
                return

    # -- who is there

    def client(self, user: str = "guest", channels: int = 1, **properties: Any) -> Client:
        """A client with an open connection and `channels` open channels, which has heard all of that."""
        client = Client(self)
        client.enter(user, **properties)
        for number in range(1, channels + 1):
            assert client.ask(m.ChannelOpen(), number) == m.ChannelOpenOk()
        return client

    def queue(self, name: str) -> LocalQueue:
        return self.node.vhosts["/"].queues[name]

    def command(self, command: Any) -> Any:
        """What an operator orders."""
        outcome: list[Any] = []
        self.wiring.propose(command, outcome.append)
        self.turn()
        return outcome[0]


class Client:
    """Speaks methods by name. `ended` is how the server ended the connection, None while it lives."""

    def __init__(self, world: World, *, loopback: bool = True, identity: str | None = None) -> None:
        self.world = world
        self.connection = Connection(world.node, Accepted("192.0.2.1:5", loopback, world.now_ms, identity))
        self.ended: str | None = None
        self.heartbeats = 0
        self.unsent = b""
        self._out = OutBuffer(131072)
        self._in = b""
        self._contents: dict[int, Any] = {}
        self._heard: list[tuple[int, Any]] = []
        world.clients[self.connection] = self

    # -- saying

    def enter(
        self, user: str = "guest", vhost: str = "/", heartbeat_s: int = 0, frame_max: int = 131072, **properties: Any
    ) -> None:
        """The whole handshake."""
        self.raw(HEADER)
        self.raw_method(0, m.ConnectionStartOk({"capabilities": CAPABILITIES, **properties}, "PLAIN", self.plain(user)))
        self.raw_method(0, m.ConnectionTuneOk(2047, frame_max, heartbeat_s))
        self.raw_method(0, m.ConnectionOpen(vhost))
        self.world.turn()
        start, tune, opened = self.hear(0)
        assert (type(start), type(tune), type(opened)) == (m.ConnectionStart, m.ConnectionTune, m.ConnectionOpenOk)

    def plain(self, user: str) -> bytes:
        return b"\0%s\0%s" % (user.encode(), self.world.passwords.get(user, b"wrong"))

    def raw(self, data: bytes) -> None:
        """Bytes for the socket; the node reads them when it wants to."""
        self.unsent += data
        self.deliver()

    def deliver(self) -> bool:
        """Hands over what waits in the socket; True when the node took something."""
        if not self.unsent or not self.connection.reading or self.ended is not None:
            return False
        data, self.unsent = self.unsent, b""
        self.connection.receive(self.connection.decoder.rest + data, self.world.now_ms)
        return True

    def raw_method(self, channel: int, method: Method) -> None:
        self._out.method(channel, m.encode(method))
        self.raw(self._out.take())

    def say(self, *methods: Method, channel: int = 1) -> list[Any]:
        """Says them in one breath, lets the node work, and returns all that was heard since on the channel."""
        for method in methods:
            self._out.method(channel, m.encode(method))
        self.raw(self._out.take())
        self.world.turn()
        return self.hear(channel)

    def ask(self, method: Method, channel: int = 1) -> Any:
        """Says it and returns the answer, of which there must be one."""
        heard = self.say(method, channel=channel)
        assert len(heard) == 1, f"{method} was answered by {heard}"
        return heard[0]

    def content(
        self, exchange: str, key: str, body: bytes = b"", *, channel: int = 1, mandatory: bool = False,
        immediate: bool = False, transient: bool = False, **properties: Any,
    ) -> bytes:  # fmt: skip
        """The frames of a basic.publish, which is persistent unless said otherwise."""
        out = self._out
        out.method(channel, m.encode(m.BasicPublish(0, exchange, key, mandatory, immediate)))
        properties.setdefault("delivery_mode", 1 if transient else 2)
        header = codec.encode(Properties(**properties))
        out.frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + header)
        for start in range(0, len(body), 131064):
            out.frame(3, channel, body[start : start + 131064])
        return bytes(out.take())

    def publish(self, exchange: str, key: str, *bodies: bytes, channel: int = 1, **more: Any) -> list[Any]:
        """Publishes them in one breath, lets the node work, and returns what was heard since."""
        self.raw(b"".join(self.content(exchange, key, body, channel=channel, **more) for body in bodies or (b"",)))
        self.world.turn()
        return self.hear(channel)

    def leave(self) -> None:
        """The socket is closed without a word."""
        self.world.clients.pop(self.connection, None)
        self.connection.lost(self.world.now_ms)
        self.ended = "left"
        self.world.turn()

    # -- hearing

    def flush(self) -> None:
        """The shell sends what is in the buffer."""
        connection = self.connection
        if connection.out.paused:
            return
        if connection.out.size:
            full = connection.out.size >= connection.out.size_max
            self._in += bytes(connection.out.take())
            connection.sent(self.world.now_ms)
            if full:
                connection.mark_consumers()
        self._parse()
        if connection.ending is not None and self.ended is None:
            self.ended = connection.ending
            self.world.clients.pop(connection, None)
            connection.lost(self.world.now_ms)

    def _parse(self) -> None:
        data = self._in
        if data[:4] == b"AMQP":
            self._heard.append((0, data))
            self._in = b""
            return
        at = 0
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE, "a frame ends with its octet"
            at += size + 8
            if kind == 8:
                self.heartbeats += 1
            elif kind == 1:
                assert channel not in self._contents, "a content is not interrupted on its own channel"
                method = m.decode(payload)
                if method.HAS_CONTENT:
                    self._contents[channel] = [method, None, b"", -1]
                else:
                    self._heard.append((channel, method))
            else:
                content = self._contents[channel]
                if kind == 2:
                    content[3] = int.from_bytes(payload[4:12], "big")
                    content[1] = codec.decode(payload[12:])
                else:
                    content[2] += payload
                if len(content[2]) == content[3]:
                    del self._contents[channel]
                    self._heard.append((channel, Content(*content[:3])))
        self._in = b""

    def hear(self, channel: int = 1) -> list[Any]:
        """What came on the channel since it was asked last."""
        heard = [said for number, said in self._heard if number == channel]
        self._heard = [(number, said) for number, said in self._heard if number != channel]
        return heard

    # -- short ways

    def declare(self, queue: str, **arguments: Any) -> Any:
        """A durable queue; `x_max_length=5` and the like become arguments."""
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        answer = self.ask(m.QueueDeclare(queue=queue, durable=True, arguments=table))
        assert isinstance(answer, m.QueueDeclareOk), answer
        return answer

    def consume(self, queue: str, tag: str = "ctag", channel: int = 1, **more: Any) -> list[Any]:
        """What came with the consume-ok: deliveries."""
        heard = self.say(m.BasicConsume(queue=queue, consumer_tag=tag, **more), channel=channel)
        assert heard[0] == m.BasicConsumeOk(tag), heard
        return heard[1:]

    def code(self, method: Method, channel: int = 1) -> int:
        """The code with which the channel, or else the connection, is closed for it."""
        heard = self.say(method, channel=channel) or self.hear(0)
        assert isinstance(heard[-1], m.ChannelClose | m.ConnectionClose), heard
        return heard[-1].reply_code


def bodies(heard: list[Any]) -> list[bytes]:
    """Of all contents among what was heard."""
    return [said.body for said in heard if isinstance(said, Content)]
