"""Settings of a queue: one table that checks arguments and policies, and merges effective values.

A setting has up to three sources, and amqp-rules.md 5.3 orders them:

    operator policy  >  x-argument  >  policy  >  default;    numeric conflicts take the minimum

*minimum* holds for limits (TTL, lengths, timeouts, delivery limit), where the stricter one is always the safe
one. All else (names, modes, replica counts) takes the first source that says something; a dead letter
exchange in the argument beats the policy's. A row of `RULES` is the only place that checks and merges a setting; what
two arguments have to say to each other is in `queue_rules`. There is one queue type but for streams: it carries the
whole matrix, and `x-queue-type` chooses defaults only.

A stream has few of the rows, and some of its own. It keeps what it has until retention lets it go, whoever has read it:
limits that take single messages out, or ask who consumes, mean nothing to it. As an argument they are refused; a policy
that has them may also be for other queues, so there they are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from .arguments import is_integer, type_name
from .stream_settings import (
    SEGMENT_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    STREAM,
    age_ms,
    check_age,
)

MILLISECONDS_MAX: Final = 2**63 - 1
"""The longest time in AMQP, and the longest that is kept; what no clock can hold is never. RabbitMQ 4.3 takes ten
years at most."""
QUORUM_DELIVERY_LIMIT: Final = 20
LINK_RECOVERY: Final = "link-recovery"
LINK_EXPIRY_MAX: Final = "link-expiry-max"
RECOVERABLE_LINKS_MAX: Final = "recoverable-links-max"
DEDUPLICATION: Final = "message-deduplication"
"""Of arguments only; feature level 6."""
LINK_SETTINGS: Final = (LINK_RECOVERY, LINK_EXPIRY_MAX, RECOVERABLE_LINKS_MAX)
"""In policies also of an exchange; feature level 4."""

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
Durability = Literal["memory", "disk", "fsync"]
Merge = Literal["minimum", "first"]
Kinds = Literal["queues", "streams", "all"]
"""Which queues have a setting: all but streams, streams alone, or all."""


class QueueSettings(msgspec.Struct, frozen=True):
    """Every limit of a queue, resolved. None: no such limit, or the node's own default where it says so."""

    queue_type: str = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None
    """"" is the default exchange, None is no dead lettering."""
    dead_letter_routing_key: str | None = None
    """None: the message's own keys."""
    dead_letter_strategy: Literal["at-most-once", "at-least-once"] = "at-most-once"
    max_priority: int | None = None
    """None: 32 priorities without declaration are up to the queue (amqp-rules.md, "Beyond RabbitMQ 4.3")."""
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    """None: the node's default."""
    delayed_retry_type: Literal["disabled", "all", "failed", "returned"] = "disabled"
    delayed_retry_min_ms: int | None = None
    delayed_retry_max_ms: int | None = None
    replicas: int | None = None
    """None: 3, or as many as there are nodes."""
    min_in_sync: int | None = None
    """None: the majority of the replicas, but 1 of 2."""
    durability: Durability = "fsync"
    leader_locator: Literal["client-local", "balanced"] = "balanced"
    """The leader of a new queue: the node of the client that declares it, or the one that owns fewest."""
    ownership: Literal["shared", "rotating"] = "shared"
    ownership_hold_ms: int = 1000
    max_age: str | None = None
    """Of a stream's messages, as in `7D`; see `max_age_ms`."""
    segment_bytes: int = SEGMENT_BYTES
    """Of a stream: a new file begins when one has so many."""
    message_deduplication: bool = False
    """A message with the header of one that is in the queue is not stored."""
    link_recovery: bool | None = None
    """Links of AMQP 1.0: False: nothing of them outlives its connection; True: durability 2 is enough for a recoverable
    one; None: as the client asks."""
    link_expiry_max_ms: int | None = None
    """So long such a link outlives its client at most; None: as the client asks."""
    recoverable_links_max: int | None = None
    policy: str | None = None
    """Name of the policy that applies."""
    operator_policy: str | None = None
    sources: tuple[tuple[str, str], ...] = ()
    """(field, what set it) for each field that something set."""

    @property
    def max_age_ms(self) -> int | None:
        """None: a stream's messages do not grow too old."""
        return None if self.max_age is None else age_ms(self.max_age)

    def explain(self) -> dict[str, str]:
        """Which rule set which value: `{"max_length": "10, the minimum of argument ... and policy ..."}`."""
        return {field: f"{getattr(self, field)}, {source}" for field, source in self.sources}


class Legal(NamedTuple):
    """Legal values of a setting."""

    problem: Callable[[Any], str | None]
    """The fault of a value; None: it is legal."""
    schema: Mapping[str, Any]
    """The same in JSON Schema, for the documents of the management API."""

    def about(self, description: str, **more: Any) -> Legal:
        """With a description in the schema."""
        return self._replace(schema={**self.schema, "description": description, **more})


class Rule(NamedTuple):
    """One setting: its names as an argument and in a policy, its legal values, and how sources are merged."""

    argument: str
    key: str | None
    """Its name in a policy's definition; None: cannot be set by policy."""
    field: str | None
    """Field of QueueSettings; None: it has no effect here (`_unused`), or `resolve` reads it for another setting."""
    legal: Legal
    merge: Merge
    kinds: Kinds

    def check(self, value: Any) -> str | None:
        """The fault of a value; None: it is legal."""
        return self.legal.problem(value)

    def is_of(self, *, stream: bool) -> bool:
        """Whether a stream, or any other queue, has it."""
        return self.kinds in ("all", "streams" if stream else "queues")


def _of_type(value: object, wanted: str) -> str:
    return f"unacceptable type '{type_name(value)}', expected {wanted}"


def _integer(low: int, high: int) -> Legal:
    def problem(value: Any) -> str | None:
        if not is_integer(value):
            return _of_type(value, "an integer")
        if value < low:
            return f"value {value} is negative" if low == 0 else f"value {value} is less than {low}"
        if value > high:
            return f"value {value} is more than {high}"
        return None

    return Legal(problem, {"type": "integer", "minimum": low, "maximum": high})


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else _of_type(value, "a string")


def _text_up_to(bytes_max: int) -> Legal:
    """A text of so many bytes of UTF-8 at most."""

    def problem(value: Any) -> str | None:
        if not isinstance(value, str):
            return _of_type(value, "a string")
        return None if len(value.encode("utf-8", "replace")) <= bytes_max else f"longer than {bytes_max} bytes"

    return Legal(problem, {"type": "string", "maxLength": bytes_max})


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else _of_type(value, "a boolean")


def _one_of(*allowed: str) -> Legal:
    def problem(value: Any) -> str | None:
        if not isinstance(value, str):
            return _of_type(value, "a string")
        return None if value in allowed else f"'{value[:255]}' is not one of {', '.join(allowed)}"

    return Legal(problem, {"type": "string", "enum": list(allowed)})


QUEUE_TYPES: Final = ("classic", "quorum", STREAM)


def _queue_type(value: Any) -> str | None:
    if not isinstance(value, str):
        return _of_type(value, "a string")
    return None if value in QUEUE_TYPES else f"unknown queue type '{value[:255]}'"


TEXT: Final = Legal(_text, {"type": "string"})
NAME: Final = _text_up_to(255)
"""A name or routing key, which travels as a short string."""
FLAG: Final = Legal(_flag, {"type": "boolean"})
QUEUE_TYPE: Final = Legal(_queue_type, {"type": "string", "enum": list(QUEUE_TYPES)})
AGE: Final = Legal(check_age, {"type": "string", "pattern": "^[0-9]{1,12}[YMDhms]$"})
COUNT: Final = _integer(0, 2**63 - 1)
MILLISECONDS: Final = _integer(0, MILLISECONDS_MAX)
SEGMENT: Final = _integer(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)


def _rule(
    name: str,
    field: str | None,
    legal: Legal,
    merge: Merge = "first",
    *,
    kinds: Kinds = "queues",
    by_policy: bool = True,
) -> Rule:
    """A setting that is `x-NAME` as an argument, and NAME in a policy that may have it. docs/queue-arguments.md and the
    document of the management API show its values and the description in its schema."""
    return Rule(f"x-{name}", name if by_policy else None, field, legal, merge, kinds)


def _unused(name: str, legal: Legal, *, kinds: Kinds = "queues", by_policy: bool = True) -> Rule:
    """One that clients of RabbitMQ send, and that means nothing here: checked, kept and shown."""
    return _rule(name, None, legal.about("Accepted, without effect"), kinds=kinds, by_policy=by_policy)


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        "expires",
        "expires_ms",
        _integer(1, MILLISECONDS_MAX).about("ms without a consumer, declaration or get: then the queue is deleted"),
        "minimum",
    ),
    _rule("message-ttl", "message_ttl_ms", MILLISECONDS.about("ms that a message is kept at most"), "minimum"),
    _rule(
        "dead-letter-exchange",
        "dead_letter_exchange",
        NAME.about("Where messages go that are rejected, expire or have no room"),
    ),
    _rule(
        "dead-letter-routing-key",
        "dead_letter_routing_key",
        NAME.about("The routing key of dead letters, in place of their own"),
    ),
    _rule(
        "dead-letter-strategy",
        "dead_letter_strategy",
        _one_of("at-most-once", "at-least-once").about(
            "In a cluster, of a dead letter that no queue takes: it is dropped, or published again until one does"
        ),
    ),
    _rule("max-length", "max_length", COUNT.about("Ready messages at most"), "minimum"),
    _rule(
        "max-length-bytes",
        "max_length_bytes",
        COUNT.about("Bytes of ready messages' bodies at most; of a stream's files"),
        "minimum",
        kinds="all",
    ),
    _rule(
        "max-priority",
        "max_priority",
        _integer(1, 255).about("The highest priority. Without it a classic queue has none, a quorum queue 31"),
        by_policy=False,
    ),
    _rule(
        "overflow",
        "overflow",
        _one_of("drop-head", "reject-publish", "reject-publish-dlx").about(
            "At a limit of length: the oldest messages go, or publishes are refused, and may be dead-lettered"
        ),
    ),
    _unused("queue-mode", _one_of("default", "lazy")),
    _unused("queue-version", _integer(1, 2)),
    _rule(
        "single-active-consumer",
        "single_active_consumer",
        FLAG.about("One consumer at a time gets messages"),
        by_policy=False,
    ),
    _rule(
        DEDUPLICATION,
        "message_deduplication",
        FLAG.about("A message whose header x-deduplication-header is that of one in the queue is not stored"),
        by_policy=False,
    ),
    _rule(
        "queue-type",
        "queue_type",
        QUEUE_TYPE.about("A stream, or the defaults that RabbitMQ's kind of queue has"),
        by_policy=False,
        kinds="all",
    ),
    _unused("queue-master-locator", TEXT, kinds="all"),
    _rule(
        "queue-leader-locator",
        "leader_locator",
        _one_of("client-local", "balanced").about(
            "The first leader: the node of the client that declares, or the one that leads fewest queues"
        ),
        kinds="all",
    ),
    _rule(
        "delivery-limit",
        "delivery_limit",
        _integer(-1, 2**31 - 1).about(
            "Failed deliveries of a message, after which it is dead-lettered; -1: no limit. A quorum queue has 20"
        ),
        "minimum",
    ),
    _rule(
        "consumer-timeout",
        "consumer_timeout_ms",
        MILLISECONDS.about("ms that a consumer may hold a message; 0: for ever. Else as the node is configured"),
        "minimum",
    ),
    _unused("consumer-disconnected-timeout", MILLISECONDS),
    _rule(
        "delayed-retry-type",
        "delayed_retry_type",
        _one_of("disabled", "all", "failed", "returned").about(
            "Which returned messages wait before the next delivery: those of failed deliveries, the others, or all"
        ),
    ),
    _rule(
        "delayed-retry-min",
        "delayed_retry_min_ms",
        MILLISECONDS.about("ms that they wait, times the failed deliveries; else 1000"),
    ),
    _rule("delayed-retry-max", "delayed_retry_max_ms", MILLISECONDS.about("ms that they wait at most")),
    _unused("max-in-memory-length", COUNT),
    _unused("max-in-memory-bytes", COUNT),
    _rule(
        "quorum-initial-group-size",
        None,
        _integer(1, 255).about("As x-replicas, which precedes it"),
        by_policy=False,
    ),
    _unused("member-placement-tag", TEXT, by_policy=False),
    _rule(
        "replicas",
        "replicas",
        _integer(1, 255).about("Replicas. Else 3, or as many as there are members"),
        kinds="all",
    ),
    _rule(
        "min-in-sync",
        "min_in_sync",
        _integer(1, 255).about("With fewer replicas in sync nothing is confirmed. Else the majority, but 1 of 2"),
        kinds="all",
    ),
    _rule(
        "durability",
        "durability",
        _one_of("memory", "disk", "fsync").about(
            "A confirmed message is in the memory of every replica in sync, written to its disk, or flushed to it"
        ),
        kinds="all",
    ),
    _rule(
        "ownership",
        "ownership",
        _one_of("shared", "rotating").about(
            "The leader serves consumers of all nodes, or only its node's, and leadership moves on to the next"
        ),
    ),
    _rule(
        "ownership-hold-ms",
        "ownership_hold_ms",
        _integer(1, MILLISECONDS_MAX).about("ms until rotating leadership may move on"),
    ),
    _rule(
        "max-age",
        "max_age",
        AGE.about("Age of messages that are kept: a number and Y, M, D, h, m or s", examples=["7D"]),
        kinds="streams",
    ),
    _rule("stream-max-segment-size-bytes", "segment_bytes", SEGMENT.about("Bytes of a file"), kinds="streams"),
    _rule(
        LINK_RECOVERY,
        "link_recovery",
        FLAG.about(
            "Links of AMQP 1.0: false: nothing of them outlives its connection; true: durability 2 makes a link "
            "recoverable, without the capability. Else as the client asks"
        ),
        kinds="all",
    ),
    _rule(
        LINK_EXPIRY_MAX,
        "link_expiry_max_ms",
        MILLISECONDS.about("ms that a link of AMQP 1.0 outlives its client at most, in whole seconds"),
        "minimum",
        kinds="all",
    ),
    _rule(
        RECOVERABLE_LINKS_MAX,
        "recoverable_links_max",
        COUNT.about("Recoverable links of AMQP 1.0 at most"),
        "minimum",
        kinds="all",
    ),
    _unused("stream-filter-size-bytes", _integer(16, 255), kinds="streams"),
    _rule(
        "initial-cluster-size",
        None,
        _integer(1, 255).about("As x-replicas, which precedes it; without effect in a policy"),
        kinds="streams",
    ),
)

_SIZES: Final = {"quorum": "x-quorum-initial-group-size", STREAM: "x-initial-cluster-size"}
"""How many copies, by RabbitMQ's names."""
_LIVES: Final = ("x-expires", "x-message-ttl", "expires", "message-ttl")
ARGUMENT_RULES: Final = {rule.argument: rule for rule in RULES}
POLICY_RULES: Final = {rule.key: rule for rule in RULES if rule.key is not None}


def storable_lives(table: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments, or a policy's definition, as they come: how long queues and messages live may be any number, and one
    that no clock can hold, and no log, is kept as the longest time that there is. That is never, too."""
    kept = dict(table)
    for name in _LIVES:
        value: Any = kept.get(name)
        if is_integer(value) and value > MILLISECONDS_MAX:
            kept[name] = MILLISECONDS_MAX
    return kept


_Named = tuple[str, Mapping[str, Any]]
"""A policy: its name and definition."""


def _merged(
    rule: Rule, arguments: Mapping[str, Any], policy: _Named | None, operator_policy: _Named | None
) -> tuple[Any, str] | None:
    """A setting's value, and what set it; None: nothing does."""
    found: list[tuple[Any, str]] = []
    if operator_policy and rule.key is not None and rule.key in operator_policy[1]:
        found.append((operator_policy[1][rule.key], f"operator policy '{operator_policy[0]}'"))
    if rule.argument in arguments:
        found.append((arguments[rule.argument], f"argument '{rule.argument}'"))
    if policy and rule.key is not None and rule.key in policy[1]:
        found.append((policy[1][rule.key], f"policy '{policy[0]}'"))
    if not found:
        return None
    value, source = found[0]
    if rule.merge == "minimum":
        value = min((v for v, _ in found if v >= 0), default=None)
        if len(found) > 1:
            source = "the minimum of " + " and ".join(f"{name} ({v})" for v, name in found)
    return value, source


def links_of(
    policy: _Named | None, operator_policy: _Named | None
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """LINK_SETTINGS of what has no arguments: values by field, and what set them."""
    values: dict[str, Any] = {}
    sources = []
    for key in LINK_SETTINGS:
        rule = POLICY_RULES[key]
        merged = _merged(rule, {}, policy, operator_policy)
        if merged is not None and rule.field is not None:
            values[rule.field] = merged[0]
            sources.append((rule.field, merged[1]))
    return values, tuple(sources)


def resolve(
    arguments: Mapping[str, Any],
    *,
    transient: bool,
    policy: _Named | None = None,
    operator_policy: _Named | None = None,
) -> QueueSettings:
    """The effective settings from valid arguments and (name, definition) of the policies that apply.

    The messages of a transient queue live in memory under every setting. A negative delivery limit means
    "none" and is never the minimum.
    """
    values: dict[str, Any] = {
        "queue_type": arguments.get("x-queue-type", "classic"),
        "policy": policy[0] if policy else None,
        "operator_policy": operator_policy[0] if operator_policy else None,
    }
    sources: list[tuple[str, str]] = []
    stream = values["queue_type"] == STREAM
    for rule in RULES:
        if rule.field is None or not rule.is_of(stream=stream):
            continue
        merged = _merged(rule, arguments, policy, operator_policy)
        if merged is not None:
            values[rule.field] = merged[0]
            sources.append((rule.field, merged[1]))
    if "delivery_limit" not in values and values["queue_type"] == "quorum":
        values["delivery_limit"] = QUORUM_DELIVERY_LIMIT
        sources.append(("delivery_limit", "default of queue type 'quorum'"))
    size = _SIZES[STREAM if stream else "quorum"]
    if "replicas" not in values and size in arguments:
        values["replicas"] = arguments[size]
        sources.append(("replicas", f"argument '{size}'"))
    if transient:
        values["durability"] = "memory"
        sources = [entry for entry in sources if entry[0] != "durability"]
        sources.append(("durability", "the queue is not durable"))
    return QueueSettings(**values, sources=tuple(sources))
