"""How far readers of a stream say that they are: for who looks at their lag, and never where one of them begins.

A reader tells the stream's owner its name and the offset that it reads next; the last word counts, also a lower one. In
the log it is the attribute BOOKMARK, offset + 1; 0 takes the name out. So copies have it, a checkpoint
keeps it, and the next owner folds it. Who told it hears when it is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.attributes import BOOKMARK

if TYPE_CHECKING:
    from clusterbroker.broker.queues.local_queue import LocalQueue

KEPT_MAX: Final = 256
"""Names of a stream."""
WAITING_MAX: Final = 4096
"""Words that wait for a commit."""


class Bookmarks:
    """Of one stream, while this node owns it. `seqs`: name to the seq of the message that is read next."""

    __slots__ = ("_queue", "_waiting", "seqs")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.seqs = dict(BOOKMARK.of(queue.ring.attributes))

    def keep(self, name: str, seq: int, end: int, then: Callable[[str], None]) -> None:
        """`then` hears why not, or "" when it is committed. seq: 0 forgets the name; end: the stream's."""
        entity = self._queue.entity
        where = f"stream '{entity.name}' in vhost '{entity.vhost}'"
        if seq > end:
            then(f"offset {seq - 1} is beyond {where}, which ends at {end - 1}")
            return
        if seq and name not in self.seqs and len(self.seqs) >= KEPT_MAX:
            then(f"{where} keeps the offsets of {KEPT_MAX} readers, and '{name}' is one more: forget one")
            return
        if len(self._waiting) >= WAITING_MAX:
            then(f"{where} cannot commit")
            return
        if seq:
            self.seqs[name] = seq
        else:
            self.seqs.pop(name, None)
        ring = self._queue.ring
        if not (ring.journaled or ring.replicated):
            then("")
            return
        ring.set_attribute(BOOKMARK.name(name), seq)
        self._waiting.append((self._queue.log.commits, lambda: then("")))
        ring.mark()

    @property
    def waits(self) -> bool:
        """Whether somebody is answered by the next commit."""
        return bool(self._waiting)

    def turn(self) -> None:
        """Answers what has become durable."""
        while self._waiting and self._queue.log.durable(self._waiting[0][0]):
            self._waiting.popleft()[1]()
