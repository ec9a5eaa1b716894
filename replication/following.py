"""A backup's knowledge of one owner's link and of each queue that follows over it: values only.

state of a queue at a link                              Appends     answers
not in `following`                                      refused     -
offer is set     the store does not know all yet        held        -
syncing          buckets are requested and written      written     AppendAck
neither          synced                                 written     AppendAck, after SyncDone
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .messages import Append, Range, SyncDone, SyncOffer


@dataclass(slots=True)
class Answer:
    """Something to say to the owner once all that it speaks of is durable."""

    to: Append | SyncDone
    """The Append that is answered, or the SyncDone that is said."""
    mark: int = 0
    """Durable up to here, and it may be said."""
    holds: int = 0
    """Parts that wait behind an offer."""
    refused: dict[int, int] = field(default_factory=dict)
    """Queue to epoch."""


@dataclass(slots=True)
class Asked:
    """A bucket that was asked for, as the copy was then (before the offer's end)."""

    mine: list[Range]
    """What lived here."""
    have: list[Range]
    """Of what the owner need not send the bodies; grows while it sends."""
    counts: dict[int, int]
    dead: dict[int, int]


@dataclass(slots=True)
class Following:
    """A queue whose owner offered a sync over the present link."""

    queue_id: int
    epoch: int
    sync: int
    offer: SyncOffer | None
    held: list[tuple[Answer, memoryview]] = field(default_factory=list)
    """Parts of Appends behind the offer."""
    syncing: bool = False
    atomic: bool = False
    """This copy may be elected: the sync is written at its end, whole."""
    kept: list[bytes | memoryview] = field(default_factory=list)
    kept_epochs: tuple[tuple[int, int], ...] | None = None
    """What an atomic sync is going to write."""
    emptied: bool = False
    """It begins with a cut at the first seq, which no attribute outlives."""
    next_seq: int = 0
    """The owner's, at the offer."""
    known_end: int = 0
    """Before this seq end what this copy had at the offer, and what came of the owner's since."""
    alien: list[Range] = field(default_factory=list)
    """What was cut or taken out at the beginning."""
    wanted: list[int] = field(default_factory=list)
    """Buckets, the next one last."""
    asked: dict[int, Asked] = field(default_factory=dict)
    partial: dict[int, Asked] = field(default_factory=dict)
    """Wanted again, for what did not fit."""
    remove: dict[int, list[Range]] = field(default_factory=dict)
    """Per bucket what must go at the end."""
    attributes: dict[bytes, int] = field(default_factory=dict)
    """Of the offer."""
    named: set[bytes] = field(default_factory=set)
    """Of whom Appends have spoken since."""

    @property
    def holds(self) -> bool:
        """Whether Appends of this queue have to wait."""
        return self.offer is not None or (self.syncing and self.atomic)

    @property
    def ends(self) -> bool:
        """Whether all buckets are here, so that the sync's last step is next."""
        return self.syncing and not self.wanted and not self.asked

    @property
    def busy(self) -> bool:
        """Whether something is left to be done besides waiting for buckets."""
        return self.offer is not None or self.ends

    def end_sync(self) -> None:
        """What the sync remembered is not needed any more."""
        self.syncing = False
        self.remove.clear()
        self.attributes.clear()
        self.named.clear()
        self.alien.clear()
        self.kept.clear()
        self.kept_epochs = None


@dataclass(slots=True)
class Link:
    """The present link to one owner."""

    peer: str
    following: dict[int, Following] = field(default_factory=dict)
    syncs: dict[int, None] = field(default_factory=dict)
    """Those of `following` that are not synced yet."""
    wanting: dict[int, None] = field(default_factory=dict)
    """Those of which buckets are to be asked for, and perhaps others."""
    refused: dict[int, int] = field(default_factory=dict)
    """Queue to epoch of what was refused since its last offer."""
    answers: deque[Answer] = field(default_factory=deque)
    dropped: dict[int, int] = field(default_factory=dict)
    """Queue to the newest of `answers` when its records were dropped here, as a group of the owner's."""
    wants: int = 0
    sync_bytes: int = 0
    """Out of buckets, and not durable yet."""
    bucket_bytes: int = 0
    """Of the newest answer: the next one may be as long."""
    notes: deque[tuple[int, int]] = field(default_factory=deque)
    """Of buckets that are not durable yet: with which mark they will be, and their bytes."""

    def drops(self, queue_id: int, group: int) -> bool:
        """Whether what that group had of the queue was dropped since."""
        return group <= self.dropped.get(queue_id, 0)

    def note(self, mark: int, size: int) -> None:
        """So many bytes of a bucket are durable with that mark."""
        self.notes.append((mark, size))
        self.sync_bytes += size
        self.bucket_bytes = size

    @property
    def buckets(self) -> int:
        """So many were asked for and are not durable yet."""
        return self.wants + len(self.notes)

    def forget_durable(self, mark: int) -> None:
        while self.notes and self.notes[0][0] <= mark:
            self.sync_bytes -= self.notes.popleft()[1]
