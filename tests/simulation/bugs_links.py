"""Bugs of recoverable links and of delayed exchanges. See bugs.py."""

from __future__ import annotations

from typing import Any

from tests.simulation.bugs import mutation, patch

LINKS = ("links",)
DELAYS = ("delays",)


@mutation("what a link sends again is stored again", pipeline=LINKS)
def repeats_are_stored() -> None:
    from clusterbroker.broker.queues.link_deliveries import LinkDeliveries

    patch(LinkDeliveries, "new", lambda _: lambda *_: None)


@mutation("any delivery of a known tag is a repeat", pipeline=LINKS)
def known_is_repeated() -> None:
    from clusterbroker.broker.queues.link_deliveries import LinkDeliveries

    def make(new: Any) -> Any:
        return lambda self, tagged, since: new(self, tagged._replace(again=frozenset(tagged.tags)), since)

    patch(LinkDeliveries, "new", make)
    free_at_once()


@mutation("a tag is free as soon as its delivery is settled", pipeline=LINKS)
def free_at_once() -> None:
    from clusterbroker.amqp10.client.spent import SpentTags

    patch(SpentTags, "add", lambda _: lambda self, tag, attached: None)


@mutation("a new owner does not read what links hold", pipeline=LINKS)
def holds_are_forgotten() -> None:
    from clusterbroker.broker.queues.queue import Queue

    patch(Queue, "resume_lease", lambda _: lambda self, now_ms: None)


@mutation("what a link holds returns with its consumer", pipeline=LINKS)
def returns_with_its_consumer() -> None:
    from clusterbroker.broker.queues.link_holding import Holding

    def make(suspend: Any) -> Any:
        def suspended(self: Any, member: Any, link: int) -> None:
            self._begin_anew(link)
            suspend(self, member, link)

        return suspended

    patch(Holding, "suspend", make)


@mutation("what returns from a link is not marked", pipeline=LINKS)
def returns_unmarked() -> None:
    from clusterbroker.broker.queues.link_holding import Holding

    def make(turn: Any) -> Any:
        def unmarked(self: Any, now_ms: int) -> None:
            done = self._queue.ring.groups_committed
            while self._returning and self._returning[0][0] <= done:
                for seq in self._returning.popleft()[1]:
                    self._queue.ring.put_back(seq)
            turn(self, now_ms)

        return unmarked

    patch(Holding, "turn", make)


@mutation("a settlement of a link is answered before it is committed", pipeline=LINKS)
def answered_early() -> None:
    from clusterbroker.broker.remote.attachment import Attachment

    patch(Attachment, "settled", lambda _: lambda self: self.settlement)


@mutation(
    "new messages do not wait for what a link is sent again", pipeline=LINKS,
    only=("drop_delivery", "kill", "heal", "slow_reads"), nodes=3,
)  # fmt: skip
def newer_overtakes() -> None:
    from clusterbroker.broker.remote.attachment import RemoteSubscription

    patch(RemoteSubscription, "wait", lambda _: lambda self: None)


# -- delays


@mutation("what is delayed leaves a quarter of a second early", pipeline=DELAYS)
def due_early() -> None:
    from clusterbroker.broker.delay.delay_queue import DelayQueue

    patch(DelayQueue, "_take", lambda take: lambda self, letters, now_ms: take(self, letters, now_ms + 250))


@mutation("a new owner does not read what waits", pipeline=DELAYS)
def waiting_is_forgotten() -> None:
    from clusterbroker.broker.delay.delay_queue import DelayQueue

    patch(DelayQueue, "_note_all", lambda _: lambda self, seqs, messages: len(seqs))


@mutation("what becomes due together leaves in no order", pipeline=DELAYS)
def due_backwards() -> None:
    from clusterbroker.broker.delay.delay_queue import DelayQueue

    def make(take: Any) -> Any:
        def backwards(self: Any, letters: Any, now_ms: int) -> bool:
            found = bool(take(self, letters, now_ms))
            self._taken.reverse()
            return found

        return backwards

    patch(DelayQueue, "_take", make)


@mutation("a new owner does not take up what was on its way", pipeline=DELAYS)
def letters_are_forgotten() -> None:
    from clusterbroker.broker.delay.due_letters import DueLetters

    patch(DueLetters, "resume", lambda _: lambda self: None)
