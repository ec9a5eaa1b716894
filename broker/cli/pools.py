"""`clusterbroker pools`: worker pools, their groups and workers (waits)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli import pool_poison, pool_view
from clusterbroker.broker.cli.commands import listed, listing, operation, showing, shown
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.messages import PAGE
from clusterbroker.broker.cli.parameters import Vhost
from clusterbroker.broker.cli.pool_drivers import pool_drivers
from clusterbroker.broker.cli.pool_tables import GROUPS, POOLS, REQUESTS, WORKERS
from clusterbroker.broker.cli.tables import Document, counted
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Worker pools, their groups and workers.")
app.command("drivers")(pool_drivers)


Key = Annotated[str, typer.Argument(metavar="KEY")]
WorkerId = Annotated[str, typer.Argument(metavar="ID", help="Of the worker: `pools workers` has them.")]
RequestId = Annotated[str, typer.Argument(metavar="ID", help="Its correlation id.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Look at this worker key alone.")]
ByMessageId = Annotated[bool, typer.Option("--message-id", help="ID is its message id.")]
PoolName = Annotated[str, typer.Argument(metavar="POOL")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting: request_ttl_ms=60000 (repeatable)."),
]
LISTED = 100
_POOL = "/api/pools/{}/{}"
_WORKER = _POOL + "/workers/{}"
_REQUEST = _POOL + "/requests/{}"

listed(app, "list", POOLS, "/api/pools", "All worker pools.")
shown(app, "show", POOLS, "/api/pools/{vhost}/{name}", "One worker pool, its settings, and what waits.", name=PoolName)


def _settings(given: list[str] | None) -> dict[str, Any]:
    """Numbers as numbers, objects as objects, all else as text. Failed."""
    found: dict[str, Any] = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign:
            raise Failed(f"--set {one}: say KEY=VALUE", USAGE)
        try:
            is_json = value.lstrip("-").isdigit() or value[:1] == "{" or value in ("true", "false")
            found[name] = json.loads(value) if is_json else value
        except ValueError:
            found[name] = value
    return found


@operation(app, "create", hidden=True)
@operation(app, "declare")
def pool_declare(
    reach: Target,
    pool: PoolName,
    template: Annotated[
        str, typer.Option("--template", help="A section [pools.NAME] of the nodes; noop: workers come by themselves.")
    ] = "noop",
    setting: Settings = None,
    vhost: Vhost = "/",
) -> str:
    """Declare a worker pool with its exchanges and queues. An existing one must have the same settings."""
    reach.api.put(_POOL, vhost, pool, body={"template": template, **_settings(setting)})
    return f"pool '{pool}' is declared"


@operation(app, "set")
def pool_set(reach: Target, pool: PoolName, setting: Settings = None, vhost: Vhost = "/") -> str:
    """Change settings of a worker pool while it lives."""
    said = _settings(setting)
    if not said:
        raise Failed("say what to set: --set KEY=VALUE (repeatable)", USAGE)
    reach.api.post(_POOL + "/set", vhost, pool, body=said)
    return f"pool '{pool}' has {', '.join(said)} set"


@operation(app, "pause")
def pool_pause(reach: Target, pool: PoolName, vhost: Vhost = "/") -> str:
    """Start nothing for new keys. Requests are taken, and answered when their time is over."""
    reach.api.post(_POOL + "/pause", vhost, pool, body={})
    return f"pool '{pool}' is paused"


@operation(app, "resume")
def pool_resume(reach: Target, pool: PoolName, vhost: Vhost = "/") -> str:
    """Start again for new keys."""
    reach.api.post(_POOL + "/resume", vhost, pool, body={})
    return f"pool '{pool}' goes on"


def _word(word: str, told: str, about: str) -> None:
    """Registers a word about a key."""

    def say(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
        reach.api.post(f"{_POOL}/groups/{{}}/{word}", vhost, pool, key, body={})
        return f"key '{key}' of pool '{pool}': {told}"

    say.__doc__ = about
    operation(app, word)(say)


_word("start", "has a group", "Keep a worker for a key from now on, without a request.")
_word(
    "stop", "its workers end", "Let the workers of a key finish what they hold, and end. The next request starts one."
)
_word("retry", "is tried again", "Try at once to start workers of a key whose starts fail.")
_word(
    "pin", "is pinned",
    "Keep the group of a key, with a worker: it is never idle, and makes no room for others.",
)  # fmt: skip
_word("unpin", "is not pinned", "Let the group of a key end when it is idle.")


@operation(app, "delete")
def pool_delete(
    reach: Target,
    pool: PoolName,
    force: Annotated[bool, typer.Option("--force", help="Also while it has groups, or requests wait.")] = False,
    vhost: Vhost = "/",
) -> str:
    """Delete a worker pool. Whoever waits is answered `pool_deleted`; then its queues go."""
    reach.api.delete(_POOL, vhost, pool, query={"force": "true"} if force else {})
    return f"pool '{pool}' is being deleted"


@listing(app, "groups", GROUPS)
def pool_groups(reach: Target, pool: PoolName, vhost: Vhost = "/") -> list[Document]:
    """Groups of a worker pool: one for each key that somebody has asked for."""
    return reach.api.documents(_POOL + "/groups", vhost, pool, query=reach.narrowed)


@showing(app, "group", GROUPS)
def pool_group(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> Document:
    """The group of a key."""
    return reach.api.document(_POOL + "/groups/{}", vhost, pool, key)


@listing(app, "workers", WORKERS)
def pool_workers(reach: Target, pool: PoolName, vhost: Vhost = "/") -> list[Document]:
    """Workers that were started for a pool. Those that come by themselves are consumers only."""
    return reach.api.documents(_POOL + "/workers", vhost, pool, query=reach.narrowed)


@showing(app, "worker", WORKERS)
def pool_worker(reach: Target, pool: PoolName, worker: WorkerId, vhost: Vhost = "/") -> Document:
    """One worker that was started for a pool."""
    return reach.api.document(_WORKER, vhost, pool, worker)


@operation(app, "stop-worker")
def pool_stop_worker(reach: Target, pool: PoolName, worker: WorkerId, vhost: Vhost = "/") -> str:
    """Let one worker finish what it holds, and end. Another one is started if its key needs it."""
    reach.api.post(_WORKER + "/stop", vhost, pool, worker, body={})
    return f"worker '{worker}' of pool '{pool}' gets no more requests, and ends"


def _searched(id_: str, key: str | None, by_message_id: bool) -> tuple[str, dict[str, str]]:
    """The path's last name, and the query."""
    query = {} if key is None else {"key": key}
    return id_, {**query, "by": "message_id"} if by_message_id else query


@listing(app, "requests", REQUESTS)
def pool_requests(
    reach: Target,
    pool: PoolName,
    request: Annotated[str | None, typer.Argument(metavar="ID", help="Its correlation id; without: all.")] = None,
    key: OfKey = None,
    by_message_id: ByMessageId = False,
    state: Annotated[str | None, typer.Option("--state", help="waiting, held, ...: those in this state.")] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, max=10_000, help="At most this many; without ID: 100.")
    ] = None,
    vhost: Vhost = "/",
) -> list[Document]:
    """Requests, or those of a correlation id, and where they are: delayed, without a group, waiting (and how many are
    ahead), held (by which worker, and its progress), dead, poison."""
    if request is None or state is not None:
        named = {} if request is None else {"message_id" if by_message_id else "correlation_id": request}
        wanted = {**named, "key": key, "state": state}
        return _listed(
            reach, vhost, pool, count or LISTED, {name: value for name, value in wanted.items() if value is not None}
        )
    return _found(reach, vhost, pool, *_searched(request, key, by_message_id))[:count]


def _listed(reach: Target, vhost: str, pool: str, count: int, query: dict[str, str]) -> list[Document]:
    found, silent, cursor = list[Document](), list[str](), ""
    while cursor is not None and len(found) < count:
        limit = str(min(count - len(found), PAGE))
        answer = reach.api.get(_POOL + "/requests", vhost, pool, query={**query, "cursor": cursor, "limit": limit})
        found += answer["items"]
        silent += answer["not_looked_into"]
        cursor = answer["next"]
    _check(silent)
    return found


def _check(silent: list[str]) -> None:
    if silent:
        raise Failed(f"{len(silent)} queues could not be looked into now, {silent[0]} for one: try again", FAILED)


def _found(reach: Target, vhost: str, pool: str, name: str, query: dict[str, str]) -> list[Document]:
    found: list[Document] = []
    silent: list[str] = []
    start: str | None = ""
    while start is not None:
        answer = reach.api.get(_REQUEST, vhost, pool, name, query={**query, "start": start})
        found += [one for one in answer["items"] if one not in found]
        silent += [queue for queue in answer["not_looked_into"] if queue not in silent]
        start = answer["next"]
    _check(silent)
    return found


@operation(app, "cancel")
def pool_cancel(
    reach: Target, pool: PoolName, request: RequestId, key: OfKey = None, by_message_id: ByMessageId = False,
    vhost: Vhost = "/",
) -> str:  # fmt: skip
    """Cancel requests of a correlation id that wait: their callers are answered `cancelled`. Held ones go on."""
    name, query = _searched(request, key, by_message_id)
    cancelled, left = 0, list[Document]()
    start: str | None = ""
    while start is not None:
        answer = reach.api.delete(_REQUEST, vhost, pool, name, query={**query, "start": start})
        cancelled += answer["cancelled"]
        left += [one for one in answer["items"] if one not in left]
        if answer["not_looked_into"]:
            raise Failed(f"queue {answer['not_looked_into'][0]} could not be looked into now: try again", FAILED)
        start = answer["next"]
    if not cancelled:
        where = f"it is {left[0]['state']}" if left else "the pool has none of this id"
        raise Failed(f"request '{request}': nothing was cancelled: {where}", FAILED)
    return f"cancelled {counted(cancelled, 'request')}"


pool_view.add_to(app)
pool_poison.add_to(app)
