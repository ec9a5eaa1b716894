"""Refused offers, and the owner's reaction: one of the two disks may have gone back (places.py).

    ground   the copy says                                    the owner
    OTHER    another epoch, a damaged copy                    offers again after a second
    AHEAD    the owner lacks committed records                gives the queue to that copy, and leaves the in-sync set
    LATER    the owner may lack committed records             hands the queue to that copy, if it may own it
    BEHIND   the copy itself lacks committed records          takes it out of the in-sync set, and syncs it

The queue goes to the copy that is ahead as long as nothing was committed in this epoch and the wiring permits: that
copy must be alive, in sync or eligible. Until the wiring has answered, nothing is committed and no member leaves the
in-sync set. Otherwise the copy that is ahead might leave it for lack of progress, and the queue would begin without
it. A copy that is ahead and may not own the queue is *kept apart*: nothing of it is cut, it does not count, and an
operator decides.

A copy that may not own the queue may have one group more than an owner that knows its copy from its disk alone
(LATER). If no disk went back, that group was never committed, and is cut. If the owner's did, the copies that may own
the queue have the group. So the owner is *in doubt*, and adds no member to the set, until one of them has been synced
(it had no more, so no disk went back) or leads, at most for DOUBT_MS: an absent one must not hold the queue for ever.

An heir that the wiring refuses died meanwhile, or left the sets. That proves nothing about the others, which may have
the same group and are still asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from .copies import Copy, Owned, Peer
from .messages import AHEAD, BEHIND, LATER, SyncRefused
from .offers import APART_MS, Offers
from .ports import OwnerHost

DOUBT_MS: Final = 30_000


class Refusals:
    """Those of all queues of one owner. `changed(owned)`: its in-sync set may have to change."""

    def __init__(self, host: OwnerHost, name: str, offers: Offers, changed: Callable[[Owned], None]) -> None:
        self._host = host
        self._name = name
        self._offers = offers
        self._changed = changed

    def refused(self, peer: Peer, owned: Owned, copy: Copy, refusal: SyncRefused, now_ms: int) -> None:
        """The copy is WAITING; what is to be offered again is."""
        queue_id = owned.queue_id
        if refusal.ground == BEHIND:
            copy.behind = True
            self._host.replication_event("rolled_back", queue_id, peer.name, refusal.why)
            self._offers.enqueue(peer, owned)
            self._changed(owned)
        elif refusal.ground not in (AHEAD, LATER):
            self._host.replication_event("refused", queue_id, peer.name, refusal.why)
            self._offers.later(peer, queue_id, now_ms)
        elif refusal.ground == LATER and (not owned.first or peer.name not in owned.may_own):
            self._doubt(peer, owned, refusal, now_ms)
        elif not owned.first or owned.spurned.get(peer.name) == copy.incarnation:
            if not copy.refuses:
                self._host.replication_event("kept_apart", queue_id, peer.name, refusal.why)
            copy.refuses = refusal.why
            self._offers.later(peer, queue_id, now_ms, APART_MS)
        else:
            if owned.heir is None:
                self._yield(peer, owned, refusal)
            self._offers.later(peer, queue_id, now_ms)

    def _doubt(self, peer: Peer, owned: Owned, refusal: SyncRefused, now_ms: int) -> None:
        if owned.doubt_until_ms is None:
            owned.doubt_until_ms = now_ms + DOUBT_MS
            self._host.replication_event("in_doubt", owned.queue_id, peer.name, refusal.why)
        if owned.first and owned.in_doubt(now_ms):
            self._offers.later(peer, owned.queue_id, now_ms)
        else:
            owned.unproven = False
            self._offers.enqueue(peer, owned)
            self._changed(owned)

    def _yield(self, peer: Peer, owned: Owned, refusal: SyncRefused) -> None:
        owned.heir = peer.name
        lacks = refusal.ground == AHEAD
        self._host.replication_event("rolled_back" if lacks else "later", owned.queue_id, self._name, refusal.why)
        done = partial(self._decided, peer.name, peer.incarnation, owned, lacks)
        self._host.yield_to(owned.queue_id, owned.epoch, peer.name, lacks, done)

    def _decided(self, node: str, incarnation: int, owned: Owned, lacks: bool, taken: bool) -> None:
        """Taken: the next epoch is another owner's, and this one ends with it."""
        if taken:
            return
        owned.heir = None
        if lacks:
            owned.spurned[node] = incarnation
        self._changed(owned)
