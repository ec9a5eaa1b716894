"""Places: the reach of a copy's log, and its proof of a disk's state. Pure functions.

Theory. Every group of a queue carries its *place* in the queue's log: one more than the group before, over the
queue's whole life. The place stands in the log itself (an ATTR record of the name PLACE, verbatim in every copy). Each
Append therefore carries it, each copy keeps it as durably as the messages, and an offer names its owner's. A group is
written only after the commit of the one before (primary.py), which makes a place a proof:

    (1) a holder of place n knows that everything up to place n - 1 is committed
    (2) an owner, and each member of the in-sync and eligible sets, holds everything that is committed

So two sound copies that may own the queue are at most one place apart, and

    offered < held - 1      the owner lacks committed records: its disk went back, or it was forced (`lacks`)
    held < offered - 1      a copy in the in-sync set lacks committed records: this disk went back (`went_back`)
    offered = held - 1      proves nothing: the last group may never have been committed. But it may have been, so an
                            owner that knows its copy from its disk alone lets that copy own the queue (`may_lack`)

A copy from before a gap (an operator forced an owner, or accepted a loss) claims nothing: its committed records are
no longer the queue's. A place cannot show an owner that went back and has written since: its places go on, with other
messages. The table of epochs shows it. Epochs grow with seq, and a committed message keeps its epoch for ever. A
table that was read back from a disk may name an earlier epoch than the true one, never a later one. An owner that
names a later epoch for the seq of a message which lives here and is committed therefore has another message there, or
none that ever was (`overwritten`). Neither is true of messages that were settled, purged or expired while a copy was
away: they are gone under their own epoch, and the places go on.
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
