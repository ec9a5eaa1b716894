"""What a member of the cluster may send in error or malice: it ends a link, never a node, and nothing confirmed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clusterbroker.broker.node import hub as hub_module
from clusterbroker.broker.queues.lease import Acquire, End, Read, Release, Settle
from clusterbroker.broker.remote import messages as p
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.link.frames import FrameReader, encode
from clusterbroker.journal.record import verify_records
from clusterbroker.replication import messages as r
from tests.budget import examples
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.hostile import Hostile, other_records, publishes
from tests.unit.broker.node.node_cluster import Cluster


def loaded() -> tuple[Cluster, str, str, list[bytes]]:
    """(cluster, owner of "kept", another node, what was confirmed in it); clients are at work on other queues."""
    cluster = Cluster("a", "b", "c")
    writer = cluster["a"].client()
    writer.declare("kept")
    for name in ("one", "two", "three"):
        writer.declare(name)
    writer.ask(m.QueueDeclare(queue="full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}))
    writer.ask(m.ConfirmSelect())
    confirmed = [b"%d" % number for number in range(20)]
    writer.publish("", "kept", *confirmed)
    for site in "abc":
        reader = cluster[site].client()
        reader.say(m.BasicQos(prefetch_count=3))
        for queue in ("one", "two", "three", "full"):
            reader.say(m.BasicConsume(queue=queue))
            writer.publish("", queue, *(b"w%d" % number for number in range(5)))
    owner = cluster.queue("kept").owner
    return cluster, owner, next(name for name in "abc" if name != owner), confirmed


def still_there(cluster: Cluster, confirmed: list[bytes]) -> None:
    """The cluster works, and every copy of "kept" has what was confirmed: whoever owns it."""
    cluster.wait(hub_module.HELD_MS_MAX + 1000)
    cluster.relink()
    cluster.turn()
    cluster.wait(3000)
    assert len(cluster.digests()) == 1
    for site in cluster.running:
        client = site.client()
        client.ask(m.ConfirmSelect())
        client.declare(f"after-{site.name}")
        assert client.publish("", f"after-{site.name}", b"x")[-1] == m.BasicAck(1, True)
    reader = cluster.running[0].client()
    heard = reader.say(m.BasicConsume(queue="kept", no_ack=True))
    cluster.wait(3000)
    found = bodies([*heard, *reader.say()])
    assert [body for body in found if body in confirmed] == confirmed


def say(cluster: Cluster, source: str, target: str, head: Any, payload: bytes = b"", index: int | None = None) -> None:
    """A frame out of nowhere."""
    at = cluster[target].map.applied if index is None else index
    role = cluster[target].node.role
    assert role is not None
    for got in FrameReader().feed(encode(head, at, (payload,))):
        role.hub.received(source, *got)
    cluster.turn()


@pytest.mark.parametrize("seed", range(examples(8)))
def test_whatever_a_member_says(seed: int) -> None:
    cluster, _, other, confirmed = loaded()
    hostile = Hostile(cluster, other, seed, cluster.queue("kept").queue_id)
    for number in range(400):
        target = hostile.random.choice([name for name in "abc" if name != other])
        kind, index, head, payload = hostile.frame()
        role = cluster[target].node.role
        assert role is not None
        try:
            role.hub.received(other, index, memoryview(head), memoryview(payload))
            cluster.turn()
        except Exception as error:
            raise AssertionError(f"frame {number}, {kind.__name__} {head!r} + {payload[:80]!r}: {error!r}") from error
        if cluster.bad_frames:
            cluster.bad_frames.clear()
            cluster.relink()
            cluster.turn()
        if number % 50 == 0:
            cluster.wait(1000)
    for target in "abc":  # a member may say that it is low on memory, and publishers wait until it is not
        say(cluster, other, target, p.Alarmed(()))
    still_there(cluster, confirmed)


def test_frames_that_wait_for_the_wiring_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "HELD_FRAMES_MAX", 10)
    cluster, owner, other, confirmed = loaded()
    role = cluster[owner].node.role
    assert role is not None
    for _ in range(10):
        say(cluster, other, owner, r.AppendAck(1), index=2**60)
    assert not cluster.bad_frames
    say(cluster, other, owner, r.AppendAck(1), index=1)
    ((name, peer, why),) = cluster.bad_frames
    assert (name, peer) == (owner, other)
    assert "10 frames wait for wiring index 1152921504606846976" in why
    assert other not in role.hub.held_bytes
    still_there(cluster, confirmed)


def test_frames_do_not_wait_for_ever() -> None:
    cluster, owner, other, confirmed = loaded()
    say(cluster, other, owner, r.AppendAck(1), index=cluster[owner].map.applied + 1000)
    cluster.wait(4000)
    assert not cluster.bad_frames
    cluster.wait(2000)
    assert [(name, peer) for name, peer, _ in cluster.bad_frames] == [(owner, other)]
    still_there(cluster, confirmed)


def test_bytes_that_wait_for_the_wiring_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "HELD_BYTES_MAX", 1000)
    cluster, owner, other, _ = loaded()
    role = cluster[owner].node.role
    assert role is not None
    say(cluster, other, owner, p.Reply("nobody"), bytes(5000), index=2**60)
    assert not cluster.bad_frames, "one frame may be as long as it likes"
    assert role.hub.held_bytes[other] > 5000
    say(cluster, other, owner, p.Reply("nobody"), index=2**60)
    assert len(cluster.bad_frames) == 1


def test_frames_behind_a_bad_one_that_waited_are_not_looked_at() -> None:
    cluster, owner, other, confirmed = loaded()
    role = cluster[owner].node.role
    assert role is not None
    seen: list[Any] = []
    role.hub.handlers[p.Reply] = lambda _peer, message, _payload: seen.append(message)
    index = cluster[owner].map.applied + 1
    say(cluster, other, owner, r.AppendAck(2**40), index=index)
    say(cluster, other, owner, p.Reply("behind"), index=index)
    cluster["a"].client().say(m.QueueDeclare(queue="more"))
    assert [(name, peer) for name, peer, _ in cluster.bad_frames] == [(owner, other)]
    assert seen == []
    still_there(cluster, confirmed)


BAD: list[tuple[Any, bytes]] = [
    (r.Append(1, ((1, 1, 5),)), b""),
    (p.Publish(((1, 1, 1, 1, 1, 7),)), b"1234567890"),
    (p.Deliver(((1, 1, 1, 1, 2**40),)), b""),
    (r.AppendAck(10_000), b""),
]


@pytest.mark.parametrize(("head", "payload"), BAD)
def test_ends_the_link(head: Any, payload: bytes) -> None:
    cluster, owner, other, confirmed = loaded()
    say(cluster, other, owner, head, payload)
    assert [(name, peer) for name, peer, _ in cluster.bad_frames] == [(owner, other)]
    still_there(cluster, confirmed)


def test_who_does_not_own_a_queue_cannot_change_its_copies() -> None:
    """Appends, offers and buckets of another member, with records that would empty the queue."""
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    third = next(name for name in "abc" if name not in (owner, other))
    records = other_records(queue.queue_id, queue.epoch)
    for target in (owner, third):
        for epoch in (queue.epoch, queue.epoch + 1, 2**31):
            say(cluster, other, target, r.Append(1, ((queue.queue_id, epoch, len(records)),)), records)
            say(cluster, other, target, r.SyncOffer(queue.queue_id, epoch, 1, 1, 2**61, (), (), ()))
            say(cluster, other, target, r.SyncBucket(queue.queue_id, epoch, 1, 0, ()))
    cluster.kill(owner)
    still_there(cluster, confirmed)


DAMAGED = {
    "of another queue": lambda queue, _: publishes(queue.queue_id + 1, 21, 1),
    "a seq beyond reason": lambda queue, _: publishes(queue.queue_id, 2**63, 1),
    "zeros": lambda _, data: bytes(len(data)),
    "cut off": lambda _, data: data[:-8],
    "of an epoch to come": lambda queue, _: other_records(queue.queue_id, queue.epoch + 1),
    "a bit": lambda _, data: data[:50] + bytes((data[50] ^ 4,)) + data[51:],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_copy_that_gets_damaged_records_refuses_and_syncs_again(damage: str) -> None:
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    deliver = cluster._deliver
    tampered: list[int] = []

    def tamper(source: str, target: str, frame: bytes) -> None:
        for index, head, payload in FrameReader().feed(frame):
            message = hub_module.HEADS.decode(head)
            if isinstance(message, r.Append) and (source, target) == (owner, other) and not tampered:
                (role,) = message.parts
                data = DAMAGED[damage](queue, bytes(payload))
                tampered.append(len(data))
                frame = encode(r.Append(message.group, ((*role[:2], len(data)),)), index, (data,))
        deliver(source, target, frame)

    cluster._deliver = tamper  # type: ignore[method-assign]
    writer = cluster[owner].client()
    writer.ask(m.ConfirmSelect())
    assert writer.publish("", "kept", b"more")[-1] == m.BasicAck(1, True), (
        "it was refused, synced, and then acknowledged"
    )
    assert tampered
    assert cluster.bad_frames == []
    cluster.kill(owner)
    still_there(cluster, [*confirmed, b"more"])


def test_a_bucket_with_other_records_than_messages_is_refused() -> None:
    cluster, _, other, _confirmed = loaded()
    queue = cluster.queue("kept")
    records = other_records(queue.queue_id, queue.epoch)
    assert cluster[other].node.role.copying.verify(queue.queue_id, memoryview(records)) is None  # type: ignore[union-attr]
    assert cluster[other].node.role.copying.sound(queue.queue_id, memoryview(records))  # type: ignore[union-attr]


def test_a_node_may_settle_only_what_it_holds() -> None:
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    everything = p.Settlement(1, p.SETTLE_ACK, ((1, 2**60),))
    attach = p.AttachedQueue(queue.queue_id, queue.epoch, 50, (), (), (), 1)
    say(cluster, other, owner, p.Attach(1, 1, (attach,), True))
    say(cluster, other, owner, p.Settle(queue.queue_id, queue.epoch, 50, (everything,)))
    say(cluster, other, owner, p.Attach(7, 1, (attach,), True))  # not its incarnation
    assert cluster.bad_frames == []
    still_there(cluster, confirmed)


def test_publishes_count_once_and_without_gaps() -> None:
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    attach = p.AttachedQueue(queue.queue_id, queue.epoch, 50, (), (), (), 1)
    say(cluster, other, owner, p.Attach(1, 1, (attach,), True))
    records = publishes(queue.queue_id, 1, 2)

    def publish(first: int) -> None:
        role = (queue.queue_id, queue.epoch, 50, first, 2, len(records))
        say(cluster, other, owner, p.Publish((role,)), records)

    known = cluster[owner].node.queues[queue.queue_id].ring
    before = known.next_seq
    publish(1)
    publish(1)
    assert known.next_seq == before + 2
    publish(7)
    assert known.next_seq == before + 2
    assert cluster.bad_frames == []
    say(cluster, other, owner, p.Publish(((queue.queue_id, queue.epoch, 50, 3, 9, len(records)),)), records)
    assert "are 2 records" in cluster.bad_frames[0][2]
    assert known.next_seq == before + 2
    still_there(cluster, confirmed)


def test_a_publish_holds_messages_and_nothing_else() -> None:
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    attach = p.AttachedQueue(queue.queue_id, queue.epoch, 50, (), (), (), 1)
    say(cluster, other, owner, p.Attach(1, 1, (attach,), True))
    records = other_records(queue.queue_id, queue.epoch)
    held = verify_records(records, queue.queue_id, queue.epoch)
    known = cluster[owner].node.queues[queue.queue_id].ring
    before = known.next_seq
    say(cluster, other, owner, p.Publish(((queue.queue_id, queue.epoch, 50, 1, held, len(records)),)), records)
    assert "an ENQ record is expected" in cluster.bad_frames[0][2]
    assert known.next_seq == before
    still_there(cluster, confirmed)


def test_replies_to_nobody_and_forged_ones() -> None:
    cluster, owner, other, confirmed = loaded()
    say(cluster, other, owner, p.Reply("amq.rabbitmq.reply-to.x-1-1", "/"), publishes(1, 1, 1))
    assert cluster.bad_frames == []
    asking = cluster[owner].client()
    asking.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    ((key, _),) = cluster[owner].node.reply_targets.items()
    say(cluster, other, owner, p.Reply(key, "/"), other_records(1, 1))
    assert len(cluster.bad_frames) == 1
    assert bodies(asking.say()) == []
    still_there(cluster, confirmed)


EXTREME_WORDS = [
    *(Read("n", first, end, rows) for first, end in ((0, 0), (9, 1), (0, 2**56), (2**56, 2**56)) for rows in (1, 4096)),
    *(Settle("n", "r", "", upto) for upto in (0, 1, 2**56)),
    *(
        Acquire("n", "r", "", start, rows, size, 1000)
        for start in (0, 2**56)
        for rows in (1, 10**6)
        for size in (1, 2**40)
    ),
    Acquire("\u00fc" * 200, "", "x", 0, 1, 1, 1000),
    Release("n", "", "0.0"),
    End("\u00fc" * 200),
    End(""),
]


def test_words_of_leases_at_their_extremes_do_no_harm() -> None:
    cluster, _, _, confirmed = loaded()
    cluster["a"].client().declare("leased")
    cluster["a"].client().publish("", "leased", b"1", b"2", b"3")
    entity = cluster.queue("leased")
    other = next(name for name in "abc" if name != entity.owner)
    cluster[other].client().say(m.BasicGet(queue="leased"))  # so that it is attached
    cluster.turn()
    role = cluster[entity.owner].node.role
    assert role is not None
    heads: list[Any] = []
    send = role.send
    role.send = lambda node, head, payload=(): heads.append(head) or send(node, head, payload)  # type: ignore[method-assign,func-returns-value]
    owned = role.owned_queues.queues[entity.queue_id]
    owned.host = role
    gen = owned._attachments[other].gen
    for number, word in enumerate(EXTREME_WORDS * 2, 1000):
        ask = p.Ask(entity.queue_id, entity.epoch, gen, number, p.ASK_LEASE, word=word)
        say(cluster, other, entity.owner, ask)
    cluster.wait(1000)
    answers = [head for head in heads if isinstance(head, p.Answer) and head.request >= 1000]
    assert len(answers) == 2 * len(EXTREME_WORDS)
    assert cluster.bad_frames == []
    still_there(cluster, confirmed)


def test_a_question_about_a_lease_that_asks_nothing_ends_the_link() -> None:
    cluster, owner, other, confirmed = loaded()
    queue = cluster.queue("kept")
    role = cluster[owner].node.role
    assert role is not None
    for fields in ([p.ASK_LEASE, False, False, False, None], [0, False, False, False, ["release", "n", "r", ""]]):
        head = msgspec.msgpack.encode([27, queue.queue_id, queue.epoch, 1, 1, *fields])
        role.hub.received(other, cluster[owner].node.map.applied, memoryview(head), memoryview(b""))
        cluster.turn()
        assert len(cluster.bad_frames) == 1, fields
        cluster.bad_frames.clear()
        cluster.relink()
        cluster.turn()
    still_there(cluster, confirmed)
