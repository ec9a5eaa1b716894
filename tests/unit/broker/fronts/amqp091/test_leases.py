"""Leases of one node: what is taken, settled, given back and read again, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.queues.attributes import LEASE_RUN
from clusterbroker.broker.stats.inspection import life_of
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import read_records
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader, sliced


@pytest.fixture(autouse=True, params=["at once", "in slices"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that follows holds for words that are carried out at once, and for those that others have turns between."""
    if request.param == "in slices":
        sliced(monkeypatch)


def leased(count: int = 10, *, world: World | None = None, **arguments: Any) -> tuple[Client, Reader]:
    """A queue with messages 1, 2, ...; its publisher, and a reader."""
    world = world or World()
    client = world.client(channels=2)
    client.declare("q", **arguments)
    if count:
        publish(client, 1, count)
    return client, Reader(world.client())


def publish(client: Client, first: int, last: int, **more: Any) -> None:
    client.publish("", "q", *[b"%d" % n for n in range(first, last + 1)], **more)


def rows(*numbers: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % n) for n in numbers]


REPLY: Any = {"reply_to": "amq.rabbitmq.reply-to"}


def life(world: World) -> str:
    return life_of(world.queue("q").entity)


def test_a_reader_has_a_range_reads_it_twice_and_settles_it() -> None:
    client, reader = leased()
    world = client.world
    taken = reader.take(rows=4)
    assert taken == {
        "outcome": "leased", "life": life(world), "start": 1, "end": 5, "rows": 4, "acknowledged": 1, "next": 11
    }  # fmt: skip
    assert reader.read(1, 5) == reader.read(1, 5) == rows(1, 2, 3, 4)
    assert reader.read(2, 4, prefetch=1) == rows(2, 3)
    ring = world.queue("q").ring
    assert (ring.ready, ring.unacked) == (6, 4)
    assert reader.word("settle", upto=3) == {"outcome": "settled", "life": life(world), "acknowledged": 3}
    assert reader.read(3, 5) == rows(3, 4)
    taken = reader.take(5, rows=100)
    assert (taken["start"], taken["end"], taken["rows"], taken["acknowledged"]) == (5, 11, 6, 5)
    assert reader.word("settle", upto=11)["acknowledged"] == 11
    assert (ring.ready, ring.unacked, ring.acked) == (0, 0, 10)


def test_who_asks_again_without_settling_gets_the_same_range() -> None:
    client, reader = leased(0)
    for size in (60, 60, 10, 200, 10):
        client.publish("", "q", b"x" * size)
    for more, end in (({"rows": 2}, 3), ({"rows": 2}, 3), ({"bytes_max": 140}, 4), ({"bytes_max": 140}, 4)):
        assert reader.take(**more)["end"] == end
    assert reader.take(bytes_max=1)["end"] == 4, "what is leased stays leased"
    assert reader.take(4, bytes_max=1)["end"] == 5, "one row at least"
    assert reader.take(4, bytes_max=200)["end"] == 5
    assert reader.take(4, bytes_max=201)["end"] == 5, "and none beyond what may be"
    assert reader.take(4, bytes_max=210)["end"] == 6


def committed(world: World, reader: Reader) -> list[Any]:
    """What it hears when all that waits for the disk is there."""
    assert world.journal is not None
    while not world.journal.idle:
        assert reader.client.hear(1) == []
        world.commit()
        world.wait(1)
    return reader.client.hear(1)


def test_a_take_sees_what_was_published_before_it() -> None:
    world = World()
    client, reader = leased(0, world=world)
    world.disk_waits = True
    publish(client, 1, 3)
    raw = b'{"queue": "q", "name": "n", "run": "r1"}'
    assert reader.client.publish("amq.lease", "take", raw, reply_to="amq.rabbitmq.reply-to") == []
    (answer,) = committed(world, reader)
    assert b'"end": 4' in answer.body


def test_an_answer_comes_when_the_lease_is_durable() -> None:
    world = World()
    _client, reader = leased(5, world=world)
    world.disk_waits = True
    raw = b'{"queue": "q", "name": "n", "run": "r1"}'
    assert reader.client.publish("amq.lease", "take", raw, reply_to="amq.rabbitmq.reply-to") == []
    assert [said.body[:20] for said in committed(world, reader)] == [b'{"outcome": "leased"']


def test_nobody_else_gets_anything_meanwhile() -> None:
    client, reader = leased()
    reader.take(rows=4)
    heard = client.say(m.BasicConsume(queue="q"))
    assert (heard[-1].reply_code, heard[-1].reply_text) == (
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' is leased by 'n'",
    )
    heard = client.say(m.BasicGet(queue="q"), channel=2)
    assert (heard[-1].reply_code, heard[-1].reply_text) == (
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' is leased by 'n'",
    )
    publish(other := client.world.client(), 11, 12)
    assert other.ask(m.QueuePurge(queue="q")) == m.QueuePurgeOk(8), "what is leased is not ready"
    assert reader.read(1, 5) == rows(1, 2, 3, 4)
    assert reader.word("release") == {"outcome": "released", "life": life(client.world)}
    heard = other.consume("q")
    assert [(said.body, said.method.redelivered) for said in heard] == [(b"%d" % n, True) for n in (1, 2, 3, 4)]


def test_a_queue_that_others_use_is_not_leased() -> None:
    client, reader = leased(3)
    client.ask(m.BasicQos(0, 1, False))
    client.consume("q")
    why = "queue 'q' in vhost '/' has 1 consumers, and a lease needs it alone"
    assert reader.take() == {"outcome": "refused", "code": 406, "reason": why}
    client.say(m.BasicCancel("ctag"))
    why = "queue 'q' in vhost '/' has 1 unacknowledged messages, and a lease needs all of it"
    assert reader.take() == {"outcome": "refused", "code": 406, "reason": why}
    client.say(m.BasicAck(1))
    assert reader.take()["start"] == 2


def test_what_else_is_refused() -> None:
    client, reader = leased(3)
    other = Reader(client.world.client(), name="m")
    assert reader.word("settle", upto=2)["code"] == 404
    assert reader.word("release")["outcome"] == "released", "as was asked for"
    assert reader.take(5) == {
        "outcome": "refused", "code": 406, "reason": "5 is beyond queue 'q' in vhost '/', which ends at 4"
    }  # fmt: skip
    assert reader.take(queue="other")["code"] == 404
    assert reader.take(life="9.9") == {
        "outcome": "refused", "code": 410, "reason": "queue 'q' in vhost '/' is not the one that the offsets are of"
    }  # fmt: skip
    reader.take(rows=2)
    assert other.take() == {"outcome": "refused", "code": 403, "reason": "queue 'q' in vhost '/' is leased by 'n'"}
    assert other.word("release")["code"] == other.word("settle", upto=1)["code"] == 403
    assert reader.word("settle", upto=4) == {
        "outcome": "refused", "code": 406, "reason": "4 is beyond the lease of queue 'q' in vhost '/', which ends at 3"
    }  # fmt: skip
    assert reader.word("settle", upto=1)["acknowledged"] == 1


def test_a_queue_with_priorities_is_not_leased() -> None:
    _, reader = leased(3, x_max_priority=5)
    assert reader.take()["reason"] == "queue 'q' in vhost '/' has priorities, and a lease follows the order of the seqs"


def test_another_run_takes_the_lease_over_and_the_one_before_is_refused() -> None:
    client, reader = leased()
    later = Reader(client.world.client(), run="r2")
    reader.take(rows=4)
    assert later.word("settle", upto=2)["code"] == 409, "not before it has taken it"
    assert later.take(rows=4)["end"] == 5
    for refused in (reader.take(), reader.word("settle", upto=2), reader.word("release")):
        assert refused == {
            "outcome": "refused", "code": 409,
            "reason": "lease 'n' of queue 'q' in vhost '/' was taken over by run 'r2'",
        }  # fmt: skip
    assert later.word("settle", upto=5)["acknowledged"] == 5


@pytest.mark.parametrize(
    "body",
    [
        {"rows_max": 0},
        {"rows_max": 1_000_001},
        {"bytes_max": 0},
        {"ttl_ms": 999},
        {"from": -1},
        {"from": "1"},
        {"life": ""},
        {"name": ""},
        {"name": "x" * 201},
        {"run": "x" * 65},
        {"queue": 7},
        {"more": 1},
    ],
)
def test_bodies_that_mean_nothing(body: dict[str, Any]) -> None:
    _, reader = leased(1)
    full = {"queue": "q", "name": "n", "run": "r", **body}
    heard = reader.client.publish("amq.lease", "take", json.dumps(full).encode())
    assert heard[-1].reply_code == 406
    assert heard[-1].reply_text.startswith("PRECONDITION_FAILED - invalid body of amq.lease 'take': ")


def test_readers_that_are_refused() -> None:
    _client, reader = leased(5)
    assert reader.refused(x_stream_offset=1, x_stream_end=2) == (
        404, "NOT_FOUND - queue 'q' in vhost '/' is not leased by 'n'"
    )  # fmt: skip
    reader.take(rows=3)
    reader.word("settle", upto=2)
    assert reader.refused(x_stream_offset=1, x_stream_end=3) == (
        406, "PRECONDITION_FAILED - 1 of queue 'q' in vhost '/' is gone, the lease begins at 2"
    )  # fmt: skip
    assert reader.refused(x_stream_offset=2, x_stream_end=5)[1].endswith(
        "5 is beyond the lease of queue 'q' in vhost '/', which ends at 4"
    )
    assert reader.refused(x_stream_offset=2)[0] == 406
    assert reader.refused(x_stream_offset="first", x_stream_end=3)[0] == 406
    for name in (7, "", "x" * 201, "\udcff"):
        assert reader.refused(x_lease=name, x_stream_offset=2, x_stream_end=3)[0] == 406
    assert reader.refused(x_stream_offset=2**62, x_stream_end=2**62)[0] == 406
    assert reader.refused(prefetch=0, x_stream_offset=2, x_stream_end=3)[1].startswith(
        "PRECONDITION_FAILED - consumer prefetch count is not set for the lease"
    )
    assert reader.read(2, 4) == rows(2, 3)
    assert reader.read(4, 4) == []


def test_a_reader_without_acknowledgements_is_not_implemented() -> None:
    _, reader = leased(5)
    table = {"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 2}
    assert reader.client.code(m.BasicConsume(queue="q", no_ack=True, arguments=table)) == 540


def test_what_a_reader_does_with_its_deliveries_changes_nothing() -> None:
    client, reader = leased(4)
    reader.take()
    other = client.world.client()
    other.ask(m.BasicQos(0, 4, False))
    heard = other.consume("q", arguments={"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 5})
    assert bodies(heard) == [b"1", b"2", b"3", b"4"]
    other.say(m.BasicAck(1), m.BasicNack(2, False, True), m.BasicReject(3, False), m.BasicRecover(True))
    assert client.world.queue("q").ring.unacked == 4
    other.leave()
    assert reader.read(1, 5) == rows(1, 2, 3, 4)
    assert reader.word("settle", upto=5)["acknowledged"] == 5
    assert client.world.queue("q").ring.unacked == 0


def test_a_reader_never_holds_more_than_its_prefetch() -> None:
    client, reader = leased(20)
    reader.take()
    other = client.world.client()
    other.ask(m.BasicQos(0, 3, False))
    arguments = {"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 21}
    assert len(other.consume("q", arguments=arguments)) == 3
    assert other.say(m.BasicAck(1)) == [], "half of it is worth asking for"
    assert bodies(other.say(m.BasicAck(2))) == [b"4", b"5"]
    assert other.say(m.BasicCancel("ctag")) == [m.BasicCancelOk("ctag")]
    assert other.say(m.BasicAck(0, True)) == []


def test_a_lease_survives_a_crash_and_another_run_takes_it() -> None:
    client, reader = leased()
    world = client.world
    reader.take(rows=6)
    reader.word("settle", upto=3)
    world.crash()
    again = Reader(world.client(), run="r2")
    assert again.read(3, 7) == rows(3, 4, 5, 6)
    client = world.client()
    assert client.code(m.BasicConsume(queue="q")) == 403
    assert again.word("settle", upto=4)["code"] == 409, "it has not taken it yet"
    taken = again.take(4, rows=4)
    assert (taken["start"], taken["end"], taken["rows"]) == (4, 8, 4)
    again.word("release")
    heard = world.client().consume("q")
    assert [(said.body, said.method.redelivered) for said in heard][:4] == [(b"%d" % n, True) for n in (4, 5, 6, 7)]
    world.crash()
    assert Reader(world.client()).word("settle", upto=1)["code"] == 404, "the end stands in the log as well"


def test_a_run_that_was_replaced_is_refused_after_a_crash_too() -> None:
    client, reader = leased()
    world = client.world
    reader.take(rows=6)
    Reader(world.client(), run="r2").take()
    for again in (False, True):
        if again:
            world.checkpoint()
        world.crash()
        old, now = Reader(world.client()), Reader(world.client(), run="r2")
        for said in (old.word("settle", upto=2), old.word("release"), old.take()):
            assert said["code"] == 409
            assert said["reason"] == "lease 'n' of queue 'q' in vhost '/' was taken over by run 'r2'"
        assert now.word("settle", upto=4 + again)["acknowledged"] == 4 + again, "it goes on without a new lease"
    assert now.take()["start"] == 5
    assert Reader(world.client(), run="r3").take()["start"] == 5
    world.crash()
    assert Reader(world.client(), run="r2").take()["code"] == 409


def test_the_runs_that_a_log_remembers_have_a_bound_and_end_with_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.queues.leasing.REPLACED_MAX", 3)
    client, _ = leased()
    world = client.world
    name = "n" * 200  # as long as names and runs may be
    runs = [f"r{n}".ljust(64, "x") for n in range(7)]
    for run in runs:
        assert Reader(world.client(), run, name).take(rows=1)["rows"] == 1
        told = world.queue("q").ring.attributes
        assert len(LEASE_RUN.names(told)) <= 4
    world.checkpoint()
    world.crash()
    said = [Reader(world.client(), run, name).word("settle", upto=1).get("code", 0) for run in runs]
    assert said == [409] * 6 + [0]
    said = [Reader(world.client(), run, name).take(rows=1).get("code", 0) for run in (*runs[3:], runs[0])]
    assert said == [409, 409, 409, 0, 0], "whoever was forgotten is another run again"
    Reader(world.client(), runs[0], name).word("release")
    assert not world.queue("q").ring.attributes
    world.crash()
    assert not world.queue("q").ring.attributes
    assert Reader(world.client(), runs[6], name).take()["rows"] == 10, "a lease begins with nobody replaced"


def test_a_lease_of_a_release_before_belongs_to_the_first_run_that_speaks() -> None:
    client, reader = leased()
    world = client.world
    reader.take(rows=6)
    ring = world.queue("q").ring
    for key in LEASE_RUN.names(ring.attributes):
        ring.set_attribute(key, 0)  # as its journal had it
    world.turn()
    world.crash()
    assert world.queue("q").ring.attributes == {b"ln": 7, b"an": 1}
    again = Reader(world.client(), run="r2")
    assert again.word("settle", upto=3)["acknowledged"] == 3
    world.crash()
    assert Reader(world.client()).word("settle", upto=4)["code"] == 409
    assert Reader(world.client(), run="r2").word("settle", upto=4)["acknowledged"] == 4


def test_a_lease_of_a_queue_without_messages_survives_a_crash() -> None:
    client, reader = leased(0)
    world = client.world
    assert reader.take()["rows"] == 0
    world.crash()
    assert Reader(world.client(), name="other").take()["code"] == 403
    publish(world.client(), 1, 2)
    assert Reader(world.client()).take()["rows"] == 2


def test_of_two_leases_that_a_release_before_has_left_the_later_one_counts() -> None:
    """It forgot a lease of a queue that had never had a message at its start, and not that the log had it."""
    client, reader = leased(2)
    world = client.world
    ring = world.queue("q").ring
    ring.set_attribute(b"lother", 1)
    ring.set_attribute(b"aother", 1)
    reader.take()
    world.checkpoint()
    world.crash()
    assert Reader(world.client()).read(1, 3) == rows(1, 2)
    world.turn()
    assert not {b"lother", b"aother"} & set(world.queue("q").ring.attributes)
    world.crash()
    Reader(world.client()).word("release")
    assert not world.queue("q").ring.attributes


def test_transient_messages_of_a_lease_are_not_those_that_come_after_a_crash() -> None:
    client, reader = leased(0)
    publish(client, 1, 5, transient=True)
    assert reader.take()["end"] == 6
    world = client.world
    world.crash()
    again = Reader(world.client())
    publish(world.client(), 6, 7)
    taken = again.take()
    assert taken["start"] == 1
    found = again.read(taken["start"], taken["end"])
    assert [body for _, body in found] == [b"6", b"7"]
    assert min(seq for seq, _ in found) >= 6, "a seq means one message"


def test_a_lease_of_which_nothing_is_heard_ends() -> None:
    client, reader = leased(3)
    world = client.world
    reader.take(ttl_ms=10_000)
    world.wait(9_000)
    reader.word("settle", upto=2)
    world.wait(9_999)
    assert world.queue("q").ring.unacked == 2
    world.wait(2)
    assert world.queue("q").ring.unacked == 0
    assert reader.word("settle", upto=3)["code"] == 404
    assert bodies(client.consume("q")) == [b"2", b"3"]


def test_what_is_leased_neither_expires_nor_is_dropped_for_length() -> None:
    client, reader = leased(4, x_message_ttl=5000, x_max_length=2)
    taken = reader.take()
    assert (taken["start"], taken["end"]) == (3, 5), "drop-head before"
    publish(client, 5, 8)
    client.world.wait(20_000)
    assert reader.read(3, 5) == rows(3, 4)
    assert reader.take()["rows"] == 2, "what came since has expired"


def test_a_leased_queue_does_not_expire() -> None:
    client, reader = leased(1, x_expires=1000)
    reader.take(ttl_ms=5000)
    client.world.wait(4000)
    assert reader.read(1, 2) == rows(1)
    client.world.wait(10_000)
    assert client.code(m.QueueDeclare(queue="q", passive=True)) == 404


def test_a_deleted_queue_answers_404() -> None:
    client, reader = leased(3)
    world = client.world
    reader.take()
    other = world.client()
    other.ask(m.BasicQos(0, 1, False))
    other.consume("q", arguments={"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 4})
    client.ask(m.QueueDelete(queue="q"))
    assert reader.take()["code"] == 404
    close = other.say(m.BasicAck(1))[-1]
    assert (type(close), close.reply_code) == (m.ChannelClose, 404)


def test_messages_of_a_lease_come_back_from_the_disk() -> None:
    world = World()
    client, reader = leased(0, world=world)
    world.queue("q").ring.resident_bytes_max = 0
    publish(client, 1, 50)
    world.turn()
    reader.take()
    assert world.queue("q").ring.resident < 50
    assert reader.read(1, 51, prefetch=7) == rows(*range(1, 51))


def test_an_answer_that_does_not_come_is_a_refusal_that_may_be_repeated() -> None:
    world = World()
    _, reader = leased(3, world=world)
    world.disk_waits = True
    raw = b'{"queue": "q", "name": "n", "run": "r1"}'
    reader.client.publish("amq.lease", "take", raw, reply_to="amq.rabbitmq.reply-to")
    world.wait(21_000)
    for client in world.clients.values():
        client.connection.tick(world.now_ms)
    world.turn()
    (answer,) = [said for said in reader.client.hear(1) if isinstance(said, Content)]
    assert b"503" in answer.body
    world.disk_waits = False
    world.commit()
    world.turn()
    assert reader.client.hear(1) == [], "it is answered once"
    assert reader.take()["end"] == 4


def test_rights_are_those_of_the_queue() -> None:
    world = World()
    _client, _ = leased(3, world=world)
    world.wiring.propose(c.SetPermission(user="eve", vhost="/", configure="", write="", read="none"))
    eve = world.client(user="eve", password=b"eve")
    raw = b'{"queue": "q", "name": "n", "run": "r1"}'
    heard = eve.publish("amq.lease", "take", raw)
    assert heard[-1].reply_code == 403


def test_a_reader_may_have_parts_as_they_are_stored() -> None:
    client, reader = leased(6)
    client.say(m.TxSelect())
    reader.take()
    reader.word("settle", upto=2)
    other = client.world.client()
    other.ask(m.BasicQos(0, 1, False))
    arguments = {"x-lease": "n", "x-stream-offset": 2, "x-stream-end": 7, "x-stream-chunks": True}
    (chunk, cancel) = other.consume("q", arguments=arguments)
    assert chunk.properties.headers == {"x-queue-seq": 2, "x-stream-count": 5}
    assert chunk.method.routing_key == "q"
    assert [(seq, message.body) for seq, message, _, _ in read_records(chunk.body)] == rows(2, 3, 4, 5, 6)
    assert isinstance(cancel, m.BasicCancel)
    assert other.say(m.BasicAck(1)) == []
    arguments["x-stream-chunks"] = 1
    assert other.code(m.BasicConsume(queue="q", arguments=arguments)) == 406


def test_parts_count_against_the_prefetch() -> None:
    client, reader = leased(0)
    for n in range(5):
        client.publish("", "q", b"%d" % n * 600_000)
    reader.take()
    other = client.world.client()
    other.ask(m.BasicQos(0, 2, False))
    arguments = {"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 6, "x-stream-chunks": True}
    heard = other.consume("q", arguments=arguments)
    assert len(heard) == 2
    heard += other.say(m.BasicAck(0, True))
    heard += other.say(m.BasicAck(0, True))
    chunks = [said for said in heard if isinstance(said, Content)]
    assert [said.properties.headers["x-queue-seq"] for said in chunks] == [1, 2, 3, 4, 5]
    assert isinstance(heard[-1], m.BasicCancel)


def test_a_stream_is_not_leased() -> None:
    world = World()
    world.client().declare("s", x_queue_type="stream")
    told = Reader(world.client()).take(queue="s")
    assert told["reason"] == "stream 's' in vhost '/' is read by offsets, and not leased"


def test_a_lease_survives_a_checkpoint_and_messages_that_move_in_the_journal() -> None:
    client, reader = leased(30)
    world = client.world
    reader.take(rows=20)
    reader.word("settle", upto=10)
    world.checkpoint()
    world.copy_forward(1)
    world.turn()
    world.checkpoint()
    world.crash()
    again = Reader(world.client(), run="r2")
    assert again.read(10, 21) == rows(*range(10, 21))
    told = again.take()
    assert (told["start"], told["end"], told["rows"]) == (10, 31, 21)
    world.checkpoint()
    again.word("release")
    world.checkpoint()
    world.crash()
    assert Reader(world.client()).word("settle", upto=11)["code"] == 404


def test_words_that_wait_for_a_commit_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.queues.leasing.WAITING_MAX", 2)
    world = World()
    _, reader = leased(3, world=world)
    reader.take(rows=1)
    world.disk_waits = True
    raw = json.dumps({"queue": "q", "name": "n", "run": "r1", "upto": 2}).encode()
    heard = [reader.client.publish("amq.lease", "settle", raw, reply_to="amq.rabbitmq.reply-to") for _ in range(3)]
    assert heard[:2] == [[], []]
    ((answer,),) = heard[2:]
    assert json.loads(answer.body)["code"] == 503


def test_a_range_of_many_pieces_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.queues.leasing.PIECES_MAX", 2)
    _, reader = leased(9)
    for count in range(1, 8):
        assert reader.take(rows=count)["rows"] == count
    assert reader.take(bytes_max=8, rows=9)["rows"] == 8, "seven bytes were leased"
    assert reader.take(8, bytes_max=3, rows=9)["rows"] == 1, "a piece counts until all of it is settled"
    assert reader.take(9, bytes_max=3, rows=9)["end"] == 10


def test_a_channel_forgets_readers_and_requests_that_are_over() -> None:
    client, reader = leased(3)
    reader.take()
    other = client.world.client(channels=1)
    other.ask(m.BasicQos(0, 5, False))
    for _ in range(5):
        other.consume("q", arguments={"x-lease": "n", "x-stream-offset": 1, "x-stream-end": 4})
        other.say(m.BasicAck(0, True))
        reader.word("settle", upto=1)
    client.world.wait(1000)
    channels = [client.connection.channels[1] for client in (other, reader.client)]
    assert [channel.deadlines for channel in channels] == [[], []]


def test_an_alarm_does_not_stop_who_settles() -> None:
    client, reader = leased(3)
    reader.take(rows=2)
    client.world.node.set_alarm("disk", True)
    assert reader.word("settle", upto=3)["acknowledged"] == 3
    assert reader.client.hear(0) == []
    reader.client.publish("", "q", b"4")
    assert [type(said) for said in reader.client.hear(0)] == [m.ConnectionBlocked], "it publishes now"


def test_others_have_their_turns_while_a_word_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced(monkeypatch)
    client, _ = leased(10)
    world = client.world
    client.ask(m.ConfirmSelect())
    ring = world.queue("q").ring
    seen: list[tuple[int, int]] = []

    def wait() -> None:
        seen.append((ring.ready, ring.unacked))
        assert [type(said) for said in client.publish("", "q", b"more")] == [m.BasicAck], "nobody else waits"
        world.wait(1)

    slow = Reader(world.client(), wait=wait)
    assert slow.take(rows=8)["rows"] == 8
    assert seen == [(8, 2), (7, 4), (6, 6)]
    seen.clear()
    assert slow.word("settle", upto=6)["acknowledged"] == 6
    assert [unacked for _, unacked in seen] == [6, 4]
    seen.clear()
    assert slow.word("release")["outcome"] == "released"
    assert [unacked for _, unacked in seen] == [1]
    assert bodies(client.say(m.BasicConsume(queue="q", no_ack=True)))[:5] == [b"6", b"7", b"8", b"9", b"10"]


def test_words_behind_a_walk_are_carried_out_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced(monkeypatch)
    client, reader = leased(10)
    world = client.world
    reader.take(rows=10)
    one = world.client()
    one.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    words = [("settle", {"upto": 7}), ("settle", {"upto": 5}), ("take", {"rows_max": 10, "from": 9}), ("release", {})]
    for key, fields in words:
        body = json.dumps({"queue": "q", "name": "n", "run": "r1", **fields}).encode()
        one.raw(one.content("amq.lease", key, body, reply_to="amq.rabbitmq.reply-to"))
    heard: list[Any] = []
    for _ in range(20):
        heard += one.hear(1)
        world.wait(1)
    told = [json.loads(content.body) for content in heard if isinstance(content, Content)]
    assert [(one["outcome"], one.get("acknowledged")) for one in told] == [
        ("settled", 7), ("settled", 7), ("leased", 9), ("released", None)
    ]  # fmt: skip
    assert world.queue("q").ready == 2


def test_messages_that_an_operator_moves_amid_a_walk_are_not_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced(monkeypatch)
    client, reader = leased(10)
    world, queue = client.world, client.world.queue("q")
    reader.take(rows=1)
    one = world.client()
    one.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    body = json.dumps({"queue": "q", "name": "n", "run": "r1", "from": 9, "rows_max": 10}).encode()
    one.raw(one.content("amq.lease", "take", body, reply_to="amq.rabbitmq.reply-to"))
    world.turn()
    assert queue.ring.set_aside(7)
    queue.aside += 1
    for _ in range(30):
        world.wait(1)
    (answer,) = [json.loads(said.body) for said in one.hear(1) if isinstance(said, Content)]
    assert (answer["code"], "an operator moves messages" in answer["reason"]) == (503, True)
    queue.ring.put_back(7)
    queue.aside -= 1
    taken = reader.take(9)
    assert (taken["acknowledged"], taken["rows"], queue.ready) == (9, 2, 0)


def test_a_queue_that_is_deleted_amid_a_walk_answers_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced(monkeypatch)
    client, reader = leased(10)
    world = client.world
    reader.take(rows=10)
    asking = [world.client() for _ in range(2)]
    for one in asking:
        one.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
        body = json.dumps({"queue": "q", "name": "n", "run": "r1", "upto": 9}).encode()
        one.raw(one.content("amq.lease", "settle", body, reply_to="amq.rabbitmq.reply-to"))
    world.turn()
    client.say(m.QueueDelete(queue="q"))
    for one in asking:
        (answer,) = [said for said in one.hear(1) if isinstance(said, Content)]
        assert json.loads(answer.body)["code"] == 404


@pytest.mark.parametrize("name", [None, "n"])
def test_who_may_configure_the_queue_ends_the_lease_of_a_reader_that_is_gone(name: str | None) -> None:
    client, reader = leased(5)
    world = client.world
    reader.take(rows=3)
    operator = Reader(world.client(), run="")
    named = {} if name is None else {"name": name}

    def end(queue: str = "q", **fields: Any) -> Any:
        heard = operator.client.publish("amq.lease", "end", json.dumps({"queue": queue, **fields}).encode(), **REPLY)
        while not heard:
            world.wait(1)
            heard = operator.client.hear(1)
        return json.loads(heard[0].body) if isinstance(heard[0], Content) else heard[0]

    refused = end(name="somebody else")
    assert (refused["code"], refused["reason"]) == (403, "queue 'q' in vhost '/' is leased by 'n'")
    assert end(**named) == {"outcome": "ended", "life": life(world)}
    assert end(**named)["outcome"] == "ended", "it is over, as was asked for"
    assert end("nothing")["code"] == 404
    assert world.queue("q").ready == 5
    assert reader.word("settle", upto=2)["code"] == 404
    assert reader.take(rows=3)["start"] == 1, "nothing keeps it from beginning again"
    world.wiring.propose(c.SetPermission(user="guest", vhost="/", configure="", write=".*", read=".*"))
    closed = end(**named)
    assert (type(closed), closed.reply_code) == (m.ChannelClose, 403)
