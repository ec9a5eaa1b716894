"""What a client declares, binds and deletes: rights and limits, and the command of the wiring log that it becomes.

Permissions (amqp-rules 5.3): declare and delete = configure; bind = write on the destination and read on the source; a
dead-letter exchange in the arguments = read on the queue and write on that exchange, an alternate exchange = read on
the exchange and write on the alternate. Everything else that can be wrong is decided by the cluster map, the same on
every node, when the command is ordered (`Node.propose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.access.errors import access_refused, not_found, not_implemented, precondition_failed
from clusterbroker.broker.access.questions import Question, ownerless
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring.commands import (
    AnyCommand,
    AnyExchangeDeclaration,
    Bind,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    RequireGroups,
    Unbind,
)
from clusterbroker.cluster.wiring.delays import as_delayed, delay_queue
from clusterbroker.cluster.wiring.entities import Binding, DestinationKind
from clusterbroker.cluster.wiring.exchange_rules import DELAYED, STAGING, declaration
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_rules import key_matches
from clusterbroker.cluster.wiring.queue_rules import unheeded
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.values import stored

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization


Counted = Callable[[int, int], None]
"""Hears messages ready, and consumers."""


def _check_exchange(name: str) -> None:
    """Nobody declares, deletes or binds the default exchange."""
    if not name:
        raise access_refused("operation not permitted on the default exchange")


class Admin:
    """Of one client. Raises Refusal."""

    __slots__ = ("_access",)

    def __init__(self, access: Authorization) -> None:
        self._access = access

    def find_exchange(self, name: str) -> None:
        """Refuses when there is none."""
        _check_exchange(name)
        vhost = self._access.vhost.name
        if self._access.node.map.exchange(vhost, name) is None:
            raise not_found(f"no exchange '{name}' in vhost '{vhost}'")

    def declare_exchange(
        self, name: str, kind: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool, internal: bool
    ) -> AnyExchangeDeclaration:
        _check_exchange(name)
        access, node = self._access, self._access.node
        access.check("configure", "exchange", name)
        kind, kept = as_delayed(kind, stored(arguments))
        staging = kind == STAGING
        target = kept.get("x-target")
        if staging and isinstance(target, str):
            access.check("write", "exchange", target)
        alternate = kept.get("alternate-exchange")
        if isinstance(alternate, str):
            access.check("read", "exchange", name)
            access.check("write", "exchange", alternate)
        limit = node.options.exchanges_max
        if node.map.exchange(access.vhost.name, name) is None:
            if not staging and node.exchange_count >= limit:
                raise precondition_failed(f"cannot declare exchange '{name}': exchange limit ({limit}) is reached")
            access.check_memory(f"declare exchange '{name}'")
        return declaration(kind)(
            vhost=access.vhost.name,
            name=name,
            type=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=kept,
            **self._stager() if staging else {},
        )

    def _stager(self) -> dict[str, Any]:
        """What the wiring must know of who opens a segment, and when."""
        access = self._access
        return {"at_ms": access.node.now_ms, "user": access.principal, "is_administrator": access.is_administrator}

    def delete_exchange(self, name: str, *, if_unused: bool) -> DeleteExchange:
        _check_exchange(name)
        self._access.check("configure", "exchange", name)
        return DeleteExchange(vhost=self._access.vhost.name, name=name, if_unused=if_unused)

    def delay_queue(self, exchange: str) -> QueueHandle | None:
        """In which the messages of a delayed exchange wait; None: it is none."""
        vhost = self._access.vhost
        known = self._access.node.map.exchange(vhost.name, exchange)
        return None if known is None or known.type != DELAYED else vhost.queues.get(delay_queue(exchange))

    def delete_if_nothing_waits(
        self, command: DeleteExchange, queue: QueueHandle, question: Question, then: Callable[[Applied], None]
    ) -> None:
        """Deletes a delayed exchange, or refuses while something waits in its queue."""

        @question.answers
        def counted(count: int, _: int) -> None:
            if not question.awaits():
                return
            if count:
                where = f"exchange '{command.name}' in vhost '{command.vhost}'"
                question.refuse(precondition_failed(f"{where} in use: {count} delayed messages wait in it"))
            else:
                self.order(command, question, then)

        question.ask(queue)
        queue.counts(self._access.node.now_ms, counted)

    def bind(self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]) -> Bind:
        named = self._binding(source, destination, to, key, arguments)
        access = self._access
        if access.node.low_on_memory and access.node.map.find_binding(Binding(**named)) is None:
            access.check_memory(f"bind {to} '{destination}' to exchange '{source}'")
        return Bind(**named, connection=access.connection_id)

    def unbind(
        self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]
    ) -> Unbind:
        named = self._binding(source, destination, to, key, arguments)
        return Unbind(**named, connection=self._access.connection_id)

    def _binding(
        self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        access = self._access
        _check_exchange(source)
        if to == "exchange":
            _check_exchange(destination)
        access.check("write", to, destination)
        access.check("read", "exchange", source)
        access.check_topic("read", source, key)
        return {
            "vhost": access.vhost.name,
            "source": source,
            "destination": destination,
            "destination_kind": to,
            "routing_key": key,
            "arguments": stored(arguments),
        }

    def declare_queue(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        durable: bool,
        auto_delete: bool,
        exclusive: bool,
        server_named: bool,
    ) -> DeclareQueue:
        access, node = self._access, self._access.node
        access.check("configure", "queue", name)
        kept: dict[str, Any] = stored(arguments)
        dead_letters = kept.get("x-dead-letter-exchange")
        if isinstance(dead_letters, str):
            access.check("read", "queue", name)
            access.check("write", "exchange", dead_letters)
        if node.map.queue(access.vhost.name, name) is None:
            if said := unheeded(access.vhost.name, name, kept):
                raise precondition_failed(said)
            limit = node.options.queues_max
            if len(node.queues) >= limit:
                raise precondition_failed(
                    f"cannot declare queue '{name}': queue limit in this node ({limit}) is reached"
                )
            access.check_memory(f"declare queue '{name}'")
        return DeclareQueue(
            at_ms=node.now_ms,
            vhost=access.vhost.name,
            name=name,
            durable=durable,
            auto_delete=auto_delete,
            exclusive=exclusive,
            arguments=kept,
            connection=access.connection_id,
            server_named=server_named,
        )

    # -- requests that wait for answers

    def order(self, command: AnyCommand, question: Question, then: Callable[[Applied], None]) -> None:
        """Puts a command into the wiring log; `then` when it was applied."""

        @question.answers
        def done(applied: Applied) -> None:
            if not question.awaits():
                return
            if applied.error is not None:
                question.refuse(applied.error)
            else:
                then(applied)

        self._access.node.propose(command, done)

    def order_group(self, queue: str, question: Question, then: Callable[[], None]) -> bool:
        """Makes the group of a pool whose request queue this would be, and is not there; `then` when it is. False: it
        is no such queue. The right to read it was asked. Refuses a key that the pool does not allow, and what would
        begin in a pool that is paused, or while the node is low on memory."""
        access = self._access
        if queue in access.vhost.queues:
            return False
        absent = access.node.map.pools.absent_group(access.vhost.name, queue)
        orphans = None if absent is None else access.node.map.queue_by_id(absent[0].orphans)
        if absent is None or orphans is None:
            return False
        pool, key = absent
        where = f"queue '{queue}' in vhost '{access.vhost.name}'"
        if pool.paused:
            raise precondition_failed(f"{where} is not there, and pool '{pool.name}' is paused: it makes no group")
        if not key_matches(pool.settings, key):
            raise precondition_failed(f"{where} is not there: the keys of pool '{pool.name}' do not allow '{key}'")
        access.check_memory(f"make a group by consuming from queue '{queue}'")
        command = RequireGroups(at_ms=access.node.now_ms, pool_id=pool.pool_id, epoch=orphans.epoch, keys=(key,))

        def done(applied: Applied) -> None:
            if applied.result:
                question.refuse(precondition_failed(f"{where} would be one group too many of pool '{pool.name}'"))
            else:
                then()

        self.order(command, question, done)
        return True

    def order_queue(
        self, command: DeclareQueue, question: Question, then: Counted, made: Callable[[], None] = lambda: None
    ) -> None:
        """Declares a queue at once, or when another node whose client has it for itself has shown that it lives, or is
        failed, and the queue with it (`questions`). The declaration is judged by the map in any case. `made`: called
        before `then` if there was no such queue."""
        access, node = self._access, self._access.node

        def declare() -> None:
            self.order(command, question, declared)

        def declared(applied: Applied) -> None:
            if applied.changes:
                made()
            self.count_queue(command.name, question, then, declare, new=bool(applied.changes))

        queue = access.vhost.queues.get(command.name)
        own = (node.options.name, None)
        if queue is None or queue.entity.exclusive_owner in (None, access.connection_id) or queue.entity.owner in own:
            declare()
            return
        asking = True

        @question.answers
        def known(*_: int) -> None:
            nonlocal asking
            if asking:
                asking = False
                if question.awaits():
                    declare()

        question.ask(queue, instead=known)
        queue.counts(node.now_ms, known)

    def count_queue(
        self, name: str, question: Question, then: Counted, again: Callable[[], None] | None = None, new: bool = False
    ) -> None:
        """The queue is there: `then(messages ready, consumers)`. A new one has nothing in it, so its owner, perhaps at
        another node, needs not be asked.

        `again` is called when the queue ended before it was counted, as one does that lived on a node which was lost:
        who comes from there and declares it is the first to hear of that. None: then there is no such queue.
        """
        access, node = self._access, self._access.node

        @question.answers
        def counted(ready: int, consumers: int) -> None:
            if not question.awaits():
                return
            if queue is not None and queue.deleted:
                if again is None:
                    question.refuse(access.no_queue(name))
                else:
                    again()
                return
            node.churn.queues_declared += 1
            then(ready, consumers)

        queue = access.vhost.queues.get(name)
        if queue is None or new:  # None: deleted again before the answer
            counted(0, 0)
        else:
            question.ask(queue)
            queue.touch(node.now_ms, counted)

    def ask_counts(self, name: str, question: Question, then: Counted) -> None:
        """`then(messages ready, consumers)` of a queue, which this does not keep from expiring."""
        access = self._access
        queue = access.queue(name)

        @question.answers
        def counted(ready: int, consumers: int) -> None:
            if not question.awaits():
                return
            if queue.deleted:
                question.refuse(access.no_queue(name))
            else:
                then(ready, consumers)

        question.ask(queue)
        queue.counts(access.node.now_ms, counted)

    def purge_queue(self, name: str, question: Question, then: Callable[[int], None]) -> None:
        """`then(how many messages were dropped)`."""
        access = self._access
        access.check("read", "queue", name)
        queue = access.queue(name)
        access.check_managed(queue)
        if queue.settings.queue_type == STREAM:
            raise not_implemented(f"purge not supported by stream '{name}' in vhost '{access.vhost.name}'")
        if error := ownerless(queue):
            raise error

        @question.answers
        def purged(count: int) -> None:
            if question.awaits():
                then(count)

        question.ask(queue)
        queue.purge(purged)

    def delete_queue(
        self, queue: QueueHandle, question: Question, then: Callable[[int], None], *, if_unused: bool, if_empty: bool,
        if_settled: bool = False,
    ) -> None:  # fmt: skip
        """`then(how many messages were in it)`. The rights were asked (`may_delete_queue`). `if_settled`: one with
        unacknowledged messages is not empty."""
        access, node, name = self._access, self._access.node, queue.name
        conditional = if_unused or if_empty
        if conditional and (error := ownerless(queue)):
            raise error

        def ask() -> None:
            question.ask(queue)
            queue.begin_delete(if_unused, if_empty, node.now_ms, may, if_settled=if_settled)

        @question.answers
        def may(refused: str, count: int) -> None:
            if not question.awaits():
                return
            if refused:
                question.refuse(precondition_failed(f"queue '{name}' in vhost '{access.vhost.name}' {refused}"))
                return

            def deleted(_: Applied) -> None:
                if queue.deleted:
                    then(count)
                else:  # another owner took over meanwhile, and knows nothing of it
                    ask()

            entity = queue.entity
            epoch = entity.epoch if conditional else Epoch(0)
            command = DeleteQueue(vhost=access.vhost.name, name=name, queue_id=entity.queue_id, epoch=epoch)
            self.order(command, question, deleted)

        ask()

    def may_delete_queue(self, name: str) -> QueueHandle | None:
        """The queue; None: there is none, which is no error."""
        access = self._access
        access.check("configure", "queue", name)
        queue = access.vhost.queues.get(name)
        if queue is not None:
            access.check_exclusive(queue)
            access.check_managed(queue)
        return queue
