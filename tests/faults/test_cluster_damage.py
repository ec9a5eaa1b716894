"""A member's journal is damaged, in three places and by three kinds of damage: what it held comes back from the others.

Real processes. The damage is done while the process is gone, as bad disks do it; or under its feet, to what it has not
in memory any more.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.broker.trial.nodes import LocalCluster, TrialError
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
COUNT = 400
BODY = 3000
NEAR = {"x-queue-leader-locator": "client-local"}


class FewCheckpoints(LocalCluster):
    """The log's tail is all that was written since the start, so that damage in it is found when it is read again."""

    def _environment(self, name: str) -> dict[str, str]:
        return {**super()._environment(name), "CLUSTERBROKER_JOURNAL__CHECKPOINT_INTERVAL_S": "1000"}


@asynccontextmanager
async def cluster_of_three(directory: Path) -> AsyncIterator[LocalCluster]:
    cluster = FewCheckpoints(directory)
    try:
        await cluster.begin()
        yield cluster
    finally:
        await cluster.end()


def connect(cluster: LocalCluster, name: str) -> Any:
    port = cluster.target(name).port
    end_s = time.monotonic() + 90
    while True:
        try:
            parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, blocked_connection_timeout=30)
            return pika.BlockingConnection(parameters)
        except (pika.exceptions.AMQPConnectionError, OSError):
            assert time.monotonic() < end_s, f"{name} takes no client"
            time.sleep(0.1)


def publish(cluster: LocalCluster, name: str, queue: str, first: int, count: int, **arguments: Any) -> None:
    with connect(cluster, name) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **arguments})
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        for number in range(first, first + count):
            channel.basic_publish("", queue, b"%06d" % number + b"x" * BODY, properties)


def consume(cluster: LocalCluster, name: str, queue: str, count: int) -> list[int]:
    """The messages in their order; goes on with a new connection when one is lost."""
    found: dict[int, None] = {}
    end_s = time.monotonic() + 60
    while len(found) < count and time.monotonic() < end_s:
        try:
            with connect(cluster, name) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=50)
                for method, _, body in channel.consume(queue, inactivity_timeout=3):
                    if method is None:
                        break
                    found[int(body[:6])] = None
                    channel.basic_ack(method.delivery_tag)
                    if len(found) == count:
                        break
        except (pika.exceptions.AMQPError, OSError):
            time.sleep(0.2)
    return list(found)


def ctl(cluster: LocalCluster, name: str, *words: str) -> str:
    line = [sys.executable, "-m", "clusterbroker.broker.cli.main", *words, "--data-dir", str(cluster.data_dir(name))]
    done = processes.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_segment(cluster: LocalCluster, name: str) -> Path:
    segments = (cluster.data_dir(name) / "journal" / "segments").glob("*.seg")
    return max(path for path in segments if written_bytes(path) > 20 * BODY)


def written_bytes(path: Path) -> int:
    """Behind it are zeros only: space that was taken ahead."""
    return len(path.read_bytes().rstrip(b"\0"))


def flip_a_bit(path: Path) -> None:
    """Before the end, which might be torn."""
    with open(path, "r+b") as file:
        at = written_bytes(path) - 10 * BODY
        file.seek(at)
        (octet,) = file.read(1)
        file.seek(at)
        file.write(bytes((octet ^ 16,)))


def zero_a_page(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek((written_bytes(path) - 10 * BODY) // 4096 * 4096)
        file.write(bytes(4096))


def cut_off(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(written_bytes(path) // 3)


def asides(cluster: LocalCluster, name: str) -> list[Path]:
    return sorted(cluster.data_dir(name).glob("journal.damaged-*"))


async def until(reached: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    end_s = time.monotonic() + timeout_s
    while not await asyncio.to_thread(reached):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.1)


async def other_than_owner(cluster: LocalCluster, queue: str) -> tuple[str, str]:
    owner = await cluster.owner(queue)
    assert owner is not None
    return owner, next(name for name in "abc" if name != owner)


async def move(cluster: LocalCluster, queue: str, to: str) -> None:
    """As soon as the copy there is in sync."""
    end_s = time.monotonic() + 90
    while True:
        try:
            await asyncio.to_thread(ctl, cluster, to, "queues", "move", queue, to)
            return
        except AssertionError:
            assert time.monotonic() < end_s, "the rebuilt copy comes in sync"
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("at_owner", [True, False])
async def test_found_at_the_start(tmp_path: Path, at_owner: bool) -> None:
    """Of a group that cannot be walked nobody knows whose it was: all copies of the member are rebuilt."""
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "q", 0, COUNT)
        owner, other = await other_than_owner(cluster, "q")
        hurt = owner if at_owner else other
        await cluster.kill(hurt)
        zero_a_page(last_segment(cluster, hurt))
        await cluster.start(hurt)
        (aside,) = asides(cluster, hurt)
        assert (aside / "segments").exists()
        assert not (cluster.data_dir(hurt) / "journal.lost").exists()
        assert "cluster.journal_damaged" in cluster.nodes[hurt].log.read_text()
        await move(cluster, "q", hurt)
        for name in "abc":
            if name != hurt:
                await cluster.kill(name)
                await cluster.start(name)
        assert await asyncio.to_thread(consume, cluster, hurt, "q", COUNT) == list(range(COUNT))
        await cluster.kill(hurt)
        await cluster.start(hurt)
        assert asides(cluster, hurt) == [aside], "it is set aside once"


@pytest.mark.parametrize("at_owner", [True, pytest.param(False, marks=pytest.mark.matrix)])
async def test_a_record_that_is_found_at_the_start_names_its_queue(tmp_path: Path, at_owner: bool) -> None:
    """That copy is rebuilt, and none of the others; an only copy beside it is served as before."""
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "lonely", 0, 20, **NEAR, **{"x-quorum-initial-group-size": 1})
        await asyncio.to_thread(publish, cluster, "a", "q", 0, COUNT, **(NEAR if at_owner else {}))
        if not at_owner and await cluster.owner("q") == "a":
            await move(cluster, "q", "b")
        await cluster.kill("a")
        flip_a_bit(last_segment(cluster, "a"))
        await cluster.start("a")
        assert asides(cluster, "a") == []
        assert await asyncio.to_thread(consume, cluster, "b", "lonely", 20) == list(range(20))
        await move(cluster, "q", "a")
        for name in "bc":
            await cluster.kill(name)
            await cluster.start(name)
        assert await asyncio.to_thread(consume, cluster, "a", "q", COUNT) == list(range(COUNT))
        assert "node.restarts" not in cluster.nodes["a"].log.read_text()


async def test_a_journal_that_was_cut_off(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "q", 0, COUNT)
        _, hurt = await other_than_owner(cluster, "q")
        await cluster.stop(hurt)
        cut_off(last_segment(cluster, hurt))
        await cluster.start(hurt)
        assert len(asides(cluster, hurt)) == 1
        await move(cluster, "q", hurt)
        assert await asyncio.to_thread(consume, cluster, hurt, "q", COUNT) == list(range(COUNT))


async def test_an_index_that_is_no_index(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "q", 0, COUNT)
        _, hurt = await other_than_owner(cluster, "q")
        await cluster.stop(hurt)
        index = cluster.data_dir(hurt) / "journal" / "index" / "data.mdb"
        assert index.exists()
        index.write_bytes(b"\xa5" * 8192 + index.read_bytes()[8192:])
        await cluster.start(hurt)
        assert len(asides(cluster, hurt)) == 1
        await move(cluster, "q", hurt)
        assert await asyncio.to_thread(consume, cluster, hurt, "q", COUNT) == list(range(COUNT))


async def test_found_while_it_runs(tmp_path: Path) -> None:
    """A record that the owner has to read again: consumers get all of it, from another member, and the node goes on:
    that copy alone is made anew."""
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "q", 0, COUNT)
        owner, other = await other_than_owner(cluster, "q")
        await cluster.stop(owner)  # with a last checkpoint: the next start reads no message
        flip_a_bit(last_segment(cluster, owner))
        await cluster.start(owner)
        await move(cluster, "q", owner)
        assert await asyncio.to_thread(consume, cluster, other, "q", COUNT) == list(range(COUNT))
        await move(cluster, "q", owner)
        assert asides(cluster, owner) == []
        assert "node.restarts" not in cluster.nodes[owner].log.read_text()


async def test_one_bad_record_of_an_only_copy_is_held_back(tmp_path: Path) -> None:
    """Its node goes on, and serves everything else (p9: the node ended, again and again)."""
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "other", 0, 20, **NEAR)
        await asyncio.to_thread(publish, cluster, "a", "lonely", 0, COUNT, **NEAR, **{"x-quorum-initial-group-size": 1})
        assert await cluster.owner("lonely") == "a"
        await cluster.stop("a")  # with a last checkpoint: the next start reads no message
        flip_a_bit(last_segment(cluster, "a"))
        await cluster.start("a")
        found = await asyncio.to_thread(consume, cluster, "b", "lonely", COUNT - 1)
        (lost,) = set(range(COUNT)) - set(found)
        assert found == [number for number in range(COUNT) if number != lost]
        assert await asyncio.to_thread(consume, cluster, "b", "other", 20) == list(range(20))
        assert "message.damaged" in await asyncio.to_thread(ctl, cluster, "a", "status")
        seq = str(lost + 1)
        assert f"seq {seq} " in cluster.nodes["a"].log.read_text()


async def test_the_only_copy_is_not_set_aside(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "lonely", 0, COUNT, **{"x-quorum-initial-group-size": 1})
        hurt = await cluster.owner("lonely")
        assert hurt is not None
        await cluster.kill(hurt)
        damaged = last_segment(cluster, hurt)
        zero_a_page(damaged)
        before = damaged.read_bytes()
        with pytest.raises(TrialError, match="queue 'lonely' in vhost '/'"):
            await cluster.start(hurt)
        assert asides(cluster, hurt) == []
        assert last_segment(cluster, hurt).read_bytes() == before


async def test_a_bad_record_of_an_only_copy_keeps_no_member_from_starting(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, cluster, "a", "lonely", 0, COUNT, **NEAR, **{"x-quorum-initial-group-size": 1})
        await cluster.kill("a")
        flip_a_bit(last_segment(cluster, "a"))
        await cluster.start("a")
        assert "message.damaged" in await asyncio.to_thread(ctl, cluster, "a", "status")
        found = await asyncio.to_thread(consume, cluster, "b", "lonely", COUNT - 1)
        (lost,) = set(range(COUNT)) - set(found)
        assert f"seq {lost + 1} " in cluster.nodes["a"].log.read_text()
