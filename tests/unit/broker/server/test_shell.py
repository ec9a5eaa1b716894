"""The loop of a node: what is confirmed is on disk, restarts remember, failures end the node and not its promises."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_support import Lines, options, until

from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.journal.errors import JournalFailed, LockedJournal
from clusterbroker.journal.options import MIB, JournalOptions


async def declared(peer: Any, name: str = "q") -> Any:
    peer.send(1, methods.QueueDeclare(queue=name, durable=True))
    said = await peer.receive()
    assert isinstance(said, methods.QueueDeclareOk), said
    return said


async def confirmed(peer: Any, count: int) -> None:
    """Waits until `count` publishes since confirm.select are acknowledged."""
    acked = 0
    while acked < count:
        said = await peer.receive()
        assert isinstance(said, methods.BasicAck), said
        acked = said.delivery_tag if said.multiple else acked + 1


@pytest.mark.parametrize("kept", [False, True])
async def test_publish_confirm_consume_acknowledge(start: Any, connect: Any, tmp_path: Path, kept: bool) -> None:
    shell = await start(data_dir=tmp_path / "d" if kept else None)
    peer = await (await connect(shell)).open()
    await declared(peer)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    peer.publish("q", b"body", 100)
    await confirmed(peer, 100)
    assert (await declared(peer)).message_count == 100
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c"))
    assert isinstance(await peer.receive(), methods.BasicConsumeOk)
    for _ in range(100):
        assert isinstance(await peer.receive(), methods.BasicDeliver)
    peer.send(1, methods.BasicAck(0, multiple=True))
    (queue,) = shell.node.queues.values()
    await until(lambda: queue.ring.ready == queue.ring.unacked == 0)


@pytest.mark.long
async def test_a_restart_finds_what_was_confirmed(start: Any, connect: Any, tmp_path: Path) -> None:
    for round_ in range(3):
        shell = await start(data_dir=tmp_path)
        peer = await (await connect(shell)).open()
        assert (await declared(peer)).message_count == round_ * 50
        peer.send(1, methods.ConfirmSelect())
        assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
        peer.publish("q", b"x" * 1000, 50)
        await confirmed(peer, 50)
        assert shell.node.options.incarnation == round_ + 1
        await shell.stop()


async def test_checkpoints_let_old_segments_go_and_lose_nothing(start: Any, connect: Any, tmp_path: Path) -> None:
    journal = JournalOptions(
        segment_bytes=MIB, checkpoint_bytes=MIB, checkpoint_interval_s=0.02, reserve_bytes=0, map_bytes=1 << 32
    )
    shell = await start(data_dir=tmp_path, journal=journal)
    peer = await (await connect(shell)).open()
    await declared(peer, "kept")
    await declared(peer, "q")
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    published = 0
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    assert isinstance(await peer.receive(), methods.BasicConsumeOk)
    for _ in range(12):
        # one message stays in each segment: the sparse ones are copied forward
        peer.publish("kept", b"k" * 1000)
        peer.publish("q", b"x" * 50_000, 20)
        published += 21
        acked = delivered = 0
        while acked < published or delivered < 20:
            said = await peer.receive()
            if isinstance(said, methods.BasicDeliver):
                delivered += 1
            else:
                acked = max(acked, said.delivery_tag)
    segments = tmp_path / "journal" / "segments"
    await until(lambda: len(list(segments.glob("*.seg"))) <= 5)
    await shell.stop()
    shell = await start(data_dir=tmp_path, journal=journal)
    peer = await (await connect(shell)).open()
    assert (await declared(peer, "kept")).message_count == 12
    for _ in range(12):
        peer.send(1, methods.BasicGet(queue="kept", no_ack=True))
        kind, _, _ = await peer.frame()
        assert kind == 1
        while kind != 3:
            kind, _, payload = await peer.frame()
        assert payload == b"k" * 1000


async def test_the_messages_of_a_deleted_queue_are_forgotten(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    await declared(peer)
    peer.send(1, methods.ConfirmSelect())
    await peer.receive()
    peer.publish("q", b"old", 10)
    await confirmed(peer, 10)
    peer.send(1, methods.QueueDelete(queue="q"))
    assert isinstance(await peer.receive(), methods.QueueDeleteOk)
    await declared(peer)
    await shell.stop()
    shell = await start(data_dir=tmp_path)
    assert (await declared(await (await connect(shell)).open())).message_count == 0


async def test_one_directory_one_node(start: Any, tmp_path: Path) -> None:
    await start(data_dir=tmp_path)
    with pytest.raises(LockedJournal, match="in use by another process"):
        await start(data_dir=tmp_path)


async def test_a_port_that_is_taken_leaves_nothing_open(start: Any, tmp_path: Path) -> None:
    shell = await start()
    taken = shell.listeners[0].addresses[0]
    with pytest.raises(OSError, match=f"cannot listen on amqp 127.0.0.1:{taken.port}"):
        await start(data_dir=tmp_path, amqp=(taken,))
    await start(data_dir=tmp_path)


async def test_stop_says_goodbye_and_waits_for_the_answer(start: Any, connect: Any) -> None:
    shell = await start(stop_grace_s=600)
    peer = await (await connect(shell)).open()
    stopping = asyncio.ensure_future(shell.stop())
    said = await peer.receive()
    assert isinstance(said, methods.ConnectionClose)
    assert said.reply_code == 320
    assert not stopping.done()
    peer.send(0, methods.ConnectionCloseOk())
    peer.writer.write_eof()
    await asyncio.wait_for(stopping, 60)
    assert shell.ended.result() is None


async def test_stop_does_not_wait_for_ever(start: Any, connect: Any) -> None:
    shell = await start(stop_grace_s=0.1)
    await (await connect(shell)).open()
    await asyncio.wait_for(shell.stop(), 60)


async def test_a_failed_disk_ends_the_node(start: Any, connect: Any, tmp_path: Path, lines: Lines) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    shell._journal_state("failed", "segment 1: Input/output error")
    assert isinstance(await asyncio.wait_for(shell.ended, 60), JournalFailed)
    assert await peer.ended() == b"", "without a word: nothing is promised any more"
    assert "node.failed" in lines.events()


async def test_a_turn_that_fails_ends_the_node(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = await start()

    def broken(now_ms: int) -> None:
        raise RuntimeError("seeded")

    monkeypatch.setattr(shell.node, "turn", broken)
    shell.schedule()
    assert isinstance(await asyncio.wait_for(shell.ended, 60), RuntimeError)


async def test_a_full_journal_blocks_publishers_and_frees_them(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    await declared(peer)
    peer.publish("q", b"x")
    await until(lambda: any(one.backpressure.publishes for one in shell.node.clients.values()))
    shell._journal_state("full", "segment 2: No space left on device")
    assert isinstance(await peer.receive(), methods.ConnectionBlocked)
    shell._journal_state("ok", "")
    assert isinstance(await peer.receive(), methods.ConnectionUnblocked)


async def test_too_many_connections_are_turned_away(start: Any, connect: Any, lines: Lines) -> None:
    shell = await start(node=NodeOptions(connections_max=2))
    peers = [await (await connect(shell)).open() for _ in range(2)]
    third = await connect(shell)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await third.open()
    assert "client.turned_away" in lines.events()
    peers[0].writer.transport.abort()
    await until(lambda: len(shell.clients) == 1)
    await (await connect(shell)).open()


async def test_connections_opened_and_dropped_hurt_nobody(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell)).open()
    port = shell.listeners[0].addresses[0].port
    for _ in range(20):
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(50)))
        for _, writer in opened:
            writer.transport.abort()
        await declared(peer)
    await until(lambda: len(shell.clients) == 1)


async def test_silence_before_the_handshake_is_cut(start: Any, connect: Any, lines: Lines) -> None:
    shell = await start(node=NodeOptions(handshake_timeout_s=0.2))
    peer = await connect(shell)
    assert await peer.ended(3) == b""
    assert "client.cut" in lines.events()


async def test_a_wrong_password_is_refused_and_not_in_the_log(start: Any, connect: Any, lines: Lines) -> None:
    shell = await start()
    for user, password in (("guest", "hunter2"), ("nobody", "hunter2")):
        peer = await connect(shell)
        with pytest.raises(AssertionError, match="reply_code=403"):
            await peer.open(user, password)
    assert lines.events().count("client.refused") == 2
    assert "hunter2" not in repr(lines.lines)


async def test_message_ttl_fires_without_traffic(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="short", arguments={"x-message-ttl": 1000}))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.publish("short", b"x", 3)
    (queue,) = shell.node.queues.values()
    await until(lambda: queue.ring.ready == 3)
    await until(lambda: queue.ring.ready == 0)


def test_the_receive_buffer_holds_two_frames() -> None:
    from clusterbroker.broker.server.log import NodeLog
    from clusterbroker.broker.server.shell import NodeShell

    large = replace(options(), node=NodeOptions(frame_max_bytes=1 << 20))
    assert NodeShell(large, NodeLog(Lines())).buffer.size == 2 << 20
