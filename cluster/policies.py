"""Policies: which one applies to a name, and what settings come out of it.

Of a vhost's policies only one applies to a queue: the one with the highest priority among those whose pattern
matches and which apply to its kind; equal priorities are decided by name. The operator policies are a second,
independent row, and `queue_settings.resolve` merges the winners with the queue's arguments. Results are
shared: queues with the same arguments under the same policies get the same QueueSettings object.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from .arguments import frozen, same, type_name
from .entities import Exchange, OperatorPolicy, Policy, Queue
from .errors import PreconditionFailed
from .ids import QueueId
from .patterns import PatternError, compiled, matches
from .queue_settings import POLICY_RULES, QueueSettings, resolve

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
SHARED_SETTINGS_MAX: Final = 4096
REMEMBERED_MAX: Final = 65_536
"""Queues whose settings are remembered; beyond that all are forgotten, and found again."""
_P = TypeVar("_P", Policy, OperatorPolicy)

_APPLIES_TO_QUEUES: Final = {
    "classic": ("all", "queues", "classic_queues"),
    "quorum": ("all", "queues", "quorum_queues"),
    "stream": ("all", "queues", "streams"),
}
_APPLIES_TO_EXCHANGES: Final = ("all", "exchanges")


class ExchangeSettings(msgspec.Struct, frozen=True):
    """Effective settings of an exchange."""

    alternate_exchange: str | None = None
    policy: str | None = None


def check_policy(policy: Policy | OperatorPolicy) -> None:
    """Raise 406 when the pattern or a setting of a policy is not usable."""
    try:
        compiled(policy.pattern)
    except PatternError as error:
        raise PreconditionFailed(f"invalid pattern of policy '{policy.name}': {error}") from error
    if not policy.definition:
        raise PreconditionFailed(f"policy '{policy.name}' defines nothing")
    for key, value in policy.definition.items():
        rule = POLICY_RULES.get(key)
        if rule is not None:
            problem = rule.check(value)
        elif key == ALTERNATE_EXCHANGE and isinstance(policy, Policy):
            problem = None if isinstance(value, str) else f"unacceptable type '{type_name(value)}'"
        else:
            raise PreconditionFailed(f"'{key}' is not a recognised setting of policy '{policy.name}'")
        if problem is not None:
            raise PreconditionFailed(f"invalid value of '{key}' in policy '{policy.name}': {problem}")


class PolicyTable:
    """The policies of one vhost, in the order in which they are asked."""

    __slots__ = ("_operator", "_ordered", "_ordered_operator", "_policies", "_remembered", "_shared")

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self._operator: dict[str, OperatorPolicy] = {}
        self._ordered: tuple[Policy, ...] = ()
        self._ordered_operator: tuple[OperatorPolicy, ...] = ()
        self._shared: dict[Hashable, QueueSettings] = {}
        self._remembered: dict[QueueId, tuple[str, dict[str, Any], QueueSettings]] = {}

    def put(self, policy: Policy) -> bool:
        """Add or replace; whether that changed anything."""
        if same(self._policies.get(policy.name), policy):
            return False
        self._policies[policy.name] = policy
        self._reorder()
        return True

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        if self._policies.pop(name, None) is None:
            return False
        self._reorder()
        return True

    def put_operator(self, policy: OperatorPolicy) -> bool:
        """Add or replace; whether that changed anything."""
        if same(self._operator.get(policy.name), policy):
            return False
        self._operator[policy.name] = policy
        self._reorder()
        return True

    def delete_operator(self, name: str) -> bool:
        """Remove; whether it was there."""
        if self._operator.pop(name, None) is None:
            return False
        self._reorder()
        return True

    def policies(self) -> tuple[Policy, ...]:
        """Highest priority first."""
        return self._ordered

    def operator_policies(self) -> tuple[OperatorPolicy, ...]:
        """Highest priority first."""
        return self._ordered_operator

    def queue_settings(self, queue: Queue) -> QueueSettings:
        """The effective settings of a queue (amqp-rules.md 5.3, Precedence).

        Those of queues that stay are remembered: a command about a member asks for thousands of them at once, and
        every pattern of every policy is a search.
        """
        known = self._remembered.get(queue.queue_id)
        if known is not None and known[0] == queue.name and known[1] is queue.arguments:
            return known[2]
        settings = self._resolved(queue)
        if not queue.transient:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[queue.queue_id] = (queue.name, queue.arguments, settings)
        return settings

    def _resolved(self, queue: Queue) -> QueueSettings:
        kinds = _APPLIES_TO_QUEUES[queue.arguments.get("x-queue-type", "classic")]
        policy = None if queue.staging else _first(self._ordered, kinds, queue.name)
        operator = None if queue.staging else _first(self._ordered_operator, kinds, queue.name)
        key = (
            frozen(queue.arguments) if queue.arguments else (),
            queue.transient,
            policy.name if policy else None,
            operator.name if operator else None,
        )
        settings = self._shared.get(key)
        if settings is None:
            if len(self._shared) >= SHARED_SETTINGS_MAX:
                self._shared.clear()
            settings = self._shared[key] = resolve(
                queue.arguments,
                transient=queue.transient,
                policy=_named(policy),
                operator_policy=_named(operator),
            )
        return settings

    def exchange_settings(self, exchange: Exchange) -> ExchangeSettings:
        """The effective settings of an exchange; the argument beats the policy."""
        policy = _first(self._ordered, _APPLIES_TO_EXCHANGES, exchange.name)
        alternate = exchange.arguments.get(ALTERNATE_EXCHANGE)
        if alternate is None and policy is not None:
            alternate = policy.definition.get(ALTERNATE_EXCHANGE)
        return ExchangeSettings(alternate, policy.name if policy else None)

    def _reorder(self) -> None:
        self._ordered = _by_precedence(self._policies.values())
        self._ordered_operator = _by_precedence(self._operator.values())
        self._shared.clear()
        self._remembered.clear()


def _by_precedence(policies: Iterable[_P]) -> tuple[_P, ...]:
    return tuple(sorted(policies, key=lambda policy: (-policy.priority, policy.name)))


def _first(policies: tuple[_P, ...], kinds: tuple[str, ...], name: str) -> _P | None:
    for policy in policies:
        if policy.apply_to in kinds and matches(policy.pattern, name):
            return policy
    return None


def _named(policy: Policy | OperatorPolicy | None) -> tuple[str, Mapping[str, Any]] | None:
    return (policy.name, policy.definition) if policy else None
