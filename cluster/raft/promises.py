"""Durable promises of other members' logs, as heard by this node: they reveal a log that went back.

Theory. An acknowledgement of term t up to entry i, and a vote of term t, leave when they are durable (G2). From then
on that log is of term t or a later one. While it is of term t it reaches to i, because the one leader of t never cuts
acknowledged entries. The same holds for that leader's log, up to its committed entry: it counts itself. A log that
introduces itself with less is a copy of an earlier time, or its disk lost flushed data. It does not know its later
promises, so it may not vote.

Only a node that heard them can report that, and only while its process lives. A return to the past in all members at
once is not reported here.
"""

from __future__ import annotations

from typing import NamedTuple

from . import messages as m


class Promise(NamedTuple):
    """Of one log: its term is that or a later one, and while it is that, the log reaches to entry `end`."""

    term: int
    end: int


NOTHING = Promise(0, 0)


class Promises:
    """By Raft id. Pure: messages in, and what an introduction contradicts."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[str, Promise] = {}

    def record(self, raft_id: str, message: m.AnyMessage) -> None:
        """Remember what a message over its present link promises."""
        match message:
            case m.Ack():
                promise = Promise(message.term, message.next_index - 1 if message.success and not message.reset else 0)
            case m.Append():
                promise = Promise(message.term, message.commit)
            case m.Vote() | m.AskVote():
                promise = Promise(message.term, 0)
            case _:
                return
        if promise > self._heard.get(raft_id, NOTHING):
            self._heard[raft_id] = promise

    def contradicts(self, raft_id: str, term: int, end: int) -> Promise | None:
        """What was heard of a log that now is of this term and ends with this entry, if that cannot be; term 0: it
        does not say (a release before, or a cluster that is being founded)."""
        heard = self._heard.get(raft_id, NOTHING)
        return heard if term and Promise(term, end) < heard else None
