"""Which runs the messages of a segment belong to: the specification of `walk_fast`.

The index is ordered by queue and seq, a segment by time. To find out which messages of a segment the index still
knows, the segment's groups are proved and walked once, and only the blocks of seqs that they name are kept: 256
messages of one queue that share a run, neighbours made one. A busy queue's 64 MiB come down to a handful of ranges,
and what is looked up then costs as much as what still lives, not as much as what was ever written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from clusterbroker.journal.layout import ENQ, GROUP_HEADER_BYTES, RUN_LENGTH
from clusterbroker.journal.record_pure import scan_group
from clusterbroker.journal.replay import group_head

if TYPE_CHECKING:
    from clusterbroker.journal.record_pure import Bytes

Seqs: TypeAlias = tuple[int, int, int]
"""queue id, first seq, last seq: whole blocks of RUN_LENGTH"""


def walk_groups(data: Bytes, at: int, base: int = 0) -> tuple[int, list[Seqs]]:
    """Proves the groups that follow each other from data[at] on, where data[0] is byte `base` of its segment.

    Returns (end, seqs): where in `data` the walk ended, and what the groups' ENQ records belong to, ascending. It
    ends at four zero bytes (nothing was written there), at the end of `data`, and before a group that is not whole in
    `data`; the caller goes on there with more bytes. Raises DamagedRecord when anything is not what was written, also
    when the first group is cut off.
    """
    if not 0 <= at <= len(data):
        raise ValueError(f"byte {at} is not one of {len(data)}")
    blocks: set[tuple[int, int]] = set()
    end = at
    while any(data[end : end + 4]) and not (end > at and _goes_on(data, end)):
        _, length, records = scan_group(data, end, base)
        blocks.update((record.queue_id, record.seq // RUN_LENGTH) for record in records if record.kind == ENQ)
        end += length
    return end, merged([(queue, block * RUN_LENGTH, (block + 1) * RUN_LENGTH - 1) for queue, block in blocks])


def _goes_on(data: Bytes, at: int) -> bool:
    """Whether the group at data[at] goes on behind the end of `data`; only a header that is whole may say so."""
    if len(data) - at < GROUP_HEADER_BYTES:
        return True
    head = group_head(bytes(data[at : at + GROUP_HEADER_BYTES]), 0)
    return head is not None and head.length > len(data) - at


def merged(seqs: list[Seqs]) -> list[Seqs]:
    """Ascending, what touches or overlaps made one."""
    found: list[Seqs] = []
    for queue_id, first, last in sorted(seqs):
        if found and found[-1][0] == queue_id and first <= found[-1][2] + 1:
            found[-1] = queue_id, found[-1][1], max(last, found[-1][2])
        else:
            found.append((queue_id, first, last))
    return found
