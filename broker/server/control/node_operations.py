"""Operations of a running node about itself (waits).

status
limit.set name value       consumers-per-channel, queues or exchanges, until the node ends; 0: as configured
alarm.set name raised      a drill: raises "memory" or "disk" whatever is measured, until it is taken back
certificates.reload        reads the TLS certificates anew, here and in the management process
bridges                    all bridges; those that run here with their state and counts
logins.forget              attempts to sign in over AMQP are counted anew, by address and user
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from clusterbroker.broker.node.alerts import ALERTS_SHOWN_MAX
from clusterbroker.broker.server.control.cluster_operations import facts as cluster_facts
from clusterbroker.broker.server.control.copying_operations import copying_facts
from clusterbroker.broker.server.control.operations import Facts, Refused
from clusterbroker.broker.server.tls import Chain, reload_all

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

LIMITS: Final = {
    "consumers-per-channel": "consumers_per_channel_max",
    "queues": "queues_max",
    "exchanges": "exchanges_max",
}


async def _alarm_set(shell: ServerPort, asked: Facts) -> Facts:
    name, raised = asked.get("name"), asked.get("raised")
    if not isinstance(name, str) or name not in shell.alarms.names or not isinstance(raised, bool):
        raise Refused(f"an alarm is one of {', '.join(shell.alarms.names)}, and 'raised' true or false")
    shell.alarms.set(name, "forced by the operator", raised)
    return {"alarms": list(shell.alarms.raised)}


async def _limit_set(shell: ServerPort, asked: Facts) -> Facts:
    field, value = LIMITS.get(str(asked.get("name"))), asked.get("value")
    if field is None or not isinstance(value, int) or value < 0:
        raise Refused(f"a limit is one of {', '.join(LIMITS)}, and its value a number")
    changed: dict[str, Any] = {field: value or getattr(shell.options.node, field)}
    shell.node.options = replace(shell.node.options, **changed)
    return changed


def reload_certificates(shell: ServerPort) -> list[str]:
    """Here and in the management process. What went wrong here, one line for each file; there it is logged."""
    if shell.control is not None:
        shell.control.reload()
    return reload_all(chains(shell), shell.log.emit)


async def _certificates_reload(shell: ServerPort, _: Facts) -> Facts:
    wrong = reload_certificates(shell)
    if wrong:
        raise Refused(f"the certificate in force stays: {wrong[0]}")
    return {"certificates": [chain.facts for chain in chains(shell)]}


def chains(shell: ServerPort) -> list[Chain]:
    """The certificates of a node's listeners, each once."""
    found = {id(listener.tls): listener.tls for listener in shell.listeners if listener.tls is not None}
    return list(found.values())


async def _status(shell: ServerPort, _: Facts) -> Facts:
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
        "alerts": [asdict(alert) for alert in islice(node.alerts, ALERTS_SHOWN_MAX)],
        "alerts_count": len(node.alerts),
        "scrub": _scrub(shell),
        **copying_facts(shell),
        "resident_bytes": resident_bytes(),
        "memory_limit_bytes": shell.alarms.memory_limit_bytes,
        **member,
    }


def _scrub(shell: ServerPort) -> Facts | None:
    scrub = shell.scrub
    if scrub is None:
        return None
    return {"percent": scrub.percent, "passes": scrub.passes, "bytes": scrub.bytes_read, "found": scrub.found}


async def _logins_forget(shell: ServerPort, _: Facts) -> Facts:
    shell.node.churn.logins.reset()
    return {}


async def _bridges(shell: ServerPort, _: Facts) -> Facts:
    return {"bridges": shell.bridges.rows() if shell.bridges is not None else []}


OF_NODE: Final[dict[str, Callable[[ServerPort, Facts], Awaitable[Facts]]]] = {
    "status": _status,
    "limit.set": _limit_set,
    "alarm.set": _alarm_set,
    "certificates.reload": _certificates_reload,
    "logins.forget": _logins_forget,
    "bridges": _bridges,
}
