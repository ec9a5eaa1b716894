"""How far a copy's log reaches, and what that proves of disks: pure functions.

Theory. Every group of a queue carries its *place* in the queue's log: one more than the group before, over the queue's
whole life. It stands in the log itself (an ATTR record of the name PLACE, verbatim in every copy), so each Append tells
it, each copy keeps it as durably as the messages, and an offer names its owner's. A group is written only when the one
before is committed (primary.py), which makes a place a proof:

    (1) who holds place n knows that everything up to place n - 1 is committed
    (2) an owner, and whoever is in sync or eligible, holds everything that is committed

So between two sound copies that may own the queue there is one place at most, and

    offered < held - 1      the owner lacks what is committed: its disk went back, or it was forced (`lacks`)
    held < offered - 1      a copy in the in-sync set lacks what is committed: this disk went back (`went_back`)
    offered = held - 1      proves nothing: the last group may never have been committed. But it may have been, so an
                            owner that knows its copy from its disk alone lets that copy own the queue (`may_lack`)

A copy of a time before a gap (an operator forced an owner, or accepted a loss) claims nothing: what it knows as
committed is no longer the queue's. What a place cannot see is an owner that went back and has written since: its
places go on, with other messages. For that there is the table of epochs: epochs grow with seq, and a message that is
committed keeps its epoch for ever; a table that was read back from a disk may name an earlier epoch than the true one,
never a later one. So an owner that names a later epoch for the seq of a message which lives here and is committed has
another message there, or none that ever was (`overwritten`). Neither is ever true of what was settled, purged or
expired while a copy was away: that is gone under its own epoch, and the places go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from clusterbroker.journal.ranges import merged

from .messages import Range
from .sync import Epochs, epoch_at

PLACE: Final = b"\x00log"
"""Under this name stands the place of the newest group."""


def place_of(attributes: Mapping[bytes, int]) -> int:
    """The place of the newest group in a log; 0: it has none, or is of a release that did not count."""
    return attributes.get(PLACE, 0)


def offered_place(attributes: Iterable[tuple[bytes, int]]) -> int:
    """The same of an offer."""
    return place_of(dict(attributes))


def lacks(held: int, offered: int) -> bool:
    """Whether an owner at place `offered` lacks what a copy at place `held` knows as committed."""
    return offered < held - 1


def may_lack(held: int, offered: int) -> bool:
    """Whether it lacks what may have been committed."""
    return offered < held


def went_back(held: int, offered: int) -> bool:
    """Whether a copy in the in-sync set lacks what its owner knows as committed."""
    return held < offered - 1


def overwritten(own: Epochs, owner: Epochs, end: int) -> list[Range]:
    """The seqs before `end` that the owner's table gives to a later epoch than this copy's."""
    bounds = sorted({1, end, *(first for _, first in own), *(first for _, first in owner)})
    out: list[Range] = []
    for first, last in pairwise(bounds):
        if first >= 1 and last <= end and 0 < epoch_at(own, first) < epoch_at(owner, first):
            out.append((first, last - 1))
    return merged(out)


def claims(epochs: Sequence[tuple[int, int]], gap_epoch: int) -> bool:
    """Whether a copy with this table may say what is committed: not if it is of before the newest gap."""
    return (epochs[-1][0] if epochs else 0) >= gap_epoch
