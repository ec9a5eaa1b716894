"""Requests and facts between nodes: heads of frames on the data link, without payload.

    HandOver   asked on behalf of an operator
    Occupied   what limits of connections ask (`broker.node.occupancy`)

Nothing is answered: what came of a request stands in the map, and who asked looks there. So a request may be lost, come
twice or come late, and what it asks for must be harmless then.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from clusterbroker.cluster.link.fields import Whole

Named = dict[Annotated[str, msgspec.Meta(max_length=255)], Whole]


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """To a queue's owner: hand it to this member, if you still own it and can."""

    queue_id: Annotated[int, msgspec.Meta(ge=0)]
    to: Annotated[str, msgspec.Meta(max_length=64)]


class Occupied(msgspec.Struct, frozen=True, array_like=True, tag=55):
    """Connections at the sender, of vhosts and users that have a limit: those counts that changed."""

    vhosts: Named
    users: Named
    whole: bool = False
    """All counts: what is not named has none."""


AnyRequest = HandOver | Occupied
