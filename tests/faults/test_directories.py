"""Parts of a data directory that are gone, empty, of an earlier start or another's: none of them is believed.

Real processes. A part is taken away, or put back from an earlier start, while the node is down: a mount that did not
come up, a restore of one directory, an operator's `rm -r` (findings p1, p5, p12).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.broker.server.directory import stored
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.journal.index import Index
from tests.faults.node import NodeProcess, command

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(url: str, queue: str, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    connection.close()


def count_of(url: str, queue: str) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
    finally:
        connection.close()
    return count


# -- a node that is alone --------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(node: NodeProcess) -> NodeProcess:
    """With ten messages in a queue."""
    publish(node.url, "q", 10)
    assert node.stop() == 0
    return node


def test_an_index_that_was_cut_short_behind_an_end_in_order_is_told_by_the_first_start(stopped: NodeProcess) -> None:
    """A copy of the directory that did not fit. Once, the end in order was believed for ever: each start ended with
    SIGBUS and no line, and a member was never rebuilt; then the second start told it, and `journal check`, which its
    line names, ended with the signal."""
    data = stopped.data_dir / "journal" / "index" / "data.mdb"
    os.truncate(data, 8192)
    stopped.launch()
    assert stopped.wait() == 70
    line = stopped.log.strip().splitlines()[-1]
    assert "LMDB ended the process that looked at it (SIGBUS)" in line
    code, text = command("journal", "check", str(stopped.data_dir))
    assert code == 1
    assert "broken: index/data.mdb: LMDB ended the process that looked at it (SIGBUS)" in text


@pytest.mark.parametrize(
    ("part", "how"),
    [
        ("journal", "missing"),
        pytest.param("journal", "empty", marks=pytest.mark.matrix),
        pytest.param("journal", "dangling", marks=pytest.mark.matrix),
        pytest.param("wiring", "missing", marks=pytest.mark.matrix),
        pytest.param("wiring", "empty", marks=pytest.mark.matrix),
    ],
)
def test_a_node_that_is_alone_refuses_to_start_empty(stopped: NodeProcess, part: str, how: str, tmp_path: Path) -> None:
    directory, aside = stopped.data_dir / part, tmp_path / "aside"
    directory.rename(aside)
    if how == "empty":
        directory.mkdir()
    elif how == "dangling":
        directory.symlink_to(tmp_path / "not mounted")
    there = sorted(stopped.data_dir.rglob("*"))
    stopped.launch()
    assert stopped.wait() == 70
    line = stopped.log.strip().splitlines()[-1]
    assert f"clusterbroker: {directory}: it is missing or empty" in line
    assert "give the node an empty data directory" in line
    assert sorted(stopped.data_dir.rglob("*")) == there, "nothing is made in its place"
    if how == "dangling":
        directory.unlink()
    elif how == "empty":
        directory.rmdir()
    aside.rename(directory)
    assert count_of(stopped.start().url, "q") == 10


@pytest.mark.matrix
@pytest.mark.parametrize("part", ["journal", "wiring"])
def test_a_part_of_an_earlier_start_is_refused(stopped: NodeProcess, part: str, tmp_path: Path) -> None:
    directory = stopped.data_dir / part
    shutil.copytree(directory, tmp_path / "old")
    publish(stopped.start().url, "q", 5)
    stopped.kill()
    directory.rename(tmp_path / "new")
    (tmp_path / "old").rename(directory)
    stopped.launch()
    assert stopped.wait() == 70
    assert f"{directory}: it is of start 1 of this node, and start 2 used it" in stopped.log
    shutil.rmtree(directory)
    (tmp_path / "new").rename(directory)
    assert count_of(stopped.start().url, "q") == 15


def test_a_directory_of_the_first_release_is_adopted(stopped: NodeProcess) -> None:
    """It had no identity, no stamps, and counted its starts in a file of its own."""
    data = stopped.data_dir
    identity = stored(data)
    assert identity is not None
    (data / "identity").unlink()
    (data / "starts").write_text(str(identity.starts))
    index = Index(data / "journal")
    with index._env.begin(write=True) as txn:
        txn.delete(b"stamp", db=index._journal)
    index.close()
    store = LogStore(data / "wiring")
    with store._env.begin(write=True) as txn:
        txn.delete(b"stamp", db=store._meta)
    store.close()
    assert count_of(stopped.start().url, "q") == 10
    stopped.kill()
    adopted = stored(data)
    assert adopted is not None
    assert (adopted.starts, sorted(adopted.parts)) == (identity.starts + 1, ["journal", "wiring"])
    (data / "journal").rename(data / "elsewhere")
    stopped.launch()
    assert stopped.wait() == 70


@pytest.mark.matrix
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_an_identity_that_cannot_be_read_is_set_aside(stopped: NodeProcess, alone: bool) -> None:
    """The other parts say what the node was, if they agree; else it refuses, and nothing else is changed."""
    data = stopped.data_dir
    identity = stored(data)
    assert identity is not None
    (data / "identity").write_bytes(b"")
    if not alone:
        shutil.rmtree(data / "journal")
        stopped.launch()
        assert stopped.wait() == 70
        return
    stopped.start()
    assert count_of(stopped.url, "q") == 10
    again = stored(data)
    assert again is not None
    assert (again.disk_id, again.starts) == (identity.disk_id, identity.starts + 1)
    assert len(list(data.glob("identity.damaged-*"))) == 1
    assert "identity.set_aside" in stopped.log


def test_a_lost_journal_is_missed_also_by_the_first_start_of_this_release(stopped: NodeProcess) -> None:
    (stopped.data_dir / "identity").rename(stopped.data_dir / "starts")
    (stopped.data_dir / "starts").write_text("1")
    shutil.rmtree(stopped.data_dir / "journal")
    stopped.launch()
    assert stopped.wait() == 70


# -- members ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def cluster_of_three(directory: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(directory)
    try:
        await cluster.begin()
        yield cluster
    finally:
        await cluster.end()


def url(cluster: LocalCluster, name: str) -> str:
    return f"amqp://guest:guest@127.0.0.1:{cluster.target(name).port}/?heartbeat=0&blocked_connection_timeout=30"


async def count_at(cluster: LocalCluster, name: str, queue: str) -> int:
    """As soon as the node answers: a queue whose owner was just elected is not everywhere at once."""
    end_s = time.monotonic() + 90
    while True:
        try:
            return await asyncio.to_thread(count_of, url(cluster, name), queue)
        except (pika.exceptions.AMQPError, OSError):
            assert time.monotonic() < end_s, f"{name} says how many messages '{queue}' has"
            await asyncio.sleep(0.1)


def said(cluster: LocalCluster, name: str, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in cluster.nodes[name].log.read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("event") == event]


@pytest.mark.parametrize("how", ["empty", pytest.param("old", marks=pytest.mark.matrix)])
async def test_a_members_lost_journal_is_rebuilt_and_costs_the_others_nothing(tmp_path: Path, how: str) -> None:
    """p1. Its emptiness was copied to the two good copies: 0 of 1010 were left."""
    async with cluster_of_three(tmp_path) as cluster:
        await asyncio.to_thread(publish, url(cluster, "a"), "orders", 10)
        journal = cluster.data_dir("a") / "journal"
        if how == "old":
            await cluster.stop("a")
            shutil.copytree(journal, tmp_path / "backup")
            await cluster.start("a")
        await asyncio.to_thread(publish, url(cluster, "a"), "orders", 90)
        for name in "abc":
            await cluster.kill(name)
        shutil.rmtree(journal)
        if how == "old":
            shutil.copytree(tmp_path / "backup", journal)
        await asyncio.gather(*(cluster.start(name) for name in "abc"))
        for name in "abc":
            assert await count_at(cluster, name, "orders") == 100, name
        (line,) = said(cluster, "a", "cluster.journal_damaged")
        assert str(journal) in line["why"]
        assert ("went back in time" if how == "old" else "missing or empty") in line["why"]
        assert "journal check" not in line["why"], "there is nothing to check, and nothing to do"
        assert "by itself" in line["why"]
        (rebuilds,) = said(cluster, "a", "cluster.rebuilds")
        assert ("the damaged journal is" in str(rebuilds)) == (how == "old")
        assert len(list(cluster.data_dir("a").glob("journal.damaged-*"))) == (how == "old")


@pytest.mark.parametrize(
    "how", ["missing", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("old", "damaged"))]
)
async def test_a_member_that_lost_its_raft_log_votes_for_nobody(tmp_path: Path, how: str) -> None:
    """p5. b lost its log and elected c, which had missed what a and b had answered."""
    async with cluster_of_three(tmp_path) as cluster:
        raft = cluster.data_dir("b") / "raft"
        if how == "old":
            await cluster.stop("b")
            shutil.copytree(raft, tmp_path / "backup")
            await cluster.start("b")
        await cluster.kill("c")
        await asyncio.to_thread(publish, url(cluster, "a"), "after", 20)
        await cluster.kill("a")
        await cluster.kill("b")
        if how == "damaged":
            whole = bytearray((raft / "journal").read_bytes())
            whole[30] ^= 1
            (raft / "journal").write_bytes(whole)
        else:
            shutil.rmtree(raft)
        if how == "old":
            shutil.copytree(tmp_path / "backup", raft)
        starting = [asyncio.create_task(cluster.start(name)) for name in "bc"]
        end_s = time.monotonic() + 90
        while not said(cluster, "c", "cluster.waits") and not all(task.done() for task in starting):
            assert time.monotonic() < end_s, "they wait for a, or one of them leads"
            await asyncio.sleep(0.05)
        assert not any(task.done() for task in starting), "nobody who has all of it is there"
        await cluster.start("a")
        await asyncio.gather(*starting)
        for name in "abc":
            assert await count_at(cluster, name, "after") == 20, name
        rebuilt = said(cluster, "b", "cluster.rebuilds")
        assert "its metadata log comes from the others" in rebuilt[0]["text"]
        assert len(list(cluster.data_dir("b").glob("raft.damaged-*"))) == (how != "missing")
        # it votes again, as somebody new: without a, which is down, b and c are a majority
        end_s = time.monotonic() + 90
        while len({name for name, (_, digest) in (await cluster.maps()).items()}) < 3:
            assert time.monotonic() < end_s
        await until_voter(cluster, "b")
        await cluster.kill("a")
        await asyncio.to_thread(publish, url(cluster, "b"), "later", 1)


async def until_voter(cluster: LocalCluster, name: str) -> None:
    """Until its new log is the one that votes."""
    end_s = time.monotonic() + 90
    while True:
        code, text = await asyncio.to_thread(command, "members", "--json", "--data-dir", str(cluster.data_dir("a")))
        members = json.loads(text) if code == 0 else []
        if any(member["name"] == name and member["voter"] for member in members):
            return
        assert time.monotonic() < end_s, text
        await asyncio.sleep(0.2)


@pytest.mark.matrix
async def test_a_member_alone_with_a_lost_raft_log_refuses(tmp_path: Path) -> None:
    """Nobody could bring it back, and an empty one would start a second cluster."""
    cluster = LocalCluster(tmp_path, count=1)
    try:
        await cluster.begin()
        await asyncio.to_thread(publish, url(cluster, "a"), "q", 3)
        await cluster.kill("a")
        raft = cluster.data_dir("a") / "raft"
        raft.rename(tmp_path / "aside")
        cluster.nodes["a"].launch(cluster._peers, cluster._environment("a"))
        process = cluster.nodes["a"].process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 30) == 70
        assert f"{raft}: it is missing or empty, but this node has a Raft log" in cluster.nodes["a"].last_words()
        if raft.exists():
            raft.rmdir()
        (tmp_path / "aside").rename(raft)
        await cluster.start("a")
        assert await count_at(cluster, "a", "q") == 3
    finally:
        await cluster.end()
