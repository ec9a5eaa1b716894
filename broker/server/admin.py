"""The operator's door of a running node: a Unix socket in the data directory, for its owner only (waits).

`broker.server.admin_client` asks. Each line is a JSON object with `do` and its arguments, each answer a line:
{"ok": true, ...} or {"ok": false, "error": "..."}. Who may open the socket may read the data directory anyway, so
nobody is asked for a password. The requests are those of `broker.server.operations`, `cluster_operations` and
`queue_operations`, and some that only a running node can answer. A member of a cluster that still waits for others
answers `status`, and says for whom.

    status
    limit.set name value       consumers-per-channel, queues or exchanges, until the node ends; 0: as configured
    copying, copying.set       see copying_control
    alarm.set name raised      a drill: raises "memory" or "disk" whatever is measured, until it is taken back
    certificates.reload        reads the TLS certificates anew, here and in the management process

Deeds, done and refused, are told to the audit with the user id of whoever opened the socket.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from clusterbroker.broker.node.alerts import ALERTS_TOLD_MAX
from clusterbroker.broker.server.admin_client import NAME
from clusterbroker.broker.server.audit import Audit
from clusterbroker.broker.server.certificates import Chain, reload_all
from clusterbroker.broker.server.cluster_operations import CLUSTER
from clusterbroker.broker.server.cluster_operations import facts as cluster_facts
from clusterbroker.broker.server.copying_control import copying, copying_facts, set_copying
from clusterbroker.broker.server.endings import Restart
from clusterbroker.broker.server.operations import Facts, Refused, carry_out
from clusterbroker.broker.server.private_socket import bound
from clusterbroker.broker.server.queue_operations import QUEUES
from clusterbroker.broker.visible import visible
from clusterbroker.cluster import commands as c
from clusterbroker.cluster.state import Applied
from clusterbroker.cluster.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.server.shell import NodeShell

LINE_BYTES_MAX = 1 << 20
ROOT = "uid 0"
SUDO_MAX = 64
"""Characters of a user's name. It is what root's process says of itself, and root may say anything."""
QUESTIONS = frozenset(
    (
        "status",
        "members",
        "queues",
        "copies",
        "copying",
        "leave.progress",
        "user.list",
        "vhost.list",
        "permission.list",
        "policy.list",
    )
)
"""What is only asked changes nothing, and is no deed."""
TOLD = (
    "name", "user", "vhost", "exchange", "queue", "tags", "configure", "write", "read", "pattern", "definition",
    "apply_to", "priority", "limit", "value", "raised", "to", "member", "node", "undo", "accept_loss", "description",
    "replace", "rate_bytes", "paused", "staged", "seqs", "filter",
)  # fmt: skip
"""Arguments that the audit may tell. A password is none of these."""


async def _alarm_set(shell: NodeShell, asked: Facts) -> Facts:
    name, raised = asked.get("name"), asked.get("raised")
    if not isinstance(name, str) or name not in shell.alarms.names or not isinstance(raised, bool):
        raise Refused(f"an alarm is one of {', '.join(shell.alarms.names)}, and 'raised' true or false")
    shell.alarms.set(name, "forced by the operator", raised)
    return {"alarms": list(shell.alarms.raised)}


LIMITS = {
    "consumers-per-channel": "consumers_per_channel_max",
    "queues": "queues_max",
    "exchanges": "exchanges_max",
}


async def _limit_set(shell: NodeShell, asked: Facts) -> Facts:
    field, value = LIMITS.get(str(asked.get("name"))), asked.get("value")
    if field is None or not isinstance(value, int) or value < 0:
        raise Refused(f"a limit is one of {', '.join(LIMITS)}, and its value a number")
    changed: dict[str, Any] = {field: value or getattr(shell.options.node, field)}
    shell.node.options = replace(shell.node.options, **changed)
    return changed


def reload_certificates(shell: NodeShell) -> list[str]:
    """Here and in the management process. What went wrong here, one line for each file; there it is logged."""
    if shell.desk is not None:
        shell.desk.reload()
    return reload_all(chains(shell), shell.log.say)


async def _certificates_reload(shell: NodeShell, _: Facts) -> Facts:
    wrong = reload_certificates(shell)
    if wrong:
        raise Refused(f"the certificate in force stays: {wrong[0]}")
    return {"certificates": [chain.facts for chain in chains(shell)]}


def chains(shell: NodeShell) -> list[Chain]:
    """The certificates of a node's listeners, each once."""
    found = {id(listener.tls): listener.tls for listener in shell.listeners if listener.tls is not None}
    return list(found.values())


async def _status(shell: NodeShell, _: Facts) -> Facts:
    from clusterbroker.broker.server.alarms import resident_bytes

    if not shell.started:
        return {"name": shell.options.node.name, "state": "waits", "waits_for": [shell.waits_for]}
    node = shell.node
    queues = [queue for queue in node.queues.values() if not queue.entity.staging]
    member = cluster_facts(shell) if shell.cluster is not None else {}
    return {
        "name": node.options.name,
        "incarnation": node.options.incarnation,
        "listeners": [f"{listener.protocol} {where}" for listener in shell.listeners for where in listener.addresses],
        "connections": len(node.clients),
        "channels": sum(len(connection.channels) for connection in node.clients.values()),
        "vhosts": len(node.vhosts),
        "queues": len(queues),
        "messages_ready": sum(queue.ready for queue in queues),
        "messages_unacknowledged": sum(queue.ring.unacked for queue in queues),
        "alarms": list(shell.alarms.raised),
        "alerts": [asdict(alert) for alert in islice(node.alerts, ALERTS_TOLD_MAX)],
        "alerts_count": len(node.alerts),
        "scrub": _scrub(shell),
        **copying_facts(shell),
        "resident_bytes": resident_bytes(),
        "memory_limit_bytes": shell.alarms.memory_limit_bytes,
        **member,
    }


def _scrub(shell: NodeShell) -> Facts | None:
    scrub = shell.scrub
    if scrub is None:
        return None
    return {"percent": scrub.percent, "passes": scrub.passes, "bytes": scrub.bytes_read, "found": scrub.found}


async def _logins_forget(shell: NodeShell, _asked: Facts) -> Facts:
    """Attempts to sign in over AMQP are counted anew, by address and user."""
    shell.node.churn.logins.reset()
    return {}


RUNNING: dict[str, Callable[[NodeShell, Facts], Awaitable[Facts]]] = {
    "limit.set": _limit_set,
    "alarm.set": _alarm_set,
    "certificates.reload": _certificates_reload,
    "logins.forget": _logins_forget,
    "status": _status,
    "copying": copying,
    "copying.set": set_copying,
    **CLUSTER,
    **QUEUES,
}


class Running:
    """The Operator of a running node."""

    __slots__ = ("_shell",)

    def __init__(self, shell: NodeShell) -> None:
        self._shell = shell

    @property
    def map(self) -> ClusterView:
        return self._shell.node.map

    @property
    def password_cost(self) -> int:
        return self._shell.options.password_cost

    async def order(self, command: c.AnyCommand) -> Applied:
        return await self._shell.propose(command)


class AdminSocket:
    """Serves one data directory. The directory's lock says that a socket found there is a dead one."""

    __slots__ = ("_audit", "_operator", "_path", "_server", "_shell", "_tasks")

    def __init__(self, shell: NodeShell, path: Path) -> None:
        self._shell = shell
        self._path = path
        self._operator = Running(shell)
        self._audit = Audit(shell.options.node.name, shell.options.audit, shell.log)
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, shell: NodeShell, directory: Path) -> AdminSocket:
        self = cls(shell, directory / NAME)
        listening = bound(directory, NAME)
        try:
            self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LINE_BYTES_MAX)
        except BaseException:
            listening.close()
            raise
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served by tasks"
        self._tasks.add(task)
        asked = False
        try:
            while line := await reader.readline():
                asked = True
                writer.write(json.dumps(await self._answer(line, _who(writer))).encode() + b"\n")
                asked = False
                await writer.drain()
        except asyncio.CancelledError:
            if asked:  # it was not known yet what came of it
                writer.write(json.dumps({"ok": False, "error": self._why_not()}).encode() + b"\n")
        except (ConnectionError, ValueError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def _why_not(self) -> str:
        """What became of a request that the node's end cut off."""
        ended = self._shell.ended
        failure = ended.result() if ended.done() else None
        if isinstance(failure, Restart):
            return f"the node begins again meanwhile ({failure}): see its status, and ask again"
        return "the node stopped meanwhile: look at what came of it, and ask again"

    async def _answer(self, line: bytes, who: str) -> Facts:
        asked: Any = None
        try:
            asked = json.loads(line)
            answer = await self._done(asked)
        except (Refused, ValueError) as error:
            self._tell(asked, who, str(error))
            return {"ok": False, "error": str(error)}
        except Restart as error:
            self._tell(asked, who, f"the node begins again: {error}")
            return {"ok": False, "error": f"the node begins again meanwhile ({error}): see its status, and ask again"}
        except Exception as error:
            self._tell(asked, who, "a mistake of the broker")
            self._shell.log.crashed(NAME, error)
            return {"ok": False, "error": "the broker made a mistake; see its log"}
        self._tell(asked, who, None)
        return answer

    async def _done(self, asked: Any) -> Facts:
        if not isinstance(asked, dict):
            raise Refused("a request is a JSON object")
        do = asked.get("do")
        if not self._shell.started and do != "status":
            raise Refused(f"the node is starting: it waits {self._shell.waits_for}")
        if isinstance(do, str) and do in RUNNING:
            return {"ok": True, **await RUNNING[do](self._shell, asked)}
        return {"ok": True, **await carry_out(self._operator, asked)}

    def _tell(self, asked: Any, who: str, why: str | None) -> None:
        if not isinstance(asked, dict) or not isinstance(asked.get("do"), str) or asked["do"] in QUESTIONS:
            return
        if who == ROOT and isinstance(sudo := asked.get("sudo"), str):
            who = f"{who} (sudo of {visible(sudo[:SUDO_MAX])})"
        on = {name: asked[name] for name in TOLD if isinstance(asked.get(name), (str, int, list, dict))}
        facts = {"user": who, "from": NAME, "via": "admin.sock", "what": asked["do"], "on": on}
        if why is None:
            self._audit.done(**facts)
        else:
            self._audit.refused(**facts, why=why)

    async def close(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        self._path.unlink(missing_ok=True)
        await asyncio.to_thread(self._audit.close)


def _who(writer: asyncio.StreamWriter) -> str:
    """Who opened the socket, as the system says."""
    opened = writer.get_extra_info("socket")
    if opened is None or not hasattr(socket, "SO_PEERCRED"):
        return ""
    _, uid, _ = struct.unpack("3i", opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return f"uid {uid}"
