"""The size of one group commit.

A group is bytes that the loop puts together without serving clients, in one piece of memory, and a file has room for
4 GiB of it at most. One message may go to thousands of queues, and each of them writes it down. A group is therefore
full at `group_bytes_max`, and one queue's records more; the other queues come with the next one.

Inseparable records (a transaction on a node that is alone, letters between queues with one copy) are not divided, up
to TOGETHER_BYTES_MAX: no group would take more. A crash between two groups may then part them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.queues.local_queue import LocalQueue
    from clusterbroker.journal.record import GroupWriter

TOGETHER_BYTES_MAX: Final = 1 << 30


def expected_bytes(node: NodeCore, undivided: bool, room: int) -> int:
    """About so many bytes the next group will take; at most so many if that surely fits `room`: no message is looked at
    then."""
    role = node.role
    most = sum([queue.ring.unwritten_most for queue in node.writes])
    if role is not None:
        most += role.copying.pending_bytes
    if most <= room:
        return most
    size = sum([queue.ring.unwritten_bytes for queue in node.writes])
    if size > node.options.group_bytes_max:
        own_max, size = _own_max(node, undivided), 0
        for queue in node.writes:
            if size <= (own_max if role is None or not queue.ring.replicated else node.options.group_bytes_max):
                size += queue.ring.unwritten_bytes
    return size if role is None else size + role.copying.pending_bytes


def fill(
    node: NodeCore, writer: GroupWriter, undivided: bool, patient: bool, now_ms: int
) -> tuple[list[tuple[LocalQueue, int]], bool, bool]:
    """Puts into the group what queues have to write: queues with one copy and how far they are written with it; whether
    somebody waits for the disk; whether what belongs together is parted, so that who waits for all of it waits on.

    `patient`: messages may be left out that are about to be acknowledged.
    """
    queues: list[tuple[LocalQueue, int]] = []
    role, sync, parted, left = node.role, False, False, False
    patient = patient and not undivided
    writes, node.writes, node.urgent = node.writes, {}, False
    own_max, replicated_max = _own_max(node, undivided), node.options.group_bytes_max
    for queue in writes:
        replicated = role is not None and queue.ring.replicated
        size = writer.size if role is None else max(writer.size, role.copying.volatile_bytes)
        if size > (replicated_max if replicated else own_max):
            node.writes[queue] = None
            node.urgent = left = True
            parted = parted or (undivided and not replicated)
        elif role is not None and replicated:
            sync = role.copying.write_own(queue, writer) or sync
        else:
            queues.append((queue, queue.ring.write(writer, queue.ripe(now_ms) if patient else 0)))
            sync = sync or queue.settings.durability == "fsync"
            if patient and queue.ring.needs_write:
                node.write(queue)
    node.unwritten_bytes = max(0, node.unwritten_bytes - writer.size) if left else 0
    return queues, sync, parted


def _own_max(node: NodeCore, undivided: bool) -> int:
    """Of queues with one copy."""
    return TOGETHER_BYTES_MAX if undivided else node.options.group_bytes_max
