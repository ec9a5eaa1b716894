"""Rules for declaring, deleting and binding exchanges: pure, with RabbitMQ's texts (amqp-rules.md 5.1, 5.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed, exchange_text

from .arguments import check_same, type_name
from .commands import (
    AnyExchangeDeclaration,
    DeclareChoosingExchange,
    DeclareDeduplicatingExchange,
    DeclareDelayedExchange,
    DeclareExchange,
    DeclareHistoryExchange,
    ExchangeDeclaration,
    QueuedExchange,
)
from .entities import Exchange
from .queue_rules import RESERVED_PREFIX

TYPES: Final = ("direct", "fanout", "topic", "headers", "x-consistent-hash")
CHOOSING: Final = ("x-random", "x-local-random", "x-modulus-hash")
"""Those that give each message to one of their destinations."""
STAGING: Final = "x-staging"
"""The type of an exchange that keeps what is published to it back until its producer commits (`transactions`)."""
DELAYED: Final = "x-delayed-message"
"""The type of an exchange that keeps messages until they are due; the argument `x-delayed-type` says how it routes."""
DELAYED_TYPE: Final = "x-delayed-type"
HISTORY: Final = "x-recent-history"
"""The type of an exchange that gives its last messages to whatever is bound to it (`histories`)."""
HISTORY_LENGTH: Final = "x-recent-history-length"
"""How many they are."""
DEDUPLICATING: Final = "x-message-deduplication"
"""The type of an exchange that passes on one message of each value of a header (`deduplication`)."""
CACHE_SIZE: Final = "x-cache-size"
CACHE_TTL: Final = "x-cache-ttl"
CACHE_PERSISTENCE: Final = "x-cache-persistence"
CACHE_ARGUMENTS: Final = (CACHE_SIZE, CACHE_TTL, CACHE_PERSISTENCE)
DECLARABLE: Final = (*TYPES, *CHOOSING, DELAYED, HISTORY, DEDUPLICATING)
"""The types that clients are told of."""
DELAY_RATE: Final = "x-delay-rate"
"""So many messages a second leave it at most."""
DELAY_LIMITS: Final = {
    "x-max-delayed": "x-max-length",
    "x-max-delayed-bytes": "x-max-length-bytes",
    DELAY_RATE: DELAY_RATE,
}
"""Limits of a delayed exchange, and what they are called at its queue."""
DEFAULT_EXCHANGE: Final = ""
TOPIC_HASHES_MAX: Final = 2
HASH_WEIGHT_MAX: Final = 10_000

PREDECLARED: Final[tuple[tuple[str, str, bool], ...]] = (
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)
"""(name, type, internal) of what every vhost begins with, beside the default exchange, which is not stored."""
FAILOVER: Final = "amq.failover"
"""In a cluster every vhost has this one as well, fanout and internal: it gets an event for each member that comes or
goes."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,255}")
_X_MATCH: Final = ("all", "any", "all-with-x", "any-with-x")
_HASH_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")


EXCHANGE_DECLARATIONS: Final = (
    DeclareExchange,
    DeclareChoosingExchange,
    DeclareDelayedExchange,
    DeclareHistoryExchange,
    DeclareDeduplicatingExchange,
)
"""A command for each family of types: an older release would refuse a type that it does not know, and fold another map;
a command that it does not know is kept from its log (levels.py)."""


_WITH_QUEUES: Final[dict[str, type[QueuedExchange]]] = {
    DELAYED: DeclareDelayedExchange, HISTORY: DeclareHistoryExchange, DEDUPLICATING: DeclareDeduplicatingExchange,
}  # fmt: skip


def declaration(type_: str) -> type[AnyExchangeDeclaration]:
    """The command that declares an exchange of this type."""
    if type_ in _WITH_QUEUES:
        return _WITH_QUEUES[type_]
    return DeclareChoosingExchange if type_ in CHOOSING else DeclareExchange


def refuse_default_exchange(name: str) -> None:
    """403 for any wiring of the default exchange."""
    if name == DEFAULT_EXCHANGE:
        raise AccessRefused("operation not permitted on the default exchange")


def refuse_system_deletion(vhost: str, name: str) -> None:
    """403 for deleting an exchange of the server's own."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"deletion of system {exchange_text(vhost, name)} not allowed")


def refuse_staging_exchange(exchange: Exchange | None) -> None:
    """403 for a binding from or to one that stages."""
    if exchange is not None and exchange.type == STAGING:
        raise AccessRefused(f"{exchange_text(exchange.vhost, exchange.name)} stages a transaction: it has no bindings")


def check_type(type_: str, types: tuple[str, ...] = TYPES) -> None:
    """406 `unknown exchange type 'x'`."""
    if type_ not in types:
        raise PreconditionFailed(f"unknown exchange type '{type_}'")


def check_arguments(vhost: str, name: str, type_: str, arguments: Mapping[str, Any]) -> None:
    """406 for a known argument of a wrong form; unknown ones are stored and ignored."""

    def invalid(argument: str, problem: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{argument}' for {exchange_text(vhost, name)}: {problem}")

    known = ("alternate-exchange", "hash-header", "hash-property")
    for argument in known if type_ == "x-consistent-hash" else known[:1]:
        if argument in arguments and not isinstance(arguments[argument], str):
            problem = f"unacceptable type '{type_name(arguments[argument])}', expected a string"
            raise invalid(argument, problem)
    if type_ == "x-consistent-hash" and "hash-property" in arguments:
        if "hash-header" in arguments:
            raise invalid("hash-property", "at most one of 'hash-header' and 'hash-property' may be set")
        if arguments["hash-property"] not in _HASH_PROPERTIES:
            raise invalid("hash-property", f"expected one of {', '.join(_HASH_PROPERTIES)}")


def routing_type(exchange: Exchange) -> str:
    """The type by which an exchange routes: of a delayed one that of what is due."""
    return str(exchange.arguments[DELAYED_TYPE]) if exchange.type == DELAYED else exchange.type


_OF_TYPES: Final = {
    DELAYED: (DELAYED_TYPE, *DELAY_LIMITS), HISTORY: (HISTORY_LENGTH,), DEDUPLICATING: CACHE_ARGUMENTS,
}  # fmt: skip
"""Arguments that a redeclaration has to repeat."""


def check_equivalent(exchange: Exchange, command: ExchangeDeclaration) -> None:
    """Raise 406 `inequivalent arg '…' for exchange 'x' in vhost '/': …` unless a redeclare says the same.

    Compared in RabbitMQ's order: type, durable, auto_delete, internal, alternate-exchange.
    """
    where = exchange_text(exchange.vhost, exchange.name)
    for name in ("type", "durable", "auto_delete", "internal"):
        received, current = getattr(command, name), getattr(exchange, name)
        if received != current:
            check_same(where, name, received, current)
    wanted, existing = command.arguments.get("alternate-exchange"), exchange.arguments.get("alternate-exchange")
    check_same(where, "alternate-exchange", wanted, existing)
    for argument in _OF_TYPES.get(exchange.type, ()):
        check_same(where, argument, command.arguments.get(argument), exchange.arguments.get(argument))


def check_binding(
    exchange: Exchange, routing_key: str, arguments: Mapping[str, Any], destination_kind: str = "queue"
) -> None:
    """Raise 406 when the exchange's type cannot route by this binding."""
    match routing_type(exchange):
        case "x-local-random":
            if routing_key:
                raise PreconditionFailed(f"Non empty binding '{routing_key}' key not permitted")
            if destination_kind != "queue":
                raise PreconditionFailed("an exchange of type x-local-random has bindings to queues only")
        case "x-consistent-hash":
            _check_weight(routing_key)
        case "headers":
            _check_x_match(arguments)
        case "topic":
            # `#.#.#` makes matching exponential; RabbitMQ limits the number since 4.3.5
            if routing_key.split(".").count("#") > TOPIC_HASHES_MAX:
                raise PreconditionFailed(
                    f"The binding key '{routing_key}' has more than {TOPIC_HASHES_MAX} '#' wildcards"
                )


def _check_weight(routing_key: str) -> None:
    if _INTEGER.fullmatch(routing_key) is None:
        raise PreconditionFailed(f"The binding key must be an integer: '{routing_key}'")
    if int(routing_key) < 0:
        raise PreconditionFailed("The binding key must be greater or equal to 0")
    if int(routing_key) > HASH_WEIGHT_MAX:
        raise PreconditionFailed(f"The binding key must be at most {HASH_WEIGHT_MAX}: '{routing_key}'")


def _check_x_match(arguments: Mapping[str, Any]) -> None:
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    expected = "expected all, any, all-with-x, or any-with-x"
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"Invalid x-match field type '{type_name(value)}' (value {str(value)[:255]}); expected longstr"
        )
    if value not in _X_MATCH:
        raise PreconditionFailed(f"Invalid x-match field value '{value[:255]}'; {expected}")
