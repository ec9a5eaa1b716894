"""Attach frames: split so that each stays below its bound.

A complete Attach states that every unlisted queue is empty. A split one is several partial frames, and a last one
that is complete and names the queues of the others (`before`). A link keeps their order; after a break all of them
are sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from clusterbroker.broker.remote.messages import Attach, AttachedQueue

ATTACH_BYTES: Final = 8 << 20
"""Of queues in one frame; a single queue may be longer. Frames end at 64 MiB."""
SILENT_MAX: Final = 100_000
"""Queues in one frame of which there is nothing to say."""


def silence(incarnation: int, index: int, queue_ids: Sequence[int]) -> Iterator[Attach]:
    """The frames that say of these queues that nothing is here."""
    for start in range(0, len(queue_ids), SILENT_MAX):
        part = tuple(queue_ids[start : start + SILENT_MAX])
        yield Attach(incarnation, index, (), partial=True, silent=part)


def attaches(incarnation: int, index: int, queues: Iterable[AttachedQueue], complete: bool) -> Iterator[Attach]:
    """The frames that attach these queues, and with `complete` say that there is nothing else."""
    encode = msgspec.msgpack.Encoder().encode
    before: list[int] = []
    part: list[AttachedQueue] = []
    size = 0
    for entry in queues:
        entry_bytes = len(encode(entry))
        if part and size + entry_bytes > ATTACH_BYTES:
            yield Attach(incarnation, index, tuple(part), partial=True)
            before.extend(one.queue_id for one in part)
            part, size = [], 0
        part.append(entry)
        size += entry_bytes
    if complete:
        yield Attach(incarnation, index, tuple(part), before=tuple(before))
    elif part:
        yield Attach(incarnation, index, tuple(part), partial=True)
