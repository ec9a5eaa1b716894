"""What a pool has told in its stream of events, held beside what clients and workers saw."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

from clusterbroker.broker.pools.events import Name
from tests.simulation.pools.checkers import require

if TYPE_CHECKING:
    from .world import World


def check(world: World, events: list[dict[str, Any]]) -> None:
    """What the pool has told of its requests is so: no acknowledgement that there was not, and no death of which
    its caller has not heard; two owners may tell the same. While nodes and links are well none is missing, unless
    its worker was ended before its acknowledgement had come."""
    answered: Counter[int] = Counter()
    known = frozenset(get_args(Name))
    at: dict[tuple[str, int], str] = {}
    """Of a queue's number the request that was told there last."""
    for event in events:
        where = event.get("queue", ""), event.get("seq", 0)
        if "correlation_id" in event:
            at[where] = event["correlation_id"]
        elif "queue" in event and where in at:
            event["correlation_id"] = at[where]
        require(event["event"] in known, f"events: none is called {event['event']}")
        if "correlation_id" not in event:
            continue
        request = world.requests[int(event["correlation_id"])]
        require(event["key"] == request.key, f"events: {event} tells of another key than {request.key!r}")
        if event["event"] == "answered":
            answered[request.number] += 1
        if event["event"] == "died":
            require(bool(request.errors) or not event["heard"], f"events: {event}, and its caller has heard nothing")
    well = world.tells and not any(world.counts[word] for word in ("kills", "pauses", "cuts", "resets"))
    for request in world.requests:
        count = answered[request.number]
        require(not count or bool(request.acks), f"events: {request} is answered, by what was told")
        sure = well and not request.doubts
        require(count >= request.acks or not sure, f"events: {request} is answered, and {count} x told")
