"""Consumers that hold a delivery for too long are cancelled, and their messages return (amqp-rules, last section).

The client of a recoverable link of AMQP 1.0, which comes again with an outcome for one of them, hears that it was not
carried out (`QueueHandle.withdraw`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.access.authorization import TOO_LONG, Authorization
from clusterbroker.broker.access.receiver import RETURN_STEPS, Consumer, give_back
from clusterbroker.broker.queues.ring import Taker
from clusterbroker.broker.queues.subscription import attach_of, hold_limit_ms

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node

LIMIT_STEPS: Final = 3
"""To see how long a consumer may hold a message."""
TIME_OUT_STEPS: Final = 60
"""A consumer that has held one for too long."""
LISTED_IN_A_STEP: Final = 4
SOUGHT_IN_A_STEP: Final = 64
"""Of a session's unacknowledged messages: when their holders are listed, and one's are taken out."""


class Ledger(Protocol):
    """A session's unacknowledged deliveries: (delivery time in ms, taker), (tag, taker, seq)."""

    @property
    def unacked(self) -> int: ...

    def oldest(self) -> tuple[int, Taker, int] | None: ...

    def held(self) -> Sequence[tuple[int, Taker]]:
        """Each taker that holds one, with the time of its oldest."""

    def drain_of(self, consumer: Any) -> Sequence[tuple[int, Taker, int]]:
        """Takes all deliveries of a taker out."""


class Session(Protocol):
    """The session that holds deliveries."""

    access: Authorization

    @property
    def ledger(self) -> Ledger: ...

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """By tag."""

    @property
    def closing(self) -> bool: ...

    @property
    def hears_cancels(self) -> bool:
        """Its client understands that a consumer is cancelled; if not, the session ends instead."""

    def cancelled(self, subscription: Any) -> None:
        """The broker ended this consumer of the session."""

    def timed_out(self, limit_ms: int) -> None:
        """A delivery was held for too long: ends the session."""


def check_timeouts(session: Session, node: Node, now_ms: int, until: int) -> bool:
    """False: the node has done what is to be done at once (`until`, of `Labour.done`), and there may be more of
    them."""
    ledger, labour = session.ledger, node.labour
    oldest = ledger.oldest()
    default = node.options.consumer_timeout_ms
    labour.done += LIMIT_STEPS * len(session.consumers)
    limits = [hold_limit_ms(subscription.queue.settings, default) for subscription in session.consumers.values()]
    shortest = min((limit for limit in (*limits, default) if limit), default=0)
    if oldest is None or not shortest or now_ms - oldest[0] < shortest:
        return True
    labour.done += ledger.unacked // LISTED_IN_A_STEP
    went = False
    for at_ms, consumer in ledger.held():
        limit = hold_limit_ms(consumer.ring.owner.settings, default)
        if limit and now_ms - at_ms >= limit and not session.closing:
            if went and labour.done > until:
                return False
            labour.done += TIME_OUT_STEPS + ledger.unacked // SOUGHT_IN_A_STEP
            _time_out(session, node, consumer, limit, now_ms)
            went = True
    return True


def _time_out(session: Session, node: Node, consumer: Taker, limit: int, now_ms: int) -> None:
    queue, subscription = consumer.ring.owner, consumer.owner
    if subscription is None or not session.hears_cancels or subscription.reads_to_an_end:
        session.timed_out(limit)
        return
    entries = session.ledger.drain_of(consumer)
    attach = attach_of(consumer)
    if attach.link:
        node.labour.done += RETURN_STEPS * len(entries)
        node.setting_aside.work(queue, queue.withdraw, [seq for _, _, seq in entries], attach)
    else:
        give_back(node, entries, requeue=True, counted=True, lost=session.access.lost(TOO_LONG, len(entries)))
    known = session.consumers.get(subscription.tag)
    if known is not None and known is subscription:  # a cancelled one's tag may be in use again
        queue.unsubscribe(known, now_ms)
        session.cancelled(known)
