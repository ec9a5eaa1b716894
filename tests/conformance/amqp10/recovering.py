"""Helpers of the tests of links that are suspended and resumed (rules R)."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Disposition,
    Source,
    Target,
    composed,
)

from ..wire import Channel, eventually
from .wire import Delivery, Link, Receiver, Sender, Session

KEPT_S = 60
RECOVERY = "clusterbroker:link-recovery"


def states(attach: Attach) -> dict[Any, Any]:
    """The unsettled map of an attach."""
    assert attach.unsettled is not None, "the node resumes nothing"
    return {tag: composed(state) for tag, state in attach.unsettled.items()}


def suspend(link: Link) -> None:
    assert not link.detach(closed=False).closed


def sender(session: Session, queue: str, **fields: Any) -> Sender:
    """One whose state survives its connection."""
    return session.sender(f"/queues/{queue}", target=Target(address=f"/queues/{queue}", timeout=KEPT_S), **fields)


class ResumingReceiver(Receiver):
    """A receiver's link that attaches with a map."""

    def __init__(
        self, session: Session, queue: str, name: str, unsettled: dict[bytes, Any] | None, *, timeout: int = 0,
        incomplete: bool = False, second: bool = False, waits: bool = True, policy: str = "session-end",
        lasting: bool = False, max_message_size: int | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        self.session, self.name, self.handle, self.count = session, name, session.handle(), 0
        source = Source(
            address=f"/queues/{queue}", timeout=timeout, expiry_policy=policy, durable=2 * lasting, **fields
        )
        session.say(
            Attach(
                name=name, handle=self.handle, role=True, rcv_settle_mode=int(second), source=source, target=Target(),
                unsettled=unsettled, incomplete_unsettled=incomplete, max_message_size=max_message_size,
                desired_capabilities=(RECOVERY,) if lasting else (),
            )
        )  # fmt: skip
        if waits:
            self.attach = session.wait(Attach, lambda known: known.name == name)
            self.count = int(self.attach.initial_delivery_count or 0)


def receiver(session: Session, queue: str, name: str = "r", unsettled: Any = None, **fields: Any) -> ResumingReceiver:
    return ResumingReceiver(session, queue, name, unsettled, **fields)


def told_of(session: Session, number: int) -> list[Disposition]:
    """What has come of this delivery that the client has sent."""
    told = [frame.body for frame in session.peer.inbox if isinstance(frame.body, Disposition) and frame.body.role]
    return [one for one in told if one.first <= number <= (one.first if one.last is None else one.last)]


def tag_of(delivery: Delivery) -> bytes:
    assert delivery.transfer.delivery_tag is not None
    return delivery.transfer.delivery_tag


def ready(channel: Channel, queue: str, count: int) -> None:
    eventually(lambda: channel.message_count(queue) == count)


def lasting(session: Session, address: str, name: str = "s", **fields: Any) -> Sender:
    """One whose state survives its node."""
    target = Target(address=address, durable=2, timeout=KEPT_S)
    return session.sender(address, name=name, target=target, desired_capabilities=(RECOVERY,), **fields)


def lasting_receiver(session: Session, queue: str, unsettled: Any = None, **fields: Any) -> ResumingReceiver:
    """One that holds what it gets over the death of its node."""
    return receiver(session, queue, unsettled=unsettled, timeout=KEPT_S, lasting=True, **fields)
