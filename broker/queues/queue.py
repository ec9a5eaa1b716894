"""One queue on the node that owns it: its messages are handed to consumers, once each.

The queue gives the messages of its log their meaning. Its parts, of which each knows only those before it:

    log             ring, commits, tickets (`log`)
    dead_letters    what leaves unconsumed (`dead_lettering`)
    dispatch        what is handed out, expires and returns (`dispatch`), or is not kept (`sweeping`)
    limits          how long it may be (`limits`)
    leasing         one reader that has all of it (`leasing`)
    browsing        those who look and take nothing (`browsing`)

A queue does its work in `turn`, once for each loop turn in which something marked its ring: hand out, expire, trim,
load, answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from clusterbroker.broker.content.message import taken_at
from clusterbroker.broker.queues.attributes import HAD_CONSUMERS, LINK_ATTACH
from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.browsing import Browsing
from clusterbroker.broker.queues.dead_lettering.dead_lettering import DeadLettering
from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.dispatch import Dispatch
from clusterbroker.broker.queues.handle import EXCLUSIVE, GONE, CommitPart, Modification, Reread, Taken
from clusterbroker.broker.queues.lease import BROKEN, LeaseAnswer, LeaseRequest
from clusterbroker.broker.queues.leasing import Leasing, resumed
from clusterbroker.broker.queues.limits import Limits
from clusterbroker.broker.queues.link_deliveries import STALE
from clusterbroker.broker.queues.link_held import NO_LINK, HeldMessages, LinkAttach
from clusterbroker.broker.queues.link_holding import HERE, NOT_KEPT, SEQ_BYTES, Holding, HoldingConsumer
from clusterbroker.broker.queues.local_queue import Host, LocalQueue
from clusterbroker.broker.queues.rereading import reread
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import LINK
from clusterbroker.broker.queues.subscription import LocalConsumer, Member
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import Location
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import Message, read_records


class Queue(LocalQueue):
    """See the module."""

    dispatching: ClassVar[type[Dispatch]] = Dispatch
    """Of its kind."""
    __slots__ = (
        "_ended", "_had_consumers", "_used_by_links", "browsing", "dead_letters", "dispatch", "holding", "leasing",
        "limits",
    )  # fmt: skip

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        super().__init__(entity, settings, ring, host, now_ms)
        self.dead_letters = DeadLettering(self)
        self.dispatch = self.dispatching(self, self.dead_letters, now_ms)
        self.limits = Limits(self, self.dispatch, self.dead_letters)
        self.leasing: Leasing | None = None
        self.browsing: Browsing | None = None
        self.holding: Holding | None = None
        self._had_consumers = self._ended = False
        self._used_by_links = False  # when that was asked last, and there was no consumer
        self.adopt(settings)

    def adopt(self, settings: QueueSettings) -> None:
        super().adopt(settings)
        self.ring.ttl_ms = -1 if settings.message_ttl_ms is None else settings.message_ttl_ms
        self.ring.annotates_redelivered = settings.delivery_limit is not None or settings.queue_type == "quorum"
        self.limits.adopt(settings)

    def message_count(self, now_ms: int) -> int:
        self.dispatch.make_current(now_ms)
        return self.ring.ready

    def is_dry(self, member: Member) -> bool:
        selecting = self.dispatch.selecting
        return selecting is not None and selecting.is_dry(member)

    def ready_for(self, consumer: Member, now_ms: int, then: Callable[[int, int], None]) -> None:
        own = None if self.holding is None else self.holding.consumers.get(consumer)
        if own is not None and own.assigned:  # on its way
            then(max(1, self.message_count(now_ms)), len(self.subscriptions))
        else:
            super().ready_for(own or consumer, now_ms, then)

    # -- publishing -------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        self.ring.append(messages)
        self._published(ticket, now_ms, len(messages))

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        _, count = self.ring.append_records(records, now_ms)
        self._published(ticket, now_ms, count)
        return count

    def _publish_each(self, records: bytes | memoryview, ticket: Ticket, now_ms: int, taken: bool = False) -> int:
        """`publish_records` of a queue that looks at each message; `taken`: their time is the owner's, as there."""
        messages = [taken_at(message, now_ms) if taken else message for _, message, _, _ in read_records(records)]
        self.publish(messages, ticket, now_ms)
        return len(messages)

    def _read_back(
        self, absent: Sequence[Location], messages: Sequence[Message], first: int, last: int, count: int
    ) -> Iterator[tuple[int, int, Message]]:
        """(seq, state, message) of what lives between two places, `count` at most: some were `absent`, and are read."""
        found = {where[0]: message for where, message in zip(absent, messages, strict=True)}
        for seq, state, *_ in self.ring.living(first, last, count):
            message = found.get(seq) or self.ring.message(seq)
            if message is not None:
                yield seq, state, message

    def _published(self, ticket: Ticket | None, now_ms: int, count: int) -> None:
        self.dispatch.came_ms = self.dispatch.came_ms or now_ms
        if ticket is not None:
            self.log.promise(ticket)
        if self.limits.any:
            self.limits.trim(now_ms, count)

    def accept_dead_letter(self, message: Message) -> None:
        self.ring.append((message,))
        self.dispatch.came_ms = self.dispatch.came_ms or self.host.now_ms

    @property
    def rejects(self) -> bool:
        return self.limits.closed or self.limits.rejects

    @property
    def is_ending(self) -> bool:
        return self.limits.closed

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        if named is not None and self.log.producers.knows(*named):
            return True
        accepted = self.limits.has_room(now_ms)
        if not accepted:
            if self.dead_letters.kills:
                self.dead_letters.kill(message)
            if named is not None:  # the log has to know that it is not here
                self.log.producers.refuse(*named)
        return accepted

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        return self.limits.takes(messages, now_ms)

    def has_room(self, now_ms: int, more: int = 1, more_bytes: int = 1) -> bool:
        return self.limits.has_room(now_ms, more, more_bytes)

    def has_room_for(self, count: int, bodies_but_last: int, now_ms: int) -> bool:
        return self.limits.has_room_for(count, bodies_but_last, now_ms)

    @property
    def kills(self) -> bool:
        return self.dead_letters.kills

    def kill(self, message: Message) -> None:
        self.dead_letters.kill(message)

    def _carry_out(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        """What is returned takes its old place before anything is published behind it: a queue with a length hands out
        and drops in the middle of this, and its oldest come first."""
        for one in part.settles:
            if one.outcome == "requeue" and one.seq not in part.void:
                self.requeue(one.seq, False)
        super()._carry_out(part, ticket, now_ms)
        for one in part.settles:
            if one.seq in part.void:
                continue
            if one.outcome == "ack":
                self.ring.acked += 1
                self.settle(one.seq, held=True)
            elif one.outcome == "reject":
                self.reject(one.seq, one.change, at_once=True)

    def _return(self, part: CommitPart) -> None:
        for one in part.settles:
            if one.seq not in part.void and (not one.link.link or self._is_attached(one.link)):
                self.requeue(one.seq, False)

    def _not_held(self, part: CommitPart) -> set[int]:
        """See `remote.settling`, whose table this is for a node that is alone."""
        found = set()
        for one in part.settles:
            link, ring = one.link.link, self.ring
            if link and not self._is_attached(one.link):
                since = self.host.recovery.since(self, *one.link)
                if not since or not ring.held_by_link(link, one.seq, 1, one.seq):
                    found.add(one.seq)
        return found

    def _is_attached(self, link: LinkAttach) -> bool:
        """Whether a client of this node has the link, under this attach."""
        if self.holding is None or not self.host.recovery.since(self, *link):
            return False
        return any(consumer.holding == link.link for consumer in self.holding.consumers.values())

    # -- consuming --------------------------------------------------------------------------------------------

    def subscribe(self, subscription: LocalConsumer, now_ms: int, then: Callable[[str], None]) -> None:
        why = self._refuses(subscription)
        if not why:
            subscription.order = (now_ms, "", 0)
            self.add_consumer(subscription, now_ms)
        then(why)

    def _refuses(self, subscription: LocalConsumer) -> str:
        if self.deleted or self.leased:
            return GONE if self.deleted else self.leased
        return EXCLUSIVE if self.subscriptions.exclusive or (subscription.exclusive and self.subscriptions) else ""

    def subscribe_link(
        self, subscription: LocalConsumer, link: LinkAttach, now_ms: int, then: Callable[[str], None]
    ) -> None:
        why = self._refuses(subscription) or self.admit_link(link)
        if not why:
            consumer = HoldingConsumer(self.ring, subscription, link.link, (now_ms, "", 0))
            self.at_links.consumers[subscription] = consumer
            self.add_consumer(consumer, now_ms)
            self.subscriptions.resumes(consumer, link.link)
        then(why)

    def admit_link(self, link: LinkAttach) -> str:
        """Why this attach cannot hold anything here; empty: it may from now on."""
        if not (self.ring.journaled or self.ring.replicated):
            return NOT_KEPT
        since = self.host.recovery.since(self, link.link, link.attach)
        if not since:
            return STALE
        self.at_links.attached(link, since)
        return ""

    def held_by(self, link: LinkAttach, then: Callable[[list[HeldMessages] | str], None]) -> None:
        why = GONE if self.deleted else self.admit_link(link)
        if why:
            then(why)
        else:
            self.at_links.held(link.link, then)

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None] = lambda: None) -> None:
        if self.holding is not None and not self.deleted:
            self.holding.forget(link, [int.from_bytes(tag) for tag in tags if len(tag) == SEQ_BYTES])
        super().forget_tags(link, upto, tags, then)

    def link_ended(self, name: str) -> None:
        if self.dispatch.selecting is not None:
            self.dispatch.selecting.forget(name)

    def sweep_links(self, names: Callable[[], Iterable[str]]) -> None:
        if self.dispatch.selecting is not None:
            self.dispatch.selecting.sweep(names())

    def leave_to_link(self, seqs: Sequence[int], late: LinkAttach = NO_LINK) -> None:
        """They are where they were: their link holds them."""

    def add_consumer(self, member: Member, now_ms: int) -> None:
        if not self._had_consumers and self.entity.auto_delete and self.replicated:
            self.ring.set_attribute(HAD_CONSUMERS, 1)  # the next owner must know
        self._had_consumers = True
        self.dispatch.consumer_came(member)
        super().add_consumer(member, now_ms)

    def unsubscribe(self, subscription: LocalConsumer, now_ms: int) -> None:
        consumer = None if self.holding is None else self.holding.consumers.pop(subscription, None)
        if consumer is None:
            super().unsubscribe(subscription, now_ms)
        else:
            self.ring.attach_link(consumer.holding, 0)
            self.at_links.suspend(consumer, consumer.holding)
        if self.entity.auto_delete and not self._is_used:
            self._end()

    @property
    def _is_used(self) -> bool:
        """By consumers, or by suspended links that hold some of its messages."""
        return bool(self.subscriptions) or bool(self.ring.held_by(LINK))

    @property
    def at_links(self) -> Holding:
        """What links hold of it."""
        if self.holding is None:
            self.holding = Holding(self)
        return self.holding

    @property
    def leased(self) -> str:
        return "" if self.leasing is None else self.leasing.of_others

    def lease(self, request: LeaseRequest, then: Callable[[LeaseAnswer, bytes], None], now_ms: int) -> None:
        self.leasing = self.leasing or Leasing(self)
        try:
            self.leasing.hear(request, then, now_ms)
        except Exception as error:
            self.host.stumbled(self, error)
            then(BROKEN, b"")

    def get(
        self, now_ms: int, then: Callable[[Taken | str | None], None], credit: Any = None, *,
        no_ack: bool = False,  # noqa: ARG002
    ) -> None:  # fmt: skip
        self.last_used_ms = now_ms
        self.dispatch.get(now_ms, then, credit)

    def browse(self, browse: Browse, then: Browsed, now_ms: int) -> None:
        if self.deleted:
            then(0, b"")
            return
        self.browsing = self.browsing or Browsing(self)
        self.browsing.ask(browse, then, now_ms)

    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        return self.dispatch.shown(seq, message, redelivered, delivery_count)

    def watch(self, watch: Watch | None) -> None:
        self.dispatch.watch(watch)

    def reject(self, seq: int, change: bytes = b"", *, at_once: bool = False) -> None:
        if self.deleted:
            return
        if change:
            self.dispatch.reject(seq, change, at_once)
        else:
            self.dead_letters.give_up(seq, self.ring.message(seq), "rejected", at_once)

    def give_up_ready(self, reason: Reason) -> bool:
        """What waits dies. False: the effort is spent before its end."""
        effort = self.host.effort
        while self.ring.ready:
            if effort.spent:
                self.host.later(self)
                return False
            seq, message, _ = self.ring.pop_head()
            self.dead_letters.give_up(seq, message, reason)
            effort.popped()
        return True

    def requeue(self, seq: int, counted: bool) -> None:
        if self.deleted:
            return
        if self.holding is None:
            self.dispatch.requeue(seq, counted)
        else:
            self.modify(seq, Modification(counted))

    def modify(self, seq: int, modification: Modification) -> None:
        if self.deleted:
            return
        released = () if self.holding is None else self.ring.take_linked(seq, seq, HERE)
        if released:
            self.at_links.give_back(released, modification)
        else:
            self.dispatch.modify(seq, modification)

    def withdraw(self, seqs: Sequence[int], link: LinkAttach) -> None:
        if not self.deleted and self.ring.link_place(link.link):
            for first, last in ranges_of(sorted(seqs)):
                self.at_links.withdraw(link.link, first, last)

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        self.dead_letters.preload(seqs, then)

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        reread(self, seqs, then)

    # -- the turn ---------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        dispatch = self.dispatch
        if dispatch.delayed:
            dispatch.end_delays(now_ms)
            self.ring.marked = False
        if self.paused:
            return
        if self.holding is not None:
            self.holding.turn(now_ms)
        expired = dispatch.serve(now_ms)
        if self.limits.any:
            self.limits.trim(now_ms)
        dispatch.read_ahead(now_ms, expired)
        if self.entity.auto_delete and self._had_consumers and not self._is_used:
            self._end()  # its deletion was refused once, or a consumer of another node was the last
        self.dead_letters.go_on()

    def _follow(self, now_ms: int) -> None:
        if self.dead_letters.replicated is not None and not self.paused:
            self.dead_letters.replicated.turn(now_ms)
            if self.ring.needs_write:
                self.host.write(self)
        if self.browsing is not None and not self.paused:
            self.browsing.turn(now_ms)
        if self.leasing is not None and not self.broken:
            self.leasing.turn(now_ms)
        self._schedule(now_ms)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self.host.end(self)

    def _schedule(self, now_ms: int) -> None:
        """While the queue is paused most of it cannot be done, and to ask for a time that is over would keep the node
        turning for nothing; the end of the pause brings a turn."""
        unused, expires = 0, self.settings.expires_ms
        if expires is not None and not (self._is_used or self._ended or self.paused or self.leased):
            # amqp-rules 5.6: queue TTL counts disuse (no consumers, no redeclare, no get)
            if self._used_by_links:
                self._used_by_links, self.last_used_ms = False, now_ms
            unused = self.last_used_ms + expires
            if unused <= now_ms:
                unused = 0
                self._end()
        elif expires is not None and not self.subscriptions:
            self._used_by_links = self._is_used
        again = leased = browsed = 0
        if not self.paused:
            again = self.dead_letters.replicated.wake_ms(now_ms) if self.dead_letters.replicated is not None else 0
            leased = self.leasing.due_ms if self.leasing is not None else 0
            browsed = self.browsing.due_ms if self.browsing is not None else 0
        if wishes := [at_ms for at_ms in (self.dispatch.due_ms, unused, again, leased, browsed) if at_ms]:
            self.host.wake(self, min(wishes))

    def survived(self) -> None:
        self._ended = False

    # -- commits ----------------------------------------------------------------------------------------------

    def _advance(self, upto: int) -> None:
        awaited = self.dispatch.awaits_commit
        self.ring.commit(upto)
        if awaited:  # what the group brought is at the head, and that it waited for it does not count
            self.dispatch.hand_out(0)

    def _wants_turn(self, advanced: bool) -> bool:
        return (
            (advanced and self.dispatch.is_asked)
            or (self.leasing is not None and self.leasing.waits)
            or (self.browsing is not None and self.browsing.waits)
            or (self.holding is not None and self.holding.waits)
            or (self.dead_letters.replicated is not None and len(self.dead_letters.replicated) > 0)
        )

    def ripe(self, now_ms: int) -> int:
        return self.dispatch.ripe(now_ms)

    # -- ownership, and the end -------------------------------------------------------------------------------

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self.dead_letters.begin_epoch()
        self._had_consumers = HAD_CONSUMERS in self.ring.attributes
        self.resume_lease(now_ms)

    def resume_lease(self, now_ms: int) -> None:
        """What the ring knows of a lease, of links, of who passes messages over and of returns that wait goes on."""
        self.leasing = resumed(self, now_ms)
        self.dispatch.restore()
        if self.ring.has_attributes:
            self.dispatch.resume_delays()
        if self.ring.has_attributes and (self.ring.restore_links() or LINK_ATTACH.of(self.ring.attributes)):
            self.holding = Holding(self)
            self._had_consumers |= bool(self.ring.held_by(LINK))  # a node that is alone logs nothing else of them

    def end_epoch(self) -> None:
        super().end_epoch()
        self.dead_letters.end_epoch()
        self.dispatch.end_epoch()
        if self.leasing is not None:
            self.leasing.ended = True
        if self.browsing is not None:
            self.browsing.end()
        self.leasing = self.browsing = self.holding = None
        self._ended = False

    def _release(self) -> None:
        if self.leasing is not None:
            self.leasing.drop()
        if self.browsing is not None:
            self.browsing.drop()
        if self.holding is not None:
            self.holding.drop()
        self.dead_letters.drop()
        self.log.release()
        self.dispatch.drop()
