"""The queue of a group, at its owner: who alone knows whether the group is idle.

Idle means that nothing is ready, nothing is unacknowledged or on its way out, and that nothing has happened for the
pool's delay: no publish, delivery, acknowledgement or report. A long computation is not idleness.

    active   --idle for unbind_delay--> UnbindGroup
    unbound  --anything happens--> BindGroup
             --idle for stop_delay more, workers of the pool--> draining: its controller ends them
             --idle for stop_delay more, no consumer, no worker--> closed, DropGroup --refused, required--> open again

Its owner judges, closes and orders in one step: what is published while the queue is closed goes to the pool's orphans,
so a request is in one of the two queues, and in none that ends. Each order carries the group's generation, so one that
somebody has required since is left alone.

Its owner also measures: the controller hears what is ready and held, what came and went, and what each worker holds, on
change and at most as often as `telling` says. The time from delivery to acknowledgement is what all that is held ages
by; of k that are settled out of n, k/n of their ages count as theirs, which is exact for one at a time and right in the
sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.message import to_address, with_annotations
from clusterbroker.broker.pools.ending import AGAIN_MS
from clusterbroker.broker.pools.loss_headers import COUNT
from clusterbroker.broker.pools.losses import REJECTED, last_return, was_lost
from clusterbroker.broker.pools.messages import GroupTold
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.pools.request_dispatch import RequestDispatch
from clusterbroker.broker.pools.request_events import RequestEvents
from clusterbroker.broker.pools.sticky import STICKY_BYTES, sticks_to
from clusterbroker.broker.pools.times import Arrivals, Followed
from clusterbroker.broker.queues.dead_lettering.dropped import is_over
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import index_of
from clusterbroker.cluster.wiring.commands import BindGroup, DropGroup, UnbindGroup
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.levels import SUSPECTS
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import Group, Pool
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

IDLE_LEAST_MS: Final = 1000
"""A group is not idle sooner, whatever its delays are: requests that were published on a route of before arrive."""


class GroupQueue(Queue):
    """See the module. `node` is the host."""

    dispatching = RequestDispatch
    dispatch: RequestDispatch
    __slots__ = (
        "_again_ms", "_ages_ms", "_arrivals", "_busy_ms", "_closed_for", "_draining", "_events", "_failing_ms",
        "_followed", "_measured", "_ordered", "_part", "_retires", "_seen", "_service_ms", "_told", "_told_ms", "node",
    )  # fmt: skip

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, part: PoolQueue
    ) -> None:
        self.node = node
        self._part = part
        self._busy_ms = now_ms
        self._seen: tuple[int, ...] = ()
        self._ordered = False
        self._again_ms = 0
        self._closed_for = 0
        """Generation of the group, as the last order about it has it."""
        self._draining = False
        self._failing_ms = 0
        self._retires = False
        self._events: RequestEvents | None = None
        """None: the pool tells none."""
        super().__init__(entity, settings, ring, node, now_ms)
        self._forget_measures(now_ms)
        self._look_at_events()
        self.launches_changed()

    @property
    def pool(self) -> Pool | None:
        """None: it ends just now."""
        return self.node.map.pools.get(self._part.pool_id)

    @property
    def group(self) -> Group | None:
        """None: it ends just now."""
        return self.node.map.pools.group(self._part.pool_id, self._part.key)

    @property
    def _standing(self) -> tuple[Pool, Group, bool] | None:
        """Both, and whether an operator keeps the group, which is never idle then. None: they end just now, or nothing
        is known of what others hold."""
        return None if self.paused else self.node.map.pools.standing(self._part.pool_id, self._part.key)

    def _forget_measures(self, now_ms: int) -> None:
        self._measured = now_ms, 0, 0
        self._ages_ms = self._service_ms = 0.0
        self._told: GroupTold | None = None
        self._told_ms = 0
        self._followed: Followed | None = None
        self._arrivals = Arrivals(self.ring)

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._forget_measures(now_ms)
        self._events = None
        self._look_at_events()
        self._draining = False
        self.launches_changed()
        self._busy_ms, self._seen, self._ordered, self._again_ms = now_ms, (), False, 0
        self.limits.closed = False

    def end_epoch(self) -> None:
        if self._events is not None:
            self._events.look(self.ring.next_seq)  # the next owner does not know what was acknowledged just now
        super().end_epoch()

    def keeps_times_of(self, producer: bytes) -> bool:
        """What is moved here from the pool's orphans: its deadline spans both queues."""
        pool = self.pool
        return pool is not None and producer.startswith(dead_letter_producer(pool.orphans))

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        """What was moved here may have been under way until its time was over. It dies now: a consumer that waits for
        nothing but its commit (`Dispatch.awaits_commit`) would get it."""
        first = self.ring.next_seq
        super().publish(messages, ticket, now_ms)
        for seq, message in enumerate(messages, first):
            if message.time_ms < now_ms and is_over(self.ring, message, now_ms) and self.ring.set_aside(seq):
                self.dead_letters.give_up(seq, message, "expired")
            elif self.subscriptions and (worker := sticks_to(message)):
                self.dispatch.keep(seq, worker)

    def publish_numbered(
        self, producer: bytes, numbers: Sequence[int], messages: Sequence[Message], ticket: Ticket | None, now_ms: int
    ) -> None:
        before, events = self.ring.published, self._events
        if events is not None:
            events.came()
        super().publish_numbered(producer, numbers, messages, ticket, now_ms)
        if self.keeps_times_of(producer):
            self._arrivals.move(before)
            if events is not None:
                events.came("moved")

    def _look_at_events(self) -> None:
        """The pool tells them from now on, or does not."""
        pool_id, tells = self._part.pool_id, self.node.map.pools.tells_events(self._part.pool_id)
        if tells == (self._events is not None):
            return
        self._events = None
        if tells:
            events = self.node.pool_desk.events
            self._events = RequestEvents(
                self._part.key,
                {"queue": self.name, "queue_id": self.entity.queue_id},
                self.ring,
                lambda: self.node.now_ms,
                lambda event: events.tell(pool_id, event),
                lambda places, found: self.node.fetch(self, places, found, lambda: None),
            )
        self.dispatch.tell(None if self._events is None else self._events.handed)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        if self.subscriptions and STICKY_BYTES in bytes(records):
            return self._publish_each(records, ticket, now_ms, taken=True)
        return super().publish_records(records, ticket, now_ms)

    # -- activity -----------------------------------------------------------------------------------------------

    def add_consumer(self, member: Member, now_ms: int) -> None:
        super().add_consumer(member, now_ms)
        if member.worker and member.worker not in self.subscriptions.retired:
            self._retires = True  # its node may not know yet that it has lost the key

    def remove_consumer(self, member: Member, now_ms: int) -> None:
        used_ms = self.last_used_ms
        super().remove_consumer(member, now_ms)
        self.last_used_ms = used_ms  # that one leaves prolongs no life
        self.dispatch.left(member)

    @property
    def is_empty(self) -> bool:
        """Nothing is ready, held by anybody, or on its way out."""
        ring = self.ring
        return not (ring.ready or ring.unacked or ring.living(1, ring.next_seq - 1, 1))

    def _note(self, now_ms: int) -> None:
        ring = self.ring
        seen = ring.next_seq, ring.ready, ring.unacked, ring.handed, ring.acked, ring.got
        if (self._seen and seen != self._seen) or not self.is_empty:
            self._busy_ms = now_ms
        self._seen = seen
        self._busy_ms = max(self._busy_ms, self.last_used_ms)  # consumers come and go; reports (`ActivityQueue`)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _advance(self, upto: int) -> None:
        if self._retires:
            self._retire()
        super()._advance(upto)

    def _serve(self, now_ms: int) -> None:
        if self._retires:
            self._retire()
        super()._serve(now_ms)
        standing = self._standing
        if standing is None:
            return
        pool, group, pinned = standing
        if self.limits.closed:
            if not self._ordered and now_ms >= self._again_ms:
                self._order(DropGroup, pool, group)
            return
        if pool.deleting:
            self.give_up_ready("pool_deleted")
        elif now_ms < self._failing_ms and not self.subscriptions:
            self.give_up_ready("start_failed")
        self._note(now_ms)
        self._measure(now_ms)
        if self._followed is None:  # what is there already came whenever
            self._followed = Followed(self.ring)
        self._followed.look(self.node.pool_desk.times, pool.pool_id, now_ms)
        self._arrivals.look(self.node.pool_desk.times, pool.pool_id)
        if self._events is not None and self._events.look():
            self.node.later(self)
        self._tell(pool, now_ms)
        if not self._ordered and now_ms >= self._again_ms:
            self._live(pool, group, pinned, now_ms)

    def _live(self, pool: Pool, group: Group, pinned: bool, now_ms: int) -> None:
        if group.moving:
            return
        idle_ms = now_ms - self._busy_ms
        self._draining = False
        if group.state == "active":
            if not pinned and idle_ms >= self._unbind_ms(pool) and self.is_empty:
                self._order(UnbindGroup, pool, group)
        elif not pool.deleting and (pinned or idle_ms < self._unbind_ms(pool)):
            self._order(BindGroup, pool, group)
        elif idle_ms >= self._drop_ms(pool) and self.is_empty:
            if (not self.subscriptions or pool.deleting) and not self._launched:
                self.limits.closed = True
                self._order(DropGroup, pool, group)
            else:
                self._draining = not self._has_guests
                self._tell(pool, now_ms)

    def directed(self, word: str) -> None:
        """By an operator; the map has what it changed."""
        pool, now_ms = self.pool, self.node.now_ms
        if word == "retry" or (word in ("start", "pin") and self._failing_ms):
            self._failing_ms = 0
        elif word == "stop" and pool is not None and self.is_empty:
            self._note(now_ms)  # what happens from now on wakes it
            self._busy_ms = self.last_used_ms = now_ms - self._unbind_ms(pool)
        if word in ("start", "unpin"):
            self._busy_ms = now_ms
        self.ring.mark()

    # -- workers of the pool ------------------------------------------------------------------------------------

    @property
    def _launched(self) -> bool:
        """Workers that the pool has ordered may come, or are there."""
        pools = self.node.map.pools
        launches = (pools.launch(worker_id) for worker_id in pools.workers_of(self._part.pool_id, self._part.key))
        return any(launch is not None and not launch.revoked for launch in launches)

    @property
    def _has_guests(self) -> bool:
        """Somebody consumes whom the pool has not started."""
        return any(not member.worker for member in self.subscriptions)

    def launches_changed(self) -> None:
        """A worker was ordered, retired or revoked, or is gone. Many may be in one turn: they are looked at together,
        before anything more is handed out."""
        self._retires = True
        self.ring.mark()

    def _retire(self) -> None:
        self._retires = False
        pools = self.node.map.pools
        workers = pools.workers_of(self._part.pool_id, self._part.key)
        silent = {worker_id for worker_id, leaves in workers.items() if leaves}
        if pools.keys_per_worker(self._part.pool_id) > 1:  # one that had the key may consume for a moment more
            silent.update(one.worker for one in self.subscriptions if one.worker and one.worker not in workers)
        self.subscriptions.retire(frozenset(silent))

    def is_alone(self, member: Member) -> bool:
        """Its worker has no key but this one."""
        return not member.worker or len(self.node.map.pools.assignments(member.worker)) <= 1

    def starts_fail(self, until_ms: int) -> None:
        """What waits, and what comes until then, is answered."""
        self._failing_ms = until_ms
        self.ring.mark()

    def tell_again(self) -> None:
        """Another controller knows nothing."""
        self._told = None
        self._told_ms = 0
        self.ring.mark()

    def _measure(self, now_ms: int) -> None:
        (at_ms, held, settled), ring = self._measured, self.ring
        self._measured = now_ms, ring.unacked, ring.acked
        self._ages_ms += held * max(0, now_ms - at_ms)
        done = max(0, ring.acked - settled)
        if done:
            part = min(1.0, done / max(held, done))
            self._service_ms += self._ages_ms * part
            self._ages_ms -= self._ages_ms * part
        if not ring.unacked:
            self._ages_ms = 0.0

    def _tell(self, pool: Pool, now_ms: int) -> None:
        if not pool.starts_workers or pool.deleting:
            return
        pace = self.node.pool_desk.pace
        if now_ms - self._told_ms < pace.interval_ms(now_ms):
            return  # `_schedule` wakes
        told = self._row()
        if told != self._told:
            self._told, self._told_ms = told, now_ms
            pace.told(now_ms)
            self.node.pool_desk.tell_controller(told)

    def _row(self) -> GroupTold:
        ring, workers = self.ring, dict[str, int]()
        for member in self.subscriptions:
            if member.worker:
                workers[member.worker] = workers.get(member.worker, 0) + (member.held_most if ring.unacked else 0)
        return GroupTold(
            self._part.pool_id, self._part.key, ring.ready, ring.unacked, ring.next_seq - 1, ring.acked,
            int(self._service_ms), workers, self._draining, tuple(sorted(self.subscriptions.retired)),
            index_of(self.entity.queue_id), self.entity.epoch, self.dispatch.has_suspects,
        )  # fmt: skip

    @staticmethod
    def _unbind_ms(pool: Pool) -> int:
        return max(IDLE_LEAST_MS, 1000 * pool.settings.unbind_delay_s)

    def _drop_ms(self, pool: Pool) -> int:
        if pool.deleting:
            return 0
        return self._unbind_ms(pool) + max(IDLE_LEAST_MS, 1000 * pool.settings.stop_delay_s)

    def _order(self, kind: type[UnbindGroup] | type[BindGroup] | type[DropGroup], pool: Pool, group: Group) -> None:
        self._ordered = True
        self._closed_for = group.generation
        epoch = self.entity.epoch
        command = kind(
            at_ms=self.node.now_ms, pool_id=pool.pool_id, key=group.key, queue_id=group.queue_id, epoch=epoch,
            generation=group.generation,
        )  # fmt: skip

        def done(applied: Applied) -> None:
            if self.deleted or self.ring.owner is not self or self.entity.epoch != epoch:
                return  # another node owns it
            self._ordered = False
            unsure = isinstance(applied.error, Unavailable)
            self.limits.closed = self.limits.closed and unsure  # it may come true yet: nothing may come before
            if unsure or not applied.result:
                self._again_ms = self.node.now_ms + AGAIN_MS
            self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        standing = self._standing
        if standing is None:
            return
        pool, group, pinned = standing
        if pool.starts_workers:
            again_ms = self._told_ms + self.node.pool_desk.pace.interval_ms(now_ms)
            if now_ms < again_ms and self._row() != self._told:
                self.node.wake(self, again_ms)
        if (until_ms := self.dispatch.kept_until_ms) > 0:
            self.node.wake(self, max(until_ms, now_ms + 1))
        if self._ordered or group.moving or not self.is_empty or (pinned and group.state == "active"):
            return
        if group.state == "active":
            due_ms = self._busy_ms + self._unbind_ms(pool)
        elif self._draining or (self._has_guests and not pool.deleting):
            return  # who goes wakes it
        else:
            due_ms = self._busy_ms + self._drop_ms(pool)
        self.node.wake(self, max(due_ms, self._again_ms, now_ms + 1))

    def pool_changed(self) -> None:
        """The pool, or the group, is another one in the map. A group that was required since its end was ordered will
        not end, and what was required of it is on its way."""
        self._look_at_events()
        group = self.group
        if self.limits.closed and group is not None and group.generation != self._closed_for:
            self.limits.closed = False
        self.ring.mark()

    def remove(self, seq: int) -> None:
        """A request that waits is cancelled, and its caller hears of it."""
        if self.ring.set_aside(seq):
            self.dead_letters.give_up(seq, self.ring.message(seq), "cancelled")
        else:
            super().remove(seq)

    def letter(self, seq: int, message: Message) -> Message:
        """The responder says how often it came back after a failure; the header may be its publisher's."""
        if self._events is not None:
            self._events.died(seq)
        count = self.ring.delivery_count(seq) if seq > 0 else 0
        return with_annotations(message, {COUNT: count}, removed="")

    def requeue(self, seq: int, counted: bool) -> None:
        """A worker rejected it: what was lost with another worker before is not what happened last."""
        message = self.ring.message(seq) if counted and not self.deleted else None
        if message is not None and was_lost(message):
            self.modify(seq, REJECTED)
        else:
            self._returned(seq, "failed" if counted else "released")
            super().requeue(seq, counted)

    def _returned(self, seq: int, why: str) -> None:
        self.dispatch.returned(seq)
        if self._events is not None:
            self._events.returned(seq, why)

    def modify(self, seq: int, modification: Modification) -> None:
        """Its worker was lost with it, or a worker rejected it."""
        suspects, why = self.dispatch.suspects, "" if self.deleted else last_return(modification)
        self._returned(seq, why or ("failed" if modification.counted else "released"))
        match why:
            case "lost":
                if seq in suspects:
                    modification = modification._replace(counted=True)
                suspects.add(seq, told=self.node.map.level >= SUSPECTS)
            case "rejected":
                suspects.clear(seq)
        super().modify(seq, modification)

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
            vhost.queues[entity.name].publish((self._for_its_key(message, pool),), None, self.node.now_ms)

    def kill_named(self, producer: bytes, sequence: int, message: Message, ticket: Ticket) -> None:
        """A letter comes back to its queue, which sends it another way."""
        if self.limits.closed:
            ticket.reject(self.name)
        else:
            super().kill_named(producer, sequence, message, ticket)

    def _for_its_key(self, message: Message, pool: Pool) -> Message:
        """What was published to the queue's name has that as its key; among the orphans it is one of this queue's."""
        if message.routing_key == self._part.key.encode():
            return message
        exchange = self.node.map.pools.names(pool.pool_id).requests
        return to_address(message, push_shortstr(exchange) + push_shortstr(self._part.key))

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        if self.limits.closed and not (named is not None and self.log.producers.knows(*named)):
            self.kill(message)
            return False
        return super().accepts(message, now_ms, named)
