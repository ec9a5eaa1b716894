"""All queues of other owners (and of this node as an owner) for clients of this node, with their attachments.

The wiring gives the owners (`owner_changed`), the links their reach (`linked`, `unlinked`). From both follows the
time of an Attach to a queue's owner:

    a new epoch      one Attach for the queues concerned, first those with content, then the ids of all others: until
                     every node has attached, the new owner hands nothing out
    a new link       one complete Attach: every unlisted queue of that owner has nothing here. Sent even when the list
                     is empty
    lease regained   the same to every owner: meanwhile this node may have been declared dead
    first use        an Attach for that queue alone

An Attach is repeated, with a new gen, until each listed queue is answered by `Attached`. Needless repetitions do no
harm: the owner forgets its knowledge of an older gen. But the answer to the former one is void then, so each repetition
may take twice as long as the one before: an owner, or a link, that is always slow would never be attached otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.remote.attaching import attaches, silence
from clusterbroker.broker.remote.consumer_link import Line
from clusterbroker.broker.remote.host import ProxyHost
from clusterbroker.broker.remote.messages import (
    Answer,
    Attached,
    AttachedQueue,
    Cancelled,
    Consuming,
    Deliver,
    Detach,
    Published,
    Settled,
)
from clusterbroker.broker.remote.outbox import TURN_BYTES, Outbox
from clusterbroker.broker.remote.parts import check_parts
from clusterbroker.broker.remote.remote_queue import RemoteQueue
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.queue_settings import QueueSettings

QUEUE_BYTES_MAX: Final = 8 << 20
"""With more than this not committed a queue is congested: whoever publishes to it waits until half of it is."""
RETRY_MS: Final = 500
"""So long an owner may take to answer the first Attach."""
SPANS_MAX: Final = 8
"""So many times as long the answer to a later one may take, while none comes."""
LATE_SPANS_MAX: Final = 64
"""And if one has come too late: an Attach makes the answers to those before it void, so the next must be waited for."""
MISTAKEN_MS: Final = 1000
"""Before a queue over which something raised is asked again what it has to say."""
PAUSE_MS: Final = 20
"""Before the next Attach to an owner that does not know of the last one, lest the two run in a circle."""


class RemoteQueues:
    """The client side of one node. `unacknowledged_bytes`: publishes that no owner has called committed yet, but for
    those in `congested` queues."""

    def __init__(
        self,
        host: ProxyHost,
        incarnation: int,
        owing: Callable[[], bool] = lambda: False,
        sooner: Callable[[int], None] = lambda _queue_id: None,
        level: Callable[[], int] = lambda: LEVEL,
        goes_on: Callable[[LinkAttach], bool] = lambda _link: True,
    ) -> None:
        """`owing`: whether there are queues whose newest owner is not known here yet, though the wiring was applied;
        `sooner`: a client waits for a queue, which may be one of these; `level`: of the cluster; `goes_on`: whether
        later attaches of the link have what this one held."""
        self._level = level
        self.goes_on = goes_on
        self.host = host
        self._owing = owing
        self._sooner = sooner
        self.incarnation = incarnation
        self.queues: dict[int, RemoteQueue] = {}
        self.unacknowledged_bytes = 0
        self.congested: dict[RemoteQueue, None] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._owned: dict[str, dict[int, RemoteQueue]] = {}
        self._linked: dict[str, None] = {}
        self._full: dict[str, None] = {}  # owners that need a complete Attach
        self._again: dict[RemoteQueue, int] = {}  # queues that need one of their own, not before this time
        self._asked: dict[RemoteQueue, tuple[int, int]] = {}
        """When the answer is looked for, in that order, and how many times RETRY_MS more it may take then."""
        self._spans: dict[RemoteQueue, int] = {}
        """Of what was not answered: how many times RETRY_MS the next answer may take."""
        self._since: dict[RemoteQueue, int] = {}
        """Of what was asked: when the first Attach went out that was not answered in time."""
        self._delayed: dict[RemoteQueue, None] = {}  # publishes wait for their owner's window
        self._held: dict[RemoteQueue, None] = {}  # publishes wait for the next turn
        self._shared: dict[Line, RemoteQueue] = {}  # consumers under a channel-wide limit
        self._consumers = 0

    # -- the wiring -------------------------------------------------------------------------------------------

    def add(self, entity: QueueEntity, settings: QueueSettings, ring: Ring) -> RemoteQueue:
        """A queue that began to exist, or that this node finds at its start. `ring` is a proxy's."""
        queue = RemoteQueue(entity, settings, ring, self)
        self.queues[entity.queue_id] = queue
        self._place(queue)
        return queue

    def remove(self, queue_id: int) -> None:
        """The queue was deleted."""
        queue = self.queues.pop(queue_id, None)
        if queue is None:
            return
        self._displace(queue)
        queue.drop()

    def owner_changed(self, entity: QueueEntity) -> None:
        """The queue's entity is a new one. With a new epoch every node attaches to the owner, if there is one."""
        queue = self.queues.get(entity.queue_id)
        if queue is None:
            return
        if entity.epoch == queue.entity.epoch:
            queue.entity = entity
            return
        queue.detach()
        self._displace(queue)
        queue.entity = entity
        self._place(queue)
        self._again[queue] = 0
        if queue.outbox is None:
            queue.ownerless()

    def paused(self, entity: QueueEntity) -> None:
        """An operator paused the queue, or resumed it: its attachment stays as it is."""
        queue = self.queues.get(entity.queue_id)
        if queue is not None:
            queue.halt(entity)

    def _place(self, queue: RemoteQueue) -> None:
        owner = queue.entity.owner
        if owner is None:
            queue.outbox = None
        else:
            queue.outbox = self._outbox(owner)
            self._owned.setdefault(owner, {})[queue.entity.queue_id] = queue

    def _outbox(self, owner: str) -> Outbox:
        outbox = self._outboxes.get(owner)
        if outbox is None:
            outbox = self._outboxes[owner] = Outbox(owner, owner == self.host.name, self._level)
        return outbox

    def _displace(self, queue: RemoteQueue) -> None:
        self._again.pop(queue, None)
        self._asked.pop(queue, None)
        self._forget_times(queue)
        self._delayed.pop(queue, None)
        self._held.pop(queue, None)
        if queue.entity.owner is not None:
            del self._owned[queue.entity.owner][queue.entity.queue_id]

    # -- links and leases -------------------------------------------------------------------------------------

    def linked(self, node: str) -> None:
        """There is a new link to this node, or it is this node itself. Nothing of an old link counts."""
        self._linked[node] = None
        self._full[node] = None

    def unlinked(self, node: str) -> None:
        self._linked.pop(node, None)
        self._full.pop(node, None)
        for queue in self._owned.get(node, {}).values():
            self._asked.pop(queue, None)
            self._forget_times(queue)
            if queue.attached:
                queue.detach()

    def lease_regained(self) -> None:
        """This node may speak to clients again: its owners may have given away what it held."""
        self._full.update(self._linked)

    @property
    def shared(self) -> bool:
        """There are consumers under a channel-wide limit: whatever their clients say may concern several queues."""
        return bool(self._shared)

    # -- what queues ask --------------------------------------------------------------------------------------

    def next_consumer(self) -> int:
        self._consumers += 1
        return self._consumers

    def want_attach(self, queue: RemoteQueue) -> None:
        """The queue has something to say, or not, and no attachment in which to say it."""
        if queue not in self._asked and queue not in self._again and queue.speaks():
            self._again[queue] = 0
            self._sooner(queue.entity.queue_id)

    def attach_again(self, queue: RemoteQueue, pause_ms: int = 0) -> None:
        """What the queue's owner and this node know of each other may differ."""
        queue.detach()
        self._asked.pop(queue, None)
        self._again[queue] = self.host.now_ms + pause_ms if pause_ms else 0

    def attach_soon(self, queue: RemoteQueue) -> None:
        """Likewise, when what is under way is over."""
        self.host.soon(lambda: None if queue.deleted or queue in self._again else self.attach_again(queue))

    def delayed(self, queue: RemoteQueue) -> None:
        """It has publishes for which its owner's window has no room."""
        self._delayed[queue] = None

    def held(self, queue: RemoteQueue) -> None:
        """It has publishes that were too much for this turn."""
        if not self._held:
            self.host.soon(self._let_go)
        self._held[queue] = None

    def _let_go(self) -> None:
        """Another turn: as many of them go on as it may be."""
        sizes: dict[Outbox | None, int] = {}
        for queue in tuple(self._held):
            size = sizes.get(queue.outbox, 0)
            if size < TURN_BYTES:
                sizes[queue.outbox] = size + queue.backlog_bytes
                del self._held[queue]
                queue.ring.mark()
        if self._held:
            self.host.soon(self._let_go)

    def shares(self, line: Line, queue: RemoteQueue) -> None:
        """The consumer stands under a channel-wide limit, which acknowledgements for other queues raise."""
        self._shared[line] = queue

    def relieved(self, line: Line) -> None:
        self._shared.pop(line, None)

    def took(self, queue: RemoteQueue, size: int) -> None:
        self._weigh(queue, size)

    def gave(self, queue: RemoteQueue, size: int) -> None:
        if size:
            self._weigh(queue, -size)
            self._go_on()

    def _weigh(self, queue: RemoteQueue, size: int) -> None:
        """So many bytes came to a queue's backlog, or left it. What a congested queue holds is the affair of those
        who publish to it; all else together slows down everybody."""
        if queue in self.congested:
            if queue.backlog_bytes <= QUEUE_BYTES_MAX // 2:
                del self.congested[queue]
                self.unacknowledged_bytes += queue.backlog_bytes
                self.host.relieved(queue)
        elif queue.backlog_bytes > QUEUE_BYTES_MAX:
            self.congested[queue] = None
            self.unacknowledged_bytes -= queue.backlog_bytes - size
        else:
            self.unacknowledged_bytes += size
        assert self.unacknowledged_bytes >= 0, "what is acknowledged was published"
        self.host.flow_changed()

    def alarmed(self, owner: str, raised: bool) -> None:
        """An owner has a resource alarm, or is well again: its queues' publishes wait meanwhile."""
        self._outbox(owner).shut = raised
        self._go_on()

    def _go_on(self) -> None:
        """Publishes that found no room in their owner's window."""
        for queue in tuple(self._delayed):
            if queue.outbox is None or queue.outbox.open:
                del self._delayed[queue]
                queue.ring.mark()

    # -- the turn ---------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Sends what the queues' turns have gathered; called after them. May mark rings again."""
        for line, queue in self._shared.items():
            if (line.surplus and line.room) or (queue.attached and line.owes_credit(line.upto())):
                queue.ring.mark()
        for outbox in tuple(self._outboxes.values()):
            try:
                outbox.flush(self.host)
            except Exception as error:
                self.host.link_stumbled(outbox.owner, error)
        while self._asked:
            queue, (look_ms, spans) = next(iter(self._asked.items()))
            if look_ms > now_ms:
                break
            if spans:
                self._wait_for(queue, spans, now_ms)
            else:
                spans = self._spans.get(queue, 1)
                self._spans[queue] = max(spans, min(2 * spans, SPANS_MAX))
                self.attach_again(queue)
        if self._full and not self._owing():  # a complete Attach speaks for all queues of an owner
            full, self._full = self._full, {}
            for owner in full:
                if owner in self._linked:
                    self._attach_all(owner, now_ms)
        if self._again:
            self._attach_some(now_ms)

    @property
    def next_wake_ms(self) -> int | None:
        """When `turn` must be called even if nothing happens."""
        if not self._again and not self._asked:
            return None
        times = [*self._again.values()]
        if self._asked:
            times.append(next(iter(self._asked.values()))[0])
        return min(times, default=None)

    def _attach_all(self, owner: str, now_ms: int) -> None:
        listed: list[AttachedQueue] = []
        for queue in self._owned.get(owner, {}).values():
            self._again.pop(queue, None)
            self._asked.pop(queue, None)
            self._list(queue, listed, now_ms)
        self._attach(owner, listed, complete=True)

    def _list(self, queue: RemoteQueue, listed: list[AttachedQueue], now_ms: int) -> bool:
        """What the queue has to say goes into an Attach; False: nothing. One that raises says nothing for now: its
        owner takes back what it had given this node, and it is asked again later."""
        try:
            queue.detach()
            speaks = queue.speaks()
            if speaks:
                listed.append(self._ask(queue, now_ms))
            else:
                self._forget_times(queue)
        except Exception as error:
            self._asked.pop(queue, None)
            self._again[queue] = now_ms + MISTAKEN_MS
            self.host.proxy_stumbled(queue.entity, error)
            return False
        return speaks

    def _attach(self, owner: str, listed: list[AttachedQueue], complete: bool) -> None:
        for attach in attaches(self.incarnation, self.host.applied_index, listed, complete):
            self.host.send(owner, attach)

    def _attach_some(self, now_ms: int) -> None:
        due: dict[NodeId, list[RemoteQueue]] = {}
        for queue, not_before_ms in tuple(self._again.items()):
            if not_before_ms > now_ms:
                continue
            del self._again[queue]
            owner = queue.entity.owner
            if owner is not None and owner in self._linked:  # otherwise it attaches when there is an owner, or a link
                due.setdefault(owner, []).append(queue)
        for node, queues in due.items():
            listed: list[AttachedQueue] = []
            silent: list[int] = []
            for queue in queues:
                queue.detach()
                if queue.speaks():
                    listed.append(self._ask(queue, now_ms))
                else:
                    self._forget_times(queue)
                    silent.append(queue.entity.queue_id)
            self._attach(node, listed, complete=False)
            for attach in silence(self.incarnation, self.host.applied_index, silent):
                self.host.send(node, attach)

    def _ask(self, queue: RemoteQueue, now_ms: int) -> AttachedQueue:
        self._since.setdefault(queue, now_ms)
        self._wait_for(queue, self._spans.get(queue, 1), now_ms)
        return queue.attachment()

    def _came_late(self, queue: RemoteQueue) -> None:
        """An answer to an Attach before the last one: the answer to that takes no longer than this one took."""
        now_ms = self.host.now_ms
        spans = min((now_ms - self._since[queue]) // RETRY_MS + 1, LATE_SPANS_MAX)
        if spans > self._spans.get(queue, 1):
            self._spans[queue] = spans
            self._wait_for(queue, spans, now_ms)

    def _forget_times(self, queue: RemoteQueue) -> None:
        self._spans.pop(queue, None)
        self._since.pop(queue, None)

    def _wait_for(self, queue: RemoteQueue, spans: int, now_ms: int) -> None:
        """All are looked at after the same time, so that they stay in order."""
        self._asked.pop(queue, None)
        self._asked[queue] = now_ms + RETRY_MS, spans - 1

    # -- what owners say --------------------------------------------------------------------------------------

    def received(self, peer: str, message: Any, payload: memoryview) -> None:
        """A frame of a node, whose wiring index this node has applied. What is of another owner's time is dropped."""
        if isinstance(message, Deliver):
            self._deliver(peer, message, payload)
            return
        queue = self.queues.get(message.queue_id)
        if queue is None or queue.entity.owner != peer:
            return
        if isinstance(message, Answer):
            queue.on_answer(message, payload)
        else:
            _HANDLERS[type(message)](self, queue, message)

    def _deliver(self, peer: str, message: Deliver, payload: memoryview) -> None:
        check_parts(message.parts, payload)
        at = 0
        for queue_id, epoch, gen, consumer, size in message.parts:
            queue = self.queues.get(queue_id)
            if queue is not None and queue.entity.owner == peer:
                queue.on_deliver(epoch, gen, consumer, payload[at : at + size], self.host.now_ms)
            at += size

    def _attached(self, queue: RemoteQueue, message: Attached) -> None:
        queue.on_attached(message)
        if queue.attached:
            self._asked.pop(queue, None)
            self._forget_times(queue)
        elif message.epoch == queue.entity.epoch and queue in self._asked:
            self._came_late(queue)

    def _detach(self, queue: RemoteQueue, message: Detach) -> None:
        if (message.epoch, message.gen) == (queue.entity.epoch, queue.gen):
            self.attach_again(queue, PAUSE_MS if message.why == "unknown" else 0)


_HANDLERS: Final[dict[type, Callable[[RemoteQueues, RemoteQueue, Any], None]]] = {
    Attached: RemoteQueues._attached,
    Detach: RemoteQueues._detach,
    Published: lambda _, queue, message: queue.on_published(message),
    Consuming: lambda _, queue, message: queue.on_consuming(message),
    Cancelled: lambda _, queue, message: queue.on_cancelled(message),
    Settled: lambda _, queue, message: queue.on_settled(message),
}

MESSAGES: Final[Iterable[type]] = (Deliver, Answer, *_HANDLERS)
"""The heads that `RemoteQueues.received` takes."""
