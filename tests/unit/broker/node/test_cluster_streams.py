"""Streams of a cluster: an offset means the same message at whichever node it is read, whoever owns the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.streams.messages import StreamTold
from clusterbroker.broker.streams.past import Past
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.values import Timestamp
from clusterbroker.replication.errors import BadMessage
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, confirming, hand_over, owner_of, three
from tests.unit.broker.transactions.stager import Stager


def stream(cluster: Cluster, node: str = "a", **arguments: Any) -> None:
    client = cluster[node].client()
    table = {"x-queue-type": "stream", **arguments}
    client.say(m.QueueDeclare(queue="s", durable=True, arguments=table))
    cluster.wait(50)


Said = list[tuple[int, bytes]]


def heard(cluster: Cluster, client: Client, *methods: Any) -> Said:
    """What comes of it within a while: offsets and bodies."""
    said = client.say(*methods)
    cluster.wait(50)
    contents = [one for one in said + client.say() if isinstance(one, Content)]
    return [(one.properties.headers["x-stream-offset"], one.body) for one in contents]


def read(cluster: Cluster, client: Client, prefetch: int = 1000, **arguments: Any) -> Said:
    named = {f"x-stream-{name}": value for name, value in arguments.items()}
    consume = m.BasicConsume(queue="s", consumer_tag="c", arguments=named)
    return heard(cluster, client, m.BasicQos(prefetch_count=prefetch), consume)


def wanted(first: int, end: int) -> Said:
    return [(n, b"%d" % n) for n in range(first, end)]


def publish(cluster: Cluster, writer: Client, first: int, end: int) -> None:
    for n in range(first, end):
        writer.publish("", "s", b"%d" % n)
    cluster.wait(50)


def test_every_node_reads_the_same() -> None:
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "b"), 0, 20)
    for name in "abc":
        assert read(cluster, cluster[name].client(), offset="first") == wanted(0, 20)


def test_a_reader_goes_on_when_the_owner_dies_in_the_middle() -> None:
    cluster = three()
    stream(cluster)
    owner = owner_of(cluster, "s")
    here, _ = away(cluster, "s")
    writer, reader = confirming(cluster, here), cluster[here].client()
    publish(cluster, writer, 0, 30)
    assert read(cluster, reader, prefetch=10, offset="first") == wanted(0, 10)
    cluster.kill(owner)
    cluster.wait(3000)
    assert heard(cluster, reader, m.BasicAck(0, True)) == wanted(10, 20)
    publish(cluster, writer, 30, 40)
    assert heard(cluster, reader, m.BasicAck(0, True)) == wanted(20, 30)
    assert heard(cluster, reader, m.BasicAck(0, True)) == wanted(30, 40)
    assert read(cluster, cluster[away(cluster, "s")[0]].client(), offset=33) == wanted(33, 40)


def test_a_reader_that_waits_goes_on_when_the_owner_dies() -> None:
    cluster = three()
    stream(cluster)
    here, _ = away(cluster, "s")
    reader = cluster[here].client()
    assert read(cluster, reader) == []
    cluster.kill(owner_of(cluster, "s"))
    cluster.wait(3000)
    publish(cluster, confirming(cluster, here), 0, 3)
    assert heard(cluster, reader) == wanted(0, 3)


def test_a_reader_goes_on_when_the_stream_moves() -> None:
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "a"), 0, 5)
    reader = cluster["c"].client()
    assert read(cluster, reader, offset="first") == wanted(0, 5)
    hand_over(cluster, "s", away(cluster, "s")[0])
    publish(cluster, confirming(cluster, "a"), 5, 10)
    assert heard(cluster, reader) == wanted(5, 10)


def test_a_copy_that_was_away_has_all_of_it_again() -> None:
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "a"), 0, 5)
    owner = owner_of(cluster, "s")
    lost, other = away(cluster, "s")
    cluster.kill(lost)
    cluster.wait(3000)
    publish(cluster, confirming(cluster, other), 5, 12)
    cluster.restart(lost)
    cluster.wait(5000)
    hand_over(cluster, "s", lost)
    cluster.kill(owner)
    cluster.wait(3000)
    assert read(cluster, cluster[other].client(), offset="first") == wanted(0, 12)


def test_offsets_are_told_over_any_node() -> None:
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "a"), 0, 7)
    for name in "abc":
        client = cluster[name].client()
        client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
        said = client.publish("amq.stream", "offsets", b'{"queue": "s"}', reply_to="amq.rabbitmq.reply-to")
        cluster.wait(50)
        (answer,) = [one for one in said + client.say() if isinstance(one, Content)]
        told = json.loads(answer.body)
        assert (told["outcome"], told["first"], told["next"]) == ("offsets", 0, 7)
        assert told["life"].endswith(".0")


def asked(cluster: Cluster, node: str, key: str, **body: Any) -> Any:
    """What amq.stream answers at a node."""
    client = cluster[node].client()
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    raw = json.dumps({"queue": "s", **body}).encode()
    said = client.publish("amq.stream", key, raw, reply_to="amq.rabbitmq.reply-to")
    cluster.wait(3000)
    (answer,) = [one for one in said + client.say() if isinstance(one, Content)]
    return json.loads(answer.body)


def test_how_far_readers_are_is_known_to_the_next_owner() -> None:
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "a"), 0, 9)
    for number, name in enumerate("abc"):
        assert asked(cluster, name, "store", name=f"of {name}", offset=number)["outcome"] == "stored"
    assert asked(cluster, "b", "store", name="of a", offset=8)["outcome"] == "stored"
    assert asked(cluster, "b", "store", name="of b", offset=None)["outcome"] == "stored"
    expected = [{"name": "of a", "offset": 8, "lag": 1}, {"name": "of c", "offset": 2, "lag": 7}]
    assert asked(cluster, away(cluster, "s")[0], "stored")["readers"] == expected
    owner, (here, _) = owner_of(cluster, "s"), away(cluster, "s")
    cluster.kill(owner)
    cluster.wait(3000)
    assert asked(cluster, here, "stored")["readers"] == expected
    assert asked(cluster, here, "store", name="of c", offset=9)["outcome"] == "stored"
    cluster.restart(owner)
    cluster.wait(5000)
    hand_over(cluster, "s", owner)
    assert asked(cluster, here, "stored")["readers"] == [expected[0], {"name": "of c", "offset": 9, "lag": 0}]


def test_readers_of_a_deleted_stream_are_cancelled() -> None:
    cluster = three()
    stream(cluster)
    readers = {name: cluster[name].client() for name in "abc"}
    for reader in readers.values():
        assert read(cluster, reader) == []
    cluster["b"].client().say(m.QueueDelete(queue="s"))
    cluster.wait(50)
    for reader in readers.values():
        assert [type(said) for said in reader.say()] == [m.BasicCancel]


def test_nobody_reads_who_else_was_meant() -> None:
    cluster = three()
    stream(cluster)
    here, _ = away(cluster, "s")
    stager = Stager(cluster[here].client(channels=2))
    stager.declare("txn.s", target="")
    stager.stage("txn.s", b"0", b"1", key="s", headers={"BCC": ["other"], "x": 1})
    stager.commit("txn.s")
    writer = cluster[here].client()
    writer.say(m.TxSelect())
    writer.publish("", "s", b"2", headers={"BCC": ["other"], "x": 1})
    writer.say(m.TxCommit())
    cluster.wait(50)
    reader = cluster[here].client()
    arguments = {"x-stream-offset": "first"}
    said = reader.say(m.BasicQos(prefetch_count=9), m.BasicConsume(queue="s", consumer_tag="c", arguments=arguments))
    cluster.wait(50)
    seen = [one.properties.headers for one in said + reader.say() if isinstance(one, Content)]
    assert seen == [{"x-stream-offset": n, "x": 1} for n in range(3)]


def test_a_time_beyond_all_times_is_the_end_of_the_stream() -> None:
    cluster = three()
    stream(cluster)
    here, _ = away(cluster, "s")
    publish(cluster, confirming(cluster, here), 0, 3)
    reader = cluster[here].client()
    assert read(cluster, reader, offset=Timestamp(2**64 - 1)) == []
    publish(cluster, confirming(cluster, here), 3, 5)
    assert heard(cluster, reader) == wanted(3, 5)
    assert not cluster.bad_frames


def on_disk(cluster: Cluster, count: int) -> tuple[str, str]:
    """A stream whose owner has its messages on its disk only: (owner, another node)."""
    stream(cluster)
    owner, here = owner_of(cluster, "s"), away(cluster, "s")[0]
    cluster[owner].node.queues[cluster.queue("s").queue_id].ring.resident_bytes_max = 0
    publish(cluster, confirming(cluster, here), 0, count)
    return owner, here


@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_that_outlives_its_asker_is_not_taken_for_another_one(exact: bool) -> None:
    cluster = three()
    owner, here = on_disk(cluster, 20)
    reader = cluster[here].client()
    assert read(cluster, reader, prefetch=2, offset=10, exact=exact) == wanted(10, 12)
    cluster[owner].reads_wait = True
    assert heard(cluster, reader, m.BasicAck(0, True)) == []
    late, cluster[owner].loads = cluster[owner].loads, []
    assert late
    cluster.kill(here)
    cluster.restart(here)
    cluster[owner].reads_wait = False
    reader = cluster[here].client()
    assert read(cluster, reader, prefetch=2, offset=0, exact=exact) == wanted(0, 2)
    cluster[owner].reads_wait = True
    assert heard(cluster, reader, m.BasicAck(0, True)) == []
    cluster[owner].loads = late + cluster[owner].loads
    cluster[owner].reads_wait = False
    assert heard(cluster, reader) == wanted(2, 4), "the question has the same number"


def test_an_owner_without_a_lease_tells_nothing_that_it_has_begun_to_read() -> None:
    cluster = three()
    owner, here = on_disk(cluster, 10)
    asking = cluster[here].client()
    asking.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    reader = cluster[here].client()
    assert read(cluster, reader, prefetch=2, offset=0) == wanted(0, 2)
    cluster[owner].reads_wait = True
    assert heard(cluster, reader, m.BasicAck(0, True)) == []
    asking.publish("amq.stream", "offsets", b'{"queue": "s"}', reply_to="amq.rabbitmq.reply-to")
    cluster.wait(50)
    role = cluster[owner].node.role
    assert role is not None
    role.lease(False)
    cluster[owner].reads_wait = False
    assert heard(cluster, reader) == []
    assert asking.say() == []
    role.lease(True)
    assert heard(cluster, reader) == wanted(2, 4)
    (answer,) = [one for one in asking.say() if isinstance(one, Content)]
    assert json.loads(answer.body)["next"] == 10


def test_an_answer_that_no_owner_gives_ends_its_link() -> None:
    cluster = three()
    owner, here = on_disk(cluster, 3)
    streams, queue_id = cluster[here].node.streams, cluster.queue("s").queue_id
    for asked, first, end in ((5, 4, 6), (1, 3, 2)):
        with pytest.raises(BadMessage, match=f"about messages from {asked} on begins at {first}, ends at {end}"):
            streams.answered(owner, StreamTold(queue_id, 1, 1, first, end, asked=asked), memoryview(b""))
    with pytest.raises(BadMessage):
        streams.answered(owner, StreamTold(queue_id, 1, 1, 1, 2, asked=1), memoryview(bytes(64)))


def test_what_a_copy_has_moved_into_files_is_not_committed_by_that() -> None:
    """Its checkpoint takes all that is written; as the next owner it has to bring that to the others first."""
    cluster = three()
    stream(cluster)
    owner, (here, other) = owner_of(cluster, "s"), away(cluster, "s")
    writer = confirming(cluster, here)
    publish(cluster, writer, 0, 3)
    cluster.unlink(owner, other)
    cluster.unlink(here, other)
    assert writer.publish("", "s", b"3") == []
    node = cluster[here].node
    node.files_streams = True
    node.checkpoint()
    assert node.filings[0].moved[-1].end == 5, "the copy has it"
    cluster.kill(owner)
    assert owner_of(cluster, "s") == here
    assert writer.say() == [], "nobody else has it"


def test_what_a_sync_takes_out_and_brings_again_is_there_for_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings, p11: a copy whose oldest message was of another epoch had it again, and its next checkpoint moved it
    below where the copy believed the stream to begin: as the owner it told readers that it was gone."""
    cluster = three()
    stream(cluster)
    publish(cluster, confirming(cluster, "a"), 0, 3)
    here, other = away(cluster, "s")
    hand_over(cluster, "s", other)
    publish(cluster, confirming(cluster, "a"), 3, 6)
    queue_id = cluster.queue("s").queue_id
    role: Any = cluster[here].node.role
    ring = role.copying.replicas[queue_id]
    (_, begin), *later = [tuple(epoch) for epoch in ring.epochs]
    ring.epochs.clear()
    for epoch, first in ((0, begin), (1, begin + 1), *later):  # its first message is none that the owner has
        ring.restore_epoch(epoch, first)
    role.copying.backup.ends.pop(queue_id)  # nor known as committed: else the copy would not let it go
    taken_out: list[tuple[int, int]] = []
    drop = Past.drop

    def seen(past: Past, first: int, last: int) -> None:
        taken_out.append((first, last))
        drop(past, first, last)

    monkeypatch.setattr(Past, "drop", seen)
    cluster.unlink(other, here)
    cluster.relink()
    cluster.wait(3000)
    assert taken_out == [(1, 1)], "by the sync"
    node = cluster[here].node
    node.files_streams = True
    node.checkpoint()
    assert (node.filings[0].moved[0].first, node.filings[0].moved[-1].end) == (1, 7), "it is back"
    hand_over(cluster, "s", here)
    taken_over: Any = node.queues[queue_id]
    assert taken_over.bounds == (0, 6), "what amq.stream tells of it"
