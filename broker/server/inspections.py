"""Requests about single messages at this node, of operators and of clients (waits).

What carries them out is imported with the first one: no start waits for it. Of those of clients CLIENTS_MAX are under
way, so operators find room at the leaders, and WAITING_MAX wait for their turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.stats.inspection import GONE, UNAVAILABLE, Request, Result, Told

if TYPE_CHECKING:
    from clusterbroker.broker.node.member import MemberRole
    from clusterbroker.broker.server.inspecting import Inspector
    from clusterbroker.broker.server.ports import ServerPort

CLIENTS_MAX: Final = 8
WAITING_MAX: Final = 1024
BUSY: Final = "too many clients of this node look at single messages: try again"


class Inspections:
    """Of one node. `role`: what it is to other members; None: it is alone."""

    def __init__(self, shell: ServerPort, role: MemberRole | None) -> None:
        self._shell = shell
        self._part = role
        self._inspector: Inspector | None = None
        self._turns = asyncio.Semaphore(CLIENTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inspector(self) -> Inspector:
        if self._inspector is None:
            from clusterbroker.broker.server.inspecting import Inspector

            self._inspector = Inspector(self._shell, self._part)
        return self._inspector

    async def ask(self, request: Request) -> Result:
        """The result, from the queue's leader. Raises Refused, Unanswered."""
        return await self.inspector.ask(request)

    def begin(self, request: Request, told: Told) -> None:
        """The same for a client of this node (`Node.inspects`)."""
        if len(self._tasks) >= WAITING_MAX:
            told(None, UNAVAILABLE, BUSY)
            return
        task = self._shell.loop.create_task(self._tell(request, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, request: Request, told: Told) -> None:
        from clusterbroker.broker.server.inspecting import Unanswered

        try:
            async with self._turns:
                result = await self.ask(request)
        except Unanswered as why:
            told(None, UNAVAILABLE, str(why))
        except Refused as why:
            told(None, GONE, str(why))
        except Exception as mistake:  # a failed look hurts no message
            self._shell.log.crashed("inspection", mistake)
            told(None, UNAVAILABLE, "the broker made a mistake; see its log")
        else:
            told(result, 0, "")
        self._shell.schedule()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
