"""Recoverable links at a node (`cluster.wiring.links`): their attaches here, and what its queues know of all of them.

    a link is attached elsewhere, or ends     whoever has it here hears of it (`Attachment.lost`)
    it is attached, and not resumed           what its earlier attaches sent is forgotten by the queues
    it ends                                   all of it is
    its client has told its map (`keep`)      all of it that the client cannot ask for

Every node does so with the queues that it owns, at its place in the wiring, so no message says the first three. A queue
that this node takes over, or finds at its start, is tidied in a later turn: what became of links meanwhile is in the
map.

What a suspended link holds returns after the consumer timeout of its queue (`turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.node.open_maps import OpenMaps
from clusterbroker.broker.queues.link_deliveries import ATTACHES_MAX
from clusterbroker.broker.queues.link_held import LinkAttach, link_name
from clusterbroker.broker.queues.subscription import hold_limit_ms
from clusterbroker.broker.remote.messages import LinkKeep
from clusterbroker.cluster.errors import LimitReached
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LINK_POLICIES, LINK_RECOVERY
from clusterbroker.cluster.wiring.map import Applied

REVIEW_MS: Final = 1000

if TYPE_CHECKING:
    from clusterbroker.broker.node.ends import Ends
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.broker.node.ports import MemberCore, NodeCore
    from clusterbroker.broker.queues.local_queue import LocalQueue
    from clusterbroker.cluster.wiring.changes import LinkAttached, LinkEnded, LinkSuspended
    from clusterbroker.cluster.wiring.entities import RecoverableLink

    class RecoveringMember(MemberCore, Protocol):
        """Its part in a cluster."""

        hub: Hub

    class RecoveringNode(NodeCore, Protocol):
        """The node."""

        ends: Ends

        @property
        def role(self) -> RecoveringMember | None: ...


class Attachment:
    """One attach of a link at this node.

    lost  called when it does not count any more: with True if the link goes on elsewhere, with False if it has ended
    """

    __slots__ = ("link", "lost", "since_ms")

    def __init__(self, link: RecoverableLink, lost: Callable[[bool], None], since_ms: int) -> None:
        self.link = link
        self.lost = lost
        self.since_ms = since_ms


class LinkRecovery:
    """Of one node."""

    def __init__(self, node: RecoveringNode) -> None:
        self._node = node
        self._here: dict[LogIndex, Attachment] = {}
        self._holding: dict[LocalQueue, None] = {}  # queues that know deliveries of links, or did
        self._suspended: dict[int, tuple[int, int]] = {}  # links that hold something -> (attach, seen since), ms
        self._review_ms = 0
        self.open_maps = OpenMaps()

    @property
    def possible(self) -> bool:
        """Whether every member knows such links."""
        return self._node.map.level >= LINK_RECOVERY

    @property
    def withdraws(self) -> bool:
        """Whether every member tells a client what its link has held for too long."""
        return self._node.map.level >= LINK_POLICIES

    # -- sessions -------------------------------------------------------------------------------------------------

    def attach(
        self, command: c.AttachLink, lost: Callable[[bool], None], then: Callable[[Attachment | Applied], None]
    ) -> None:
        """Orders an attach at this node. `then` hears of the attachment, or what is said against it: by the wiring log,
        or here of a link whose attaches are used up, for its queues' owners read no higher number."""
        known = self._node.map.link_named(command.vhost, command.container, command.name, command.role)
        if known is not None and known.attach >= ATTACHES_MAX and known.terminus == command.terminus:
            text = (
                f"link '{command.name}' of container '{command.container}' was attached {known.attach} times, the most "
                "there are: end it (clusterbroker links expire), and attach it again"
            )
            then(Applied(LogIndex(0), command, LimitReached(text), None, ()))
            return

        def applied(answer: Applied) -> None:
            if not answer.ok:
                then(answer)
                return
            attachment = Attachment(answer.result, lost, self._node.now_ms)
            link = attachment.link
            if not self._node.map.link_since(link.link, link.attach):  # another came before this was told
                lost(self._node.map.link(link.link) is not None)
            else:
                self._here[link.link] = attachment
            then(attachment)

        self._node.ends.hurry()
        self._node.propose(command, applied)

    def suspend(self, attachment: Attachment) -> None:
        """Its client is gone for now."""
        self._leave(attachment, c.SuspendLink(link=attachment.link.link, attach=attachment.link.attach))

    def forget(self, attachment: Attachment, then: Callable[[], None] = lambda: None) -> None:
        """Its client has closed it; `then()` when a later attach finds nothing of it, or that cannot be said now."""
        self._leave(attachment, c.ForgetLink(link=attachment.link.link, attach=attachment.link.attach), then)

    def begun_anew(self, link: RecoverableLink) -> None:
        """Its client has attached one of this name that is none of these, and resumes nothing."""
        self._node.ends.order(c.ForgetLink(link=link.link, attach=link.attach))

    def _leave(
        self, attachment: Attachment, command: c.SuspendLink | c.ForgetLink, then: Callable[[], None] = lambda: None
    ) -> None:
        if self._here.get(attachment.link.link) is not attachment:
            then()
            return
        del self._here[attachment.link.link]
        self._node.ends.order(command, then)

    def keep(self, link: RecoverableLink, tags: list[bytes]) -> None:
        """The client of the link can ask for these deliveries of its earlier attaches only, wherever they went."""
        message = LinkKeep(link.link, link.attach, tags)
        self._keep(message)
        if self._node.role is not None:
            for peer in self._node.role.hub.linked:
                self._node.role.hub.send(peer, message)

    def received(self, _peer: str, message: LinkKeep, _payload: memoryview) -> None:
        """A client at another node has told its map."""
        self._keep(message)

    def _keep(self, message: LinkKeep) -> None:
        if self._node.map.link_since(message.link, message.attach):
            self._each(lambda queue: queue.log.deliveries.keep(message.link, message.attach, message.tags))

    def goes_on(self, attach: LinkAttach) -> bool:
        """See `Links`."""
        link = self._node.map.link(LogIndex(attach.link))
        return link is not None and link.since <= attach.attach

    # -- queues ---------------------------------------------------------------------------------------------------

    def since(self, queue: LocalQueue, link: int, attach: int) -> int:
        """As `ClusterView.link_since`, for a queue that may know something of the link from now on."""
        self._review_later(queue)
        return self._node.map.link_since(link, attach)

    def _review_later(self, queue: LocalQueue) -> None:
        """The queue may know something of a link."""
        if not self._holding:
            self._review_ms = self._node.now_ms + REVIEW_MS
        self._holding[queue] = None

    def own(self, queue: LocalQueue) -> None:
        """This node owns the queue from now on."""
        if queue.ring.has_attributes:
            self._node.soon(lambda: self._tidy(queue))

    def _tidy(self, queue: LocalQueue) -> None:
        if self._node.queues.get(queue.entity.queue_id) is not queue or queue.deleted:
            return
        deliveries = queue.log.deliveries
        links = self._node.map.links
        queue.sweep_links(
            lambda: [link_name(one.container, one.name) for one in links(queue.entity.vhost) if one.role == "receiver"]
        )
        if queue.holding is not None:
            for number in queue.holding.links:
                self._review_later(queue)
                link = self._node.map.link(LogIndex(number))
                if link is None:
                    queue.holding.end(number)
                else:
                    queue.holding.tidy(number, link.since)
        for number in deliveries.links:
            self._review_later(queue)
            link = self._node.map.link(LogIndex(number))
            if link is None:
                deliveries.drop(number)
            else:
                deliveries.keep(number, link.since, ())

    def _each(self, what: Callable[[LocalQueue], None]) -> None:
        for queue in tuple(self._holding):
            knows = bool(queue.log.deliveries or queue.holding)
            if self._node.queues.get(queue.entity.queue_id) is not queue or not knows:
                del self._holding[queue]
            else:
                what(queue)

    def known(self) -> Iterator[tuple[LocalQueue, dict[int, int]]]:
        """Queues of this node, and how many deliveries each knows of which link."""
        for queue in tuple(self._holding):
            if self._node.queues.get(queue.entity.queue_id) is queue and not queue.deleted:
                yield queue, queue.log.deliveries.counts() | (queue.ring.links() if queue.holding is not None else {})

    @property
    def next_ms(self) -> int | None:
        """When `turn` is due; None: nothing is."""
        return self._review_ms if self._holding else None

    def turn(self, now_ms: int) -> None:
        """What suspended links have held for longer than a consumer may returns. A node counts from when it sees that,
        at the earliest from when it owns the queue: late, never early."""
        if self.next_ms is None or now_ms < self.next_ms:
            return
        self._review_ms = now_ms + REVIEW_MS
        if not self.withdraws:
            return
        seen, self._suspended = self._suspended, {}
        for queue in tuple(self._holding):
            if queue.holding is not None and self._node.queues.get(queue.entity.queue_id) is queue:
                self._node.setting_aside.work(queue, self._review, queue, seen, now_ms)

    def _review(self, queue: LocalQueue, seen: dict[int, tuple[int, int]], now_ms: int) -> None:
        limit_ms = hold_limit_ms(queue.settings, self._node.options.consumer_timeout_ms)
        for number in queue.ring.links() if limit_ms else ():
            link = self._node.map.link(LogIndex(number))
            if link is None or not link.suspended:
                continue
            attach, since_ms = seen.get(number, (0, 0))
            if attach != link.attach:
                since_ms = now_ms
            if now_ms - since_ms < limit_ms:
                self._suspended[number] = link.attach, since_ms
            else:
                assert queue.holding is not None, "it has links"
                queue.holding.withdraw(number)

    # -- the wiring -----------------------------------------------------------------------------------------------

    def attached(self, change: LinkAttached) -> None:
        """Somebody attaches the link, perhaps here."""
        link = change.link
        self._lose(link, True)
        if link.since == link.attach or link.node != self._node.options.name:
            self.open_maps.drop(link.link)
        self._each(lambda queue: None if queue.holding is None else queue.holding.fence(link.link, link.since))
        if link.since == link.attach:
            self._each(lambda queue: queue.log.deliveries.keep(link.link, link.since, ()))

    def suspended(self, change: LinkSuspended) -> None:
        """The link is attached nowhere: also one that is still used here, by a node that the others gave up."""
        self._lose(change.link, True)

    def ended(self, change: LinkEnded) -> None:
        """The link is no more."""
        self._lose(change.link, False)
        self.open_maps.drop(change.link.link)
        self._each(lambda queue: self._end(queue, change.link))

    @staticmethod
    def _end(queue: LocalQueue, link: RecoverableLink) -> None:
        queue.log.deliveries.drop(link.link)
        if link.role == "receiver":
            queue.link_ended(link_name(link.container, link.name))
        if queue.holding is not None:
            queue.holding.end(link.link)

    def _lose(self, link: RecoverableLink, goes_on: bool) -> None:
        attachment = self._here.pop(link.link, None)
        if attachment is not None:
            self._node.setting_aside.link(lambda: attachment.lost(goes_on))
