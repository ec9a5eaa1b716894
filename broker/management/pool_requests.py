"""Requests of a worker pool, wherever they are: as a list, or by their id (pure: what is asked, and told).

Nothing is kept about a request but the request itself, so it is looked for where it may be:

    delayed   it waits in the pool's delayed exchange                  P-delayed's queue
    orphan    its key has no group yet; `moving`: on its way to it     P-orphan
    waiting   for a worker of its key; `ahead`: so many before it      P-req-KEY
    held      a worker has it: which one, and how far the worker       P-req-KEY
              is, its node tells (`holders`)
    dead      it is being answered; `reason` says why                  P-req-KEY, P-dl
    poison    it was answered, and a copy is kept                      P-poison

Whoever is nowhere is answered, or was never there. Queues are looked at in the order of a request's way, so one that
goes on meanwhile is found, perhaps twice. Of a queue that the user may not read nothing is told.

A list ends with `limit` requests, or with GROUPS_MAX queues; its cursor says where to go on. It is a place: part, key,
number within the queue, and how many wait before that. It has no numbered pages and no sort: requests move on while it
is made, and to count or sort them all of them would have to be read each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.loss_headers import LOST, POISON, REASON
from clusterbroker.broker.stats.inspection import SEQ_MAX, Request, Result, Shown, What
from clusterbroker.broker.stats.message_filter import BadFilter, parse
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.delays import delay_queue
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames

from . import paging
from .errors import bad_request
from .forms import Form
from .pools import asked_pool, may_read
from .reading import Document, Reading
from .reads import Path

GROUPS_MAX: Final = 500
"""Groups that one question looks into; `next` says where to go on."""
FOUND_MAX: Final = 50
"""Of one question to a queue."""
ID_MAX: Final = 255
"""Characters of a correlation id whose progress is known."""
OF_QUEUE_MAX: Final = 1000
"""When so many were found in a queue the search of it ends."""
BY: Final = ("correlation_id", "message_id")
UNPAGED: Final = ("page", "page_size", "sort", "sort_reverse")
"""What other lists have."""
CANCELLED: Final = ("delayed", "orphan", "waiting")
"""In these states nobody has begun with it."""
PARTS: Final = ("delayed", "orphan", "group", "dead", "poison")
"""In the order of a request's way."""
STATES: Final[dict[str, dict[str, str]]] = {
    "delayed": {"delayed": ""},
    "orphan": {"orphan": "state=ready"},
    "moving": {"orphan": "state!=ready"},
    "waiting": {"group": "state=ready"},
    "held": {"group": "state=unacknowledged"},
    "dead": {"group": "state=dead", "dead": ""},
    "poison": {"poison": ""},
}
"""State of a request -> the parts where it may be, and what its message is there."""


class Wanted(Form):
    """Of a query: which requests are meant, and where they are looked for."""

    by: Annotated[str, Meta(extra_json_schema={"enum": list(BY)})] = "correlation_id"
    key: Annotated[str, Meta(description="Only this worker key")] = ""
    start: Annotated[str, Meta(description="Where to go on: `next` of the answer before")] = ""


class Listed(Form):
    """Of a query: which requests are listed."""

    key: Annotated[str, Meta(description="Only of this worker key")] = ""
    correlation_id: Annotated[str, Meta(description="Only with this correlation id")] = ""
    message_id: Annotated[str, Meta(description="Only with this message id")] = ""
    state: Annotated[str, Meta(description="Only in this state", extra_json_schema={"enum": list(STATES)})] = ""
    cursor: Annotated[str, Meta(description="Where to go on: `next` of the answer before")] = ""
    name: Annotated[str, Meta(description="Only of worker keys that contain this")] = ""
    use_regex: Annotated[str, Meta(description="`true`: name is a regular expression")] = "false"
    limit: Annotated[int, Meta(ge=1, le=paging.PAGE_SIZE_MAX, description="At most this many requests")] = (
        paging.PAGE_SIZE_DEFAULT
    )


class Search(Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    query: type[Form]
    cancels: bool = False
    form: type[Form] | None = None
    statuses: tuple[int, ...] = (200,)


class Place(NamedTuple):
    """A queue that is looked into. `key`: of a group."""

    part: str
    queue: str
    request: Request
    key: str = ""


class Plan(NamedTuple):
    """What is asked. `places`: one after the other, but for those of one part. `next`: of the answer."""

    places: Sequence[Place]
    next: str | None
    limit: int = 0
    """Of a list; 0: all that the places have."""
    means: Callable[[str], bool] | None = None
    """Of a list: whether it has requests of a key; None: of all."""
    columns: tuple[tuple[str, ...], ...] = ()


def plan(reading: Reading, path: Path) -> Plan:
    """Refused as rights and query demand, (404) without the pool."""
    pool = asked_pool(reading, path["vhost"], path["name"])
    made = _search(reading, pool, path["id"]) if "id" in path else _list(reading, pool)
    for text in {place.request.filter for place in made.places}:
        try:
            parse(text)
        except BadFilter as error:  # of each queue
            raise bad_request(str(error)) from None
    return made


def _search(reading: Reading, pool: Pool, id_: str) -> Plan:
    wanted = Wanted.of(reading.query)
    if wanted.by not in BY:
        raise bad_request(f"by is '{wanted.by[:64]}': one of {', '.join(BY)} is allowed")
    by_key = "key" in reading.query
    conditions = [_is(wanted.by, id_)]
    groups = [key for key in _keys(reading, pool) if (key == wanted.key if by_key else key >= wanted.start)]
    places = [
        place
        for part in PARTS
        for key in (groups[:GROUPS_MAX] if part == "group" else [""])
        for place in _places(reading, pool, part, key, conditions, FOUND_MAX)
    ]
    return Plan(places, groups[GROUPS_MAX] if len(groups) > GROUPS_MAX else None)


def _list(reading: Reading, pool: Pool) -> Plan:
    wanted = Listed.of(reading.query)
    if wanted.state and wanted.state not in STATES:
        raise bad_request(f"state is '{wanted.state[:64]}': one of {', '.join(STATES)} is allowed")
    conditions = [_is(name, getattr(wanted, name)) for name in BY if name in reading.query]
    if paged := [name for name in UNPAGED if name in reading.query]:
        raise bad_request(f"requests move while they are listed: leave {', '.join(paged)} out, use limit and cursor")
    wish = paging.wish(
        {name: reading.query[name] for name in ("name", "use_regex", "columns") if name in reading.query}
    )
    means = paging.by_name(wish) if wish.name else None
    by_key = "key" in reading.query
    states = STATES[wanted.state] if wanted.state else dict.fromkeys(PARTS, "")
    begin = _Cursor.of(wanted.cursor)

    def all_places() -> Iterator[Place]:
        for part in PARTS[PARTS.index(begin.part) :]:
            if part not in states:
                continue
            own = [*conditions, *([states[part]] if states[part] else [])]
            keys = [""]
            if part == "group":
                first = begin.key if part == begin.part else ""
                keys = [key for key in _keys(reading, pool) if key >= first and (not by_key or key == wanted.key)]
                keys = [key for key in keys if means is None or means(key)]
            elif by_key:
                own.append(_is("routing_key", wanted.key))
            for key in keys:
                yield from _places(reading, pool, part, key, own, wanted.limit, begin)

    places = list(islice(all_places(), GROUPS_MAX + 1))
    end = next_of(places[GROUPS_MAX]) if len(places) > GROUPS_MAX else None
    return Plan(places[:GROUPS_MAX], end, wanted.limit, means, wish.columns)


def _keys(reading: Reading, pool: Pool) -> list[str]:
    return sorted(group.key for group in reading.map.pools.groups(pool.pool_id))


def _is(field: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}="{escaped}"'


class _Cursor(NamedTuple):
    """Where a list goes on."""

    part: str
    key: str = ""
    first: int = 1
    passed: int = 0

    @classmethod
    def of(cls, text: str) -> _Cursor:
        """Refused (400) for one that no answer had."""
        if not text:
            return cls(PARTS[0])
        try:
            part, first, passed, key = text.split(":", 3)
            found = cls(part, key, int(first), int(passed))
        except ValueError:
            raise bad_request("no answer had this cursor") from None
        if part not in PARTS or not 1 <= found.first <= SEQ_MAX or not -1 <= found.passed <= SEQ_MAX:
            raise bad_request("no answer had this cursor")
        return found


def _places(
    reading: Reading, pool: Pool, part: str, key: str, conditions: Sequence[str], count: int,
    begin: _Cursor | None = None,
) -> Iterator[Place]:  # fmt: skip
    """The queue of this part, unless the user may not read it."""
    names = PoolNames(pool.name)
    own = {
        "delayed": delay_queue(names.delayed), "orphan": names.orphans, "dead": names.dead, "poison": names.poison,
        "group": names.request_queue(key),
    }  # fmt: skip
    queue = own[part]
    entity = reading.map.queue(pool.vhost, queue)
    if entity is not None and may_read(reading, pool, names.delayed if part == "delayed" else queue):
        first, passed = begin[2:] if begin and (part, key) == begin[:2] else (1, 0)
        yield Place(
            part, queue,
            Request(
                "browse", entity.queue_id, first=first, passed=passed, count=count, truncate=0,
                filter=" AND ".join(conditions),
            ), key,
        )  # fmt: skip


def next_of(place: Place) -> str:
    """The cursor of a list that goes on there."""
    return f"{place.part}:{place.request.first}:{place.request.passed}:{place.key}"


def behind(place: Place, shown: Shown) -> Place:
    """The same queue from the next message on."""
    passed = shown.ahead + 1 if shown.state == "ready" and shown.ahead >= 0 else shown.ahead
    return place._replace(request=replace(place.request, first=shown.seq + 1, passed=passed))


def rest(place: Place, result: Result) -> Place:
    """The same queue from where a question ended."""
    return place._replace(request=replace(place.request, first=result.next, passed=result.passed))


def holders_of(place: Place, result: Result) -> list[Request]:
    """What the nodes are asked whose workers hold some of what was found."""
    at: dict[str, dict[int, str]] = {}
    for shown in result.shown:
        if shown.state == "unacknowledged" and shown.node:
            properties = _properties(shown)
            id_ = (properties and properties.correlation_id) or ""
            at.setdefault(shown.node, {})[shown.seq] = id_ if len(id_) <= ID_MAX else ""
    return [
        Request("holders", place.request.queue_id, seqs=tuple(ids), correlation_ids=tuple(ids.values()), at=node)
        for node, ids in at.items()
    ]


def cancellation(place: Place, result: Result, found: Sequence[Document]) -> Request | None:
    """Takes out what waits there; None: nothing does."""
    seqs = tuple(one["seq"] for one in found if one["state"] in CANCELLED)
    what: What = "delete"
    return Request(what, place.request.queue_id, seqs=seqs, life=result.life) if seqs else None


class Held(Struct):
    """What the nodes of holders have told of a queue's messages, by seq (`stats.inspection.Result`)."""

    holders: dict[int, tuple[str, int]] = {}
    progress: dict[int, tuple[float, int]] = {}


def documents(place: Place, result: Result, held: Held) -> list[Document]:
    """Of the requests that were found in one queue."""
    return [_document(place, shown, held) for shown in result.shown]


def listed(plan_: Plan, found: Sequence[Document]) -> list[Document]:
    """Those of keys that the list means."""
    return [one for one in found if plan_.means is None or plan_.means(one["key"])]


def _properties(shown: Shown) -> Properties | None:
    try:
        return properties_of(shown)
    except UnknownFormatError:
        return None


def _document(place: Place, shown: Shown, held: Held) -> Document:
    properties, holder, part = _properties(shown), held.holders.get(shown.seq), held.progress.get(shown.seq)
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
        "progress": part and part[0],
        "progress_ms": part and part[1],
        "ahead": shown.ahead if state == "waiting" and shown.ahead >= 0 else None,
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
    items = [paging.reduced(item, plan_.columns) for item in items]
    return {"items": items, "next": plan_.next, "not_looked_into": silent}


_LIST: Final = "/api/pools/{vhost}/{name}/requests"
_PATH: Final = _LIST + "/{id}"
SEARCHES: Final = (
    Search("GET", _LIST, "Requests of a worker pool, in the order of their way and of their queues", Listed),
    Search("GET", _PATH, "Where requests with this correlation id are", Wanted),
    Search(
        "DELETE", _PATH, "Cancel requests with this correlation id that wait; callers hear so", Wanted, cancels=True
    ),
)
