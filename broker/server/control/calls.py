"""Operations of a running node, called by name, and their audit (waits).

    `wiring`     `operations`, which a stopped node knows as well (`broker.cli.stopped_node`)
    `running`    NODE: `node_operations`, `cluster_operations`, `queue_operations`, `copying_operations`

A member of a cluster that still waits for others answers `status`, and says for whom. Calls of commands, done and
refused, go to the audit with the user id of the process that opened the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.server.audit import Audit
from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.cluster_operations import CLUSTER
from clusterbroker.broker.server.control.copying_operations import COPYING
from clusterbroker.broker.server.control.node_operations import OF_NODE
from clusterbroker.broker.server.control.operations import LISTS, Facts, Refused, carry_out
from clusterbroker.broker.server.control.queue_operations import QUEUES
from clusterbroker.broker.server.endings import Restart
from clusterbroker.broker.visible import visible
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

ROOT: Final = "uid 0"
SUDO_MAX: Final = 64
"""Characters of a user's name. It is what root's process says of itself, and root may say anything."""
QUESTIONS: Final = frozenset(("status", "members", "queues", "copies", "copying", "bridges", "leave.progress", *LISTS))
"""Operations that change nothing: the audit does not have them."""
TOLD: Final = (
    "name", "user", "vhost", "exchange", "queue", "tags", "configure", "write", "read", "pattern", "definition",
    "apply_to", "priority", "limit", "value", "raised", "to", "member", "node", "undo", "accept_loss", "description",
    "replace", "rate_bytes", "paused", "staged", "seqs", "filter", "level",
)  # fmt: skip
"""Arguments that the audit may tell. A password is none of these."""
NODE: Final[dict[str, Callable[[ServerPort, Facts], Awaitable[Facts]]]] = {**OF_NODE, **COPYING, **CLUSTER, **QUEUES}
"""Operations of a running node only."""


class _Running:
    """The Operator of a running node."""

    __slots__ = ("_shell",)

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell

    @property
    def map(self) -> ClusterView:
        return self._shell.node.map

    @property
    def password_cost(self) -> int:
        return self._shell.options.password_cost

    async def order(self, command: c.AnyCommand) -> Applied:
        return await self._shell.propose(command)


class Calls:
    """Of one node; `close` in the end."""

    __slots__ = ("_audit", "_operator", "_shell")

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._operator = _Running(shell)
        self._audit = Audit(shell.options.node.name, shell.options.audit, shell.log)

    async def perform(self, operation: str, arguments: Facts) -> Facts:
        """Raises Refused, ValueError, Restart."""
        if not self._shell.started and operation != "status":
            raise Refused(f"the node is starting: it waits {self._shell.waits_for}")
        if operation in NODE:
            return await NODE[operation](self._shell, arguments)
        return await carry_out(self._operator, operation, arguments)

    async def answer(self, call: m.Call, uid: str) -> m.Done:
        """To a command of the user `uid`, audited."""
        facts: Facts = {}
        said = error = ""
        try:
            facts = await self.perform(call.operation, call.arguments)
        except (Refused, ValueError) as refused:
            said = error = str(refused)
        except Restart as restart:
            said = f"the node begins again: {restart}"
            error = _meanwhile(restart)
        except asyncio.CancelledError:  # the node ends, and what came of the call is not known
            ended = self._shell.ended
            return m.Done(call.number, {}, _meanwhile(ended.result() if ended.done() else None))
        except Exception as mistake:
            said, error = "a mistake of the broker", "the broker made a mistake; see its log"
            self._shell.log.crashed(m.NAME, mistake)
        if call.operation not in QUESTIONS:
            self._record(call, uid, said)
        return m.Done(call.number, facts, error)

    def _record(self, call: m.Call, uid: str, why: str) -> None:
        who = f"{uid} (sudo of {visible(call.sudo[:SUDO_MAX])})" if uid == ROOT and call.sudo else uid
        asked = call.arguments
        on = {name: asked[name] for name in TOLD if isinstance(asked.get(name), (str, int, list, dict))}
        facts: dict[str, Any] = {"user": who, "from": m.NAME, "via": m.NAME, "what": call.operation, "on": on}
        if why:
            self._audit.refused(**facts, why=why)
        else:
            self._audit.done(**facts)

    def close(self) -> None:
        """Blocks until the audit is written."""
        self._audit.close()


def _meanwhile(ended: BaseException | None) -> str:
    if isinstance(ended, Restart):
        return f"the node begins again meanwhile ({ended}): see its status, and ask again"
    return "the node stopped meanwhile: look at what came of it, and ask again"
