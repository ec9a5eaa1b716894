"""What members ask each other on behalf of their management processes: heads of frames on the data link.

A question may be lost with its link, and nobody answers who is busy: who asks waits a second and does without.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]


class CensusAsk(msgspec.Struct, frozen=True, array_like=True, tag=120):
    """Your rows, as far as they are new to me. A newer question of the same member takes the place of an older one."""

    ask: Number
    life: Number
    number: Number
    max_age_ms: Number


class CensusAnswer(msgspec.Struct, frozen=True, array_like=True, tag=121):
    """Payload: a part of the batch (`broker.stats.rows`); `more`: others follow."""

    ask: Number
    more: bool


class CloseConnection(msgspec.Struct, frozen=True, array_like=True, tag=122):
    """An operator ends a client's connection, which is at the node that this is sent to. Not answered."""

    connection_id: Annotated[str, msgspec.Meta(max_length=256)]
    reason: Annotated[str, msgspec.Meta(max_length=1024)]


class InspectAsk(msgspec.Struct, frozen=True, array_like=True, tag=123):
    """Payload: a request about messages of a queue that the receiver owns (`broker.stats.inspection`)."""

    ask: Number


class InspectAnswer(msgspec.Struct, frozen=True, array_like=True, tag=124):
    """To InspectAsk. Payload, when it was done: what came of it."""

    ask: Number
    outcome: Literal["done", "not_yet", "unanswered", "refused"] = "done"
    """not_yet: nothing was begun, it may be asked again."""
    why: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class EndLink(msgspec.Struct, frozen=True, array_like=True, tag=125):
    """An operator ends a link of AMQP 1.0 that is suspended at the node that this is sent to, or with `force` attached
    there. Not answered. Of feature level 4."""

    vhost: Name
    container: Name
    name: Name
    receives: bool
    user: Name
    force: bool
    reason: Annotated[str, msgspec.Meta(max_length=1024)]


AnyCensus = CensusAsk | CensusAnswer | CloseConnection | InspectAsk | InspectAnswer | EndLink
