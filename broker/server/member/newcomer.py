"""A start that joins: the node turns an empty data directory into a new member's (waits).

It does the work of `clusterbroker join` in environments without a command before a start: a pod of a set that was
scaled up. The members of the settings are asked in turn, until one of them has an answer. While none can decide (they
start as well, or have no majority) the node waits, and names them; a lasting refusal ends it, because waiting is of
no use then. A founder asks each of the others once: they may have a cluster that it has left.

A directory of a former node is never joined again: a forgotten member would return with it, and the cluster must not
count on its content.
"""

from __future__ import annotations

import asyncio
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.awaiting import come
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.member.addresses import own_address
from clusterbroker.broker.server.member.catching_up import UNWANTED_S
from clusterbroker.broker.server.member.joining import Unanswered, Unjoined, newcomer
from clusterbroker.broker.server.member.raft_directory import is_empty
from clusterbroker.cluster.link.joining import JoinAsked

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ClusterOptions
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

AGAIN_S: Final = 0.3
TELL_S: Final = 5.0
FOUNDER_S: Final = 2.0
"""So long a founder waits for each answer."""


async def join_first(cluster: ClusterPort, shell: ServerPort, directory: Path) -> None:
    """Returns when the locked directory belongs to a member, as one that is not empty does already. Raises Unstarted,
    BadSecret, WrongIdentity, OSError, or what ended the node meanwhile."""
    options = shell.options.cluster
    if options is None or not options.joins or not is_empty(shell.storage.parts):
        return
    if options.founds:
        await _join_if_founded(cluster, shell, directory, options)
        return
    wish = JoinAsked(cluster.name, own_address(cluster.name, options.listen, options.peers, {}))
    refused_s: float | None = None
    said_s = shell.loop.time()
    for to in cycle(options.joins):
        asking = shell.loop.create_task(newcomer(directory, wish, to, options.secret_file))
        try:
            names = await come(asking, shell.ended)
        except Unanswered as error:
            refused_s, why = None, str(error)
        except Unjoined as error:
            # its former self may not be dead yet for the others, so one refusal is not the last word
            now_s = shell.loop.time()
            refused_s, why = now_s if refused_s is None else refused_s, str(error)
            if now_s - refused_s >= UNWANTED_S:
                raise Unstarted(f"to join was refused: {why}") from None
        else:
            cluster.say("joined", f"a member now, with {', '.join(names)}")
            return
        finally:
            asking.cancel()
        cluster.waits = f"for a member that lets it join ({why})"
        if shell.loop.time() - said_s >= TELL_S:
            said_s = shell.loop.time()
            cluster.say("waits", cluster.waits)
        await asyncio.sleep(AGAIN_S)


async def _join_if_founded(cluster: ClusterPort, shell: ServerPort, directory: Path, options: ClusterOptions) -> None:
    """A founder's directory is empty: it is a member's when this returns, or there is no cluster yet that takes it."""
    wish = JoinAsked(cluster.name, own_address(cluster.name, options.listen, options.peers, {}), False)
    for to in options.joins:
        asking = shell.loop.create_task(newcomer(directory, wish, to, options.secret_file, tries=1))
        try:
            names = await come(asyncio.ensure_future(asyncio.wait_for(asking, FOUNDER_S)), shell.ended)
        except (Unjoined, TimeoutError):
            continue
        cluster.say("joined", f"a member again, with {', '.join(names)}")
        return
