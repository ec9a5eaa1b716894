"""Staging exchanges and amq.txn at one node: what a client may do, and what it hears."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.queues.handle import CommitPart, Moved
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.transactions import mover, moving
from clusterbroker.broker.transactions.pace import HOLD_MS
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring_log import unlogged
from clusterbroker.journal.record import Message
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies
from tests.unit.broker.transactions.stager import Stager

OK = {"code": 0, "reason": ""}


def begin(world: World | None = None, **more: Any) -> tuple[World, Stager]:
    """A producer, and a queue "q" that its target leads to by "k"."""
    world = world or World()
    alice = world.client(channels=2)
    alice.declare("q")
    alice.ask(m.QueueBind(queue="q", exchange="amq.topic", routing_key="k.#"))
    return world, Stager(alice, **more)


def seen(world: World, queue: str = "q") -> list[bytes]:
    return bodies(world.client().consume(queue))


def test_rows_are_seen_when_they_are_committed_and_not_before() -> None:
    world, alice = begin()
    assert alice.declare("txn.a") == [m.ExchangeDeclareOk()]
    assert alice.stage("txn.a", b"1", b"2") == [m.BasicAck(2, True)]
    bob = world.client()
    assert bob.consume("q") == []
    assert alice.commit("txn.a", rows=2) == {"outcome": "committed", **OK}
    first, second = bob.hear(1)
    assert (first.method.exchange, first.method.routing_key, first.body) == ("amq.topic", "k", b"1")
    assert (second.body, second.method.redelivered) == (b"2", False)
    assert world.node.map.segments("/") == ()
    assert world.node.map.staging_queues("/") == ()
    assert alice.commit("txn.a", rows=2) == {"outcome": "already", **OK}


def test_the_order_of_the_commit_is_that_of_the_rows() -> None:
    world, alice = begin()
    for name in "abc":
        alice.declare(f"txn.{name}")
        alice.stage(f"txn.{name}", *(f"{name}{row}".encode() for row in range(3)))
    alice.commit("txn.c", "txn.a")
    assert seen(world) == [b"c0", b"c1", b"c2", b"a0", b"a1", b"a2"]


def test_a_replay_is_confirmed_and_goes_nowhere() -> None:
    world, alice = begin()
    alice.declare("txn.a", epoch=3)
    alice.stage("txn.a", b"1")
    alice.commit("txn.a", epoch=3)
    alice.declare("txn.b", epoch=3)
    assert alice.stage("txn.b", b"1", key="nowhere", mandatory=True) == [m.BasicAck(2, True)]
    assert alice.commit("txn.b", epoch=3)["outcome"] == "already"
    assert seen(world) == [b"1"]
    (close,) = alice.declare("txn.c", epoch=2)
    assert (close.reply_code, close.reply_text) == (
        406, "PRECONDITION_FAILED - fenced: producer 'p' has committed epoch 3, and 2 is over",
    )  # fmt: skip


def test_an_abort_drops_what_is_not_committed() -> None:
    world, alice = begin()
    for name in ("txn.a", "txn.b"):
        alice.declare(name)
        alice.stage(name, b"1")
    assert alice.abort("txn.a") == {"outcome": "aborted", **OK}
    refused = alice.commit("txn.a", "txn.b")
    assert refused["code"] == 404
    assert refused["reason"] == "transaction 'txn.a' of producer 'p' is not there: it expired or was aborted"
    assert alice.commit("txn.b")["outcome"] == "committed"
    assert alice.abort("txn.b")["outcome"] == "aborted", "Spark aborts what was committed when the answer was lost"
    assert seen(world) == [b"1"]
    (close,) = alice.stage("txn.a", b"2")
    assert close.reply_code == 404


def test_a_newer_run_fences_the_one_before() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"old")
    newer = Stager(world.client(channels=2), run="r2")
    newer.declare("txn.b")
    newer.stage("txn.b", b"new")
    refused = alice.commit("txn.a")
    assert (refused["code"], refused["reason"]) == (409, "fenced: run r1 of producer 'p' was replaced by run r2")
    assert newer.commit("txn.b")["outcome"] == "committed"
    assert seen(world) == [b"new"]
    (close,) = alice.declare("txn.c", epoch=1)
    assert "was replaced by run r2" in close.reply_text


def test_a_row_without_a_queue_is_returned_and_not_staged() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    returned, ack = alice.stage("txn.a", b"1", key="other", mandatory=True)
    assert isinstance(returned, Content)
    assert (returned.method.reply_code, returned.method.exchange, returned.method.routing_key) == (
        312, "txn.a", "other",
    )  # fmt: skip
    assert ack == m.BasicAck(1, True)
    alice.stage("txn.a", b"2", key="k.x", mandatory=True)
    alice.stage("txn.a", b"3", key="other")
    alice.commit("txn.a")
    assert seen(world) == [b"2"]
    assert alice.status()["unroutable"] == 1
    assert world.story.lost_rows == [("txn.a", 1)]
    counts = world.node.vhosts["/"].exchanges["amq.topic"]
    assert (counts.publish_in, counts.publish_out, counts.drop_unroutable) == (2, 1, 1)


@pytest.mark.parametrize(
    ("kind", "words", "headers"),
    [
        ("x-message-deduplication", {"x-cache-size": 9}, {"x-deduplication-header": "a"}),
        ("x-delayed-message", {"x-delayed-type": "fanout"}, {"x-delay": 1000}),
    ],
)
def test_a_row_that_would_only_wait_in_its_exchange_is_returned(kind: str, words: Any, headers: Any) -> None:
    world, alice = begin()
    alice.client.ask(m.ExchangeDeclare(exchange="x", type=kind, durable=True, arguments=words))
    alice.declare("txn.a", target="x")
    returned, _ = alice.stage("txn.a", b"1", headers=headers, mandatory=True)
    assert returned.body == b"1"
    alice.client.ask(m.QueueBind(queue="q", exchange="x", routing_key=""))
    for body in (b"2", b"3"):
        assert alice.stage("txn.a", body, headers=headers, mandatory=True) != []
    alice.commit("txn.a")
    world.wait(2000)
    assert seen(world) == ([b"2"] if "cache" in str(words) else [b"2", b"3"])


def test_headers_of_rows_mean_what_they_mean_in_any_publish() -> None:
    world, alice = begin()
    client = alice.client
    for queue in ("r", "s"):
        client.declare(queue)
    client.ask(m.QueueBind(queue="r", exchange="amq.headers", routing_key="", arguments={"kind": "a"}))
    alice.declare("txn.h", target="amq.headers")
    (_, ack) = alice.stage("txn.h", b"b", headers={"kind": "b"}, mandatory=True)
    assert ack == m.BasicAck(1, True)
    alice.stage("txn.h", b"a", headers={"kind": "a"}, mandatory=True)
    alice.declare("txn.d", target="")
    alice.stage("txn.d", b"copy", key="q", headers={"CC": ["s"], "BCC": ["r"]})
    for number in (1, 1, 2):
        alice.stage("txn.d", b"n%d" % number, key="q", headers={"x-producer": "n", "x-seq": number})
    alice.commit("txn.h", "txn.d")
    assert seen(world, "r") == [b"a", b"copy"]
    assert seen(world, "s") == [b"copy"]
    got = world.client().consume("q")
    assert bodies(got) == [b"copy", b"n1", b"n2"], "a number is in the queue once"
    assert "BCC" not in (got[0].properties.headers or {})


def test_rows_of_one_key_go_where_their_own_headers_say() -> None:
    world, alice = begin()
    for kind in "ab":
        alice.client.declare(kind)
        alice.client.ask(m.QueueBind(queue=kind, exchange="amq.headers", arguments={"kind": kind}))
    alice.declare("txn.h", target="amq.headers")
    kinds = "aabcbacca"
    content = b"".join(
        alice.client.content("txn.h", "k", b"%d" % row, headers={"kind": kind}) for row, kind in enumerate(kinds)
    )
    alice.client.raw(content)
    world.turn()
    assert alice.commit("txn.h")["outcome"] == "committed"
    for kind in "ab":
        assert seen(world, kind) == [b"%d" % row for row, own in enumerate(kinds) if own == kind]
    assert alice.status()["unroutable"] == kinds.count("c")


def test_each_row_without_a_queue_is_counted() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    content = b"".join(alice.client.content("txn.a", key, b"") for key in ("k", "no", "no", "no", "k", "no"))
    alice.client.raw(content)
    world.turn()
    alice.commit("txn.a")
    assert len(seen(world)) == 2
    assert alice.status()["unroutable"] == 4


def test_a_row_may_not_lie_about_its_user() -> None:
    _, alice = begin()
    alice.declare("txn.a")
    (close,) = alice.stage("txn.a", b"1", user_id="other")
    assert close.reply_code == 406


def test_its_own_time_to_live_counts_from_the_move() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"1", expiration="1000")
    world.wait(5000)
    alice.commit("txn.a")
    bob = world.client()
    assert bob.ask(m.QueueDeclare(queue="q", passive=True)).message_count == 1
    world.wait(1500)
    assert bob.ask(m.QueueDeclare(queue="q", passive=True)).message_count == 0


def test_a_segment_has_a_limit() -> None:
    _, alice = begin()
    alice.declare("txn.a", x_max_staged_bytes=1000)
    assert alice.stage("txn.a", bytes(900)) == [m.BasicAck(1, True)]
    assert alice.stage("txn.a", bytes(200)) == [m.BasicAck(2, True)], (
        "as any queue, it takes what begins below its limit"
    )
    assert alice.stage("txn.a", bytes(1)) == [m.BasicNack(3, False, False)]


def test_nobody_meets_the_queue_of_a_segment() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"1")
    for method in (
        m.QueueDeclare(queue="txn.a", passive=True),
        m.BasicConsume(queue="txn.a"),
        m.BasicGet(queue="txn.a"),
        m.QueuePurge(queue="txn.a"),
        m.QueueBind(queue="txn.a", exchange="amq.topic", routing_key="x"),
    ):
        (close,) = world.client().say(method)
        assert close.reply_code == 404
    assert world.client().ask(m.QueueDelete(queue="txn.a")) == m.QueueDeleteOk(0)
    world.client().publish("", "txn.a", b"x")
    for method in (
        m.ExchangeBind(destination="txn.a", source="amq.topic"),
        m.QueueBind(queue="q", exchange="txn.a"),
    ):
        (close,) = world.client().say(method)
        assert close.reply_code == 403
    alice.commit("txn.a")
    assert seen(world) == [b"1"]


def test_after_the_commit_nothing_more_is_taken() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"1")
    world.node.alarms["disk"] = None  # so that the rows do not move yet
    queue = next(queue for queue in world.node.queues.values() if queue.entity.staging)
    late = [Message(b"\5txn.a\1k", b"late", 0)]
    assert queue.takes(late, world.now_ms)
    alice.commit("txn.a")
    assert not queue.takes(late, world.now_ms), "of a node that has not heard of the commit"
    (close,) = alice.stage("txn.a", b"2")
    assert (close.reply_code, close.reply_text) == (
        403, "ACCESS_REFUSED - exchange 'txn.a' in vhost '/' is committed",
    )  # fmt: skip
    (close,) = world.client().say(m.ExchangeDelete(exchange="txn.a"))
    assert close.reply_code == 403
    assert world.client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == 0
    world.node.alarms.clear()
    world.wait(1000)
    assert seen(world) == [b"1"]


def test_who_may_not_write_to_the_target_may_not_stage() -> None:
    world, _ = begin()
    world.command(c.SetPermission(user="eve", vhost="/", configure="^txn", write="^amq.topic$", read=""))
    eve = Stager.__new__(Stager)
    eve.client, eve.producer, eve.run = world.client("eve", channels=2), "e", "r"
    assert eve.declare("txn.a") == [m.ExchangeDeclareOk()]
    eve.client.say(m.ConfirmSelect())
    assert eve.stage("txn.a", b"1") == [m.BasicAck(1, True)]
    world.command(c.SetTopicPermission(user="eve", vhost="/", exchange="amq.topic", write="^allowed", read=""))
    (close,) = eve.stage("txn.a", b"1")
    assert close.reply_code == 403
    eve.client = world.client("eve")
    (close,) = eve.declare("txn.b", target="amq.direct")
    assert close.reply_code == 403
    eve.client = world.client("eve")
    (close,) = eve.client.publish("amq.txn", "status", b'{"producer": "e"}')
    assert close.reply_code == 403


def test_nobody_else_aborts_or_asks_about_a_producer() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"1")
    world.command(c.SetPermission(user="eve", vhost="/", configure="^txn", write=".*", read=".*"))
    eve = Stager(world.client("eve", channels=2), run="r1")
    for heard in (eve.status(), eve.abort("txn.a")):
        assert (heard["outcome"], heard["code"]) == ("refused", 403)
        assert heard["reason"] == "producer 'p' belongs to user 'guest'"
    assert eve.ask("status", producer="unknown")["outcome"] == "status"
    assert alice.commit("txn.a")["outcome"] == "committed"
    assert seen(world) == [b"1"]


def test_transactional_channels_do_not_stage() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    client = world.client()
    client.say(m.TxSelect())
    (close,) = client.publish("txn.a", "k", b"1")
    assert close.reply_code == 406


@pytest.mark.parametrize(
    "key, body, why",
    [
        ("commit", {"producer": "p", "epoch": -1, "run": "r", "transactions": []}, "'epoch' must be an integer"),
        ("commit", {"producer": "p", "epoch": 0, "transactions": []}, "'run' must be a text of 1 to 64 bytes"),
        ("commit", {"producer": "\0", "epoch": 0, "run": "r", "transactions": []}, "must not begin with NUL"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r"}, "'transactions' must be a list of names"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r", "transactions": ["a", "a"]}, "names one twice"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r", "transactions": ["\ud800"]}, "has a name that no staging"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r", "transactions": [f"{n:0250}" for n in range(2000)]},
         "names of 500000 bytes, at most 450000"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r", "transactions": [], "ttl": 1}, "unknown field 'ttl'"),
        ("commit", {"producer": "p", "epoch": 0, "run": "r", "transactions": [], "ttl_ms": 1}, "'ttl_ms' must be an"),
        ("abort", {"producer": "p", "epoch": 0, "run": "r", "transactions": [], "rows": 1}, "unknown field 'rows'"),
        ("status", {}, "'producer' must be a text"),
    ],
)  # fmt: skip
def test_a_body_that_is_wrong_closes_the_channel(key: str, body: dict[str, Any], why: str) -> None:
    (close,) = World().client().publish("amq.txn", key, json.dumps(body).encode())
    assert close.reply_code == 406
    assert close.reply_text.startswith(f"PRECONDITION_FAILED - invalid body of amq.txn '{key}': ")
    assert why in close.reply_text


def test_status_tells_what_is_staged_and_moving() -> None:
    world, alice = begin()
    assert alice.status() == {
        "outcome": "status", **OK, "producer": "p", "epoch": None, "run": None, "rows": None, "committed_at_ms": None,
        "expires_at_ms": None, "open": [], "moving": 0, "unroutable": 0,
    }  # fmt: skip
    alice.declare("txn.a", epoch=4, x_partition=2, x_attempt=1)
    alice.stage("txn.a", b"1", b"22")
    (told,) = alice.status()["open"]
    assert told == {
        "transaction": "txn.a", "epoch": 4, "run": "r1", "partition": 2, "attempt": 1, "rows": 2, "bytes": 3,
    }  # fmt: skip
    world.node.alarms["disk"] = None
    alice.commit("txn.a", epoch=4, rows=2, ttl_ms=7_200_000)
    status = alice.status()
    assert (status["epoch"], status["run"], status["rows"], status["moving"], status["open"]) == (4, "r1", 2, 2, [])
    assert status["expires_at_ms"] - status["committed_at_ms"] == 7_200_000


def test_what_cannot_be_ordered_may_be_asked_again() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    alice.stage("txn.a", b"1")
    world.wiring_waits = True
    raw = b'{"producer": "p", "epoch": 0, "run": "r1", "transactions": ["txn.a"]}'
    alice.client.raw(alice.client.content("amq.txn", "commit", raw, channel=2, reply_to="amq.rabbitmq.reply-to",
                                          correlation_id="7"))  # fmt: skip
    world.turn()
    ((command, done),) = world.node.proposals
    world.node.proposals = []
    done(unlogged(command, Unavailable("no majority")))
    world.wiring_waits = False
    world.turn()
    assert alice.answer() == {"outcome": "refused", "code": 503, "reason": "unavailable, may be repeated"}
    assert alice.commit("txn.a")["outcome"] == "committed"


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 9])
def test_a_crash_at_any_moment_of_the_move_loses_and_doubles_nothing(kept: int) -> None:
    world, alice = begin()
    alice.client.declare("r")
    alice.client.ask(m.QueueBind(queue="r", exchange="amq.topic", routing_key="k.odd"))
    rows = [b"%d" % number for number in range(10)]
    for name in ("txn.a", "txn.b"):
        alice.declare(name)
        for row in rows:
            alice.stage(name, name.encode() + row, key="k.odd" if int(row) % 2 else "k")
    world.disk_waits = True
    raw = b'{"producer": "p", "epoch": 0, "run": "r1", "transactions": ["txn.a", "txn.b"]}'
    alice.client.raw(alice.client.content("amq.txn", "commit", raw, channel=2))
    world.turn()
    for _ in range(kept):
        if world.journal is not None and not world.journal.idle:
            world.commit()
    world.disk_waits = False
    world.crash()
    world.turn()
    both = [name + row for name in (b"txn.a", b"txn.b") for row in rows]
    assert seen(world) == both
    assert seen(world, "r") == [row for row in both if int(row[-1:]) % 2]
    assert world.node.map.segments("/") == ()
    assert not any(name[:1] == b"t" for queue in world.node.queues.values() for name in queue.ring.attributes)


def test_rows_that_are_on_the_disk_are_moved_too() -> None:
    world, alice = begin()
    alice.declare("txn.a")
    rows = [b"%05d" % number for number in range(9000)]
    alice.stage("txn.a", *rows, transient=True)
    world.checkpoint()
    world.crash()
    alice = Stager(world.client(channels=2))
    assert alice.commit("txn.a")["outcome"] == "committed"
    assert seen(world) == rows


def test_a_full_target_gets_the_rest_when_there_is_room() -> None:
    world = World()
    client = world.client(channels=2)
    client.declare("q", x_max_length=3, x_overflow="reject-publish")
    client.declare("r")
    for queue in ("q", "r"):
        client.ask(m.QueueBind(queue=queue, exchange="amq.topic", routing_key="k"))
    alice = Stager(client)
    rows = [b"%d" % number for number in range(10)]
    alice.declare("txn.a")
    alice.stage("txn.a", *rows)
    alice.commit("txn.a")
    bob = world.client()
    assert seen(world, "r") == rows
    got: list[bytes] = []
    for _ in range(20):
        heard = bob.say(m.BasicGet(queue="q", no_ack=True))
        got += bodies([said for said in heard if isinstance(said, Content)])
        world.wait(4000)
    assert got == rows
    assert world.node.map.segments("/") == ()


def test_epochs_reach_a_queue_in_their_order() -> None:
    world = World()
    client = world.client(channels=2)
    client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.QueueBind(queue="q", exchange="amq.topic", routing_key="k"))
    client.declare("r")
    client.ask(m.QueueBind(queue="r", exchange="amq.topic", routing_key="r"))
    alice = Stager(client)
    for epoch in range(3):
        alice.declare(f"txn.{epoch}", epoch=epoch)
        alice.stage(f"txn.{epoch}", b"k%d" % epoch)
        alice.stage(f"txn.{epoch}", b"r%d" % epoch, key="r")
        alice.order_commit(f"txn.{epoch}", epoch=epoch)
        if epoch == 2:
            assert alice.client.hear(2) == [], "epoch 1 is held up by a full queue"
            assert alice.status()["epoch"] == 2
            world.wait(HOLD_MS)
        assert alice.answer()["outcome"] == "committed"
    bob = world.client()
    first = world.client()
    assert bodies(first.consume("r")) == [b"r0", b"r1"], "epoch 2 waits for all of epoch 1"
    got: list[bytes] = []
    for _ in range(10):
        got += bodies([said for said in bob.say(m.BasicGet(queue="q", no_ack=True)) if isinstance(said, Content)])
        world.wait(4000)
    assert got == [b"k0", b"k1", b"k2"]
    assert bodies(first.hear(1)) == [b"r2"]
    assert alice.status()["epoch"] == 2


def test_a_part_of_a_segment_that_is_gone_was_here_before() -> None:
    """Its sender was the owner of before: the next one has moved all of it."""
    world, _ = begin()
    queue, answered = world.queue("q"), []
    part = CommitPart()
    part.moved = Moved(77, [1, 2])
    part.publishes = [((Message(b"\0\1q", b"1", 0), Message(b"\0\1q", b"2", 0)), None)]
    ticket = Ticket(0, 0, lambda ticket: answered.append(ticket.rejected))
    queue.commit(part, ticket, world.now_ms)
    ticket.pass_()
    assert (answered, queue.ready) == ([False], 0)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_rows_reach_a_stream_once(kept: int) -> None:
    world, alice = begin()
    alice.client.declare("s", x_queue_type="stream")
    alice.client.ask(m.QueueBind(queue="s", exchange="amq.topic", routing_key="k"))
    rows = [b"%d" % number for number in range(50)]
    alice.declare("txn.a")
    alice.stage("txn.a", *rows)
    world.disk_waits = True
    raw = b'{"producer": "p", "epoch": 0, "run": "r1", "transactions": ["txn.a"]}'
    alice.client.raw(alice.client.content("amq.txn", "commit", raw, channel=2))
    world.turn()
    for _ in range(kept):
        if world.journal is not None and not world.journal.idle:
            world.commit()
    world.disk_waits = False
    world.crash()
    world.turn()
    assert seen(world) == rows
    reader = world.client()
    reader.say(m.BasicQos(0, 1000, False))
    assert bodies(reader.consume("s", arguments={"x-stream-offset": "first"})) == rows


def test_the_end_of_a_vhost_takes_what_is_on_its_way() -> None:
    world, alice = begin()
    for name in ("txn.a", "txn.b"):
        alice.declare(name)
        alice.stage(name, b"1")
    world.node.alarms["disk"] = None
    alice.commit("txn.a", "txn.b")
    world.command(c.DeleteVhost(name="/"))
    world.node.alarms.clear()
    world.wait(2000)
    assert not world.node.queues
    assert not world.node.moving.due


def test_rows_without_a_queue_are_passed_over_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers for them, so nothing else would give others their turns."""
    for module in (mover, moving):
        monkeypatch.setattr(module, "ROWS_MAX", 4)
    world, alice = begin()
    for name, rows in (("txn.a", 10), ("txn.b", 3), ("txn.c", 3), ("txn.d", 3)):
        alice.declare(name)
        alice.stage(name, *(b"x" for _ in range(rows)), key="nowhere")
    alice.commit("txn.a", "txn.b", "txn.c", "txn.d")
    left = []
    while world.node.map.segments("/"):
        left.append(sum(world.node.vhosts["/"].staging[one.name].ring.ready for one in world.node.map.segments("/")))
        world.wait(1)
    assert left == [15, 11, 6]
    assert alice.status()["unroutable"] == 19


def test_who_asks_for_much_again_and_again_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer names all that a producer has open: up to 10,000, some 40 ms of work."""
    monkeypatch.setattr(moving, "COUNTED_MAX", 4)
    world, alice = begin()
    for number in range(3):
        alice.declare(f"txn.{number}")
    raw = b'{"producer": "p"}'
    alice.client.raw(5 * alice.client.content("amq.txn", "status", raw, channel=2, reply_to="amq.rabbitmq.reply-to"))
    answers = []
    while sum(answers) < 5:
        world.turn()
        answers.append(sum(isinstance(heard, Content) for heard in alice.client.hear(2)))
        assert len(answers) < 5
        world.wait(1)
    assert answers == [2, 2, 1]
