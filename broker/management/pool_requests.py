"""Requests of a worker pool by their correlation id or message id, wherever they are (pure: what is asked, and told).

Nothing is kept about a request but the request itself, so it is looked for where it may be:

    delayed   it waits in the pool's delayed exchange                  P-delayed's queue
    orphan    its key has no group yet; `moving`: on its way to it     P-orphan
    waiting   for a worker of its key                                  P-req-KEY
    held      a worker has it: which one its node tells (`holders`)    P-req-KEY
    dead      it is being answered; `reason` says why                  P-req-KEY, P-dl
    poison    it was answered, and a copy is kept                      P-poison

Whoever is nowhere is answered, or was never there. Queues are looked at in the order of a request's way, so one that
goes on meanwhile is found, perhaps twice. Of a queue that the user may not read nothing is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct

from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.loss_headers import LOST, POISON, REASON
from clusterbroker.broker.stats.inspection import Request, Result, Shown, What
from clusterbroker.cluster.wiring.delays import delay_queue
from clusterbroker.cluster.wiring.pool_names import PoolNames

from .errors import bad_request, object_not_found
from .forms import Form
from .pools import may_read
from .principals import MANAGEMENT
from .reading import Document, Reading
from .reads import Path

GROUPS_MAX: Final = 500
"""Groups that one question looks into; `next` says where to go on."""
FOUND_MAX: Final = 50
"""Of one question to a queue."""
OF_QUEUE_MAX: Final = 1000
"""When so many were found in a queue the search of it ends."""
BY: Final = ("correlation_id", "message_id")
CANCELLED: Final = ("delayed", "orphan", "waiting")
"""In these states nobody has begun with it."""


class Wanted(Form):
    """Of a query: which requests are meant, and where they are looked for."""

    by: Annotated[str, Meta(extra_json_schema={"enum": list(BY)})] = "correlation_id"
    key: Annotated[str, Meta(description="Only this worker key")] = ""
    start: Annotated[str, Meta(description="Where to go on: `next` of the answer before")] = ""


class Search(Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    cancels: bool = False
    form: type[Form] | None = None
    statuses: tuple[int, ...] = (200,)


class Place(NamedTuple):
    """A queue that is looked into."""

    part: str
    queue: str
    request: Request


class Plan(NamedTuple):
    """What is asked. `places`: one after the other, but for those of one part. `next`: of the answer."""

    places: Sequence[Place]
    next: str | None


def plan(reading: Reading, path: Path) -> Plan:
    """Refused as rights and query demand, (404) without the pool."""
    vhost, name = path["vhost"], path["name"]
    reading.principal.require(MANAGEMENT)
    reading.principal.enter(vhost)
    pool = reading.map.pools.find(vhost, name)
    if pool is None:
        raise object_not_found()
    wanted = Wanted.of(reading.query)
    if wanted.by not in BY:
        raise bad_request(f"by is '{wanted.by[:64]}': one of {', '.join(BY)} is allowed")
    names, by_key = PoolNames(name), "key" in reading.query
    escaped = path["id"].replace("\\", "\\\\").replace('"', '\\"')
    filter_ = f'{wanted.by}="{escaped}"'
    found = sorted(reading.map.pools.groups(pool.pool_id), key=lambda group: group.key)
    groups = [group for group in found if (group.key == wanted.key if by_key else group.key >= wanted.start)]
    queues = [(part, queue) for part, queue in (("delayed", delay_queue(names.delayed)), ("orphan", names.orphans))]
    queues += [("group", names.request_queue(group.key)) for group in islice(groups, GROUPS_MAX)]
    queues += [("dead", names.dead), ("poison", names.poison)]
    places = []
    for part, queue in queues:
        entity = reading.map.queue(vhost, queue)
        if entity is not None and may_read(reading, pool, names.delayed if part == "delayed" else queue):
            places.append(Place(part, queue, Request("browse", entity.queue_id, count=FOUND_MAX, filter=filter_)))
    return Plan(places, groups[GROUPS_MAX].key if len(groups) > GROUPS_MAX else None)


def holders_of(place: Place, result: Result) -> list[Request]:
    """What the nodes are asked whose workers hold some of what was found."""
    at: dict[str, list[int]] = {}
    for shown in result.shown:
        if shown.state == "unacknowledged" and shown.node:
            at.setdefault(shown.node, []).append(shown.seq)
    return [Request("holders", place.request.queue_id, seqs=tuple(seqs), at=node) for node, seqs in at.items()]


def cancellation(place: Place, result: Result, found: Sequence[Document]) -> Request | None:
    """Takes out what waits there; None: nothing does."""
    seqs = tuple(one["seq"] for one in found if one["state"] in CANCELLED)
    what: What = "delete"
    return Request(what, place.request.queue_id, seqs=seqs, life=result.life) if seqs else None


def documents(place: Place, result: Result, holders: dict[int, tuple[str, int]]) -> list[Document]:
    """Of the requests that were found in one queue."""
    return [_document(place, shown, holders.get(shown.seq)) for shown in result.shown]


def _document(place: Place, shown: Shown, holder: tuple[str, int] | None) -> Document:
    try:
        properties = properties_of(shown)
    except UnknownFormatError:
        properties = None
    headers: dict[str, Any] = (properties and properties.headers) or {}
    poison = headers.get(POISON)
    lost = {name.removeprefix(LOST): how for name, how in headers.items() if name.startswith(LOST)}
    state = _state(place.part, shown.state)
    return {
        "state": state,
        "key": shown.routing_key.decode(errors="replace"),
        "queue": place.queue,
        "seq": shown.seq,
        "correlation_id": properties and properties.correlation_id,
        "message_id": properties and properties.message_id,
        "attempt": shown.delivery_count + 1 if state in ("waiting", "held") else None,
        "worker": holder and holder[0],
        "held_since_ms": holder and holder[1],
        "node": shown.node or None,
        "reason": headers.get(REASON) if state == "dead" else "delivery_limit" if state == "poison" else None,
        "lost": poison.get("workers") if isinstance(poison, dict) else lost,
        "due_ms": shown.due_ms or None,
        "timestamp_ms": shown.time_ms,
    }


def _state(part: str, state: str) -> str:
    if part == "orphan":
        return "orphan" if state == "ready" else "moving"
    if part == "group":
        return {"ready": "waiting", "unacknowledged": "held"}.get(state, "dead")
    return part


def answer(plan_: Plan, items: list[Document], silent: list[str]) -> Document:
    """`silent`: queues that could not be looked into now, or not to their end, as so much was found."""
    return {"items": items, "next": plan_.next, "not_looked_into": silent}


_PATH: Final = "/api/pools/{vhost}/{name}/requests/{id}"
SEARCHES: Final = (
    Search("GET", _PATH, "Where requests with this correlation id are"),
    Search("DELETE", _PATH, "Cancel requests with this correlation id that wait; callers hear so", cancels=True),
)
