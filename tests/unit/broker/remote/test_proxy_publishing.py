"""Publishing to a queue elsewhere: each message once, in order, whatever becomes of owners and links."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from clusterbroker.broker.queues.ticket import RunTicket
from clusterbroker.broker.remote import outbox
from clusterbroker.broker.remote.backlog import HOLD_BYTES
from clusterbroker.broker.remote.messages import Answer, Ask, Attach, Attached, Detach, NamedPublish, Publish, Published
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.cluster.wiring.levels import NUMBERED_RUNS
from tests.unit.broker.remote.pair import Pair, Receipt, entity, message, numbers


def publish(pair: Pair, *bodies: bytes, queue_id: int = 7) -> Receipt:
    receipt = Receipt()
    pair.remote_queues.queues[queue_id].publish([message(body) for body in bodies], receipt, 0)
    receipt.pass_()
    return receipt


def sent(pair: Pair) -> list[int]:
    """Numbers of the messages that were sent since the last call."""
    frames = [(head, data) for _, head, data in pair.all() if isinstance(head, Publish)]
    return [number for _, data in frames for number in numbers(data)]


def attached() -> Pair:
    """A pair that has published message 1 and knows that it is committed."""
    pair = Pair()
    first = publish(pair, b"1")
    pair.turn()
    pair.attach()
    assert sent(pair) == [1]
    pair.say(Published(7, pair.gen, 1))
    assert first.answered == "ack"
    return pair


def test_the_first_publish_attaches_and_waits_for_the_answer() -> None:
    pair = Pair()
    receipt = publish(pair, b"1", b"2")
    pair.turn()
    (attach,) = pair.all()
    assert attach[0] == "owner"
    assert attach[1] == Attach(3, 50, attach[1].queues, partial=True)
    (listed,) = attach[1].queues
    assert (listed.queue_id, listed.epoch, listed.gen, listed.next_number) == (7, 1, pair.gen, 3)
    assert (listed.consumers, listed.outstanding, listed.settlements) == ((), (), ())
    pair.say(Attached(7, 1, pair.gen, 0))
    (frame,) = pair.all()
    assert frame[1] == Publish(((7, 1, pair.gen, 1, 2, len(frame[2])),))
    assert numbers(frame[2]) == [1, 2]
    assert receipt.answered == ""
    pair.say(Published(7, pair.gen, 1))
    assert receipt.answered == "", "half of it is committed"
    pair.say(Published(7, pair.gen, 2))
    assert receipt.answered == "ack"
    assert pair.remote_queues.unacknowledged_bytes == 0


def test_publishes_of_one_turn_to_one_owner_are_one_frame() -> None:
    pair = Pair(7, 8)
    for queue_id in (7, 8):
        publish(pair, b"first", queue_id=queue_id)
    pair.turn()
    (attach,) = pair.all()
    for listed in attach[1].queues:
        pair.remote_queues.received("owner", Attached(listed.queue_id, 1, listed.gen, 0), memoryview(b""))
    pair.turn()
    ((_, head, data),) = pair.all()
    assert [(part[0], part[3], part[4]) for part in head.parts] == [(7, 1, 1), (8, 1, 1)]
    assert len(data) == sum(part[5] for part in head.parts)
    pair.say(Published(7, pair.gen, 1))
    publish(pair, b"2")
    publish(pair, b"3", b"4")
    pair.turn()
    ((_, head, data),) = pair.all()
    assert [(part[3], part[4]) for part in head.parts] == [(2, 3)], "neighbours are one part"


def test_what_comes_while_a_publish_is_under_way_waits_for_its_answer_and_costs_no_turn() -> None:
    pair = attached()
    publish(pair, b"2")
    pair.turn()
    assert sent(pair) == [2]
    receipts = [publish(pair, b"3"), publish(pair, b"4", b"5")]
    assert not pair.queue.ring.marked
    pair.turn()
    assert sent(pair) == []
    pair.say(Published(7, pair.gen, 2))
    assert sent(pair) == [3, 4, 5]
    pair.say(Published(7, pair.gen, 5))
    assert [receipt.answered for receipt in receipts] == ["ack"] * 2


def test_much_does_not_wait_for_the_answer() -> None:
    pair = attached()
    publish(pair, b"2")
    pair.turn()
    assert sent(pair) == [2]
    for _ in range(3):
        publish(pair, bytes(HOLD_BYTES // 4))
    pair.turn()
    assert sent(pair) == []
    publish(pair, bytes(HOLD_BYTES // 4))
    pair.turn()
    assert sent(pair) == [3, 4, 5, 6]


def test_who_asks_counts_what_was_held_back() -> None:
    pair = attached()
    publish(pair, b"2")
    pair.turn()
    pair.all()
    publish(pair, b"3")
    pair.queue.counts(0, lambda _count, _consumers: None)
    pair.turn()
    (_, first, data), (_, second, _) = pair.all()
    assert isinstance(first, Publish)
    assert isinstance(second, Ask)
    assert numbers(data) == [3]


def test_frames_are_not_much_longer_than_a_mebibyte() -> None:
    pair = attached()
    for _ in range(6):
        publish(pair, bytes(400_000))
    pair.turn()
    frames = [data for _, head, data in pair.all() if isinstance(head, Publish)]
    assert [numbers(data) for data in frames] == [[2, 3, 4], [5, 6, 7]]


def test_after_a_new_link_only_what_the_owner_lacks_is_sent_again() -> None:
    pair = attached()
    receipts = [publish(pair, b"2"), publish(pair, b"3", b"4"), publish(pair, b"5")]
    pair.turn()
    assert sent(pair) == [2, 3, 4, 5]
    old = pair.gen
    pair.cut()
    receipts.append(publish(pair, b"6"))
    pair.turn()
    assert pair.all() == []
    pair.link()
    assert pair.gen > old
    pair.say(Published(7, old, 5))
    assert receipts[0].answered == "", "of an older gen: dropped"
    assert pair.attach(accepted=2).next_number == 7
    assert sent(pair) == [3, 4, 5, 6]
    pair.say(Published(7, pair.gen, 6))
    assert [receipt.answered for receipt in receipts] == ["ack"] * 4


def test_what_an_owner_has_but_not_committed_is_answered_later() -> None:
    pair = attached()
    receipt = publish(pair, b"2")
    pair.turn()
    pair.remote_queues.owner_changed(entity(owner="other", epoch=2))
    pair.turn()
    pair.attach(accepted=2, peer="other")
    assert sent(pair) == []
    assert receipt.answered == ""
    pair.say(Published(7, pair.gen, 2), peer="owner")
    assert receipt.answered == "", "it is not the owner any more"
    pair.say(Published(7, pair.gen, 2), peer="other")
    assert receipt.answered == "ack"


def test_a_batch_of_which_the_owner_has_a_part() -> None:
    pair = attached()
    receipt = publish(pair, b"2", b"3", b"4")
    pair.turn()
    pair.all()
    pair.say(Detach(7, 1, pair.gen, "gap"))
    pair.turn(later_ms=20)
    pair.attach(accepted=3)
    assert sent(pair) == [4]
    pair.say(Published(7, pair.gen, 4))
    assert receipt.answered == "ack"


def test_refused_messages_are_nacked_and_their_neighbours_are_not() -> None:
    pair = Pair(max_length=1, overflow="reject-publish")
    assert pair.queue.rejects
    assert pair.queue.accepts(message(), 0), "the owner decides"
    receipts = [publish(pair, b"1"), publish(pair, b"2"), publish(pair, b"3")]
    pair.turn()
    pair.attach()
    pair.say(Published(7, pair.gen, 3, ((2, 3),)))
    assert [receipt.answered for receipt in receipts] == ["ack", "nack", "nack"]


def test_of_one_publish_what_is_refused_is_told_by_its_places_and_not_sent_again() -> None:
    pair = attached()
    answers: list[Collection[int]] = []
    ticket = RunTicket(1, 5, lambda ticket: answers.append(ticket.refused_places))
    pair.remote_queues.queues[7].publish([message(b"%d" % number) for number in range(5)], ticket, 0)
    ticket.pass_()
    pair.turn()
    assert sent(pair) == [2, 3, 4, 5, 6]
    pair.say(Published(7, pair.gen, 4, ((3, 4),)))
    assert answers == []
    pair.say(Detach(7, 1, pair.gen, "refused"))
    pair.turn()
    pair.attach(accepted=2)
    assert sent(pair) == [5, 6]
    pair.say(Published(7, pair.gen, 6, ((6, 6),)))
    assert [sorted(places) for places in answers] == [[1, 2, 4]]
    assert pair.remote_queues.unacknowledged_bytes == 0


def test_a_refusal_that_was_not_heard_is_judged_anew() -> None:
    pair = Pair(max_length=1, overflow="reject-publish")
    receipts = [publish(pair, b"1"), publish(pair, b"2")]
    pair.turn()
    pair.attach()
    pair.all()
    pair.cut()
    pair.link()
    pair.attach(accepted=1)
    assert sent(pair) == [2]
    pair.say(Published(7, pair.gen, 2))
    assert [receipt.answered for receipt in receipts] == ["ack", "ack"]


def test_without_an_owner_everything_waits() -> None:
    pair = Pair(owner=None)
    receipt = publish(pair, b"1")
    answers: list[tuple[int, int]] = []
    pair.queue.counts(0, lambda *answer: answers.append(answer))
    pair.turn(later_ms=10_000)
    assert pair.all() == []
    assert pair.remote_queues.unacknowledged_bytes > 0
    pair.remote_queues.owner_changed(entity(epoch=2))
    pair.turn()
    pair.attach()
    (head, ask) = (head for _, head, _ in pair.all())
    assert isinstance(head, Publish)
    assert isinstance(ask, Ask)
    pair.say(Answer(7, pair.gen, ask.request, 1, 0))
    pair.say(Published(7, pair.gen, 1))
    assert (receipt.answered, answers) == ("ack", [(1, 0)])


def test_named_messages_keep_their_place_among_the_others() -> None:
    pair = attached()
    publish(pair, b"2")
    pair.queue.publish_numbered(b"press", (17,), (message(b"3"),), None, 0)
    publish(pair, b"4")
    pair.turn()
    heads = [(type(head), numbers(data)) for _, head, data in pair.frames]
    assert heads == [(Publish, [2]), (NamedPublish, [3]), (Publish, [4])]
    named = pair.heard(NamedPublish)
    assert named == [NamedPublish(7, 1, pair.gen, 3, b"press", 17)]


def test_the_window_bounds_what_is_under_way_to_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "WINDOW_BYTES", 10_000)
    pair = attached()
    receipts = [publish(pair, bytes(4000)) for _ in range(10)]
    before = pair.flow
    pair.turn()
    assert sent(pair) == [2, 3, 4]
    assert pair.remote_queues.unacknowledged_bytes > 40_000, "publishers are slowed by what waits here too"
    answers: list[tuple[int, int]] = []
    pair.queue.counts(0, lambda *answer: answers.append(answer))
    pair.turn()
    assert pair.all() == [], "who publishes and then counts, counts his own"
    pair.say(Published(7, pair.gen, 3))
    assert pair.flow > before
    assert sent(pair) == [5, 6]
    pair.say(Published(7, pair.gen, 6))
    pair.say(Published(7, pair.gen, 9))
    assert [type(head) for _, head, _ in pair.frames] == [Publish, Publish, Ask]
    pair.say(Published(7, pair.gen, 11))
    assert [receipt.answered for receipt in receipts] == ["ack"] * 10
    assert pair.remote_queues.unacknowledged_bytes == 0
    assert pair.queue.outbox is not None
    assert pair.queue.outbox.in_flight_bytes == 0


def test_the_window_is_the_owners_and_not_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "WINDOW_BYTES", 5_000)
    pair = Pair(7, 8)
    for queue_id in (7, 8):
        publish(pair, bytes(6000), queue_id=queue_id)
        pair.turn()
        pair.attach(queue=pair.remote_queues.queues[queue_id])
    assert [head.parts[0][0] for head in pair.heard(Publish)] == [8], "a queue with nothing under way sends one"
    publish(pair, bytes(6000), queue_id=8)
    pair.turn()
    assert pair.heard(Publish) == []
    pair.say(Published(7, pair.gen, 1))
    assert pair.heard(Publish) == [], "the other's is under way still"
    pair.say(Published(8, pair.gen, 1))
    (head,) = pair.heard(Publish)
    assert head.parts[0][0] == 8
    pair.cut()
    assert pair.queue.outbox is not None
    assert pair.queue.outbox.in_flight_bytes == 0, "what was lost with the link is not under way"


def test_a_deleted_queue_takes_everything() -> None:
    pair = attached()
    receipts = [publish(pair, b"2"), publish(pair, b"3")]
    pair.turn()
    pair.remote_queues.remove(7)
    assert [receipt.answered for receipt in receipts] == ["ack", "ack"]
    assert pair.remote_queues.unacknowledged_bytes == 0
    late = publish_to_the_dead(pair)
    assert late.answered == "ack"
    pair.turn()


def publish_to_the_dead(pair: Pair) -> Receipt:
    receipt = Receipt()
    pair.queue.publish([message()], receipt, 0)
    receipt.pass_()
    return receipt


def run(pair: Pair, *sequences: int) -> None:
    bodies = [message(b"x:%d" % sequence) for sequence in sequences]
    pair.queue.publish_numbered(b"press", sequences, bodies, None, 0)


def test_neighbours_of_one_producer_go_in_one_frame() -> None:
    pair = attached()
    run(pair, 17, 19)
    run(pair, 20)
    run(pair, 20)
    pair.queue.publish_numbered(b"other", (21,), (message(b"o"),), None, 0)
    pair.turn()
    heads = [(head.number, head.producer, head.sequence, head.more) for head in pair.heard(NamedPublish)]
    assert heads == [(2, b"press", 17, (19, 20)), (5, b"press", 20, ()), (6, b"other", 21, ())]


def test_a_member_of_an_older_release_gets_a_frame_for_each() -> None:
    pair = Pair()
    pair.remote_queues = RemoteQueues(pair, incarnation=3, level=lambda: NUMBERED_RUNS - 1)
    pair.remote_queues.linked("owner")
    pair.queue = pair.add(entity(8, "owner"))
    run(pair, 17, 19)
    pair.turn()
    pair.attach()
    heads = [(head.number, head.sequence, head.more, numbers(data)) for _, head, data in pair.frames]
    assert heads == [(1, 17, (), [1]), (2, 19, (), [2])]


def test_the_rest_of_a_run_is_sent_again() -> None:
    pair = attached()
    run(pair, 17, 19, 23)
    pair.turn()
    pair.frames.clear()
    pair.cut()
    pair.link()
    pair.attach(accepted=2)
    heads = [(head.number, head.sequence, head.more, numbers(data)) for _, head, data in pair.frames]
    assert (3, 19, (23,), [3, 4]) in heads
