"""Which sparse segments are worth copying forward: a pure core.

Most of what a segment still holds when it has become sparse leaves by itself: the last messages of a load that goes on,
or of a backlog that is consumed. To read and to write them again would be work for nothing, and it would be done beside
the very load that is about to settle them. What stays thin is another matter: one message a segment that nobody
takes would keep all of its disk for ever.

So each checkpoint shows what it found sparse, and a segment *lingers* when an earlier checkpoint had shown it and at
least half of what lived in it then still does. One that has lost more than half begins anew with what is left. That
can happen no more often than the live bytes can be halved, about 24 times for a segment of 64 MiB: after so many
checkpoints a sparse segment is empty, or it lingers.
"""

from __future__ import annotations


class Lingering:
    __slots__ = ("_live",)

    def __init__(self) -> None:
        self._live: dict[int, int] = {}

    def shown(self, sparse: dict[int, int]) -> list[int]:
        """A checkpoint found these segments sparse (live bytes by number, none of them 0); which of them linger, the
        oldest first."""
        assert all(sparse.values()), "a segment without live bytes is no longer anybody's"
        lingering = []
        for segment in sorted(sparse):
            before = self._live.get(segment)
            if before is not None and sparse[segment] * 2 >= before:
                lingering.append(segment)
            else:
                self._live[segment] = sparse[segment]
        self._live = {segment: live for segment, live in self._live.items() if segment in sparse}
        return lingering

    def taken(self, segment: int) -> None:
        """It is copied forward now. Should it come again all the same, others come first."""
        self._live.pop(segment, None)
