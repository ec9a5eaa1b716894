"""Rules for declaring queues, and equivalence of declarations: pure; errors carry RabbitMQ's texts.

Order of the checks matters to clients: exclusive access (405) comes before durable, auto-delete and arguments
(406), in this order (amqp-rules.md 5.1, 5.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed, queue_locked, queue_text

from .arguments import check_same
from .commands import DeclareQueue
from .entities import Queue
from .queue_settings import ARGUMENT_RULES, QueueSettings, resolve
from .stream_settings import STREAM, unfit

NAME_BYTES_MAX: Final = 255
RESERVED_PREFIX: Final = "amq."
BRIDGE_PREFIX: Final = "clusterbroker.bridge."
"""Of the queue whose leader runs a bridge, and of a bridge's ledger."""
MOVER_PREFIX: Final = "clusterbroker.mover."
"""Of the exclusive queues that keep a second mover away."""
GUARDED_WORD: Final = "clusterbroker"
_PLACING: Final = ("durability", "leader_locator", "min_in_sync", "replicas")
"""Fields of settings that a policy gives to a bridge's queue."""
DELIVERY_DELAY: Final = "x-delivery-delay"


def is_guarded(name: str) -> bool:
    """A name of bridges: a permission for everything (`.*`) is none for it. The user has to be an administrator, or its
    pattern to say GUARDED_WORD."""
    return name.startswith((BRIDGE_PREFIX, MOVER_PREFIX))


def of_ledger(queue: Queue, settings: QueueSettings) -> QueueSettings:
    """The settings that hold for a bridge's queue, of those that policies and arguments make: a policy says where its
    copies are, and takes no record away. No member's fold asks for what is passed over, so members of an older release
    keep the same map."""
    own = resolve(queue.arguments, transient=queue.transient)
    placed = {field: getattr(settings, field) for field in _PLACING}
    sources = tuple(pair for pair in settings.sources if pair[0] in _PLACING)
    more = tuple(pair for pair in own.sources if pair[0] not in _PLACING)
    return replace(
        own, **placed, policy=settings.policy, operator_policy=settings.operator_policy, sources=(*sources, *more)
    )


def check_name(kind: str, name: str) -> None:
    """Raise when an exchange or queue of this name may not be made by a client.

    403 `queue name 'amq.x' contains reserved prefix 'amq.*'`; asked only for a name that does not exist.
    """
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    check_length(kind, name)


def check_length(kind: str, name: str) -> None:
    """Names are short strings: at most 255 bytes of UTF-8."""
    if len(name) > NAME_BYTES_MAX or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise PreconditionFailed(f"{kind} name is longer than {NAME_BYTES_MAX} bytes")


def check_arguments(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raise 406 `invalid arg 'x-…' for queue 'q' in vhost '/': …` for the first bad known argument.

    Unknown arguments are stored and ignored (amqp-rules.md 5.3).
    """

    def invalid(argument: str, problem: str, of_type: str = "") -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{argument}' for {queue_text(vhost, name)}{of_type}: {problem}")

    kind = arguments.get("x-queue-type", "classic")
    for argument, rule in ARGUMENT_RULES.items():
        if argument in arguments:
            if not rule.is_of(stream=kind == STREAM):
                whose = "streams do not have it" if kind == STREAM else "only streams have it"
                raise invalid(argument, whose, f" of queue type {str(kind)[:255]}")
            problem = rule.check(arguments[argument])
            if problem is not None:
                raise invalid(argument, problem)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise invalid("x-dead-letter-routing-key", "routing key given but no 'x-dead-letter-exchange'")
    replicas, min_in_sync = arguments.get("x-replicas"), arguments.get("x-min-in-sync")
    if replicas is not None and min_in_sync is not None and min_in_sync > replicas:
        raise invalid("x-min-in-sync", f"{min_in_sync} is more than 'x-replicas' {replicas}")
    retry_min, retry_max = arguments.get("x-delayed-retry-min"), arguments.get("x-delayed-retry-max")
    if retry_min is not None and retry_max is not None and retry_max < retry_min:
        raise invalid("x-delayed-retry-max", f"{retry_max} is less than 'x-delayed-retry-min' {retry_min}")


def unheeded(vhost: str, name: str, arguments: Mapping[str, Any]) -> str:
    """Why a new queue may not have these arguments, empty: it may. One that is not heeded here, and whose neglect
    nobody notices before messages come too early, is refused at the door and not by the fold: older releases kept it,
    and their maps have such queues."""
    if DELIVERY_DELAY not in arguments:
        return ""
    return (
        f"invalid arg '{DELIVERY_DELAY}' for {queue_text(vhost, name)}: queues do not delay; publish to an exchange of "
        "type 'x-delayed-message' that is bound to it, with header 'x-delay'"
    )


def check_kind(command: DeclareQueue) -> None:
    """Raise 406 `invalid property 'non-durable' for queue 'q' in vhost '/'` for what a stream cannot be."""
    if command.arguments.get("x-queue-type") == STREAM:
        problem = unfit(command.durable, command.exclusive, command.auto_delete, command.server_named)
        if problem is not None:
            raise PreconditionFailed(f"invalid property '{problem}' for {queue_text(command.vhost, command.name)}")


def closed_queue_text(queue: Queue) -> str:
    """Why no client uses the queue of an exchange."""
    kept = "delayed" if queue.delays else "recent" if queue.recalls else "passing"
    return (
        f"{queue_text(queue.vhost, queue.name)} holds the {kept} messages of exchange '{queue.part_of}': it "
        "is closed to clients"
    )


def check_access(queue: Queue, connection: str | None, *, exclusive: bool | None = None) -> None:
    """Raise 405 unless the connection may use the queue, 403 for that of an exchange.

    `exclusive` is given by a redeclare only: there the flag must match too (strict), so a queue that is not
    exclusive cannot be declared exclusive by anybody.
    """
    if queue.part_of:
        raise AccessRefused(closed_queue_text(queue))
    if queue.exclusive_owner is None:
        if exclusive:
            raise queue_locked(queue.vhost, queue.name)
        return
    if queue.exclusive_owner != connection or exclusive is False:
        raise queue_locked(queue.vhost, queue.name)


def check_equivalent(queue: Queue, command: DeclareQueue, queue_type_default: str) -> None:
    """Raise unless a redeclare says the same as the existing queue (amqp-rules.md 5.3).

    Exclusive implies that the durable flag is ignored. Only known arguments are compared. An absent
    `x-queue-type` asks for "classic" or for the vhost's default, whichever the queue has.
    """
    check_access(queue, command.connection, exclusive=command.exclusive)
    where = queue_text(queue.vhost, queue.name)
    if not command.exclusive:
        check_same(where, "durable", command.durable, queue.durable)
    check_same(where, "auto_delete", command.auto_delete, queue.auto_delete)
    for argument in ARGUMENT_RULES:
        received, current = command.arguments.get(argument), queue.arguments.get(argument)
        if argument == "x-queue-type":
            current = current or "classic"
            if received is None and current in {"classic", queue_type_default}:
                continue
        if received is not current:
            check_same(where, argument, received, current)
