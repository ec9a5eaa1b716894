"""The cost of a bug: its queue, its client or its link; never the node.

    raised in                                                costs
    a queue's turn, its commits, what it had read            the queue: it is set aside (`broker.queues.stumble`)
    an answer to a channel (of the wiring, of a queue)       the client's connection, 541 (`ClientCore.crashed`)
    a frame of another node, or what is said to one          the link: half-done work is repeated on the next one. For
                                                             messages of this node to itself its attachments to its own
                                                             queues begin anew; again and again only if nothing helps
    replication of a queue                                   this node's copy, which is made anew if another member has
                                                             all of the queue (decision 040); else the node begins again
    the disk, the fold of the wiring                         the node, which begins again from what it has written

A queue that is set aside is paused in the wiring, so that it is paused for its next owner and after a restart as well,
and an operator sees it and resumes it where any paused queue is seen and resumed. So is the queue of staged rows, which
has no name of its own. The cause stands beside the pause: whoever owns the queue next says it in its alerts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.stumble import Stumble
from clusterbroker.broker.queues.subscription import Source
from clusterbroker.cluster.ids import QueueId
from clusterbroker.cluster.wiring.commands import PauseQueue
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity

if TYPE_CHECKING:
    from clusterbroker.broker.node.alerts import CopyCare
    from clusterbroker.broker.node.clients import ClientCore
    from clusterbroker.broker.node.damages import Damages
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.broker.node.ports import MemberCore, NodeCore
    from clusterbroker.broker.remote.remote_queues import RemoteQueues

    class Member(MemberCore, Protocol):
        """The node's role in the cluster."""

        care: CopyCare
        hub: Hub
        name: str
        remote_queues: RemoteQueues

        @property
        def node(self) -> NodeCore: ...

        def forget_copy(self, queue_id: int) -> None: ...


ALERT: Final = "queue.paused_by_error"
WHY_MAX: Final = 250
OWN_MAX: Final = 20
OWN_MS: Final = 10_000
"""With so many mistakes in so short a time over what a node says to itself, it begins again."""
COPY_WHY_MAX: Final = 200


class SettingAside:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        # of queues elsewhere: what nobody here can read, held until they are paused
        self._unread: dict[QueueHandle, list[int]] = {}

    def work(self, queue: Source, what: Callable[..., object], *given: Any) -> None:
        """Does something of the queue's; what raises sets it aside."""
        try:
            what(*given)
        except Exception as error:
            self.stumbled(queue, error)

    def notify(self, client: ClientCore, what: Callable[..., object], *given: Any) -> None:
        """Calls a client; what raises costs that client."""
        try:
            what(*given)
        except Exception as error:
            client.crashed(error)

    def link(self, what: Callable[[], None]) -> None:
        """Does something about a suspended link; what raises is logged."""
        try:
            what()
        except Exception as error:
            self._node.log.crashed("a suspended link", error)

    def stumbled(self, queue: Source, error: Exception, seq: int = 0) -> None:
        """Sets the queue aside; one that is elsewhere by the wiring, from which its owner hears of it."""
        if isinstance(error, Stumble):
            seq = error.seq
        node, entity = self._node, queue.entity
        if not isinstance(queue, LocalQueue):
            self._elsewhere(cast("QueueHandle", queue), error, seq)
            return
        if queue.deleted or queue.broken:
            return
        queue.set_aside(True)
        node.log.set_aside(entity, seq, error)
        command = _pause(entity, error, seq)
        self._alert(entity, command.why)
        node.propose(command, lambda _: None)

    def _elsewhere(self, queue: QueueHandle, error: Exception, seq: int) -> None:
        """The message returns when the pause is known, and so to an owner that knows it too: frames wait for the
        sender's wiring index. Others that cannot be read meanwhile wait for the same pause."""
        if (waiting := self._unread.get(queue)) is not None:
            waiting.append(seq)
            return
        self._unread[queue] = [seq]

        def paused(_: object) -> None:
            for each in self._unread.pop(queue):
                if each:
                    queue.requeue(each, False)

        self._node.log.set_aside(queue.entity, seq, error)
        self._node.propose(_pause(queue.entity, error, seq), paused)

    def _alert(self, entity: QueueEntity, why: str) -> None:
        which = "--staged " if entity.staging else ""
        where = "" if entity.vhost == "/" else f" --vhost '{entity.vhost}'"
        text = f"{why}; see the log, then: clusterbroker queues resume {which}'{entity.name}'{where}"
        self._node.alerts.set(ALERT, subject(entity), text)

    def began(self, queue: LocalQueue) -> None:
        """This node owns the queue from now on: what an earlier owner, or an earlier process, has met is told here."""
        if queue.entity.paused and queue.entity.paused_why:
            self._alert(queue.entity, queue.entity.paused_why)

    def is_closed(self, queue: LocalQueue) -> bool:
        """Whether an operator may take nothing out of it now: its owner is about to change, or others have not said
        what they hold. One that is set aside is open for that."""
        if not queue.broken:
            return queue.paused
        role = self._node.role
        owned = None if role is None else role.owned_queues.queues.get(queue.entity.queue_id)
        return owned is not None and not owned.answers

    def resumed(self, queue: LocalQueue) -> None:
        """An operator wants it to try again."""
        self.forget(queue)
        if queue.entity.staging:
            self._node.moving.anew(queue)
        if not queue.broken:
            return
        queue.set_aside(False)
        role = self._node.role
        if role is not None:
            role.owned_queues.resumed(queue.entity.queue_id)

    def forget(self, queue: LocalQueue) -> None:
        """It is deleted, or somebody else's now."""
        self._node.alerts.clear(ALERT, subject(queue.entity))


def _pause(entity: QueueEntity, error: Exception, seq: int) -> PauseQueue:
    """With what the error says of the message."""
    cause = error.__cause__ if isinstance(error, Stumble) and error.__cause__ is not None else error
    where = f"message {seq}" if seq else "its work"
    why = f"{where} raised {type(cause).__name__}: {cause}"[:WHY_MAX].encode(errors="replace").decode()
    return PauseQueue(vhost=entity.vhost, name=entity.name, paused=True, why=why, staging=entity.staging)


def subject(entity: QueueEntity) -> str:
    """How an alert names a queue."""
    return f"{'staged rows of ' if entity.staging else ''}{entity.name} ({entity.vhost})"


class Mistakes:
    """Of one member."""

    def __init__(self, role: Member, damages: Damages) -> None:
        self._part = role
        self._damages = damages
        self.fatal: Exception | None = None
        """The mistake for which the node must begin again."""
        self._own: deque[int] = deque(maxlen=OWN_MAX)  # when each was made

    def copy(self, queue_id: int, error: Exception) -> None:
        """Something raised in the replication of a queue."""
        role, node = self._part, self._part.node
        entity = node.map.queue_by_id(QueueId(queue_id))
        if entity is None:
            role.forget_copy(queue_id)
            return
        role.copying.distrust(queue_id)
        node.log.set_aside(entity, 0, error)
        queue = node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            queue.set_aside(True)
        what = f"its copying raised {type(error).__name__}: {error}"[:COPY_WHY_MAX]
        role.care.stumbled(entity, what)

        def alone() -> None:
            self.fatal = error

        self._damages.found(queue_id, (), what, alone)

    def link(self, peer: str, error: Exception) -> None:
        """Something raised over what a member said, or over what is said to it."""
        role = self._part
        role.node.log.link_crashed(peer, error)
        if peer != role.name:
            role.hub.bad(peer, f"this node could not carry it out: {type(error).__name__}")
            return
        now_ms, times = role.node.now_ms, self._own
        if len(times) == OWN_MAX and now_ms - times[0] < OWN_MS:
            raise error
        times.append(now_ms)
        role.owned_queues.unlinked(peer)
        role.remote_queues.unlinked(peer)
        role.remote_queues.linked(peer)
