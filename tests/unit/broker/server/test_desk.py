"""The doors of a node for its management process: what is asked there, and by whom."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from server_support import HEADER, Lines, Peer, until

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.server import desk_socket
from clusterbroker.broker.server.desk_socket import AMQP_NAME, NAME
from clusterbroker.broker.server.private_socket import connected
from clusterbroker.broker.stats import desk_messages as m
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
from clusterbroker.cluster import commands as c
from clusterbroker.cluster import snapshot
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.state import ClusterMap

M = TypeVar("M", bound=m.DeskMessage)


class Process:
    """A management process, as far as the socket sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = m.Frames(m.AnyTold)
        self.heard: list[m.DeskMessage] = []

    @classmethod
    async def open(cls, directory: Path, version: int = m.VERSION) -> Process:
        self = cls(*await asyncio.open_unix_connection(sock=connected(directory, NAME)))
        self.say(m.Hello(version))
        return self

    def say(self, message: m.DeskMessage) -> None:
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
async def desked(start: Any, tmp_path: Path) -> Any:
    return await start(data_dir=tmp_path, desk_dir=tmp_path)


async def test_the_doors_are_for_the_owner_only(desked: Any, tmp_path: Path) -> None:
    for name in (NAME, AMQP_NAME):
        mode = (tmp_path / name).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    await desked.stop()
    assert not (tmp_path / NAME).exists()
    assert not (tmp_path / AMQP_NAME).exists()


async def test_without_a_management_process_there_are_no_doors(start: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    assert shell.desk is None
    assert not (tmp_path / NAME).exists()
    assert not (tmp_path / AMQP_NAME).exists()


async def test_rows_of_what_there_is(desked: Any, connect: Any, tmp_path: Path) -> None:
    peer = await (await connect(desked)).open()
    peer.send(1, methods.QueueDeclare(queue="q", durable=True))
    await peer.receive()
    peer.send(1, methods.ConfirmSelect())
    await peer.receive()
    peer.publish("q", b"12345", 3)
    await until(lambda: next(iter(desked.node.queues.values())).ring.ready == 3)
    peer.send(1, methods.BasicQos(prefetch_count=2))
    await peer.receive()
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c"))
    process = await Process.open(tmp_path)
    hello = await process.hear(m.Hello)
    assert (hello.version, hello.node) == (m.VERSION, desked.options.node.name)
    assert (await process.hear(m.Leased)).leased
    await until(lambda: next(iter(desked.node.queues.values())).ring.unacked == 2)
    batch = await process.rows(1)
    assert batch.whole
    (node,) = of(batch.rows, NodeRow)
    assert node.memory_used_bytes > 1 << 20
    assert node.disk_free_bytes > 0
    assert node.files_used > 3
    assert 0 < node.uptime_ms < 3_600_000
    assert node.wiring_index == desked.node.map.applied
    assert node.listeners[0].port == desked.listeners[0].addresses[0].port
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
    await until(lambda: not desked.clients)
    later = await process.rows(2, {batch.node: (batch.life, batch.number)})
    assert not later.whole
    assert set(later.gone) == {connection.key, channel.key, consumer.key}
    (queue,) = of(later.rows, QueueRow)
    assert (queue.ready, queue.unacknowledged, queue.consumers) == (3, 0, 0)
    (node,) = of(later.rows, NodeRow)
    assert (node.connections_closed, node.channels_closed) == (1, 1)


async def test_what_stands_in_the_way_is_told(desked: Any, connect: Any, tmp_path: Path) -> None:
    """A connection that an alarm blocks, and a consumer that wants no other."""
    peer = await (await connect(desked)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="mine", exclusive=True))
    peer.publish("q", b"x")
    await until(lambda: any(one.backpressure.publishes for one in desked.node.clients.values()))
    desked.alarms.set("memory", "a drill", True)
    process = await Process.open(tmp_path)
    batch = await process.rows(1)
    assert of(batch.rows, NodeRow)[0].alarms == ("memory",)
    assert of(batch.rows, ConnectionRow)[0].state == "blocked"
    assert of(batch.rows, QueueRow)[0].exclusive_consumer_tag == "mine"
    desked.alarms.set("memory", "a drill", False)
    batch = await process.rows(2)
    assert of(batch.rows, ConnectionRow)[0].state == "running"


async def test_a_client_whose_words_cannot_be_told_hides_nothing(desked: Any, connect: Any, tmp_path: Path) -> None:
    """Names that are no UTF-8, numbers that are too big, and too much of everything."""
    for properties in ({"\udcff": 1}, {"x": {"\udcff": [1]}}, {"x": "y" * 7000, "z": "\u20ac" * 1}):
        peer = await connect(desked)
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
    await until(lambda: any(queue.subscriptions for queue in desked.node.queues.values()))
    process = await Process.open(tmp_path)
    batch = await process.rows(1)
    told = [connection.client_properties for connection in of(batch.rows, ConnectionRow)]
    assert told == [{}, {}, {"x": "y" * 7000, "z": "\u20ac"}]
    (consumer,) = of(batch.rows, ConsumerRow)
    assert consumer.arguments == {}


async def test_what_cannot_be_counted_ends_no_node(
    desked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    process = await Process.open(tmp_path)
    await process.rows(1)
    monkeypatch.setattr("clusterbroker.broker.server.counting.connection_row", fails)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", desked.listeners[0].addresses[0].port))
    await peer.open()
    assert len((await process.rows(2)).rows) == 1, "what came before the mistake"
    monkeypatch.undo()
    assert len(of((await process.rows(3)).rows, ConnectionRow)) == 1
    assert not desked.ended.done()
    peer.writer.close()


async def test_a_sample_serves_all_who_accept_its_age(desked: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    first = await process.rows(1)
    second = await process.rows(2, {first.node: (first.life, first.number)}, max_age_ms=60_000)
    assert second.sampled_at_ms == first.sampled_at_ms
    assert second.rows == ()
    third = await process.rows(3, {first.node: (first.life, first.number)}, max_age_ms=0)
    assert len(third.rows) == 1, "the node itself has grown older"


async def test_a_member_that_does_not_answer_in_time_is_left_out(
    desked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    monkeypatch.setattr("clusterbroker.broker.server.desk.ANSWER_S", 0.1)
    monkeypatch.setattr(desked.desk.desk, "_peers", Silent())
    process = await Process.open(tmp_path)
    batch = await process.rows(1, {"b": (5, 6)})
    assert batch.node == "node"
    assert [ask[:3] for ask in asked] == [("b", 5, 6), ("c", 0, 0)]
    assert forgotten == [1, 2]
    asked[0][3](b"too late", False)
    await process.rows(2)
    assert forgotten == [1, 2, 3, 4]


async def test_the_wiring_is_followed(desked: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    mirror = await process.folded()
    assert mirror.digest() == desked.node.map.digest()
    for name in ("v", "w"):
        process.say(m.Order(2, c.encode(c.AddVhost(name=name))))
        assert await process.hear(m.Ordered) == m.Ordered(2, "", "", desked.node.map.applied)
    while mirror.applied < desked.node.map.applied:
        for index, command in (await process.hear(m.Followed)).commands:
            mirror.apply(LogIndex(index), c.decode(command))
    assert mirror.digest() == desked.node.map.digest()

    again = await Process.open(tmp_path)
    again.say(m.Tail(1, mirror.applied))
    assert await again.hear(m.Following) == m.Following(1)


async def test_an_order_is_refused_as_the_wiring_says(desked: Any, tmp_path: Path) -> None:
    process = await Process.open(tmp_path)
    process.say(m.Order(1, c.encode(c.SetPermission(user="nobody", vhost="/", configure="", write="", read=""))))
    refused = await process.hear(m.Ordered)
    assert (refused.number, refused.kind) == (1, "not_found")
    process.say(m.Order(2, c.encode(c.RemoveConnection(connection="x"))))
    refused = await process.hear(m.Ordered)
    assert "RemoveConnection is no command of an operator" in refused.text
    process.say(m.Order(3, b"\xff"))
    assert (await process.hear(m.Ordered)).kind == "unavailable"


async def test_deeds(desked: Any, connect: Any, tmp_path: Path) -> None:
    peer = await (await connect(desked)).open()
    (connection_id,) = desked.node.clients
    process = await Process.open(tmp_path)
    process.say(m.Do(1, "connection.close", {"id": connection_id, "reason": "enough"}))
    assert await process.hear(m.Done) == m.Done(1, {}, "")
    closed = await peer.receive()
    assert isinstance(closed, methods.ConnectionClose)
    assert (closed.reply_code, "enough" in closed.reply_text) == (320, True)
    process.say(m.Do(2, "connection.close", {"id": "x.1.9"}))
    assert "there is no connection 'x.1.9'" in (await process.hear(m.Done)).error
    process.say(m.Do(3, "alarm.set", {"name": "memory", "raised": True}))
    assert (await process.hear(m.Done)).answer == {"alarms": ["memory"]}
    process.say(m.Do(4, "explode", {}))
    assert "'explode' is not one of" in (await process.hear(m.Done)).error
    process.say(m.Do(5, "members", {}))
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
async def test_who_speaks_nonsense_is_cut(desked: Any, tmp_path: Path, bad: bytes, lines: Lines) -> None:
    process = await Process.open(tmp_path)
    process.writer.write(bad)
    assert await process.ended()
    assert "management.cut" in lines.events()
    await (await Process.open(tmp_path)).rows(1)


async def test_who_says_no_hello_is_cut(desked: Any, tmp_path: Path) -> None:
    process = Process(*await asyncio.open_unix_connection(sock=connected(tmp_path, NAME)))
    process.say(m.AskRows(1, {}, 0))
    assert await process.ended()


async def test_who_does_not_read_is_cut_and_begins_anew(
    desked: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a process that stands still never grows beyond the bound."""
    monkeypatch.setattr(desk_socket, "UNREAD_BYTES_MAX", 1 << 20)
    process = await Process.open(tmp_path)
    await process.folded()
    (line,) = desked.desk.lines
    process.writer.transport.pause_reading()  # type: ignore[attr-defined]
    number = 0
    while desked.desk.lines:
        assert number < 200, "it is cut long before"
        number += 1
        await desked.propose(c.AddVhost(name=f"v{number}", description="x" * 100_000))
        assert line._pending_bytes <= 2 << 20
    assert "management.cut" in lines.events()
    again = await Process.open(tmp_path)
    assert (await again.folded()).digest() == desked.node.map.digest()


async def external(directory: Path, response: bytes, vhost: str = "/") -> tuple[Peer, Any]:
    """A client of amqp.sock, and what it hears after its login."""
    peer = Peer(*await asyncio.open_unix_connection(sock=connected(directory, AMQP_NAME)))
    peer.writer.write(HEADER)
    hello = await peer.receive()
    assert isinstance(hello, methods.ConnectionStart)
    assert b"EXTERNAL" in hello.mechanisms.split()
    capabilities = {"capabilities": {"authentication_failure_close": True}}
    peer.send(0, methods.ConnectionStartOk(capabilities, "EXTERNAL", response, "en_US"))
    heard = await peer.receive()
    if isinstance(heard, methods.ConnectionTune):
        peer.send(0, methods.ConnectionTuneOk(heard.channel_max, heard.frame_max, 0))
        peer.send(0, methods.ConnectionOpen(vhost))
        heard = await peer.receive()
    return peer, heard


async def test_amqp_for_the_process_as_any_user(desked: Any, tmp_path: Path) -> None:
    await desked.propose(c.PutUser(name="bob", password_hash="", hash_algorithm="scrypt"))
    await desked.propose(c.SetPermission(user="bob", vhost="/", configure="^mine$", write="", read=""))
    peer, heard = await external(tmp_path, b"bob")
    assert isinstance(heard, methods.ConnectionOpenOk)
    peer.send(1, methods.ChannelOpen())
    await peer.receive()
    peer.send(1, methods.QueueDeclare(queue="mine"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.QueueDeclare(queue="other"))
    refused = await peer.receive()
    assert isinstance(refused, methods.ChannelClose)
    assert refused.reply_code == 403
    process = await Process.open(tmp_path)
    assert of((await process.rows(1)).rows, ConnectionRow) == [], "the node's own are not told"


@pytest.mark.parametrize("response", [b"nobody", b"", b"\xff\xfe"])
async def test_amqp_for_the_process_refuses_unknown_users(desked: Any, tmp_path: Path, response: bytes) -> None:
    _, heard = await external(tmp_path, response)
    assert isinstance(heard, methods.ConnectionClose)
    assert heard.reply_code == 403


async def test_others_cannot_say_who_they_are(desked: Any, connect: Any) -> None:
    """EXTERNAL is neither offered nor accepted where anybody can connect."""
    peer = await connect(desked)
    peer.writer.write(HEADER)
    hello = await peer.receive()
    assert b"EXTERNAL" not in hello.mechanisms.split()
    peer.send(0, methods.ConnectionStartOk({}, "EXTERNAL", b"guest", "en_US"))
    closed = await peer.receive()
    assert isinstance(closed, methods.ConnectionClose)
    assert closed.reply_code == 503
