"""The attach that answers a client's: the other role, this side's handle, and the terms in force (2.6.3)."""

from __future__ import annotations

from typing import Any, Final

from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.wire.amqp10.errors import FRAME_SIZE, LinkError
from clusterbroker.broker.wire.amqp10.frames import frame
from clusterbroker.broker.wire.amqp10.performatives import Attach

NO_MAP: Final[dict[str, Any]] = {"unsettled": {}, "incomplete_unsettled": True}
"""The least that an answer to an unsettled map says: it has to fit the client's frames."""


def answering(session: SessionCore, asked: Attach, **settled: Any) -> Attach:
    """The answer to `asked`. `settled`: fields of the attach in which it differs from the client's. Raises LinkError
    for one that is more than the client's max-frame-size."""
    fields: dict[str, Any] = {
        "name": asked.name,
        "handle": int(asked.handle),
        "role": not asked.role,
        "snd_settle_mode": asked.snd_settle_mode,
        "rcv_settle_mode": asked.rcv_settle_mode,
        "source": asked.source,
        "target": asked.target,
    }
    made = Attach(**(fields | settled))
    most, size = session.connection.out.frame_max, len(frame(session.number, made))
    if size > most:
        raise LinkError(FRAME_SIZE, f"the attach that answers has {size} bytes, and the max-frame-size is {most}")
    return made


def attached(session: SessionCore, link: Any, told: Attach) -> None:
    """The link is attached, and the client is told so with this answer."""
    session.table.add(link)
    session.send(told)


def answer(session: SessionCore, asked: Attach, link: Any, **settled: Any) -> None:
    """The link is attached, if its answer fits. Raises LinkError."""
    attached(session, link, answering(session, asked, **settled))


def refusal_of(session: SessionCore, asked: Attach) -> Attach:
    """The answer to an attach that is refused: the client's terminus as it said it, if that fits, and none here."""
    made = Attach(
        name=asked.name, handle=asked.handle, role=not asked.role, source=None if asked.role else asked.source,
        target=asked.target if asked.role else None, initial_delivery_count=0 if asked.role else None,
    )  # fmt: skip
    if len(frame(session.number, made)) > session.connection.out.frame_max:
        made.source = made.target = None
    return made
