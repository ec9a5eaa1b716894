"""Operations of any running node about one queue (waits).

    queues.pause vhost queue                                   nothing is handed out
    queues.resume vhost queue [staged]                         also where it is set aside
    queues.delete-messages vhost queue seqs [staged]           those of these numbers
    queues.delete-messages vhost queue filter [from, to]       those that match, from and up to these numbers

`staged`: the queue is that of the rows which were staged in an exchange of this name. The management API has all of
these as well. They are here because alerts name them, and a node need not have one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.control.operations import NO_LEASE, Facts, Refused
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Queue

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort


def _queue(shell: ServerPort, asked: Facts, take: bool) -> Queue:
    """`take`: something is kept from whoever it belongs to. Raises Refused."""
    if shell.cluster is not None and not shell.cluster.heart.leased():
        raise Refused(NO_LEASE)
    vhost, name, view = str(asked.get("vhost", "/")), str(asked.get("queue")), shell.node.map
    if asked.get("staged") is True:
        queue = next((queue for queue in view.staging_queues(vhost) if queue.name == name), None)
    else:
        queue = view.queue(vhost, name)
    if queue is None:
        what = "are no staged rows of" if asked.get("staged") is True else "is no queue"
        raise Refused(f"there {what} '{name}' in vhost '{vhost}'")
    if take and queue.exclusive_owner is not None:
        raise Refused(f"queue '{name}' in vhost '{vhost}' is exclusive to another connection")
    return queue


async def _set_paused(shell: ServerPort, asked: Facts, paused: bool) -> Facts:
    queue = _queue(shell, asked, take=paused)
    command = c.PauseQueue(vhost=queue.vhost, name=queue.name, paused=paused, staging=queue.staging)
    applied = await shell.propose(command)
    if applied.error is not None:
        raise Refused(applied.error.text)
    return {}


async def _pause(shell: ServerPort, asked: Facts) -> Facts:
    return await _set_paused(shell, {**asked, "staged": False}, True)


async def _resume(shell: ServerPort, asked: Facts) -> Facts:
    return await _set_paused(shell, asked, False)


async def _delete_messages(shell: ServerPort, asked: Facts) -> Facts:
    from clusterbroker.broker.server.inspecting import Unanswered  # imports that no start shall wait for
    from clusterbroker.broker.stats.inspection import TREATED_MAX, Request, decode_request, encode

    queue = _queue(shell, asked, take=True)
    seqs, filter_ = asked.get("seqs"), asked.get("filter")
    if (seqs is None) == (filter_ is None) or (queue.staging and seqs is None):
        raise Refused("say which messages: 'seqs', or 'filter' (an empty one means all) of what is not staged")
    wanted = Request(
        "delete", queue.queue_id, asked.get("from", 1), asked.get("to", 0), TREATED_MAX, filter_ or "", seqs
    )
    try:
        request = decode_request(encode(wanted))
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"no request about messages: {error}") from None
    try:
        result = await shell.inspect(request)
    except Unanswered as why:
        raise Refused(str(why)) from None
    return {"deleted": result.done, "skipped": result.skipped, "next": result.next or None, "last": result.last}


QUEUES: Final[dict[str, Callable[[ServerPort, Facts], Awaitable[Facts]]]] = {
    "queues.pause": _pause,
    "queues.resume": _resume,
    "queues.delete-messages": _delete_messages,
}
