"""The queue of a pool's requests that wait for their time, at its owner.

What is due goes to one queue: that of its key, or the orphans if the key has none. Which one stands in the log
(reason `due_unbound`), for another owner must ask the queue that may have it already, and not the one that is bound by
then.

It is a delay queue until the pool is deleted. Its exchange is gone then, and each request is answered `pool_deleted` as
one that waits in any other queue of the pool: a numbered dead letter to the responder. What was due, and finds no queue
of a key any more, comes back and is answered likewise. A queue in which nothing is left takes nothing, and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from clusterbroker.broker.content.delays import fired_header, waiting
from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.delay.due_letters import DueLetters, Letter
from clusterbroker.broker.delay.lanes import Lane
from clusterbroker.broker.pools.controller import key_of
from clusterbroker.broker.pools.ending import Ending
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.dead_lettering.replicated import DUE, DUE_UNBOUND
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.delays import DELAY_KEY
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.levels import ANSWERED_DELAYS
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

_SEPARATOR: Final = "\0"
"""No key of a pool has it."""


class LaterQueue(DelayQueue):
    """See the module. `node` is the host."""

    __slots__ = ("_ending", "_pool_id", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, pool_id: LogIndex
    ) -> None:
        self.node = node
        self._pool_id = pool_id
        super().__init__(entity, settings, ring, node, now_ms)

    def _begin(self) -> None:
        self._ending = Ending(self, self.node, self._pool_id)
        super()._begin()

    @property
    def _pool(self) -> Pool | None:
        """None: it ends just now."""
        return self.node.map.pools.get(self._pool_id)

    @property
    def _pool_ends(self) -> bool:
        pool = self._pool
        return pool is not None and pool.deleting

    def pool_changed(self) -> None:
        """The pool is another one in the map."""
        self.ring.mark()

    # -- in -----------------------------------------------------------------------------------------------------

    def _time_and_key(self, message: Message, now_ms: int) -> tuple[int, str]:
        due, key = super()._time_and_key(message, now_ms)
        return due, _own(key, message)

    def _key(self, message: Message) -> str:
        return _own(super()._key(message), message)

    def under(self, key: str) -> list[int]:
        """Of all keys of the pool."""
        return self._keys.ending(_SEPARATOR + key)

    def _drop(self, seq: int) -> None:
        """A newer request takes its place: it is cancelled, and its caller hears of it."""
        if self.ring.set_aside(seq):
            self._index.void(seq)
            self.dead_letters.give_up(seq, self.ring.message(seq), "cancelled")

    def remove(self, seq: int) -> None:
        if self._waits(seq):
            self._drop(seq)
        else:
            super().remove(seq)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if self.paused or not self._pool_ends:
            super()._serve(now_ms)
            return
        for seq, _, _ in self._taken:
            self.ring.put_back(seq)
        self._taken.clear()
        if self.give_up_ready("pool_deleted") and self._ending.nothing_left:
            self._ending.order()

    # -- the way of what is due ---------------------------------------------------------------------------------

    def _offer(self, letters: DueLetters, seq: int, message: Message, lane: Lane | None, now_ms: int) -> None:
        """A request for several keys becomes one for each: so each letter has one target, which its reason tells."""
        keys = _copied_to(message)
        if not keys:
            super()._offer(letters, seq, message, lane, now_ms)
            return
        self._forget_key(seq, message)
        first, ones = self.ring.next_seq, _one_each(message, keys, now_ms)
        self.ring.append(ones)
        for place in range(len(ones)):
            self._index.add(message.ttl_ms, first + place)
        self.ring.settle(seq)
        self.host.effort.letter(message.header_length, len(ones))

    def letter_reason(self, targets: Sequence[QueueHandle], /) -> int:
        pool = self._pool
        is_unbound = pool is not None and targets[0].entity.queue_id == pool.orphans
        return DUE_UNBOUND if is_unbound and self.node.map.level >= ANSWERED_DELAYS else DUE

    def letter_targets(self, letter: Letter, /) -> Sequence[QueueHandle] | None:
        """The same as for the owner before, who may have been heard there, whatever is bound now. Only a queue that has
        ended meanwhile cannot say so: then the request goes where it would go now."""
        pool, (message,) = self._pool, letter.messages
        key = key_of(message.routing_key)
        if pool is not None and key is not None and not _copied_to(message):
            names = PoolNames(pool.name)
            name = names.orphans if letter.reason == DUE_UNBOUND else names.request_queue(key)
            target = self.node.vhosts[self.entity.vhost].queues.get(name)
            if target is not None:
                return (target,)
        return () if self._pool_ends else super().letter_targets(letter)

    def letter_nowhere(self, letter: Letter, /) -> None:
        if self._pool_ends:
            for message in letter.messages:
                self.ring.append((waiting(message, self.node.now_ms, message.ttl_ms),))

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def is_read(self) -> bool:
        """Nothing is asked for by its time any more when the pool ends."""
        return self._pool_ends or super().is_read

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        self._ending.schedule(now_ms)


def _own(key: str, message: Message) -> str:
    """The key under which a request waits, among those of its pool's key alone; empty: none."""
    return message.routing_key.decode("utf-8", "surrogateescape") + _SEPARATOR + key if key else ""


def _copied_to(message: Message) -> tuple[str, ...]:
    """Other keys of a message, which it has in CC and BCC."""
    if fired_header(message) is not None:
        return ()
    headers = properties_of(message).headers or {}
    return (*copy_keys(headers, "CC"), *copy_keys(headers, "BCC"))


def _one_each(message: Message, keys: tuple[str, ...], now_ms: int) -> list[Message]:
    """The message for its own key and for each of these alone. They are due, so none is replaced any more."""
    properties = properties_of(message)
    headers = {name: one for name, one in (properties.headers or {}).items() if name not in ("CC", "BCC", DELAY_KEY)}
    alone = replace(properties, headers=headers or None)
    exchange, own = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
    made = (republished(message, exchange, key, alone, now_ms) for key in dict.fromkeys((own, *keys)))
    return [waiting(one, now_ms, message.ttl_ms) for one in made]
