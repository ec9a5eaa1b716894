"""What a replicated queue's log says besides its messages, as a fold: epochs, attributes, the dead set.

It stands in the queue's meta at a checkpoint and goes on from there with the tail's records. A queue that was never
replicated has attributes only.
"""

from __future__ import annotations

from typing import Any

LAST_DEAD = b"\x00dead"
"""Under this name stands the highest number that a DEAD record of the queue has had."""


class QueueState:
    """epochs     (epoch, its first seq), ascending in both
    attributes  name to value (broker/queues/attributes.py); what was set last stands last
    dead       seq -> mark (number << 8 | reason) of what is held for dead-letter targets
    """

    __slots__ = ("attributes", "dead", "epochs")

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.attributes: dict[bytes, int] = {}
        self.dead: dict[int, int] = {}

    @classmethod
    def of_meta(cls, meta: dict[str, Any]) -> QueueState:
        """Metas of older nodes know nothing of these."""
        state = cls()
        state.epochs = [(epoch, first) for epoch, first in meta.get("epochs", ())]
        state.attributes = {bytes(name): upto for name, upto in meta.get("producers", ())}
        state.dead = dict(meta.get("dead", ()))
        return state

    def into(self, meta: dict[str, Any]) -> None:
        """Writes itself into a meta, as `of_meta` reads it."""
        for name, value in (
            ("epochs", [list(entry) for entry in self.epochs]),
            ("producers", list(self.attributes.items())),
            ("dead", [list(entry) for entry in self.dead.items()]),
        ):
            if value:
                meta[name] = value
            else:
                meta.pop(name, None)

    def began(self, epoch: int, first_seq: int) -> None:
        """An epoch begins at `first_seq`; what a former one was said to begin later never came to be."""
        while self.epochs and (self.epochs[-1][1] >= first_seq or self.epochs[-1][0] >= epoch):
            self.epochs.pop()
        self.epochs.append((epoch, first_seq))

    def cut(self, from_seq: int) -> None:
        """The log ends before that seq. Cut at the first one it begins anew, and the attributes in it are gone."""
        if from_seq <= 1:
            self.attributes.clear()
        while self.epochs and self.epochs[-1][1] >= from_seq:
            self.epochs.pop()
        self.dead = {seq: mark for seq, mark in self.dead.items() if seq < from_seq}

    def set_attribute(self, name: bytes, upto: int) -> None:
        """0 takes the name out."""
        self.attributes.pop(name, None)
        if upto:
            self.attributes[name] = upto

    def died(self, seq: int, mark: int) -> None:
        self.dead[seq] = mark
        number = mark >> 8
        if number > self.attributes.get(LAST_DEAD, 0):
            self.attributes[LAST_DEAD] = number

    def settled(self, first: int, last: int) -> None:
        if last - first < len(self.dead):
            for seq in range(first, last + 1):
                self.dead.pop(seq, None)
        else:
            self.dead = {seq: mark for seq, mark in self.dead.items() if not first <= seq <= last}
