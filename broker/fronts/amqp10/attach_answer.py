"""The attach that answers a client's: the other role, this side's handle, and the terms in force (2.6.3)."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.wire.amqp10.performatives import Attach


def answering(asked: Attach, link: Any, **settled: Any) -> Attach:
    """The answer to `asked`. `settled`: fields of the attach in which it differs from the client's."""
    fields = {
        "name": link.name,
        "handle": link.handle,
        "role": not asked.role,
        "snd_settle_mode": asked.snd_settle_mode,
        "rcv_settle_mode": asked.rcv_settle_mode,
        "source": asked.source,
        "target": asked.target,
    }
    return Attach(**(fields | settled))


def answer_with(session: SessionCore, told: Attach, link: Any) -> None:
    """Sends an answer: the link is attached."""
    session.table.add(link)
    session.send(told)


def answer(session: SessionCore, asked: Attach, link: Any, **settled: Any) -> None:
    """Answers `asked`: the link is attached."""
    answer_with(session, answering(asked, link, **settled), link)
