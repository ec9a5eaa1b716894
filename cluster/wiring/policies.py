"""Policies: the one that applies to a name, and the resulting settings.

Of a vhost's policies only one applies to a queue: the one with the highest priority among those whose pattern
matches and which apply to its kind; equal priorities are decided by name. The operator policies are a second,
independent row, and `queue_settings.resolve` merges the winners with the queue's arguments. Results are
shared: queues with the same arguments under the same policies get the same QueueSettings object.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import QueueId
from clusterbroker.journal.values import canonical_table

from .arguments import same, type_name
from .delay_bits import BITS_SETTINGS, DELAY_BITS, DELAY_EXCHANGE, missing_one, problem_of
from .entities import Exchange, OperatorPolicy, Policy, Queue
from .patterns import PatternError, compiled, matches
from .queue_settings import POLICY_RULES, QueueSettings, links_of, resolve

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
SHARED_SETTINGS_MAX: Final = 4096
REMEMBERED_MAX: Final = 1 << 18
"""Names and queues of which something is remembered; beyond that all are forgotten, and found again."""
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
    link_recovery: bool | None = None
    """This and what follows: as `QueueSettings` has it."""
    link_expiry_max_ms: int | None = None
    recoverable_links_max: int | None = None
    sources: tuple[tuple[str, str], ...] = ()
    delay_bits: int | None = None
    """Keys of its messages begin with so many bits of a delay (`delay_bits`)."""
    delay_exchange: str | None = None
    """Where those go when they are due."""


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
        elif key in BITS_SETTINGS and isinstance(policy, Policy):
            problem = problem_of(key, value)
        else:
            raise PreconditionFailed(f"'{key}' is not a recognised setting of policy '{policy.name}'")
        if problem is not None:
            raise PreconditionFailed(f"invalid value of '{key}' in policy '{policy.name}': {problem}")
    if (lacking := missing_one(policy.definition)) is not None:
        raise PreconditionFailed(
            f"policy '{policy.name}' lacks '{lacking}': '{DELAY_BITS}' and '{DELAY_EXCHANGE}' hold together only"
        )


class Matching:
    """Which patterns of a vhost's policies are found in which names: each pair is compared once.

    Theory. The patterns of all policies stand in slots, and of a name the slots with a pattern that is found in it are
    remembered, as the bits of a number, with the edition of the table to which that holds. A policy that comes costs
    one comparison for each name, and one that goes none. Without that each change would cost all policies times all
    names, some microseconds each (decision 044).
    """

    __slots__ = ("_free", "_names", "_slots", "edition")

    def __init__(self) -> None:
        self.edition = 0
        self._slots: dict[str, tuple[int, int]] = {}  # pattern -> (its slot, the edition since when); newest last
        self._free: list[int] = []
        self._names: dict[str, tuple[int, int]] = {}  # name -> (edition, slots that are found)

    def patterns(self, wanted: set[str]) -> None:
        """The patterns that count from now on."""
        self.edition += 1
        for pattern in [pattern for pattern in self._slots if pattern not in wanted]:
            self._free.append(self._slots.pop(pattern)[0])
        for pattern in wanted:  # in whatever order: nobody sees a slot's number
            if pattern not in self._slots:
                slot = self._free.pop() if self._free else len(self._slots)
                self._slots[pattern] = slot, self.edition

    def bit(self, pattern: str) -> int:
        """The bit of a pattern that counts."""
        return 1 << self._slots[pattern][0]

    def found(self, name: str) -> int:
        """The bits of the patterns that are found in a name; bits of other slots mean nothing."""
        edition, bits = self._names.get(name, (0, 0))
        if edition != self.edition:
            for pattern in reversed(self._slots):
                slot, since = self._slots[pattern]
                if since <= edition:
                    break
                bits = bits | 1 << slot if matches(pattern, name) else bits & ~(1 << slot)
            if len(self._names) >= REMEMBERED_MAX:
                self._names.clear()
            self._names[name] = self.edition, bits
        return bits

    def forget(self, name: str) -> None:
        """Nothing has this name any more."""
        self._names.pop(name, None)


class Row(Generic[_P]):
    """Policies of one kind: the first of them that is found in a name and applies to a kind of entity wins."""

    __slots__ = ("_of_kind", "by_name", "ordered")

    def __init__(self) -> None:
        self.by_name: dict[str, _P] = {}
        self.ordered: tuple[_P, ...] = ()
        """Highest priority first."""
        self._of_kind: dict[tuple[str, ...], dict[int, int]] = {}  # kinds -> bit of a pattern -> place in the order

    def put(self, policy: _P) -> bool:
        """Add or replace; whether that changed anything."""
        if same(self.by_name.get(policy.name), policy):
            return False
        self.by_name[policy.name] = policy
        return True

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        return self.by_name.pop(name, None) is not None

    def reorder(self, matching: Matching) -> None:
        """After a change, and after `matching` has heard of it."""
        self.ordered = tuple(sorted(self.by_name.values(), key=lambda policy: (-policy.priority, policy.name)))
        for kinds in (*_APPLIES_TO_QUEUES.values(), _APPLIES_TO_EXCHANGES):
            places = self._of_kind[kinds] = {}
            for place, policy in enumerate(self.ordered):
                if policy.apply_to in kinds:
                    places.setdefault(matching.bit(policy.pattern), place)

    def first(self, kinds: tuple[str, ...], bits: int) -> _P | None:
        """The one that wins, of those whose patterns are found."""
        best = len(self.ordered)
        places = self._of_kind.get(kinds, {})
        while bits and places:
            lowest = bits & -bits
            best = min(best, places.get(lowest, best))
            bits ^= lowest
        return self.ordered[best] if best < len(self.ordered) else None


class _Known(NamedTuple):
    """Settings of a queue that were found, and of what."""

    name: str
    arguments: dict[str, Any]
    edition: int
    policy: Policy | None
    operator: OperatorPolicy | None
    settings: QueueSettings


class PolicyTable:
    """The policies of one vhost, in the order in which they are asked."""

    __slots__ = ("_matching", "_operator", "_policies", "_remembered", "_shared")

    def __init__(self) -> None:
        self._matching = Matching()
        self._policies: Row[Policy] = Row()
        self._operator: Row[OperatorPolicy] = Row()
        self._shared: dict[Hashable, QueueSettings] = {}
        self._remembered: dict[QueueId, _Known] = {}

    def put(self, policy: Policy | OperatorPolicy) -> bool:
        """Add or replace; whether that changed anything."""
        if isinstance(policy, OperatorPolicy):
            return self._changed(self._operator.put(policy))
        return self._changed(self._policies.put(policy))

    def delete(self, name: str, *, operator: bool) -> bool:
        """Remove a policy, or an operator policy; whether it was there."""
        return self._changed((self._operator if operator else self._policies).delete(name))

    def get(self, name: str, *, operator: bool) -> Policy | OperatorPolicy | None:
        """The policy, or the operator policy, of this name."""
        return self._operator.by_name.get(name) if operator else self._policies.by_name.get(name)

    def policies(self) -> tuple[Policy, ...]:
        """Highest priority first."""
        return self._policies.ordered

    def operator_policies(self) -> tuple[OperatorPolicy, ...]:
        """Highest priority first."""
        return self._operator.ordered

    def __len__(self) -> int:
        """Policies and operator policies."""
        return len(self._policies.by_name) + len(self._operator.by_name)

    def queue_settings(self, queue: Queue) -> QueueSettings:
        """The effective settings of a queue (amqp-rules.md 5.3, Precedence).

        They are remembered: a command about a member asks for those of thousands of queues at once.
        """
        edition = self._matching.edition
        known = self._remembered.get(queue.queue_id)
        if known is not None and (known.name != queue.name or known.arguments is not queue.arguments):
            known = None
        if known is not None and known.edition == edition:
            return known.settings
        kinds = _APPLIES_TO_QUEUES[queue.arguments.get("x-queue-type", "classic")]
        policy, operator = None, None
        if not (queue.staging or queue.part_of) and len(self):
            bits = self._matching.found(queue.name)
            policy, operator = self._policies.first(kinds, bits), self._operator.first(kinds, bits)
        if known is not None and known.policy is policy and known.operator is operator:
            settings = known.settings
        else:
            settings = self._resolved(queue, policy, operator)
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[queue.queue_id] = _Known(queue.name, queue.arguments, edition, policy, operator, settings)
        return settings

    def _resolved(self, queue: Queue, policy: Policy | None, operator: OperatorPolicy | None) -> QueueSettings:
        key = (
            canonical_table(queue.arguments),
            queue.transient,
            policy.name if policy else None,
            operator.name if operator else None,
        )
        settings = self._shared.get(key)
        if settings is None:
            if len(self._shared) >= SHARED_SETTINGS_MAX:
                self._shared.clear()
            settings = self._shared[key] = resolve(
                queue.arguments, transient=queue.transient, policy=_named(policy), operator_policy=_named(operator)
            )
        return settings

    def exchange_settings(self, exchange: Exchange) -> ExchangeSettings:
        """The effective settings of an exchange; the argument beats the policy."""
        policy = operator = None
        if len(self):
            bits = self._matching.found(exchange.name)
            policy = self._policies.first(_APPLIES_TO_EXCHANGES, bits)
            operator = self._operator.first(_APPLIES_TO_EXCHANGES, bits)
        alternate = exchange.arguments.get(ALTERNATE_EXCHANGE)
        if alternate is None and policy is not None:
            alternate = policy.definition.get(ALTERNATE_EXCHANGE)
        values, sources = links_of(_named(policy), _named(operator))
        said = policy.definition if policy is not None else {}
        return ExchangeSettings(
            alternate, policy.name if policy else None, **values, sources=sources,
            delay_bits=said.get(DELAY_BITS), delay_exchange=said.get(DELAY_EXCHANGE),
        )  # fmt: skip

    @property
    def says_bits(self) -> bool:
        """Whether a policy is for exchanges with delays in keys."""
        return any(DELAY_BITS in policy.definition for policy in self._policies.by_name.values())

    def forget(self, entity: Queue | Exchange) -> None:
        """A queue or an exchange has ended."""
        self._matching.forget(entity.name)
        if isinstance(entity, Queue):
            self._remembered.pop(entity.queue_id, None)

    def _changed(self, changed: bool) -> bool:
        if changed:
            patterns = {policy.pattern for policy in self._policies.by_name.values()}
            patterns.update(policy.pattern for policy in self._operator.by_name.values())
            self._matching.patterns(patterns)
            self._policies.reorder(self._matching)
            self._operator.reorder(self._matching)
            self._shared.clear()
        return changed


def _named(policy: Policy | OperatorPolicy | None) -> tuple[str, Mapping[str, Any]] | None:
    return (policy.name, policy.definition) if policy else None
