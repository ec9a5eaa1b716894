"""How long the state of a link is kept when its client goes: expiry policy and timeout (specification 3.5.5).

    policy              the time runs from
    link-detach         its detach
    session-end         the end of its session (default)
    connection-close    the end of its connection
    never               nothing: it does not end with time

With a timeout of 0 the state ends with the policy's event. The answer says what is in force.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Source, Target

TIMEOUT_S_MAX: Final = 30 * 24 * 3600
"""Of a client that does not administer the broker; `never` is no longer for it."""
NEVER: Final = "never"


class Event(IntEnum):
    """What a client's going is."""

    DETACH = 0
    END = 1
    CLOSE = 2


_BEGINS: Final = {"link-detach": 0, "session-end": 1, "connection-close": 2, NEVER: 3}


class Terms(NamedTuple):
    """In force for a link."""

    policy: str
    timeout_s: int

    @property
    def outlives_connection(self) -> bool:
        return self.outlives(Event.CLOSE)

    def outlives(self, event: Event) -> bool:
        """Whether the state is kept behind this event."""
        return self.timeout_s > 0 or _BEGINS[self.policy] > event

    def runs_from(self, event: Event) -> bool:
        """Whether the time has begun with this event, or before it."""
        return _BEGINS[self.policy] <= event


NOTHING_KEPT: Final = Terms("link-detach", 0)


@lru_cache(maxsize=256)
def _terms(policy: str, timeout_s: int) -> Terms:
    """Most links have the same: they share them."""
    return Terms(policy, timeout_s)


def in_force(asked: Source | Target, *, kept: bool, administers: bool) -> Terms:
    """`kept`: the node can keep the state of such a link at all. Raises LinkError."""
    if asked.expiry_policy not in _BEGINS:
        raise LinkError(INVALID_FIELD, f"expiry-policy is {', '.join(_BEGINS)}")
    if not kept:
        return NOTHING_KEPT
    policy, timeout_s = str(asked.expiry_policy), int(asked.timeout)
    if administers:
        return _terms(policy, timeout_s)
    if policy == NEVER:
        return _terms("connection-close", TIMEOUT_S_MAX)
    return _terms(policy, min(timeout_s, TIMEOUT_S_MAX))
