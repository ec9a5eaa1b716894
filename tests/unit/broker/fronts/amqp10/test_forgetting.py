"""A recoverable sender's queues forget settled deliveries once a turn, and never one that came after."""

from __future__ import annotations

from collections.abc import Callable
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
        self.committed: list[Callable[[], None]] = []
        """What is to be called, one after the other."""

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None]) -> None:
        self.asked += 1
        self.deliveries.forget(link, upto, tags)
        self.committed.append(then)

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


def test_what_is_over_is_forgotten_when_each_of_its_queues_has_committed_that() -> None:
    store, one = sender()
    other, told = Queue(), []
    publish(store, one, b"a")
    publish(store, other, b"b")
    store.over((b"a", b"b"))
    store.when_forgotten(lambda: told.append("forgotten"))
    store.over((b"c",))
    store.flush()
    one.committed[0]()
    assert not told
    other.committed[0]()
    assert told == ["forgotten"], "what was over later is another question's"
    for then in (*one.committed[1:], *other.committed[1:]):
        then()
    assert told == ["forgotten"]


def test_a_queue_that_is_gone_knows_nothing() -> None:
    store, queue = sender()
    told: list[str] = []
    publish(store, queue, b"a")
    store.over((b"a",))
    store.when_forgotten(lambda: told.append("forgotten"))
    queue.deleted = True
    store.flush()
    assert told == ["forgotten"]


def test_with_nothing_over_the_answer_is_at_once() -> None:
    store, queue = sender()
    told: list[str] = []
    publish(store, queue, b"a")
    store.when_forgotten(lambda: told.append("forgotten"))
    assert told == ["forgotten"]
