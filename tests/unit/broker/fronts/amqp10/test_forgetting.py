"""A recoverable sender's queues forget settled deliveries once a turn, and never one that came after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.fronts.amqp10.recoverable_sender import OVER_MAX, RecoverableSender
from clusterbroker.broker.queues.link_deliveries import LinkDeliveries, Tagged
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.journal.record import SegmentUse


class Queue:
    """What a queue knows of the link's deliveries, and how often it was asked to forget some."""

    deleted = False

    def __init__(self) -> None:
        self.deliveries = LinkDeliveries(Ring(1, True, 0, SegmentUse(), []))
        self.asked = 0

    def forget_tags(self, link: int, upto: int, tags: list[bytes]) -> None:
        self.asked += 1
        self.deliveries.forget(link, upto, tags)

    @property
    def known(self) -> list[bytes]:
        return self.deliveries.all(7, 1)


def publish(store: RecoverableSender, queue: Any, *tags: bytes) -> Tagged:
    tagged = store.tagged(tags, SimpleNamespace(targets=(queue,)))  # type: ignore[arg-type]
    queue.deliveries.note(tagged)
    return tagged


def sender() -> tuple[RecoverableSender, Queue]:
    attachment: Any = SimpleNamespace(link=SimpleNamespace(link=7, attach=1))
    return RecoverableSender(SimpleNamespace(), attachment), Queue()  # type: ignore[arg-type]


def test_many_batches_are_forgotten_with_one_question() -> None:
    store, queue = sender()
    for number in range(20):
        publish(store, queue, b"%d" % number)
        store.over((b"%d" % number,))
    assert queue.asked == 0
    store.flush()
    assert (queue.asked, queue.known) == (1, [])


def test_a_tag_that_is_used_again_is_that_of_another_delivery() -> None:
    store, queue = sender()
    publish(store, queue, b"a", b"b")
    store.over((b"a", b"b"))
    publish(store, queue, b"c", b"a")
    store.over((b"c",))
    store.flush()
    assert queue.known == [b"a"]


def test_very_many_do_not_wait() -> None:
    store, queue = sender()
    tags = [b"%d" % number for number in range(OVER_MAX + 1)]
    publish(store, queue, *tags)
    store.over(tags)
    assert (queue.asked, queue.known) == (1, [])


def test_a_tag_comes_again_once() -> None:
    """The map of an attach names it: one delivery that may be known, and the next one of the tag is new."""
    store, queue = sender()
    store.again = frozenset((b"a",))
    assert publish(store, queue, b"a", b"b").again == {b"a"}
    assert not publish(store, queue, b"a").again
