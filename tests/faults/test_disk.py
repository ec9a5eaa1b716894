"""Disks that are full, fail, lose power or rot."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pika import spec

from tests.faults.client import Channel, Client, Delivery
from tests.faults.disk import Unavailable, shim, small_disk, volatile
from tests.faults.kill_rounds import run
from tests.faults.node import NodeProcess, command, until

MakeNode = Callable[..., NodeProcess]
MIB = 1 << 20


@pytest.fixture
def library(tmp_path: Path) -> Path:
    try:
        return shim(tmp_path)
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """256 MiB of space."""
    try:
        with small_disk(tmp_path / "disk", 256 * MIB) as disk:
            yield disk
    except Unavailable as why:
        pytest.skip(str(why))


class Publisher:
    """Publishes numbered messages and remembers what was confirmed."""

    def __init__(self, channel: Channel, queue: str, size: int) -> None:
        self.channel, self.queue = channel, queue
        self.filler = b"|" + b"x" * size
        self.sent = 0
        self.confirmed: set[int] = set()
        self.nacked: set[int] = set()
        self._upto = 0
        channel.on_confirm = self._on_confirm

    def _on_confirm(self, ack: bool, tag: int, multiple: bool) -> None:
        tags = range(self._upto + 1, tag + 1) if multiple else (tag,)
        (self.confirmed if ack else self.nacked).update(tags)
        if multiple:
            self._upto = tag

    async def publish(self, count: int) -> None:
        self.put(count)
        await self.channel.client.drain()

    def put(self, count: int) -> None:
        """Publishes without a wait for the socket, which nobody reads while publishers are told to wait."""
        for _ in range(count):
            self.sent += 1
            self.channel.publish("", self.queue, b"%d" % self.sent + self.filler)

    @property
    def unanswered(self) -> int:
        return self.sent - len(self.confirmed) - len(self.nacked)


async def fill(publisher: Publisher) -> None:
    """Publishes as long as it is not told to wait."""
    while not publisher.channel.client.blocked.is_set():
        await publisher.publish(10)
        await asyncio.sleep(0.001)  # as a publisher that has other work


async def test_full_disk(make_node: MakeNode, disk: Path) -> None:
    """Publishers are told to wait, nothing is confirmed in vain, the node answers; space brings it all back.

    Consumers get what was reserved for hand-out before: to hand out more takes a record on the disk.
    """
    node = make_node({"alarms.disk_free_bytes": 0, "journal.segment_bytes": "32MiB"}, disk / "data").start()
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "filling", 20_000)
    await publisher.channel.declare("filling")
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 150 * MIB)

    filling = asyncio.create_task(fill(publisher))
    await asyncio.wait_for(client.blocked.wait(), 60)
    filling.cancel()  # what it wrote to its socket stays written
    assert node.running, node.log
    held = len(publisher.confirmed)
    assert held > 50, f"only {held} of {publisher.sent} were confirmed before the disk was full: {node.log}"
    assert "full" in node.log

    consuming = await Client.open(node.port)
    channel = await consuming.channel()
    async with asyncio.timeout(60):
        while not publisher.unanswered:  # the alarm comes when there is no next segment: this one may still have room
            await client.blocked.wait()
            publisher.put(10)
            await channel.declare("filling")  # the node has had its turn
    seen: list[int] = []

    def on_deliver(delivery: Delivery) -> None:
        seen.append(int(delivery.body.partition(b"|")[0]))
        channel.ack(delivery.tag)

    channel.on_deliver = on_deliver
    await channel.consume("filling", prefetch=20)
    left = (await channel.call(spec.Queue.Declare(queue="filling", passive=True))).message_count
    assert left + len(seen) >= held
    ballast.unlink()
    await until(lambda: not client.blocked.is_set(), "unblocked")
    await until(lambda: publisher.unanswered == 0, "the confirms that waited")
    await publisher.publish(100)
    await until(lambda: publisher.unanswered == 0, "confirms after the space came back")
    await until(lambda: len(set(seen)) >= publisher.sent - len(publisher.nacked), "all messages")
    assert seen == sorted(seen), "in order, none twice"
    assert publisher.confirmed <= set(seen)
    await client.close()
    await consuming.close()
    assert node.stop() == 0, node.log[-2000:]


def fill_up(file: Path) -> None:
    """Takes what the disk has left."""
    with pytest.raises(OSError, match="No space"), open(file, "wb", buffering=0) as rest:
        while True:
            rest.write(b"x" * 65536)


async def test_killed_while_the_disk_is_full(make_node: MakeNode, disk: Path) -> None:
    """kill -9 on a full disk: the next start finds all that was confirmed, with no space at all."""
    node = make_node({"alarms.disk_free_bytes": 0, "journal.segment_bytes": "32MiB"}, disk / "data").start()
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "filling", 20_000)
    await publisher.channel.declare("filling")
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 150 * MIB)

    filling = asyncio.create_task(fill(publisher))
    await asyncio.wait_for(client.blocked.wait(), 60)
    filling.cancel()  # what it wrote to its socket stays written
    node.kill()
    await client.close()
    fill_up(disk / "rest")
    node.launch()
    await until(lambda: not node.running or node.said_ready, "the start, or a refusal")
    if not node.running:
        assert "space" in node.log, "it says why"
        (disk / "rest").unlink()
        node.start()
    assert "Traceback" not in node.log
    (disk / "rest").unlink(missing_ok=True)
    ballast.unlink()
    client = await Client.open(node.port)
    channel = await client.channel()
    seen: list[int] = []
    channel.on_deliver = lambda delivery: seen.append(int(delivery.body.partition(b"|")[0]))
    await channel.consume("filling", prefetch=0)
    await until(lambda: publisher.confirmed <= set(seen), "all that was confirmed")
    assert seen == sorted(set(seen))
    await client.close()


async def test_disk_alarm_before_the_disk_is_full(make_node: MakeNode, disk: Path) -> None:
    """Below `alarms.disk_free_bytes` publishers wait while there still is space, and consumers go on."""
    node = make_node(
        {"alarms.disk_free_bytes": 96 * MIB, "journal.segment_bytes": "32MiB"},
        disk / "data",
    ).start()
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "alarmed", 1000)
    await publisher.channel.declare("alarmed")
    await publisher.publish(2000)
    await until(lambda: len(publisher.confirmed) == 2000, "confirms")
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 110 * MIB)
    await asyncio.wait_for(client.blocked.wait(), 60)
    await publisher.publish(10)
    consuming = await Client.open(node.port)
    channel = await consuming.channel()
    seen: list[int] = []

    def on_deliver(delivery: Delivery) -> None:
        seen.append(int(delivery.body.partition(b"|")[0]))
        channel.ack(delivery.tag)

    channel.on_deliver = on_deliver
    await channel.consume("alarmed", prefetch=20)
    await until(lambda: len(seen) == 2000, "all deliveries while publishers wait")
    assert client.blocked.is_set()
    assert len(publisher.confirmed) == 2000
    ballast.unlink()
    await until(lambda: not client.blocked.is_set(), "unblocked")
    await until(lambda: len(publisher.confirmed) == 2010, "confirms")
    await until(lambda: seen == list(range(1, 2011)), "the rest, in order")
    await client.close()
    await consuming.close()


async def test_segments_are_filled(make_node: MakeNode) -> None:
    """A backlog of 2 MB in segments of 1 MiB takes a handful of them, whatever is in memory meanwhile."""
    node = make_node({"journal.segment_bytes": "1MiB"}).start()
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "backlog", 1000)
    await publisher.channel.declare("backlog")
    for _ in range(20):
        await publisher.publish(100)
        await until(lambda: publisher.unanswered == 0, "confirms")
    newest = max(int(path.stem) for path in (node.data_dir / "journal" / "segments").glob("*.seg"))
    assert newest <= 6, f"segment {newest} after 2 MB"
    await client.close()


async def test_failing_flush_ends_the_node(make_node: MakeNode, library: Path, tmp_path: Path) -> None:
    """fdatasync answers EIO: nothing is confirmed any more, the node exits with 70, and starts again later."""
    node = make_node()
    fail = tmp_path / "fail"
    node.environment |= {"LD_PRELOAD": str(library), "DISK_FAIL": str(fail)}
    node.start()
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "q", 100)
    await publisher.channel.declare("q")
    await publisher.publish(500)
    await until(lambda: publisher.unanswered == 0, "confirms")
    fail.touch()
    await publisher.publish(500)
    assert await asyncio.to_thread(node.wait, 15) == 70, node.log
    await client.lost.wait()
    assert len(publisher.confirmed) == 500
    assert "Input/output error" in node.log
    await client.close()
    fail.unlink()
    node.start()
    client = await Client.open(node.port)
    channel = await client.channel()
    assert 500 <= await channel.declare("q") <= 1000
    await client.close()


async def test_power_loss(make_node: MakeNode, library: Path) -> None:
    """The kill rounds on a disk that forgets what was not flushed, or remembers some sectors of it."""
    node = make_node()
    volatile(node, library)
    totals = await run(node, rounds=3, seed=5)
    assert not totals.problems, "\n".join([str(totals), *totals.problems[:20]])
    assert totals.counts["confirmed"] > 500


def fingerprints(directory: Path) -> dict[str, str]:
    files = (
        path for path in directory.rglob("*") if path.is_file() and path.name not in ("lock", "lock.mdb", "starts")
    )
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
async def test_flipped_byte(node: NodeProcess, place: float) -> None:
    """A byte of a message rots in the tail of the log while the node is down: `journal check` names the file and
    changes nothing; the start holds that message back, says so, and delivers all others."""
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "rotten", 1000)
    await publisher.channel.declare("rotten")
    for _ in range(20):
        await publisher.publish(50)
        await until(lambda: publisher.unanswered == 0, "confirms")
    node.kill()  # no last checkpoint: the log will be read
    await client.close()
    segment = min((node.data_dir / "journal" / "segments").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    rotten = int(1000 * place)
    content[content.index(b"%d|" % rotten) + 10] ^= 0x40
    segment.write_bytes(content)
    before = fingerprints(node.data_dir / "journal")
    checked, found = command("journal", "check", str(node.data_dir))
    assert checked == 1, found
    assert segment.name in found
    assert fingerprints(node.data_dir / "journal") == before, "nothing is repaired silently"
    node.launch()
    try:
        await all_but_one(node, segment, "rotten")
    finally:
        node.kill()


async def all_but_one(node: NodeProcess, segment: Path, queue: str) -> None:
    """Of a thousand messages one cannot be read: it is held back and said to be, and the others are delivered."""
    await until(lambda: node.said_ready, "the start")
    client = await Client.open(node.port)
    channel = await client.channel()
    seen: list[bytes] = []
    channel.on_deliver = lambda delivery: seen.append(delivery.body)
    await channel.call(spec.Basic.Qos(prefetch_count=0))
    await channel.consume(queue, prefetch=0)
    await until(lambda: len(seen) >= 999, "all but one")
    assert all(body.partition(b"|")[2] == b"x" * 1000 for body in seen), "no wrong byte is delivered"
    await client.close()
    assert node.running
    assert "message.damaged" in node.log
    assert segment.name in node.log
    assert queue in node.log


async def test_flipped_byte_behind_the_checkpoint(node: NodeProcess) -> None:
    """A start reads no bodies that the index knows; the damage is found when the message is needed: that one is held
    back, and all others are delivered."""
    client = await Client.open(node.port)
    publisher = Publisher(await client.channel(confirm=True), "rotten", 1000)
    await publisher.channel.declare("rotten")
    await publisher.publish(1000)
    await until(lambda: publisher.unanswered == 0, "confirms")
    assert node.stop() == 0
    await client.close()
    segment = min((node.data_dir / "journal" / "segments").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"500|") + 10] ^= 0x40
    segment.write_bytes(content)
    node.launch()
    try:
        await all_but_one(node, segment, "rotten")
    finally:
        node.kill()
