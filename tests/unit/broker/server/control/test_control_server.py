"""The control socket of a node: what its management process asks there, and what others may."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from server_support import HEADER, Lines, Peer, until

from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control import server
from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.server.control.private_socket import connected
from clusterbroker.broker.server.control.protocol import NAME
from clusterbroker.broker.stats.batches import joined
from clusterbroker.broker.stats.rows import (
    AnyRow,
    Batch,
    ChannelRow,
    ConnectionRow,
    ConsumerRow,
    LoginTotals,
    NodeRow,
    QueueRow,
    decode,
)
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.map import ClusterMap

M = TypeVar("M", bound=m.ControlMessage)


class Process:
    """A management process, as far as the socket sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = m.Frames(m.AnyTold)
        self.heard: list[m.ControlMessage] = []

    @classmethod
    async def open(cls, directory: Path, version: int = m.VERSION) -> Process:
        self = cls(*await asyncio.open_unix_connection(sock=connected(directory, NAME)))
        self.say(m.Hello(version, management=True))
        return self

    def say(self, message: m.ControlMessage) -> None:
        self.writer.write(m.encode(message))

    async def hear(self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of this kind; those before it are in `heard` as well."""
        while True:
            for at, message in enumerate(self.heard):
                if isinstance(message, kind) and fits(message):
                    return self.heard.pop(at)  # type: ignore[return-value]
            data = await asyncio.wait_for(self.reader.read(1 << 16), 60)
            assert data, "the node has ended the line"
            self.heard += self.frames.feed(data)

    async def rows(self, number: int, since: dict[str, tuple[int, int]] | None = None, max_age_ms: int = 0) -> Batch:
        self.say(m.AskRows(number, since or {}, max_age_ms))
        await self.hear(m.RowsEnd, lambda end: end.number == number)
        parts = [message for message in self.heard if isinstance(message, m.Rows)]
        self.heard = [message for message in self.heard if not isinstance(message, m.Rows)]
        assert not parts[-1].more
        return joined([decode(part.batch) for part in parts])

    async def folded(self, number: int = 1, index: int = 0) -> ClusterMap:
        """Follows the wiring; the map of the snapshot."""
        self.say(m.Tail(number, index))
        chunks = []
        while (told := await self.hear(m.Snapshot)).chunk:
            chunks.append(told.chunk)
        return ClusterMap.restored(snapshot.decode(LogIndex(told.index), chunks))

    async def ended(self) -> bool:
        try:
            while await asyncio.wait_for(self.reader.read(1 << 16), 5):
                pass
        except ConnectionError:
            pass
        return True


def of(rows: tuple[AnyRow, ...], kind: type) -> list[Any]:
    return [row for row in rows if isinstance(row, kind)]


@pytest.fixture
async def managed(start: Any, tmp_path: Path) -> Any:
    return await start(data_dir=tmp_path, management=True)


async def test_the_socket_is_for_the_owner_only(managed: Any, tmp_path: Path) -> None:
    mode = (tmp_path / NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    await managed.stop()
    assert not (tmp_path / NAME).exists()


async def test_without_a_management_process_there_is_none_to_serve(start: Any, tmp_path: Path) -> None:
    await start(data_dir=tmp_path)
    assert await (await Process.open(tmp_path)).ended()
    assert (await asyncio.to_thread(ask, tmp_path, "status") or {})["ok"]


async def test_rows_of_what_there_is(managed: Any, connect: Any, tmp_path: Path) -> None:
    peer = await (await connect(managed)).open()
    peer.send(1, methods.QueueDeclare(queue="q", durable=True))
    await peer.receive()
    peer.send(1, methods.ConfirmSelect())
    await peer.receive()
    peer.publish("q", b"12345", 3)
    await until(lambda: next(iter(managed.node.queues.values())).ring.ready == 3)
    peer.send(1, methods.BasicQos(prefetch_count=2))
    await peer.receive()
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c"))
    process = await Process.open(tmp_path)
    hello = await process.hear(m.Hello)
    assert (hello.version, hello.node) == (m.VERSION, managed.options.node.name)
    assert (await process.hear(m.Leased)).leased
    await until(lambda: next(iter(managed.node.queues.values())).ring.unacked == 2)
    batch = await process.rows(1)
    assert batch.whole
    (node,) = of(batch.rows, NodeRow)
    assert node.memory_used_bytes > 1 << 20
    assert node.disk_free_bytes > 0
    assert node.files_used > 3
    assert 0 < node.uptime_ms < 3_600_000
    assert node.wiring_index == managed.node.map.applied
    assert node.listeners[0].port == managed.listeners[0].addresses[0].port
    assert (node.connections_created, node.connections_closed) == (1, 0)
    assert (node.channels_created, node.channels_closed) == (1, 0)
    assert (node.queues_declared, node.queues_created, node.queues_deleted) == (1, 1, 0)
    assert node.logins == (LoginTotals("amqp", 1, 0), LoginTotals("http", 0, 0))
    assert node.journal_flushes > 0
    assert node.journal_flush_us > 0
    assert node.journal_written_bytes > 15
    assert node.journal_segments > 0
    assert node.journal_bytes >= node.journal_written_bytes
    (connection,) = of(batch.rows, ConnectionRow)
    assert (connection.user, connection.vhost, connection.state, connection.channels) == ("guest", "/", "running", 1)
    assert connection.peer_host == "127.0.0.1"
    assert connection.peer_port == peer.writer.get_extra_info("sockname")[1]
    assert connection.port == node.listeners[0].port
    assert connection.received_bytes > 100
    assert connection.sent_bytes > 100
    (channel,) = of(batch.rows, ChannelRow)
    assert (channel.number, channel.confirm, channel.prefetch_count, channel.consumers) == (1, True, 2, 1)
    assert channel.unacknowledged == 2
    (consumer,) = of(batch.rows, ConsumerRow)
    (queue,) = of(batch.rows, QueueRow)
    assert (consumer.tag, consumer.queue_id, consumer.ack_required) == ("c", queue.queue_id, True)
    assert (queue.ready, queue.unacknowledged, queue.consumers) == (1, 2, 1)
    assert queue.ready_bytes == 5

    peer.writer.close()
    await until(lambda: not managed.clients)
    later = await process.rows(2, {batch.node: (batch.life, batch.number)})
    assert not later.whole
    assert set(later.gone) == {connection.key, channel.key, consumer.key}
    (queue,) = of(later.rows, QueueRow)
    assert (queue.ready, queue.unacknowledged, queue.consumers) == (3, 0, 0)
    (node,) = of(later.rows, NodeRow)
    assert (node.connections_closed, node.channels_closed) == (1, 1)


async def test_what_stands_in_the_way_is_told(managed: Any, connect: Any, tmp_path: Path) -> None:
    """A connection that an alarm blocks, and a consumer that wants no other."""
    peer = await (await connect(managed)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="mine", exclusive=True))
    peer.publish("q", b"x")
    await until(lambda: any(one.backpressure.publishes for one in managed.node.clients.values()))
    managed.alarms.set("memory", "a drill", True)
    process = await Process.open(tmp_path)
    batch = await process.rows(1)
    assert of(batch.rows, NodeRow)[0].alarms == ("memory",)
    assert of(batch.rows, ConnectionRow)[0].state == "blocked"
    assert of(batch.rows, QueueRow)[0].exclusive_consumer_tag == "mine"
    managed.alarms.set("memory", "a drill", False)
    batch = await process.rows(2)
    assert of(batch.rows, ConnectionRow)[0].state == "running"


async def test_a_client_whose_words_cannot_be_told_hides_nothing(managed: Any, connect: Any, tmp_path: Path) -> None:
    """Names that are no UTF-8, numbers that are too big, and too much of everything."""
    for properties in ({"\udcff": 1}, {"x": {"\udcff": [1]}}, {"x": "y" * 7000, "z": "\u20ac" * 1}):
        peer = await connect(managed)
        peer.writer.write(HEADER)
        await peer.receive()
        peer.send(0, methods.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US"))
        tune = await peer.receive()
        peer.send(0, methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
        peer.send(0, methods.ConnectionOpen("/"))
        assert isinstance(await peer.receive(), methods.ConnectionOpenOk)
    peer.send(1, methods.ChannelOpen())
    peer.send(1, methods.QueueDeclare(queue="q"))
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c", arguments={"x-long": "y" * 100_000}))
    await until(lambda: any(queue.subscriptions for queue in managed.node.queues.values()))
    process = await Process.open(tmp_path)
    batch = await process.rows(1)
    told = [connection.client_properties for connection in of(batch.rows, ConnectionRow)]
    assert told == [{}, {}, {"x": "y" * 7000, "z": "\u20ac"}]
    (consumer,) = of(batch.rows, ConsumerRow)
    assert consumer.arguments == {}


async def test_what_cannot_be_counted_ends_no_node(
    managed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    process = await Process.open(tmp_path)
    await process.rows(1)
    monkeypatch.setattr("clusterbroker.broker.server.counting.connection_row", fails)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", managed.listeners[0].addresses[0].port))
    await peer.open()
    assert len((await process.rows(2)).rows) == 1, "what came before the mistake"
    monkeypatch.undo()
    assert len(of((await process.rows(3)).rows, ConnectionRow)) == 1
    assert not managed.ended.done()
    peer.writer.close()


async def test_a_sample_serves_all_who_accept_its_age(managed: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    first = await process.rows(1)
    second = await process.rows(2, {first.node: (first.life, first.number)}, max_age_ms=60_000)
    assert second.sampled_at_ms == first.sampled_at_ms
    assert second.rows == ()
    third = await process.rows(3, {first.node: (first.life, first.number)}, max_age_ms=0)
    assert len(third.rows) == 1, "the node itself has grown older"


async def test_a_member_that_does_not_answer_in_time_is_left_out(
    managed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows come with a later round; nobody waits for it."""
    forgotten: list[int] = []
    asked: list[tuple[Any, ...]] = []

    class Silent:
        peers = ("b", "c")

        def ask(self, peer: str, life: int, number: int, max_age_ms: int, told: Any) -> int:
            asked.append((peer, life, number, told))
            return len(asked)

        def forget(self, ask: int) -> None:
            forgotten.append(ask)

    monkeypatch.setattr("clusterbroker.broker.server.control.service.ANSWER_S", 0.1)
    monkeypatch.setattr(managed.control.service, "_peers", Silent())
    process = await Process.open(tmp_path)
    batch = await process.rows(1, {"b": (5, 6)})
    assert batch.node == "node"
    assert [ask[:3] for ask in asked] == [("b", 5, 6), ("c", 0, 0)]
    assert forgotten == [1, 2]
    asked[0][3](b"too late", False)
    await process.rows(2)
    assert forgotten == [1, 2, 3, 4]


async def test_the_wiring_is_followed(managed: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    replica = await process.folded()
    assert replica.digest() == managed.node.map.digest()
    for name in ("v", "w"):
        process.say(m.Order(2, c.encode(c.AddVhost(name=name))))
        assert await process.hear(m.Ordered) == m.Ordered(2, "", "", managed.node.map.applied)
    while replica.applied < managed.node.map.applied:
        for index, command in (await process.hear(m.Followed)).commands:
            replica.apply(LogIndex(index), c.decode(command))
    assert replica.digest() == managed.node.map.digest()

    again = await Process.open(tmp_path)
    again.say(m.Tail(1, replica.applied))
    assert await again.hear(m.Following) == m.Following(1)


async def test_an_order_is_refused_as_the_wiring_says(managed: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    process.say(m.Order(1, c.encode(c.SetPermission(user="nobody", vhost="/", configure="", write="", read=""))))
    refused = await process.hear(m.Ordered)
    assert (refused.number, refused.kind) == (1, "not_found")
    process.say(m.Order(2, c.encode(c.RemoveConnection(connection="x"))))
    refused = await process.hear(m.Ordered)
    assert "RemoveConnection is no command of an operator" in refused.text
    process.say(m.Order(3, b"\xff"))
    assert (await process.hear(m.Ordered)).kind == "unavailable"


async def test_operations(managed: Any, connect: Any, tmp_path: Path) -> None:
    peer = await (await connect(managed)).open()
    (connection_id,) = managed.node.clients
    process = await Process.open(tmp_path)
    process.say(m.Call(1, "connection.close", {"id": connection_id, "reason": "enough"}))
    assert await process.hear(m.Done) == m.Done(1, {}, "")
    closed = await peer.receive()
    assert isinstance(closed, methods.ConnectionClose)
    assert (closed.reply_code, "enough" in closed.reply_text) == (320, True)
    process.say(m.Call(2, "connection.close", {"id": "x.1.9"}))
    assert "there is no connection 'x.1.9'" in (await process.hear(m.Done)).error
    process.say(m.Call(3, "alarm.set", {"name": "memory", "raised": True}))
    assert (await process.hear(m.Done)).answer == {"alarms": ["memory"]}
    process.say(m.Call(4, "explode", {}))
    assert "'explode' is not one of" in (await process.hear(m.Done)).error
    process.say(m.Call(5, "members", {}))
    assert "this node is alone" in (await process.hear(m.Done)).error


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x02\x91\xa0",
        m.encode(m.Done(1, {}, "")),
        m.encode(m.Hello(m.VERSION + 1)),
    ],
)
async def test_who_speaks_nonsense_is_cut(managed: Any, tmp_path: Path, bad: bytes, lines: Lines) -> None:
    process = await Process.open(tmp_path)
    process.writer.write(bad)
    assert await process.ended()
    assert "management.cut" in lines.events()
    await (await Process.open(tmp_path)).rows(1)


async def test_who_says_no_hello_is_cut(managed: Any, tmp_path: Path) -> None:
    process = Process(*await asyncio.open_unix_connection(sock=connected(tmp_path, NAME)))
    process.say(m.AskRows(1, {}, 0))
    assert await process.ended()


async def test_who_does_not_read_is_cut_and_begins_anew(
    managed: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a process that stands still never grows beyond the bound."""
    monkeypatch.setattr(server, "UNREAD_BYTES_MAX", 1 << 20)
    process = await Process.open(tmp_path)
    await process.folded()
    (line,) = managed.control.lines
    process.writer.transport.pause_reading()  # type: ignore[attr-defined]
    number = 0
    while managed.control.lines:
        assert number < 200, "it is cut long before"
        number += 1
        await managed.propose(c.AddVhost(name=f"v{number}", description="x" * 100_000))
        assert line._pending_bytes <= 2 << 20
    assert "management.cut" in lines.events()
    again = await Process.open(tmp_path)
    assert (await again.folded()).digest() == managed.node.map.digest()


async def test_others_cannot_say_who_they_are(managed: Any, connect: Any) -> None:
    """EXTERNAL is neither offered nor accepted where anybody can connect."""
    peer = await connect(managed)
    peer.writer.write(HEADER)
    hello = await peer.receive()
    assert b"EXTERNAL" not in hello.mechanisms.split()
    peer.send(0, methods.ConnectionStartOk({}, "EXTERNAL", b"guest", "en_US"))
    closed = await peer.receive()
    assert isinstance(closed, methods.ConnectionClose)
    assert closed.reply_code == 503


@pytest.mark.parametrize("question", [m.Tail(1, 0), m.AskRows(1, {}, 0), m.Order(1, b""), m.Logins()])
async def test_commands_make_calls_and_nothing_else(managed: Any, tmp_path: Path, question: m.ControlMessage) -> None:
    command = Process(*await asyncio.open_unix_connection(sock=connected(tmp_path, NAME)))
    command.say(m.Hello(m.VERSION))
    command.say(m.Call(7, "members", {}))
    assert "this node is alone" in (await command.hear(m.Done)).error
    command.say(question)
    assert await command.ended()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (m.Hello(m.VERSION + 1, "node"), "the node speaks version"),
        (m.Hello(m.VERSION, "node"), "the node ended before it answered"),
    ],
)
async def test_a_node_that_does_not_answer(tmp_path: Path, said: m.Hello, error: str) -> None:
    """One of another release, and one that ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode(said))
        await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_unix_server(serve, str(tmp_path / NAME)):
        told = await asyncio.to_thread(ask, tmp_path, "status")
    assert told is not None
    assert (told["ok"], error in told["error"]) == (False, True)
