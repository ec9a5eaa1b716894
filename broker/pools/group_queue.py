"""The queue of a group, at its owner: who alone knows whether the group is idle.

Idle means that nothing is ready, nothing is unacknowledged or on its way out, and that nothing has happened for the
pool's delay: no publish, delivery, acknowledgement or report. A long computation is not idleness.

    active   --idle for unbind_delay--> UnbindGroup
    unbound  --anything happens--> BindGroup
             --idle for stop_delay more, no consumer--> closed, DropGroup --refused--> open again

Its owner judges, closes and orders in one step: what is published while the queue is closed goes to the pool's orphans,
so a request is in one of the two queues, and in none that ends. Each order carries the group's generation, so one that
somebody has required since is left alone.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.pools.losses import REJECTED, was_lost
from clusterbroker.broker.pools.passing_queue import AGAIN_MS
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring.commands import BindGroup, DropGroup, UnbindGroup
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import Group, Pool
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

IDLE_LEAST_MS: Final = 1000
"""A group is not idle sooner, whatever its delays are: requests that were published on a route of before arrive."""


class GroupQueue(Queue):
    """See the module. `node` is the host."""

    __slots__ = ("_again_ms", "_busy_ms", "_ordered", "_part", "_seen", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, part: PoolQueue
    ) -> None:
        self.node = node
        self._part = part
        self._busy_ms = now_ms
        self._seen: tuple[int, ...] = ()
        self._ordered = False
        self._again_ms = 0
        super().__init__(entity, settings, ring, node, now_ms)

    @property
    def pool(self) -> Pool | None:
        """None: it ends just now."""
        return self.node.map.pools.get(self._part.pool_id)

    @property
    def group(self) -> Group | None:
        """None: it ends just now."""
        return self.node.map.pools.group(self._part.pool_id, self._part.key)

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._busy_ms, self._seen, self._ordered, self._again_ms = now_ms, (), False, 0
        self.limits.closed = False

    def keeps_times_of(self, producer: bytes) -> bool:
        """What is moved here from the pool's orphans: its deadline spans both queues."""
        pool = self.pool
        return pool is not None and producer.startswith(dead_letter_producer(pool.orphans))

    # -- activity -----------------------------------------------------------------------------------------------

    def remove_consumer(self, member: Member, now_ms: int) -> None:
        used_ms = self.last_used_ms
        super().remove_consumer(member, now_ms)
        self.last_used_ms = used_ms  # that one leaves prolongs no life

    @property
    def is_empty(self) -> bool:
        """Nothing is ready, held by anybody, or on its way out."""
        ring = self.ring
        return not (ring.ready or ring.unacked or ring.living(1, ring.next_seq - 1, 1))

    def _note(self, now_ms: int) -> None:
        ring = self.ring
        seen = ring.next_seq, ring.ready, ring.unacked, ring.handed, ring.acked, ring.got
        if seen != self._seen:
            if self._seen:
                self._busy_ms = now_ms
            self._seen = seen
        if not self.is_empty:
            self._busy_ms = now_ms
        self._busy_ms = max(self._busy_ms, self.last_used_ms)  # consumers come and go; reports (`ActivityQueue`)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        super()._serve(now_ms)
        if self.paused or self.limits.closed:
            return
        pool, group = self.pool, self.group
        if pool is None or group is None:
            return
        if pool.deleting:
            self._give_up_all()
        self._note(now_ms)
        if not self._ordered and now_ms >= self._again_ms:
            self._live(pool, group, now_ms)

    def _give_up_all(self) -> None:
        """The pool is deleted: what waits is answered."""
        while self.ring.ready:
            if self.node.effort.spent:
                self.node.later(self)
                return
            seq, message, _ = self.ring.pop_head()
            self.dead_letters.give_up(seq, message, "pool_deleted")
            self.node.effort.popped()

    def _live(self, pool: Pool, group: Group, now_ms: int) -> None:
        if group.moving:
            return
        idle_ms = now_ms - self._busy_ms
        if group.state == "active":
            if self.is_empty and idle_ms >= self._unbind_ms(pool):
                self._order(UnbindGroup, pool, group)
        elif not pool.deleting and idle_ms < self._unbind_ms(pool):
            self._order(BindGroup, pool, group)
        elif self.is_empty and not self.subscriptions and idle_ms >= self._drop_ms(pool):
            self.limits.closed = True
            self._order(DropGroup, pool, group)

    @staticmethod
    def _unbind_ms(pool: Pool) -> int:
        return max(IDLE_LEAST_MS, 1000 * pool.settings.unbind_delay_s)

    def _drop_ms(self, pool: Pool) -> int:
        if pool.deleting:
            return 0
        return self._unbind_ms(pool) + max(IDLE_LEAST_MS, 1000 * pool.settings.stop_delay_s)

    def _order(self, kind: type[UnbindGroup] | type[BindGroup] | type[DropGroup], pool: Pool, group: Group) -> None:
        self._ordered = True
        epoch = self.entity.epoch
        command = kind(
            at_ms=self.node.now_ms, pool_id=pool.pool_id, key=group.key, queue_id=group.queue_id, epoch=epoch,
            generation=group.generation,
        )  # fmt: skip

        def done(applied: Applied) -> None:
            if self.deleted or self.entity.epoch != epoch:
                return
            self._ordered = self.limits.closed = False
            if isinstance(applied.error, Unavailable) or not applied.result:
                self._again_ms = self.node.now_ms + AGAIN_MS
            self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        pool, group = self.pool, self.group
        if self.paused or self._ordered or pool is None or group is None or group.moving or not self.is_empty:
            return
        if group.state == "active":
            due_ms = self._busy_ms + self._unbind_ms(pool)
        elif self.subscriptions:
            return
        else:
            due_ms = self._busy_ms + self._drop_ms(pool)
        self.node.wake(self, max(due_ms, self._again_ms, now_ms + 1))

    def pool_changed(self) -> None:
        """The pool, or the group, is another one in the map."""
        self.ring.mark()

    def remove(self, seq: int) -> None:
        """A request that waits is cancelled, and its caller hears of it."""
        if self.ring.set_aside(seq):
            self.dead_letters.give_up(seq, self.ring.message(seq), "cancelled")
        else:
            super().remove(seq)

    def requeue(self, seq: int, counted: bool) -> None:
        """A worker rejected it: what was lost with another worker before is not what happened last."""
        message = self.ring.message(seq) if counted and not self.deleted else None
        if message is not None and was_lost(message):
            self.modify(seq, REJECTED)
        else:
            super().requeue(seq, counted)

    # -- closed -------------------------------------------------------------------------------------------------

    def kill(self, message: Message) -> None:
        if not self.limits.closed:
            super().kill(message)
            return
        pool = self.pool
        if pool is None:
            return
        vhost = self.node.vhosts.get(pool.vhost)
        entity = self.node.map.queue_by_id(pool.orphans)
        if vhost is not None and entity is not None and entity.name in vhost.queues:
            vhost.queues[entity.name].publish((message,), None, self.node.now_ms)

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        if self.limits.closed and not (named is not None and self.log.producers.knows(*named)):
            self.kill(message)
            return False
        return super().accepts(message, now_ms, named)
