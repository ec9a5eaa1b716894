"""A node looks slowly at what it has on its disk: what it cannot read is held back before anybody asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server_support import until

from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.journal.options import JournalOptions

COUNT = 60
BODY = b"x" * 50_000
SMALL = JournalOptions(
    segment_bytes=1 << 20, checkpoint_bytes=1 << 20, checkpoint_interval_s=0.02, reserve_bytes=0, map_bytes=1 << 32,
    scrub_rate_bytes=1 << 28,
)  # fmt: skip


async def fill(directory: Path, start: Any, connect: Any) -> None:
    """COUNT messages; the node is stopped, and the body of the fifth one is damaged."""
    shell = await start(data_dir=directory, journal=SMALL)
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="q", durable=True))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    for number in range(1, COUNT + 1):
        peer.publish("q", b"%04d" % number + BODY)
        said = await peer.receive()
        assert isinstance(said, methods.BasicAck)
    await shell.stop()
    for path in (directory / "journal" / "segments").glob("*.seg"):
        data = bytearray(path.read_bytes())
        at = data.find(b"0005" + BODY)
        if at >= 0:
            data[at + 100] ^= 1
            path.write_bytes(data)


async def test_a_pass_finds_damage_that_nobody_asked_for(tmp_path: Path, start: Any, connect: Any) -> None:
    await fill(tmp_path, start, connect)
    shell = await start(data_dir=tmp_path, journal=SMALL)
    scrub = shell.scrub
    scrub.begin(0.0)
    await until(lambda: scrub.passes == 1)
    assert scrub.found == 1
    assert scrub.percent == 100
    assert scrub.bytes_read > (COUNT - 30) * len(BODY)
    alerts = [(alert.kind, alert.subject) for alert in shell.node.alerts]
    assert alerts == [("message.damaged", "queue 'q' in vhost '/'")]
    (queue_id,) = shell.node.queues
    assert shell.node.damages.held_back(queue_id) == (5,)


async def test_what_is_in_memory_still_is_written_again(tmp_path: Path, start: Any, connect: Any) -> None:
    await fill(tmp_path, start, connect)
    shell = await start(data_dir=tmp_path, journal=SMALL)
    (queue,) = shell.node.queues.values()
    queue.ring.fill([queue.ring.location(5)], [whole(queue, shell)])
    shell.scrub.begin(0.0)
    await until(lambda: shell.scrub.passes == 1)
    assert shell.scrub.found == 0
    await until(lambda: shell.storage.journal.idle and not shell.node.wants_group)
    await shell.stop()
    shell = await start(data_dir=tmp_path, journal=SMALL)
    peer = await (await connect(shell)).open()
    peer.send(1, methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    assert isinstance(await peer.receive(), methods.BasicConsumeOk)
    for _ in range(COUNT):
        assert isinstance(await peer.receive(), methods.BasicDeliver)


def whole(queue: Any, shell: Any) -> Any:
    """The fifth message, as it was: another one's, with its first bytes."""
    from clusterbroker.broker.wire.amqp091.codec import make_message

    return make_message(b"\0\1q", b"\0\0", b"0005" + BODY, shell.clock.now_ms())


async def test_a_pass_that_is_switched_off_does_not_begin(tmp_path: Path, start: Any) -> None:
    shell = await start(data_dir=tmp_path, journal=JournalOptions(scrub_rate_bytes=0))
    shell.scrub.begin(0.0)
    assert shell.scrub._timer is None


async def test_a_pass_reads_the_files_of_streams_and_the_index(tmp_path: Path, start: Any, connect: Any) -> None:
    """What rots there nobody asks for, perhaps for years, while other copies are lost one by one."""
    shell = await start(data_dir=tmp_path, journal=SMALL)
    peer = await (await connect(shell)).open()
    for queue, arguments in (("stream", {"x-queue-type": "stream"}), ("q", {}), ("whole", {})):
        peer.send(1, methods.QueueDeclare(queue=queue, durable=True, arguments=arguments))
        assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.ConfirmSelect())
    assert isinstance(await peer.receive(), methods.ConfirmSelectOk)
    for number in range(20):
        for queue in ("stream", "q", "whole"):
            peer.publish(queue, b"%04d" % number + BODY)
            assert isinstance(await peer.receive(), methods.BasicAck)
    scrub, journal = shell.scrub, shell.storage.journal
    ids = {queue.name: queue.entity.queue_id for queue in shell.node.queues.values()}
    files = tmp_path / "journal" / "streams" / str(ids["stream"])
    await until(lambda: sum(path.stat().st_size for path in files.glob("*.seg")) > 20 * len(BODY))
    scrub.begin(0.0)
    await until(lambda: scrub.passes == 1)
    assert (scrub.found, scrub.percent) == (0, 100)
    assert scrub.bytes_done == scrub.bytes_total

    path = next(path for path in files.glob("*.seg") if b"0005" + BODY in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.find(b"0005" + BODY) + 100] ^= 1
    path.write_bytes(data)
    await until(lambda: not journal._checkpoint_runs and journal.checkpoint_due is False)
    key = ids["q"].to_bytes(8, "big")
    with journal.index._env.begin(write=True) as txn:
        value = txn.get(key, db=journal.index._sums)
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)), db=journal.index._sums)
    scrub._pass()
    await until(lambda: scrub.passes == 2)
    assert scrub.found == 2
    alerts = {alert.subject: alert.text for alert in shell.node.alerts}
    assert set(alerts) == {"queue 'stream' in vhost '/'", "queue 'q' in vhost '/'"}
    assert "or one behind it" in alerts["queue 'stream' in vhost '/'"]
    assert "index/data.mdb" in alerts["queue 'q' in vhost '/'"]
