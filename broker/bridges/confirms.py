"""Which publishes of one channel its broker has confirmed (pure; amqp-rules 5.4)."""

from __future__ import annotations

from clusterbroker.broker.bridges.errors import Malformed


class Confirms:
    """All up to `upto`, and some beyond."""

    __slots__ = ("_apart", "upto")

    def __init__(self) -> None:
        self.upto = 0
        self._apart: set[int] = set()

    def take(self, tag: int, multiple: bool, published: int) -> None:
        """basic.ack; the tag 0 with `multiple` is all of the `published`. Malformed: of what was not published."""
        if tag > published or (not tag and not multiple):
            raise Malformed("a confirm of what was not published")
        if multiple:
            self.upto = max(self.upto, tag or published)
        else:
            self._apart.add(tag)
        while self.upto + 1 in self._apart:
            self.upto += 1
            self._apart.discard(self.upto)
        if self.upto == published:
            self._apart.clear()
