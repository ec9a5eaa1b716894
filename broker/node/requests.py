"""Requests between nodes on behalf of an operator: heads of frames on the data link, without payload.

(`Occupied` is no request, and what limits ask: `broker.node.occupancy`.)

Nothing is answered: what came of a request stands in the map, and who asked looks there. So a request may be lost, come
twice or come late, and what it asks for must be harmless then.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from clusterbroker.broker.node.occupancy import Occupied


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """To a queue's owner: hand it to this member, if you still own it and can."""

    queue_id: Annotated[int, msgspec.Meta(ge=0)]
    to: Annotated[str, msgspec.Meta(max_length=64)]


AnyRequest = HandOver | Occupied
