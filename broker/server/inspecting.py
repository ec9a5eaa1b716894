"""An operator's requests about single messages, on their way to the queue's leader and back (waits).

Any member takes a request. It finds the leader in the map, and again if that one is no leader any more or has the queue
not open, as long as nothing has been begun. After that, without an answer (lost link, lost leader), only a browse is
repeated; any other request may have been carried out.

At most AT_ONCE_MAX are under way at a leader. Each is a walk in slices (`broker.node.inspecting`), reasons of a pool
are one slice. They take turns, one slice at a time, each followed by as much time for everything else: clients wait for
one slice, and the node goes on with half its power at least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from clusterbroker.broker.node.holders import holders, progress
from clusterbroker.broker.node.inspecting import GONE, Inspection
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.stats.inspection import (
    DELETED,
    LOOKED_MS_MAX,
    Request,
    Result,
    decode_request,
    decode_result,
    encode,
    life_of,
)
from clusterbroker.broker.stats.message_filter import BadFilter
from clusterbroker.broker.stats.peer_messages import InspectAnswer, InspectAsk
from clusterbroker.broker.streams.stream import Stream
from clusterbroker.cluster.ids import QueueId
from clusterbroker.cluster.wiring.levels import ASKED_HOLDERS

if TYPE_CHECKING:
    from clusterbroker.broker.node.member import MemberRole
    from clusterbroker.broker.server.ports import ServerPort

T = TypeVar("T")

PATIENCE_S: Final = 5.0
"""Time to find a leader that has the queue open."""
ANSWER_S: Final = 25.0
AGAIN_S: Final = 0.05
LOOK_S: Final = 0.002
AT_ONCE_MAX: Final = 16
A_STREAM: Final = "it is a stream: consume from it with x-stream-offset"
ANOTHER_LIFE: Final = "the queue was declared anew, or has lost messages, since these were looked at: look again"
IN_DOUBT: Final = "its leader was lost before it answered: it may have been carried out, check the queue"
NOT_OPEN: Final = "the queue is being taken over, or handed over: try again"
NO_CONTROLLER: Final = "only the orphan queue of a worker pool is asked for reasons"
BUSY: Final = "its leader examines too many queues at once: try again"
FULL_LINK: Final = "the link to the queue's leader is full: try again"


class NotYet(Exception):
    """Nothing has been begun: a retry is safe."""


class Unanswered(Exception):
    """The request could not be carried out now; the text says why."""


FAILURES: Final = {"not_yet": NotYet, "unanswered": Unanswered, "refused": Refused}


class Inspector:
    """One member's requests to leaders, and its answers as one."""

    def __init__(self, shell: ServerPort, role: MemberRole | None) -> None:
        self._shell = shell
        self._part = role
        self._ask = 0
        self._asked: dict[int, tuple[str, asyncio.Future[tuple[InspectAnswer, bytes]]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._underway = 0
        self._turn = asyncio.Lock()  # whoever has waited for the longest is next

    # -- asking -----------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Result:
        """Raises Refused, Unanswered."""
        loop = self._shell.loop
        if request.what == "holders":
            return await self._holders(request)
        end_s = loop.time() + PATIENCE_S
        while True:
            queue = self._shell.node.map.queue_by_id(QueueId(request.queue_id))
            if queue is None:
                raise Refused(DELETED)
            try:
                if queue.owner is None:
                    awaited = ", ".join(sorted({*queue.in_sync, *queue.eligible}))
                    raise NotYet(f"the queue has no leader: it waits for {awaited}")
                if self._part is None or queue.owner == self._part.name:
                    return await self._here(request)
                return await self._there(queue.owner, request)
            except NotYet as why:
                if loop.time() >= end_s:
                    raise Unanswered(str(why)) from None
            await asyncio.sleep(AGAIN_S)

    async def _holders(self, request: Request) -> Result:
        """Of the node that the request names."""
        if self._part is None or request.at == self._part.name:
            return self._held_here(request)
        if self._shell.node.map.level < ASKED_HOLDERS:
            raise Unanswered(f"below feature level {ASKED_HOLDERS} members do not say who holds a message")
        try:
            return await self._there(request.at, request)
        except NotYet as why:
            raise Unanswered(str(why)) from None

    def _held_here(self, request: Request) -> Result:
        node = self._shell.node
        found = holders(node, request.queue_id, request.seqs or ())
        return Result(
            node.options.name, request.queue_id, "", len(found), 0, 0, holders=found,
            progress=progress(node, request, found),
        )  # fmt: skip

    def _explained(self, request: Request) -> Result:
        queue = self._opened(request)  # it may have waited for its turn
        if not isinstance(queue, OrphanQueue):
            raise Refused(NO_CONTROLLER)
        if request.what == "history":
            explained = queue.history(request.keys)
        else:
            explained = queue.explained(request.keys, request.places)
        return Result(self._shell.node.options.name, request.queue_id, "", 0, 0, 0, explained=explained)

    async def _there(self, owner: str, request: Request) -> Result:
        role, loop = self._part, self._shell.loop
        assert role is not None, "who is alone owns all queues"
        self._ask += 1
        ask, session = self._ask, role.hub.linked.get(owner)
        answered: asyncio.Future[tuple[InspectAnswer, bytes]] = loop.create_future()
        if not role.send(owner, InspectAsk(ask), (encode(request),)):
            raise NotYet(f"there is no link to '{owner}', which leads the queue")
        self._shell.schedule()
        self._asked[ask] = owner, answered
        try:
            end_s = loop.time() + ANSWER_S
            while not answered.done():
                await asyncio.wait((answered,), timeout=AGAIN_S)
                lost = role.hub.linked.get(owner) != session or loop.time() >= end_s
                if lost and not answered.done():
                    raise NotYet(IN_DOUBT) if request.what == "browse" else Unanswered(IN_DOUBT)
        finally:
            del self._asked[ask]
        answer, payload = answered.result()
        if (failure := FAILURES.get(answer.outcome)) is not None:
            raise failure(answer.why)
        try:
            return decode_result(payload)
        except ValueError as error:
            raise Unanswered(f"'{owner}' answered what this release does not know: {error}") from error

    def answered(self, peer: str, answer: InspectAnswer, payload: memoryview) -> None:
        asked = self._asked.get(answer.ask)
        if asked is not None and asked[0] == peer and not asked[1].done():
            asked[1].set_result((answer, bytes(payload)))

    # -- answering --------------------------------------------------------------------------------------------

    def asked(self, peer: str, asked: InspectAsk, payload: memoryview) -> None:
        task = self._shell.loop.create_task(self._answer(peer, asked.ask, bytes(payload)))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, peer: str, ask: int, stored: bytes) -> None:
        role, payload = self._part, b""
        assert role is not None, "nobody asks who is alone"
        try:
            payload = encode(await self._here(decode_request(stored)))
            answer = InspectAnswer(ask)
            if len(payload) > role.room(peer):
                payload, answer = b"", InspectAnswer(ask, "unanswered", FULL_LINK)
        except NotYet as why:
            answer = InspectAnswer(ask, "not_yet", str(why))
        except Unanswered as why:
            answer = InspectAnswer(ask, "unanswered", str(why))
        except (Refused, ValueError) as why:
            answer = InspectAnswer(ask, "refused", str(why))
        except Exception as mistake:  # a failed look hurts no message
            self._shell.log.crashed("inspection", mistake)
            answer = InspectAnswer(ask, "refused", "the broker made a mistake; see its log")
        role.send(peer, answer, (payload,))
        self._shell.schedule()

    async def _here(self, request: Request) -> Result:
        if request.what == "holders":
            return self._held_here(request)
        queue = self._opened(request)
        if self._underway >= AT_ONCE_MAX:
            raise NotYet(BUSY)
        self._underway += 1
        try:
            if request.what in ("explain", "history"):
                return await self._slice(lambda _: self._explained(request))
            return await self._inspected(queue, request)
        finally:
            self._underway -= 1

    def _opened(self, request: Request) -> LocalQueue:
        """The queue, if this node may answer for it now."""
        shell, node = self._shell, self._shell.node
        queue = node.queues.get(request.queue_id)
        if queue is None or queue.deleted:
            raise NotYet("the queue's leader is about to change: try again")
        if request.life and request.life != life_of(queue.entity):
            raise Refused(ANOTHER_LIFE)
        if isinstance(queue, Stream):
            raise Refused(A_STREAM)
        if node.setting_aside.is_closed(queue) or (shell.cluster is not None and not shell.cluster.heart.leased()):
            raise NotYet(NOT_OPEN)
        return queue

    async def _inspected(self, queue: LocalQueue, request: Request) -> Result:
        shell = self._shell
        try:
            inspection = Inspection(shell.node, queue, request, shell.clock.now_ms() + LOOKED_MS_MAX)
        except BadFilter as error:
            raise Refused(str(error)) from None
        try:
            while not inspection.over:
                if not await self._slice(inspection.step) and not inspection.over:
                    await asyncio.sleep(LOOK_S)
        finally:
            inspection.leave()
        if inspection.error == GONE:
            raise NotYet(GONE) if request.what == "browse" else Unanswered(IN_DOUBT)
        if inspection.error:
            raise Unanswered(inspection.error)
        return inspection.result

    async def _slice(self, work: Callable[[int], T]) -> T:
        """One slice of work, in its turn, then as long for everything else."""
        shell, node = self._shell, self._shell.node
        async with self._turn:
            if shell.ended.done():
                raise Unanswered("the node has ended")
            node.now_ms = shell.clock.now_ms()
            began_s = shell.loop.time()
            done = work(node.now_ms)
            shell.schedule()
            await asyncio.sleep(shell.loop.time() - began_s)
            return done
