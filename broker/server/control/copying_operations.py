"""Operations of a running node about copying to it (waits): replication/pacing.py bounds it.

    copying                     how many copies are being brought up to date, how much came in, what bounds it
    copying.set rate_bytes      bytes per second until the node ends; None: as configured, 0: as fast as it goes
    copying.set paused          true: nothing comes in until it is taken back, or the node ends

A pause leaves queues with fewer copies than they shall have, so an alert holds meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.control.operations import Facts, Refused

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

PAUSED: Final = "copying.paused"


def copying_facts(shell: ServerPort) -> Facts:
    """As fields of a NodeRow; nothing of a node that is alone."""
    if shell.node.role is None:
        return {}
    backup = shell.node.role.copying.backup
    return {
        "copies_syncing": backup.syncing,
        "copying_bytes": backup.rate.bytes,
        "copying_rate_bytes": backup.rate.limit_bytes,
        "copying_paused": backup.rate.paused,
    }


async def _copying(shell: ServerPort, _: Facts) -> Facts:
    """Raises Refused of a node that is alone."""
    if not (facts := copying_facts(shell)):
        raise Refused("this node is alone: it has no copies of others")
    return facts


async def _set_copying(shell: ServerPort, asked: Facts) -> Facts:
    """Raises Refused."""
    role = shell.node.role
    if role is None:
        raise Refused("this node is alone: it has no copies of others")
    rate, name = role.copying.backup.rate, shell.options.node.name
    if "rate_bytes" in asked:
        wanted = asked["rate_bytes"]
        if wanted is None:
            wanted = shell.options.node.copy_rate_bytes
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
            raise Refused("the rate is a number of bytes per second; 0: as fast as it goes")
        rate.limit_bytes = wanted
    paused = asked.get("paused", rate.paused)
    if not isinstance(paused, bool):
        raise Refused("'paused' is true or false")
    rate.paused = paused
    if paused:
        what = "an operator has paused copying to this node: its copies that nobody waits for stay as they are"
        shell.node.alerts.set(PAUSED, name, f"{what}, until clusterbroker copying resume")
    else:
        shell.node.alerts.clear(PAUSED, name)
    shell.schedule()
    return copying_facts(shell)


COPYING: Final[dict[str, Callable[[ServerPort, Facts], Awaitable[Facts]]]] = {
    "copying": _copying,
    "copying.set": _set_copying,
}
