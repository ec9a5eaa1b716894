"""A queue's owner towards the remote queues of all nodes: attachments, held messages, permission to hand out.

    closed    not every member that was alive when the epoch began has attached at this epoch: a message that looks
              ready may be in a client's hands. Nothing is handed out, expires, is dropped, purged or counted
    open      unlisted messages are ready again, flagged. It also requires that the first sync is complete, that the
              node has its lease, and that the queue is not frozen
    frozen    a hand-over is in progress: nothing is handed out, and frames are not looked at. `thaw` asks every node to
              attach again, so that nothing of them is lost
    doomed    a node was told that the queue may be deleted. It is frozen until then: nothing may come into it that a
              deletion, which may take long, would take with it. The asking node has DELETE_MS to order it, then its
              owner does. A new owner, in the next epoch, starts without it: earlier orders are void there

*Attach.* It replaces all knowledge of its sender. Its settlements come first, then its listed messages stay with it
(READY -> UNACKED at its holder number), and its held and unlisted messages return. The settlements of an epoch's
first Attach name messages that this owner has ready, because only the Attach itself names the holder. Later a
settlement counts only while the message is held by that very start of that node; otherwise a late one would remove a
message of another holder (`settling`).

This module covers one queue: `owned_queues.OwnedQueues` reads the frames, finds the queue, and sends deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.handle import EXCLUSIVE
from clusterbroker.broker.queues.link_deliveries import STALE
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.link_holding import HELD_MAX, unlisted
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.states import HOLDER_MAX, READY
from clusterbroker.broker.remote.asking import Asking
from clusterbroker.broker.remote.attachment import NOTHING, Attachment, RemoteSubscription
from clusterbroker.broker.remote.ingest import Ingest
from clusterbroker.broker.remote.locality import Residence
from clusterbroker.broker.remote.messages import (
    Attached,
    AttachedQueue,
    Consume,
    ConsumerHead,
    Consuming,
    Detach,
    Published,
    Range,
    Settled,
    Settlement,
)
from clusterbroker.broker.remote.settling import Settling
from clusterbroker.journal.ranges import merged, ranges_of
from clusterbroker.journal.record import read_records, verify_records

if TYPE_CHECKING:
    from clusterbroker.broker.remote.host import OwnedQueueHost

DELETE_MS: Final = 3000
DELETE_AGAIN_MS: Final = 20_000
"""By then the wiring log has given up what it could not order."""


class OwnedQueue:
    """One queue that this node owns.

    outgoing   consumers with deliveries for the next frame
    activity   consumers whose node has to hear whether they are the single active one
    """

    def __init__(
        self, queue: LocalQueue, host: OwnedQueueHost, touch: Callable[[OwnedQueue], None], granted_index: int,
        alive: Mapping[str, int], synced: bool, leased: bool,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.queue_id = queue.entity.queue_id
        self.epoch = queue.ring.epoch
        self.granted_index = granted_index
        self.host = host
        self.outgoing: dict[RemoteSubscription, None] = {}
        self.activity: dict[RemoteSubscription, None] = {}
        self.assigning: dict[RemoteSubscription, None] = {}
        """Consumers of recoverable links whose deliveries wait for their groups."""
        self.frozen_until_ms: int | None = None
        self._doomed_ms: int | None = None  # when its owner orders the deletion
        self.leased = leased
        self.suspect = False
        """What a proxy said raised when it was half carried out: nothing more is looked at before the queue tries
        again, and then everybody says again what is not answered."""
        self._touch = touch
        self._synced = synced
        self._missing = dict(alive)  # members that have not attached at this epoch, with their incarnations
        self._attachments: dict[str, Attachment] = {}
        self._holders = 0  # so many numbers were given to attachments, from 1 on
        self._free_holders: list[int] = []  # of these
        self._consumes: list[tuple[Attachment, Consume]] = []  # they wait for everybody's consumers
        self._passed_over: dict[Attachment, None] = {}  # their publishes came too early to be judged
        self.asking = Asking(self)
        self.settling = Settling(self)
        self.intake = Ingest(self)
        self._residence = Residence(self)
        queue.listener = self.touch
        self._gate()

    # -- when it may hand out -------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Every member that was alive when the epoch began has attached, or is gone."""
        return not self._missing

    @property
    def missing(self) -> list[str]:
        """The members that the queue waits for."""
        return sorted(self._missing)

    @property
    def frozen(self) -> bool:
        """What comes is not looked at."""
        return self.frozen_until_ms is not None or self._doomed_ms is not None

    @property
    def open(self) -> bool:
        return self.answers and not self.queue.broken

    @property
    def answers(self) -> bool:
        """Whether it says what it has: also one that is set aside does."""
        return not self._missing and self._synced and self.leased and not self.frozen

    def _gate(self) -> None:
        paused = not self.open
        if paused != self.queue.paused or paused != self.queue.ring.paused:
            self.queue.paused = self.queue.ring.paused = paused
            if not paused:
                self.queue.last_used_ms = self.host.now_ms  # x-expires counts from here
                self.hear_again()
        self.queue.ring.mark()
        self.touch()

    def pass_over(self, attachment: Attachment) -> None:
        """It publishes what may be judged only when the queue is open: it says all of it again then."""
        self._passed_over[attachment] = None

    def passes_over(self, attachment: Attachment) -> bool:
        return attachment in self._passed_over

    def judges(self, attachment: Attachment) -> bool:
        """Whether what the node publishes and settles is judged as it comes, and not passed over."""
        passes_over = self.suspect or attachment.refused is not None or self.passes_over(attachment)
        return attachment.attached and not passes_over

    def hear_again(self) -> None:
        """Who was passed over says all of it again."""
        passed, self._passed_over = self._passed_over, {}
        for attachment in passed:
            self.asking.forget(attachment)  # what was asked behind these publishes is answered behind them
            self.detach(attachment, "opened")

    def _arrived(self, node: str) -> None:
        if self._missing.pop(node, None) is None or self._missing:
            return
        self.queue.subscriptions.resume()
        waiting, self._consumes = self._consumes, []
        for attachment, consume in waiting:
            self.consume(attachment, consume)
        placed = {member.holding for attachment in self._attachments.values() for member in attachment.members.values()}
        self.queue.subscriptions.keep(self.queue.ring.links().keys() - placed)
        self._gate()

    def synced(self) -> None:
        """The replicas in sync have all that this owner began its epoch with."""
        self._synced = True
        self._gate()

    def lease(self, leased: bool) -> None:
        self.leased = leased
        self._gate()

    def freeze(self, until_ms: int) -> None:
        self.frozen_until_ms = until_ms
        self.queue.host.wake(self.queue, until_ms)
        self._gate()

    def resumed(self) -> None:
        """It was set aside, and tries again."""
        self.suspect = False
        self.hear_again()
        for attachment in self._attachments.values():
            self.detach(attachment, "moving")
        self._gate()

    def doom(self, now_ms: int) -> None:
        """It will be deleted."""
        self._doomed_ms = now_ms + DELETE_MS
        self.queue.host.wake(self.queue, self._doomed_ms)
        self._gate()

    def thaw(self) -> None:
        """It stays here: everybody says again what happened meanwhile."""
        if self.frozen_until_ms is None:
            return
        self.frozen_until_ms = None
        for attachment in self._attachments.values():
            self.detach(attachment, "moving")
        self._gate()

    @property
    def drained(self) -> bool:
        """Frozen, and nothing is under way: the log is committed as it stands."""
        ring = self.queue.ring
        at_rest = ring.committed == ring.next_seq and not ring.needs_write
        return (
            self.frozen_until_ms is not None
            and at_rest
            and all(attachment.settled() == attachment.settlement for attachment in self._attachments.values())
        )

    def touch(self) -> None:
        self._touch(self)

    @property
    def attachments(self) -> Iterable[Attachment]:
        return self._attachments.values()

    def holder(self, number: int) -> str:
        """The node with this number; empty: it is gone."""
        return next((one.node for one in self._attachments.values() if one.holder == number), "")

    # -- attachments ----------------------------------------------------------------------------------------------

    def attachment(self, node: str, gen: int) -> Attachment | None:
        """The attachment that a frame of this gen belongs to, or None when it is to be dropped."""
        attachment = self._attachments.get(node)
        if attachment is None:
            # it never attached, or its start was declared over: it learns which from this answer or from the wiring
            self.host.send(node, Detach(self.queue_id, self.epoch, gen, "unknown"))
            return None
        if not attachment.attached or attachment.gen != gen or self.frozen:
            return None
        return attachment

    def _free_holder(self) -> int:
        if self._free_holders:
            return self._free_holders.pop()
        assert self._holders < HOLDER_MAX, "there are fewer members than numbers for them"
        self._holders += 1
        return self._holders

    def attach(self, node: str, incarnation: int, entry: AttachedQueue) -> None:
        attachment = self._attachments.get(node)
        if attachment is None:
            attachment = Attachment(self, node, incarnation, self._free_holder())
            self._attachments[node] = attachment
            if self.has_gap:
                attachment.came_before = entry.sent
        assert attachment.incarnation == incarnation, "an attachment ends with its node's start"
        open_from = min((settlement.id for settlement in entry.settlements), default=attachment.settlement + 1)
        attachment.renew(entry.gen, entry.next_number, open_from)
        self._forget_questions(attachment)
        if self.has_gap and self._missing:
            self._step_over(entry)
        for link in (*map(_link_of, entry.consumers), *entry.links):
            if link[0] and self._obeys(LinkAttach(*link)):
                attachment.place(link[0])  # its settlements count
        adopted = self._adopt(attachment, entry.settlements) if self._missing else ()
        self.settling.carry_out(attachment, entry.settlements, adopted)
        self._hold_only(attachment, entry.outstanding)
        self._list(attachment, entry.consumers, entry.asking)
        for member in attachment.members.values():
            if member.holding:
                self._send_again(member, entry.outstanding)
        self.host.send(node, Attached(self.queue_id, self.epoch, entry.gen, attachment.accepted))
        for head in entry.asking:
            self.consume(attachment, Consume(self.queue_id, self.epoch, entry.gen, head))
        if attachment.published < attachment.accepted:
            ticket = attachment.ticket(attachment.accepted)
            self.queue.log.promise(ticket)
            ticket.pass_()
        self._arrived(node)
        self.queue.ring.mark()
        self.touch()

    def _adopt(self, attachment: Attachment, settlements: Sequence[Settlement]) -> Sequence[Range]:
        """What a node had settled, and the owner before has not committed, is there again; of what links have held,
        which. One that is held by nobody is that link's still, if the link is there: that owner has taken it from the
        link and could not finish. If the link went on elsewhere, its client may have given it back there."""
        ring, adopted = self.queue.ring, list[Range]()
        for settlement in settlements:
            if settlement.id <= attachment.settlement:
                continue
            link = 0 if settlement.held_by is None else settlement.held_by[0]
            if link and not self.has_gap and ring.link_place(link) != attachment.holder:
                continue
            for first, last in settlement.ranges:
                if link:
                    living = ring.living(first, last, last + 1 - first)
                    adopted += ranges_of(seq for seq, state, *_ in living if state == READY)
                ring.adopt(first, last, attachment.holder)
        return merged(adopted)

    @property
    def has_gap(self) -> bool:
        """Whether the queue once lost what was committed: clients may hold messages of which it knows nothing. It takes
        no message before all of them have been named, and gives it none of their seqs."""
        return bool(self.queue.entity.gap_epoch)

    def _step_over(self, entry: AttachedQueue) -> None:
        told = (*entry.outstanding, *(range_ for settlement in entry.settlements for range_ in settlement.ranges))
        next_seq = 1 + max((last for _, last in told), default=0)
        ring = self.queue.ring
        if ring.next_seq < next_seq:
            ring.restore_epoch(self.epoch, next_seq)

    def nothing(self, node: str) -> None:
        """A complete Attach does not list the queue: its sender has nothing to do with it."""
        attachment = self._attachments.get(node)
        if attachment is not None:
            attachment.void()
            self._forget_questions(attachment)
            self._hold_only(attachment, ())
            self._list(attachment, ())
        self._arrived(node)

    def _hold_only(self, attachment: Attachment, ranges: tuple[Range, ...]) -> None:
        ring, holder = self.queue.ring, attachment.holder
        if ring.held_by(holder):
            at = 1
            for first, last in sorted(ranges):
                if at < first:
                    ring.requeue_held(at, first - 1, holder, False)
                at = last + 1
            if at < ring.next_seq:
                ring.requeue_held(at, ring.next_seq - 1, holder, False)
        for first, last in ranges:
            ring.adopt(first, last, holder)

    def _list(
        self, attachment: Attachment, heads: tuple[ConsumerHead, ...], asking: tuple[ConsumerHead, ...] = ()
    ) -> None:
        """Those that stay keep their places; new ones come before old ones go, or a queue might think itself unused.
        Who asks stays if the answer was lost."""
        listed = {head.consumer: head for head in heads if not head.holding or self._obeys(_link_of(head))}
        for number, head in listed.items():
            member = attachment.members.get(number)
            if member is None:
                self._enlist(attachment, head)
            else:
                member.renew(head)
        for head in asking:
            if head.consumer in attachment.members:
                attachment.members[head.consumer].renew(head)
                listed[head.consumer] = head
        for number in [number for number in attachment.members if number not in listed]:
            self.cancel(attachment, number)

    def unlinked(self, node: str) -> None:
        """The link is gone, and what was on it."""
        attachment = self._attachments.get(node)
        if attachment is not None:
            attachment.void()
            self._forget_questions(attachment)

    def detach(self, attachment: Attachment, why: str) -> None:
        if attachment.attached:
            attachment.void()
            self.host.send(attachment.node, Detach(self.queue_id, self.epoch, attachment.gen, why))

    def failed(self, node: str, incarnation: int) -> None:
        """That start of the node is over: what it held is ready again, its consumers are gone."""
        attachment = self._attachments.get(node)
        if attachment is not None and attachment.incarnation == incarnation:
            attachment.void()
            self._forget_questions(attachment)
            for number in tuple(attachment.members):
                self.cancel(attachment, number)
            attachment.unplace()
            self.queue.ring.requeue_all_held(attachment.holder)
            for producer in (attachment.producer, attachment.killer):
                if producer in self.queue.ring.attributes:
                    self.queue.ring.set_attribute(producer, 0)
            self._passed_over.pop(attachment, None)
            del self._attachments[node]
            self._free_holders.append(attachment.holder)
            self.queue.ring.mark()
        if self._missing.get(node) == incarnation:
            self._arrived(node)

    def end(self) -> None:
        """The epoch is over, or the queue is deleted."""
        self.queue.listener = None
        gone = {member: None for attachment in self._attachments.values() for member in attachment.members.values()}
        self.queue.subscriptions.leave(gone)
        self._attachments.clear()
        self.outgoing.clear()
        self.activity.clear()
        self.assigning.clear()
        self._consumes.clear()
        self._passed_over.clear()

    def _forget_questions(self, attachment: Attachment) -> None:
        """They are asked again in the new attachment."""
        self._consumes = [one for one in self._consumes if one[0] is not attachment]
        self.asking.forget(attachment)

    # -- consumers ------------------------------------------------------------------------------------------------

    def consume(self, attachment: Attachment, message: Consume) -> None:
        if self._missing:
            self._consumes.append((attachment, message))
            return
        subscriptions = self.queue.subscriptions
        head = message.head
        refused = head.consumer not in attachment.members and (
            subscriptions.exclusive or (head.exclusive and len(subscriptions) > 0) or self.queue.leased != ""
        )
        why = (self.queue.leased or EXCLUSIVE) if refused else ""
        if head.holding and not why and not self._obeys(_link_of(head)):
            why = STALE
        if not why and head.consumer not in attachment.members:
            self._enlist(attachment, head)
        if not why and attachment.members[head.consumer].filter is NOTHING:
            why = "cannot judge by this filter: its leader runs another release"
            self.cancel(attachment, head.consumer)
        answer = Consuming(self.queue_id, attachment.gen, head.consumer, why)
        self.host.send(attachment.node, answer)

    def _enlist(self, attachment: Attachment, head: ConsumerHead) -> None:
        member = RemoteSubscription(self, attachment, head)
        attachment.members[head.consumer] = member
        if head.holding:
            attachment.place(head.holding)
        self.queue.add_consumer(member, self.host.now_ms)
        self.queue.subscriptions.resumes(member, head.holding)

    def _obeys(self, link: LinkAttach) -> bool:
        """Whether this attach of a recoverable link counts: else another came after it, or the link has ended."""
        return isinstance(self.queue, Queue) and not self.queue.admit_link(link)

    def _send_again(self, member: RemoteSubscription, outstanding: tuple[Range, ...]) -> None:
        """What its link holds and its node has not: it was on its way when link or owner were lost. Nothing newer is
        handed to it before that has been read."""
        queue, gen = self.queue, member.attachment.gen
        assert isinstance(queue, Queue), "a stream has no such consumers"
        seqs = unlisted(queue.ring.held_by_link(member.holding, 1, HELD_MAX), outstanding)

        def read(records: bytes, is_last: bool) -> bool:
            attachment = member.attachment
            goes_on = attachment.attached and attachment.gen == gen and attachment.members.get(member.number) is member
            if goes_on:
                member.sent_again(records, verify_records(records, self.queue_id, self.epoch, True), is_last)
            return goes_on

        if seqs:
            member.wait()
            queue.at_links.read(member.holding, seqs, read)

    def cancel(self, attachment: Attachment, number: int) -> None:
        """What it holds is still outstanding at its node."""
        if self._consumes:
            self._consumes = [
                one for one in self._consumes if one[0] is not attachment or one[1].head.consumer != number
            ]
        member = attachment.members.pop(number, None)
        if member is None:
            return
        self.outgoing.pop(member, None)
        self.activity.pop(member, None)
        self.assigning.pop(member, None)
        if member.holding:  # its link holds what it was handed, sent or not
            assert isinstance(self.queue, Queue), "a stream has no such consumers"
            self.queue.at_links.suspend(member, member.holding)
            return
        for seq, _, _, _ in read_records(member.credit.out.take()):  # not sent yet
            self.queue.ring.requeue_held(seq, seq, attachment.holder, False)
        self.queue.remove_consumer(member, self.host.now_ms)

    def credit(self, attachment: Attachment, number: int, upto: int, held: int) -> None:
        member = attachment.members.get(number)
        if member is not None:
            member.grant(upto, held)
            self.queue.ring.mark()

    # -- the turn -------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Says what has been committed, answers what can be answered, and looks where the queue should live."""
        if self.frozen_until_ms is not None:
            if now_ms >= self.frozen_until_ms:
                self.thaw()
            else:
                self.queue.host.wake(self.queue, self.frozen_until_ms)
        if self._doomed_ms is not None:
            if now_ms >= self._doomed_ms:
                self._doomed_ms = now_ms + DELETE_AGAIN_MS
                self.queue.host.end(self.queue)
            self.queue.host.wake(self.queue, self._doomed_ms)
        for member in tuple(self.assigning):
            if member.due:
                self.outgoing[member] = None
            elif not member.assigned:
                del self.assigning[member]
        for attachment in self._attachments.values():
            if attachment.attached:
                self._tell(attachment)
        if self.activity and self.attached:
            self._tell_activity()
        self.asking.turn(now_ms)
        if self.open and not self.queue.halted:
            self._residence.turn(now_ms)

    def _tell_activity(self) -> None:
        changed, self.activity = self.activity, {}
        for member in changed:
            attachment, active = member.attachment, self.queue.subscriptions.active is member
            answer = Consuming(self.queue_id, attachment.gen, member.number, active=active)
            self.host.send(attachment.node, answer)

    def _tell(self, attachment: Attachment) -> None:
        queue_id, gen, node = self.queue_id, attachment.gen, attachment.node
        if self._synced:
            settled = attachment.settled()
            if settled > attachment.told_settled:
                for number, void in sorted(attachment.not_held.items()):  # each answers all before it
                    if attachment.told_settled < number <= settled:
                        self.host.send(node, Settled(queue_id, gen, number, void))
                attachment.told_settled = settled
                self.host.send(node, Settled(queue_id, gen, settled))
        if attachment.refused is not None and attachment.published == attachment.accepted and not attachment.unlogged:
            self.host.send(node, Published(queue_id, gen, attachment.refused[1], (attachment.refused,)))
            self.detach(attachment, "refused")
        elif attachment.published > attachment.told_published:
            attachment.told_published = attachment.published
            self.host.send(node, Published(queue_id, gen, attachment.published))


def _link_of(head: ConsumerHead) -> LinkAttach:
    return LinkAttach(head.holding, head.attach)
