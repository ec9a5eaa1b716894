"""The queue of requests whose key has no group, at its owner: the shell of the pool's controller.

A request waits here until its key's group is in the map. Then it is moved, as it is, to the group's queue: numbered,
once, over failovers, with the time at which it was published, so its time to live and its `expiration` go on. What
cannot be served leaves to the pool's dead-letter exchange with a word as its reason, and is answered from there.
"""

from __future__ import annotations

from clusterbroker.broker.pools.controller import Controller
from clusterbroker.broker.pools.passing_queue import AGAIN_MS, PassingQueue
from clusterbroker.cluster.errors import NotFound, Unavailable
from clusterbroker.cluster.wiring.commands import EndPoolQueue, RequireGroups, SettleGroups
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.journal.record import Message


class OrphanQueue(PassingQueue):
    """See the module."""

    __slots__ = ("_again_ms", "_controller", "_ending")

    def _begin(self) -> None:
        super()._begin()
        self._again_ms = 0
        self._ending = False
        self._controller: Controller | None = None
        letters = self.dead_letters.replicated
        pool = self.pool
        if pool is not None and letters is not None:
            moving = (group.key for group in self.node.map.pools.groups(pool.pool_id) if group.moving)
            self._controller = Controller(pool, moving, (seq for seq, *_ in self.ring.dead()))
            letters.left = self._left

    def _left(self, seq: int) -> None:
        if self._controller is not None:
            self._controller.left(seq)
            self.ring.mark()

    def group_required(self, key: str) -> None:
        """The group of a key is kept in the map from now on, until it is settled."""
        if self._controller is not None:
            self._controller.required(key)
            self.ring.mark()

    def pool_changed(self) -> None:
        pool = self.pool
        if pool is not None and self._controller is not None:
            self._controller.pool_changed(pool)
        super().pool_changed()

    def _came(self, seq: int, message: Message) -> None:
        assert self._controller is not None, "a pool that there is has a controller"
        self._controller.came(seq, message.routing_key)

    def _pass(self) -> None:
        controller = self._controller
        if controller is None:
            return
        while controller.leaving and self._has_room:
            seq, reason = controller.leaving.popleft()
            if not self._hold(seq, reason):
                controller.left(seq)
        if controller.leaving and self.node.effort.spent:
            self.node.later(self)
        self._order(controller)

    def remove(self, seq: int) -> None:
        """A request that waits is cancelled, and its caller hears of it."""
        if self.ring.set_aside(seq):
            self.dead_letters.give_up(seq, self.ring.message(seq), "cancelled")
        else:
            super().remove(seq)

    # -- commands -----------------------------------------------------------------------------------------------

    def _order(self, controller: Controller) -> None:
        pool = self.pool
        if pool is None or self.node.now_ms < self._again_ms:
            return
        order = controller.order()
        if order is None:
            self._end_of(controller)
            return
        kind, keys = order
        command = (RequireGroups if kind == "require" else SettleGroups)(
            at_ms=self.node.now_ms, pool_id=pool.pool_id, epoch=self.entity.epoch, keys=keys
        )

        def done(applied: Applied) -> None:
            if self.deleted or self._controller is not controller:
                return
            if applied.ok:
                controller.done(applied.result or ())
            else:
                controller.failed()
                if isinstance(applied.error, (Unavailable, NotFound)):
                    self._again_ms = self.node.now_ms + AGAIN_MS
            self.ring.mark()

        self.node.propose(command, done)

    def _end_of(self, controller: Controller) -> None:
        """Of a pool that is deleted: nothing waits here any more, and nowhere for a group."""
        pool = self.pool
        if pool is None or not pool.deleting or self._ending or controller.busy or self._next < self.ring.next_seq:
            return
        if self.ring.living(1, self.ring.next_seq - 1, 1) or self.node.map.pools.groups(pool.pool_id):
            return
        self._ending = True
        command = EndPoolQueue(pool_id=pool.pool_id, queue_id=self.entity.queue_id, epoch=self.entity.epoch)

        def done(applied: Applied) -> None:
            if not self.deleted:
                self._ending = False
                self._again_ms = 0 if applied.ok else self.node.now_ms + AGAIN_MS
                self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._again_ms > now_ms and not self.paused:
            self.node.wake(self, self._again_ms)

    def end_epoch(self) -> None:
        super().end_epoch()
        self._controller = None
