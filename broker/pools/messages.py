"""What nodes tell each other about worker pools: heads of frames (`broker.node.hub`).

    PlaceTold     of a place, to all: what it can start. On change, and to each new link
    GroupTold     of a group's queue, by its owner to the pool's controller. On change, 4 a second at most (`telling`)
    WorkerTold    of a worker, by its place to the pool's controller. On change
    StartsFail    of a key, by the controller to all: callers are answered `start_failed` for a time
    SpareTold     of a spare, by the node where it has asked for its key, to the pool's controller
    KeyFailed     of a key that a worker of several cannot serve, likewise
    AskPool       a controller begins: tell all of this pool

Nothing is answered. A frame that is lost is told again with the next change, or the next link.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from clusterbroker.cluster.link.fields import Whole

Text = Annotated[str, msgspec.Meta(max_length=1024)]


class TemplateTold(msgspec.Struct, frozen=True, array_like=True):
    """A template of a place: nothing of what it executes. Sizes in bytes, 0: no limit."""

    version: str
    driver: str
    max_workers: Whole = 0
    memory_bytes: Whole = 0
    endpoint: Text = ""
    """Where its driver is asked: a key of `PlaceTold.suspended`. Empty: of a member that does not tell it."""
    rolling: bool = True
    """Workers of another version are replaced. A release before, which knows `memory_bytes` last, does that too."""
    surge: Whole = 1


class PoolMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these heads."""


class PlaceTold(PoolMessage, frozen=True, tag=130):
    """Of the sender."""

    templates: dict[str, TemplateTold]
    memory_bytes: Whole = 0
    """Of the machine; 0: not known."""
    suspended: dict[str, Text] = {}
    """Endpoint of a driver -> why nothing can be started there."""
    alarm: bool = False
    """The machine is short of memory."""

    def suspends(self, template: TemplateTold) -> str:
        """Why nothing of a template can be started here; empty: it can."""
        return self.suspended.get(template.endpoint or template.driver, "")


class GroupTold(PoolMessage, frozen=True, tag=131):
    """Counters rise while the queue has this owner."""

    pool_id: Whole
    key: Text
    ready: Whole
    held: Whole
    arrived: Whole
    settled: Whole
    service_ms: Whole
    """Of the settled ones, from delivery to acknowledgement."""
    workers: dict[str, Whole]
    """Workers that consume, and how many messages each holds at most."""
    draining: bool = False
    """Idle for so long that its workers are to go."""
    retired: tuple[Text, ...] = ()
    """Workers that get nothing more from this owner: what it holds of these can only fall."""
    declared: Whole = 0
    """Log index of the queue's declaration; 0: of a member that does not tell it."""
    epoch: Whole = 0
    """Of its owner: what an earlier one told, and comes later, counts no more."""
    suspects: bool = False
    """Workers were lost with some of what is here: only one that serves no other key gets any of it."""

    @property
    def told_by(self) -> tuple[int, int]:
        """Rises from one owner to the next, and from one queue of the key to the next."""
        return self.declared, self.epoch


class WorkerTold(PoolMessage, frozen=True, tag=132):
    """What is known of it: 0 and empty are no news."""

    pool_id: Whole
    worker_id: Text
    memory_bytes: Whole = 0
    running: bool = False
    ready: bool = False
    """It says so itself."""
    why: Text = ""
    """Of its end, or of a start that failed."""


class StartsFail(PoolMessage, frozen=True, tag=133):
    """`for_ms`: from now on."""

    pool_id: Whole
    key: Text
    for_ms: Whole
    detail: Text


class AskPool(PoolMessage, frozen=True, tag=134):
    """To all."""

    pool_id: Whole


class SpareTold(PoolMessage, frozen=True, tag=135):
    """It waits for its key (feature level 7: there is none below)."""

    pool_id: Whole
    worker_id: Text


class KeyFailed(PoolMessage, frozen=True, tag=136):
    """A worker of several keys cannot serve this one (feature level 7)."""

    pool_id: Whole
    worker_id: Text
    key: Text
    why: Text


ControllerTold = GroupTold | WorkerTold | SpareTold | KeyFailed
"""What the controller of a pool is told."""
AnyPool = PlaceTold | ControllerTold | StartsFail | AskPool
