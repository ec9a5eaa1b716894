"""What a node wants of the world around it: see `broker.node.core`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.queues.queue import Queue
from broker.queues.ring import Location
from cluster.entities import User
from journal.record import Message


class Load(NamedTuple):
    """Messages that a queue wants back from the journal; `then` gets them, without it the queue does."""

    queue_id: int
    name: str
    locations: Sequence[Location]
    then: Callable[[Sequence[Message]], None]
    wanted: Callable[[], bool]
    """Whether the queue still lives here: damage that nobody reads does not matter."""


class Group(NamedTuple):
    """A group commit under way: what `group_committed` needs to know of it."""

    number: int
    queues: list[tuple[Queue, int]]
    """(queue, watermark it reaches) of queues that need no other copy."""
    replicated: list[int]
    """Queue ids whose commit waits for other copies as well."""
    sync: bool
    """Whether somebody waits for the disk, not only for the write."""


class Check(NamedTuple):
    """A password to verify, slowly and in the same time whether the user exists or not: `then(ok)` on the loop."""

    user: User | None
    password: bytes
    then: Callable[[bool], None]
