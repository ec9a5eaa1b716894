"""Origins of dead letters: the queue of the first death, if a return is possible.

`x-first-death-queue` is a header, and a publisher may have written it. A returned message (`to_origin`) is published
with an operator's rights, so the header alone must not choose the target: the named queue must be one whose dead
letters come here, by the present settings of the queues on the way. A stranger's message then comes at most to places
where the dead letters of this queue belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp.properties import Properties
from clusterbroker.broker.stats.inspection import FIRST_DEATH_QUEUE

if TYPE_CHECKING:
    from clusterbroker.broker.node.vhost import VirtualHost

QUEUES_MAX: Final = 64
"""So many queues on the way are asked where their dead letters go."""


def origin_of(vhost: VirtualHost, properties: Properties, keys: Sequence[str], here: str) -> str | None:
    """The queue in which a message of queue `here` died first; None: none that there is, or none that leads here.

    `keys`: the message's routing keys, for queues that its deaths say nothing of.
    """
    headers = properties.headers or {}
    origin = headers.get(FIRST_DEATH_QUEUE)
    if not isinstance(origin, str):
        return None
    asked = {origin}
    waiting = [origin]
    while waiting:
        name = waiting.pop(0)
        queue = vhost.queues.get(name)
        if queue is None or queue.settings.dead_letter_exchange is None:
            continue
        forced = queue.settings.dead_letter_routing_key
        routed = keys_at(headers, name) or keys if forced is None else (forced,)
        route = vhost.router.reach(
            queue.settings.dead_letter_exchange, routed[0], lambda: headers, routed[1:],
            lambda field: getattr(properties, field, None),
        )  # fmt: skip
        if any(target.name == here for target in route.targets):
            return origin
        for target in route.targets:
            if target.name not in asked and len(asked) < QUEUES_MAX:
                asked.add(target.name)
                waiting.append(target.name)
    return None


def keys_at(headers: Mapping[str, Any], queue: str) -> Sequence[str]:
    """By which keys the message was routed when it died in this queue, as its deaths tell."""
    deaths = headers.get("x-death")
    for each in deaths if isinstance(deaths, list) else ():
        if isinstance(each, Mapping) and each.get("queue") == queue:
            keys = each.get("routing-keys")
            return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ()
    return ()
