"""Performatives within the peer's max-frame-size, which may be 512 bytes (2.7.1): only a transfer can be divided.

What is said for people is cut first, then left out: an error's description and info, an open's properties. An outcome
that a client gave and that is told back loses its fields; the client knows them. An attach that does not fit is refused
where it is made (`fronts.amqp10.attach_answer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from clusterbroker.broker.wire.amqp10.frames import frame
from clusterbroker.broker.wire.amqp10.performatives import (
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Open,
    Rejected,
    TransactionalState,
)


def fitted(channel: int, performative: Composite, size_max: int) -> bytes:
    """One frame of at most `size_max` bytes; the smallest one, if there is no way."""
    data = frame(channel, performative)
    if len(data) <= size_max:
        return data
    for smaller in _smaller(performative, len(data) - size_max):
        data = frame(channel, smaller)
        if len(data) <= size_max:
            break
    return data


def _smaller(performative: Composite, excess: int) -> Iterator[Composite]:
    match performative:
        case Detach(error=Error() as error) | End(error=Error() as error) | Close(error=Error() as error):
            for less in _errors(error, excess):
                yield replace(performative, error=less)
        case Disposition(state=Rejected(error=Error() as error)):
            for less in _errors(error, excess):
                yield replace(performative, state=Rejected(error=less))
            yield replace(performative, state=Rejected())
        case Disposition(state=Composite() as state) if not isinstance(state, TransactionalState):
            yield replace(performative, state=type(state)())
        case Open(properties=dict() as properties):
            for kept in _fewer(properties):
                yield replace(performative, properties=kept)


def _errors(error: Error, excess: int) -> Iterator[Error]:
    if error.info:
        excess -= len(error.encoded()) - len(replace(error, info=None).encoded())
        error = replace(error, info=None)
        yield error
    if error.description is not None:
        raw = error.description.encode()
        if excess < len(raw):
            yield replace(error, description=raw[: len(raw) - excess].decode(errors="ignore"))
        yield replace(error, description=None)


def _fewer(properties: dict[Any, Any]) -> Iterator[dict[Any, Any] | None]:
    """Without the longest, one after another."""
    kept = dict(properties)
    for name in sorted(properties, key=lambda name: len(str(properties[name])), reverse=True):
        del kept[name]
        yield dict(kept) or None
