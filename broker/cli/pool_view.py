"""`clusterbroker pools places`, `history` and `watch`: where workers are, what became of them, and a pool as it lives
(waits)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli import tables
from clusterbroker.broker.cli.commands import listing, viewing
from clusterbroker.broker.cli.parameters import Vhost
from clusterbroker.broker.cli.pool_tables import GROUPS, HISTORY, PLACES, POOLS, WORKERS
from clusterbroker.broker.cli.tables import Document, Wish, counted, number
from clusterbroker.broker.cli.target import Target

PoolName = Annotated[
    str | None, typer.Argument(metavar="[POOL]", show_default=False, help="Without: all pools of the vhost.")
]
POOL: Final = "/api/pools/{}/{}"
KEYS_SHOWN: Final = 20
WORKERS_SHOWN: Final = 20
BUSIEST: Final = {"page": "1", "sort": "waiting", "sort_reverse": "true", "page_size": str(KEYS_SHOWN)}
HOLDING: Final = {"page": "1", "sort": "held", "sort_reverse": "true", "page_size": str(WORKERS_SHOWN)}


def add_to(app: typer.Typer) -> None:
    """The commands."""
    listing(app, "places", PLACES)(pool_places)
    listing(app, "history", HISTORY)(pool_history)
    viewing(app, "watch", lines)(pool_watch)


def pool_places(reach: Target, pool: PoolName = None, vhost: Vhost = "/") -> list[Document]:
    """Nodes where a pool's workers are started: room, what is promised of it, and why nothing is started there."""
    names = [one["name"] for one in reach.api.documents("/api/pools", of=vhost)] if pool is None else [pool]
    return [place for name in names for place in reach.api.documents(POOL + "/places", vhost, name)]


def pool_history(
    reach: Target,
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    key: Annotated[str | None, typer.Option("--key", help="Of this worker key alone.")] = None,
    vhost: Vhost = "/",
) -> list[Document]:
    """Starts and ends of a pool's workers of late, with their reasons: the newest first, the last 200."""
    if key is None:
        return reach.api.documents(POOL + "/history", vhost, pool, query=reach.narrowed)
    return [one for one in reach.api.documents(POOL + "/history", vhost, pool) if one.get("key") == key]


def pool_watch(reach: Target, pool: PoolName = None, vhost: Vhost = "/") -> Document:
    """A pool as it lives: its places, its busiest keys and workers, drawn again and again until Ctrl-C."""
    if pool is None:
        return {
            "pools": reach.api.documents("/api/pools", of=vhost),
            "places": pool_places(reach, None, vhost),
        }
    return {
        "pool": reach.api.document(POOL, vhost, pool),
        "places": pool_places(reach, pool, vhost),
        "groups": reach.api.get(POOL + "/groups", vhost, pool, query=BUSIEST),
        "workers": reach.api.get(POOL + "/workers", vhost, pool, query=HOLDING),
    }


def lines(document: Document, width: int) -> list[str]:
    """As a terminal shows it."""
    if "pools" in document:
        return [*_table("pools", POOLS, document["pools"], width), *_table("places", PLACES, document["places"], width)]
    return [
        *_head(document["pool"]),
        *_table("places", PLACES, document["places"], width),
        *_page("key", GROUPS, document["groups"], width),
        *_page("worker", WORKERS, document["workers"], width),
    ]


def _head(pool: Document) -> list[str]:
    oldest = "" if pool["oldest_s"] is None else f", the oldest for {pool['oldest_s']} s"
    rate = pool["message_stats"]["requests_details"]["rate"]
    coming = f", {tables.rate(rate)} requests" if rate else ""
    return [
        f"{tables.text(pool['name'])}: {pool['state']}, controller {tables.text(pool['controller'])}{coming}",
        f"{number(pool['waiting'] + pool['orphans'])} waiting{oldest}, {number(pool['held'])} held, "
        f"{number(pool['dead'])} to be answered, {number(pool['poison'])} poison",
    ]


def _page(what: str, table: tables.Table, page: dict[str, Any], width: int) -> list[str]:
    rows, total = page["items"], page["total_count"]
    title = counted(total, what) if len(rows) == total else f"{len(rows)} of {counted(total, what)}"
    return _table(title, table, rows, width)


def _table(title: str, table: tables.Table, rows: list[Document], width: int) -> list[str]:
    return ["", title, *(tables.lines(table, rows, Wish(), width) if rows else [])]
