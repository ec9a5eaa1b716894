"""Consuming from a queue elsewhere: credit, deliveries, settlements, and what crosses on the way."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.fronts.amqp091.delivery import BasicConsumer
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.queues.handle import EXCLUSIVE, GONE
from clusterbroker.broker.remote.consumer_link import WINDOW_FIRST, WINDOW_MAX
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Answer,
    Ask,
    Attach,
    Attached,
    Cancel,
    Cancelled,
    Consume,
    Consuming,
    Credit,
    Settle,
    Settled,
    Settlement,
)
from tests.unit.broker.remote.pair import Channel, Pair, entity, records


def subscription(pair: Pair, channel: Channel, tag: str = "c") -> Subscription:
    return Subscription(
        channel, channel.ledger, pair.queue, tag, no_ack=False, exclusive=False, prefetch=0, priority=0, arguments={}
    )


def ack(pair: Pair, channel: Channel, tag: int, multiple: bool = False) -> None:
    assert not channel.ledger.ack([tag * 2 + multiple])
    pair.turn()


def settled(pair: Pair) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """(outcome, ranges) of all that was settled since the last call."""
    return [(one.outcome, one.ranges) for head in pair.heard(Settle) for one in head.settlements]


def grants(pair: Pair) -> list[tuple[int, int]]:
    """(upto, held) of the credit that was given since the last call."""
    return [grant[3:] for head in pair.heard(Credit) for grant in head.grants]


# -- who consumes


def test_a_consumer_is_told_once_attached_and_accepted_by_the_owner() -> None:
    pair = Pair()
    channel = Channel()
    answers: list[str] = []
    pair.queue.subscribe(subscription(pair, channel), 5, answers.append)
    pair.turn()
    attach = pair.attach()
    assert attach.consumers == (), "a consumer that was not accepted is no fact yet"
    (head,) = attach.asking
    assert (head.tag, head.order, head.upto, head.held) == ("c", 5, WINDOW_FIRST, 0)
    assert pair.heard(Consume) == []
    assert answers == []
    pair.say(Consuming(7, pair.gen, head.consumer))
    assert answers == [""]


def test_a_refused_consumer() -> None:
    pair = Pair()
    channel = Channel()
    answers: list[str] = []
    pair.queue.subscribe(subscription(pair, channel), 5, answers.append)
    pair.turn()
    (head,) = pair.attach().asking
    pair.say(Consuming(7, pair.gen, head.consumer, "in exclusive use"))
    assert answers == [EXCLUSIVE]
    assert pair.all() == [], "the owner need not be told that it is gone"


def test_a_consume_whose_answer_was_lost_is_said_again_with_the_attach() -> None:
    pair = Pair()
    pair.consume(Channel(), "first")
    answers: list[str] = []
    pair.queue.subscribe(subscription(pair, Channel()), 5, answers.append)
    pair.turn()
    (consume,) = pair.heard(Consume)
    old = pair.gen
    pair.cut()
    pair.link()
    attach = pair.attach()
    assert ([head.tag for head in attach.consumers], attach.asking) == (["first"], (consume.head,))
    assert pair.heard(Consume) == []
    pair.say(Consuming(7, old, consume.head.consumer))
    assert answers == []
    pair.say(Consuming(7, pair.gen, consume.head.consumer))
    assert answers == [""]


def test_a_turn_looks_at_consumers_to_which_something_happened() -> None:
    pair = Pair()
    channels = [Channel() for _ in range(100)]
    numbers = [pair.consume(channel, f"c{place}", prefetch=5)[1] for place, channel in enumerate(channels)]
    pair.turn()
    assert len(pair.queue._busy) == 0
    pair.deliver(numbers[3], 1, 2, 3)
    assert [line.number for line in pair.queue._busy] == [numbers[3]]
    ack(pair, channels[3], 2, multiple=True)
    assert len(pair.queue._busy) == 1, "it holds one"
    assert grants(pair)[-1] == (7, 1)
    ack(pair, channels[3], 3)
    assert len(pair.queue._busy) == 0


def test_what_comes_again_before_its_acknowledgement_is_answered_is_returned() -> None:
    """Its link was attached elsewhere, or has ended, before the owner heard of the acknowledgement."""
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 5)
    ack(pair, channel, 1)
    assert settled(pair) == [(SETTLE_ACK, ((5, 5),))]
    pair.deliver(number, 5)
    pair.turn()
    assert settled(pair) == [(SETTLE_REQUEUE, ((5, 5),))], "a message stays outstanding here, for nobody"
    pair.say(Settled(7, pair.gen, 1, ((5, 5),)))
    pair.deliver(number, 5)
    pair.turn()
    assert pair.queue.outstanding() == [(5, 5)]
    assert settled(pair) == []


def test_what_was_taken_again_before_its_acknowledgement_is_answered_is_returned() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 5)
    ack(pair, channel, 1)
    assert settled(pair) == [(SETTLE_ACK, ((5, 5),))]
    taken: list[Any] = []
    pair.queue.get(0, taken.append)
    pair.turn()
    (ask,) = pair.heard(Ask)
    pair.say(Answer(7, pair.gen, ask.request), records(7, 5))
    pair.turn()
    assert taken == [None]
    assert settled(pair) == [(SETTLE_REQUEUE, ((5, 5),))]


def test_a_consumer_that_left_before_it_was_told_leaves_no_trace() -> None:
    pair = Pair()
    pair.consume(Channel())
    pair.all()
    gone = subscription(pair, Channel(), "gone")
    pair.queue.subscribe(gone, 5, lambda _: None)
    pair.queue.unsubscribe(gone, 5)
    pair.turn()
    assert pair.all() == []


def test_who_goes_is_told_before_who_comes() -> None:
    pair = Pair()
    first, number = pair.consume(Channel())
    pair.all()
    pair.queue.unsubscribe(first, 5)
    pair.queue.subscribe(subscription(pair, Channel(), "next"), 5, lambda _: None)
    pair.turn()
    cancel, consume = pair.heard(Cancel, Consume)
    assert cancel == Cancel(7, 1, pair.gen, number)
    assert consume.head.tag == "next"


def test_the_owner_ends_a_consumer() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.say(Cancelled(7, pair.gen, number))
    assert channel.told == ["c"]
    assert pair.heard(Cancel) == []
    pair.say(Cancelled(7, pair.gen, number))
    assert channel.told == ["c"]


# -- credit


def test_prefetch_is_what_is_acknowledged_and_so_many_more() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, prefetch=2)
    pair.all()
    pair.deliver(number, 1, 2)
    assert grants(pair) == [], "both are held"
    assert channel.ledger.unacked == 2
    ack(pair, channel, 1)
    assert grants(pair) == [(3, 1)]
    ack(pair, channel, 2)
    assert grants(pair) == [(4, 0)]


def test_credit_comes_when_half_of_it_is_used() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, prefetch=10)
    pair.all()
    for seq in range(1, 5):
        pair.deliver(number, seq)
        channel.ledger.ack([seq * 2])
        pair.turn()
    assert grants(pair) == []
    pair.deliver(number, 5)
    ack(pair, channel, 5)
    assert grants(pair) == [(15, 0)]


def test_without_prefetch_a_window_follows_the_size_of_messages() -> None:
    pair = Pair()
    channel = Channel()
    channel.out.size_max = 1 << 30
    _, number = pair.consume(channel, no_ack=True)
    line = pair.queue._lines[number]
    pair.all()
    assert (line.window, line.granted) == (WINDOW_FIRST, WINDOW_FIRST)
    for expected in (64, 128, 256, 512, 1024, WINDOW_MAX, WINDOW_MAX):
        pair.deliver(number, *range(line.came + 1, line.granted + 1))
        assert line.window == expected
        assert grants(pair) == [(line.came + expected, 0)]
    pair.deliver(number, line.came + 1, body=bytes(1 << 20))
    assert line.window == 1
    pair.deliver(number, line.came + 1, body=bytes(8 << 20))
    assert line.window == 1, "one at a time, whatever its size"


def test_a_socket_that_takes_nothing_gets_no_credit() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, prefetch=100)
    pair.all()
    channel.out.paused = True
    pair.deliver(number, *range(1, 33))
    channel.ledger.ack([1])
    pair.turn()
    assert grants(pair) == []
    channel.out.paused = False
    pair.queue.ring.mark()
    pair.turn()
    assert grants(pair)[0][0] > 32


def test_credit_is_counted_anew_in_each_attachment() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, prefetch=5)
    pair.deliver(number, 1, 2, 3)
    ack(pair, channel, 1)
    pair.cut()
    pair.link()
    (head,) = pair.attach().consumers
    assert (head.consumer, head.upto, head.held) == (number, 3, 2)


def test_a_limit_of_the_channel_is_kept_over_several_queues() -> None:
    pair = Pair(7, 8)
    other = pair.remote_queues.queues[8]
    channel = Channel(prefetch=3)
    _, here = pair.consume(channel, "here")
    _, there = pair.consume(channel, "there", queue=other)
    pair.all()
    pair.deliver(here, 1, 2)
    pair.deliver(there, 1, 2, 3, queue=other)
    assert channel.ledger.unacked == 3, "both were promised three"
    assert other.outstanding() == [(1, 3)]
    assert pair.queue.outstanding() == [(1, 2)]
    pair.all()
    ack(pair, channel, 1)
    assert channel.ledger.unacked == 3, "room that one queue's acknowledgement made is the other's as well"
    ack(pair, channel, 3)
    assert channel.ledger.unacked == 3
    ack(pair, channel, 5, multiple=True)
    assert channel.ledger.unacked == 0
    assert [grant[:3] for head in pair.heard(Credit) for grant in head.grants][-2:] == [
        (7, pair.gen, here), (8, other.gen, there)
    ]  # fmt: skip


def test_what_waits_for_its_channel_returns_when_the_consumer_goes() -> None:
    pair = Pair()
    channel = Channel(prefetch=1)
    consumer, number = pair.consume(channel)
    pair.all()
    pair.deliver(number, 4, 5, 6)
    pair.queue.unsubscribe(consumer, 5)
    pair.turn()
    assert settled(pair) == [(SETTLE_REQUEUE, ((5, 6),))]
    assert pair.queue.outstanding() == [(4, 4)]


# -- deliveries and settlements


def test_settlements_of_a_turn_are_one_frame_and_are_kept_until_answered() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2, 3, 4, 5, 6)
    pair.all()
    channel.ledger.ack([1 * 2, 2 * 2])
    for tag, give in ((3, "reject"), (4, "requeue"), (5, "count")):
        ((_, consumer, seq),) = channel.ledger.collect(tag, False) or []
        assert consumer.ring.owner is pair.queue
        if give == "reject":
            pair.queue.reject(seq)
        else:
            pair.queue.requeue(seq, give == "count")
    pair.turn()
    (settle,) = pair.heard(Settle)
    assert settle == Settle(
        7, 1, pair.gen,
        (
            Settlement(1, SETTLE_ACK, ((1, 2),)),
            Settlement(2, SETTLE_REJECT, ((3, 3),)),
            Settlement(3, SETTLE_REQUEUE, ((4, 4),)),
            Settlement(4, SETTLE_REQUEUE_COUNTED, ((5, 5),)),
        ),
    )  # fmt: skip
    assert pair.queue.outstanding() == [(6, 6)]
    pair.say(Settled(7, pair.gen, 2))
    pair.cut()
    pair.link()
    listed = pair.attach()
    assert [one.id for one in listed.settlements] == [3, 4]
    assert listed.outstanding == ((6, 6),)
    assert pair.heard(Settle) == [], "the attachment said them"
    ack(pair, channel, 6)
    (settle,) = pair.heard(Settle)
    assert [one.id for one in settle.settlements] == [5]


def test_what_is_settled_between_attach_and_its_answer_is_told_afterwards() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2)
    pair.cut()
    ack(pair, channel, 1)
    pair.link()
    attaches = pair.heard(Attach)
    (listed,) = attaches[-1].queues
    assert listed.outstanding == ((2, 2),)
    ack(pair, channel, 2)
    assert pair.all() == []
    pair.say(Attached(7, 1, pair.gen, 0))
    assert settled(pair) == [(SETTLE_ACK, ((2, 2),))]


def test_without_acknowledgements_a_delivery_is_settled_at_once() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, no_ack=True)
    pair.all()
    pair.deliver(number, 1, 2, 3)
    assert settled(pair) == [(SETTLE_ACK, ((1, 3),))]
    assert channel.wants == 1
    assert channel.out.size > 0


def test_a_delivery_of_an_older_gen_is_dropped() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1)
    old = pair.gen
    pair.remote_queues.lease_regained()
    pair.turn()
    pair.deliver(number, 2, gen=old)
    assert pair.queue.outstanding() == [(1, 1)]
    assert pair.attach().outstanding == ((1, 1),), "the owner learns that 2 did not arrive"
    pair.deliver(number, 2, redelivered=True)
    assert pair.queue.outstanding() == [(1, 2)]


def test_a_cancel_that_crosses_a_delivery_returns_it() -> None:
    pair = Pair()
    channel = Channel()
    consumer, number = pair.consume(channel)
    pair.queue.unsubscribe(consumer, 5)
    pair.turn()
    assert [type(head) for head in pair.heard(Cancel)] == [Cancel]
    pair.deliver(number, 1, 2)
    assert settled(pair) == [(SETTLE_REQUEUE, ((1, 2),))]
    assert pair.queue.outstanding() == []


def test_a_closing_channel_returns_what_comes() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    channel.ledger.flowing = False
    pair.all()
    pair.deliver(number, 1)
    assert settled(pair) == [(SETTLE_REQUEUE, ((1, 1),))]


def test_what_was_returned_and_came_again_is_not_returned_twice() -> None:
    """Its settlement was carried out but not answered when the link broke: an Attach that said it as well as the new
    delivery would make the owner hand a message out that a client holds."""
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2, 3)
    channel.ledger.collect(0, True)
    for seq in (1, 2, 3):
        pair.queue.requeue(seq, False)
    pair.turn()
    pair.deliver(number, 2, redelivered=True)
    pair.cut()
    pair.link()
    listed = pair.attach()
    assert listed.outstanding == ((2, 2),)
    assert listed.settlements == (Settlement(1, SETTLE_REQUEUE, ((1, 1), (3, 3))),)


def test_a_counted_return_says_the_delivery_count_that_the_message_came_with() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel)
    pair.deliver(number, 1, 2)
    pair.deliver(number, 3, 4, 5, redelivered=True, count=2)
    pair.all()
    channel.ledger.collect(0, True)
    for seq in (1, 3, 4):
        pair.queue.requeue(seq, True)
    for seq in (2, 5):
        pair.queue.requeue(seq, False)
    pair.turn()
    ((settle),) = pair.heard(Settle)
    assert settle.settlements == (
        Settlement(1, SETTLE_REQUEUE, ((2, 2), (5, 5))),
        Settlement(2, SETTLE_REQUEUE_COUNTED, ((1, 1),), 0),
        Settlement(3, SETTLE_REQUEUE_COUNTED, ((3, 4),), 2),
    )
    pair.deliver(number, 3, redelivered=True, count=3)
    pair.cut()
    pair.link()
    assert pair.attach().settlements[2] == Settlement(3, SETTLE_REQUEUE_COUNTED, ((4, 4),), 2)


def test_a_new_epoch_names_the_queue_even_when_there_is_nothing_to_say() -> None:
    pair = Pair(7, 8)
    for queue_id in (7, 8):
        pair.remote_queues.owner_changed(entity(queue_id, owner="other", epoch=2))
    pair.turn()
    ((node, attach, _),) = pair.all()
    assert (node, attach.partial) == ("other", True)
    assert (attach.queues, attach.silent) == ((), (7, 8))
    pair.turn(5000)
    assert pair.all() == [], "nobody answers that, and nobody asks again"


def test_a_new_version_in_the_same_epoch_changes_nothing() -> None:
    pair = Pair()
    pair.consume(Channel())
    gen = pair.gen
    pair.all()
    pair.remote_queues.owner_changed(entity(epoch=1, version=9))
    pair.turn()
    assert pair.all() == []
    assert (pair.gen, pair.queue.entity.version) == (gen, 9)


def test_consumers_and_outstanding_move_to_the_new_owner() -> None:
    pair = Pair()
    channel = Channel()
    _, number = pair.consume(channel, prefetch=10)
    pair.deliver(number, 1, 2)
    pair.remote_queues.owner_changed(entity(owner=None, epoch=2))
    ack(pair, channel, 1)
    assert pair.heard(Settle) == []
    pair.remote_queues.owner_changed(entity(owner="other", epoch=3))
    pair.turn()
    listed = pair.attach(peer="other")
    assert (listed.epoch, listed.outstanding) == (3, ((2, 2),))
    assert [(one.outcome, one.ranges) for one in listed.settlements] == [(SETTLE_ACK, ((1, 1),))]
    assert [head.consumer for head in listed.consumers] == [number]
    assert channel.told == []


def test_an_attach_is_repeated_until_it_is_answered() -> None:
    pair = Pair()
    pair.queue.counts(0, lambda *_: None)
    pair.turn()
    first = pair.gen
    assert pair.remote_queues.next_wake_ms == pair.now_ms + 500
    pair.all()
    pair.turn(later_ms=499)
    assert pair.all() == []
    pair.turn(later_ms=1)
    (attach,) = pair.heard(Attach)
    assert attach.queues[0].gen == pair.gen > first
    pair.say(Attached(7, 1, first, 0))
    assert not pair.queue.attached, "an answer to the first is of no use"
    pair.say(Attached(7, 1, pair.gen, 0))
    assert pair.queue.attached
    assert pair.remote_queues.next_wake_ms is None


def test_a_new_link_lists_all_that_speak_in_one_frame() -> None:
    pair = Pair(7, 8, 9)
    for queue_id in (7, 9):
        pair.consume(Channel(), queue=pair.remote_queues.queues[queue_id])
    pair.cut()
    pair.all()
    pair.link()
    ((node, attach, _),) = pair.all()
    assert (node, attach.partial, attach.index, attach.incarnation) == ("owner", False, 50, 3)
    assert [listed.queue_id for listed in attach.queues] == [7, 9]


# -- questions


def test_a_get_and_its_message() -> None:
    pair = Pair()
    answers: list[Any] = []
    pair.queue.get(0, answers.append)
    pair.turn()
    pair.attach()
    (ask,) = pair.heard(Ask)
    pair.say(answer(pair, ask, count=4), records(7, 12, redelivered=True))
    ((seq, message, redelivered, count),) = answers
    assert (seq, message.body, redelivered, count, pair.queue.ready) == (12, b"body", True, 0, 4)
    assert pair.queue.outstanding() == [(12, 12)]
    channel = Channel()
    channel.ledger.add(BasicConsumer(pair.queue.ring, channel.ledger, b"\0", False, 0), 12, 0)
    ack(pair, channel, 1)
    assert settled(pair) == [(SETTLE_ACK, ((12, 12),))]


def answer(pair: Pair, ask: Ask, **more: Any) -> Answer:
    return Answer(7, pair.gen, ask.request, **more)


def test_a_get_that_was_lost_with_its_owner_is_asked_again() -> None:
    pair = Pair()
    answers: list[Any] = []
    pair.queue.get(0, answers.append)
    pair.turn()
    pair.attach()
    (first,) = pair.heard(Ask)
    lost = answer(pair, first)
    pair.remote_queues.owner_changed(entity(owner="other", epoch=2))
    pair.turn()
    listed = pair.attach(peer="other")
    assert listed.outstanding == ()
    (again,) = pair.heard(Ask)
    assert (again.request, again.gen, again.epoch) == (first.request, pair.gen, 2)
    pair.say(lost, records(7, 1), peer="owner")
    pair.say(lost, records(7, 1), peer="other")
    assert answers == []
    pair.say(answer(pair, again), peer="other")
    pair.say(answer(pair, again), peer="other")
    assert answers == [None]


def test_purge_and_deletion_are_asked_and_answered() -> None:
    pair = Pair()
    answers: list[Any] = []
    pair.queue.purge(answers.append)
    pair.queue.begin_delete(True, False, 0, lambda *said: answers.append(said))
    pair.queue.touch(0, lambda *said: answers.append(said))
    pair.turn()
    pair.attach()
    asked = pair.heard(Ask)
    assert [(ask.what, ask.if_unused, ask.if_empty) for ask in asked] == [
        (2, False, False), (3, True, False), (4, False, False)
    ]  # fmt: skip
    pair.say(answer(pair, asked[0], count=5))
    pair.say(answer(pair, asked[1], count=1, refused="in use"))
    pair.say(answer(pair, asked[2], count=1, consumers=2))
    assert answers == [5, ("in use", 1), (1, 2)]


def test_an_offline_queue_may_be_deleted_when_nothing_depends_on_its_content() -> None:
    pair = Pair(owner=None)
    answers: list[Any] = []
    pair.queue.begin_delete(False, False, 0, lambda *said: answers.append(said))
    assert answers == [("", 0)]
    pair.queue.begin_delete(False, True, 0, lambda *said: answers.append(said))
    assert len(answers) == 1


def test_a_deleted_queue_answers_everything() -> None:
    pair = Pair()
    channel = Channel()
    pair.consume(channel)
    answers: list[Any] = []
    pair.queue.get(0, answers.append)
    pair.queue.counts(0, lambda *said: answers.append(said))
    pair.queue.purge(answers.append)
    pair.queue.begin_delete(True, True, 0, lambda *said: answers.append(said))
    pair.queue.subscribe(subscription(pair, channel, "late"), 0, answers.append)
    pair.deliver(1, 1)
    pair.turn()
    pair.remote_queues.remove(7)
    assert sorted(map(str, answers)) == sorted(map(str, [None, (0, 0), 0, ("", 0), GONE]))
    assert channel.told == ["c"]
    channel.ledger.ack([2])
    pair.queue.requeue(1, True)
    pair.queue.counts(0, lambda *said: answers.append(said))
    assert answers[-1] == (0, 0)
    pair.turn()
