"""`clusterbroker pools`: worker pools, their groups and workers (waits)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.commands import listed, listing, operation, showing, shown
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.parameters import Vhost
from clusterbroker.broker.cli.pool_drivers import pool_drivers
from clusterbroker.broker.cli.tables import Column, Document, Table, number, pairs, quoted
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Worker pools, their groups and workers.")
app.command("drivers")(pool_drivers)

POOLS = Table(
    (
        Column("vhost"),
        Column("name"),
        Column("state"),
        Column("groups", show=number),
        Column("consumers", show=number),
        Column("waiting", show=number),
        Column("held", show=number),
        Column("orphans", show=number),
        Column("dead", show=number),
        Column("poison", show=number),
        Column("controller"),
        Column("template", wide=True),
        Column("workers", show=number, wide=True),
        Column("exchange", wide=True),
        Column("settings", show=pairs, wide=True),
    )
)
GROUPS = Table(
    (
        Column("key", show=quoted),
        Column("state"),
        Column("consumers", show=number),
        Column("waiting", show=number),
        Column("held", show=number),
        Column("queue"),
        Column("bound", wide=True),
        Column("pinned", wide=True),
        Column("generation", show=number, wide=True),
    ),
    name="key",
)
WORKERS = Table(
    (
        Column("id"),
        Column("key", show=quoted),
        Column("place"),
        Column("revoked"),
        Column("version", wide=True),
        Column("generation", show=number, wide=True),
    ),
    name="id",
)
Key = Annotated[str, typer.Argument(metavar="KEY")]
PoolName = Annotated[str, typer.Argument(metavar="POOL")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting: request_ttl_ms=60000 (repeatable)."),
]
_POOL = "/api/pools/{}/{}"

listed(app, "list", POOLS, "/api/pools", "All worker pools.")
shown(app, "show", POOLS, "/api/pools/{vhost}/{name}", "One worker pool, its settings, and what waits.", name=PoolName)


def _settings(given: list[str] | None) -> dict[str, Any]:
    """Numbers as numbers, all else as text. Failed."""
    found: dict[str, Any] = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign:
            raise Failed(f"--set {one}: say KEY=VALUE", USAGE)
        try:
            found[name] = int(json.loads(value)) if value.lstrip("-").isdigit() else value
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


@operation(app, "start")
def pool_start(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
    """Keep a worker for a key from now on, without a request."""
    reach.api.post(_POOL + "/groups/{}/start", vhost, pool, key, body={})
    return f"key '{key}' of pool '{pool}': has a group"


@operation(app, "stop")
def pool_stop(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
    """Let the workers of a key finish what they hold, and end. The next request starts one."""
    reach.api.post(_POOL + "/groups/{}/stop", vhost, pool, key, body={})
    return f"key '{key}' of pool '{pool}': its workers end"


@operation(app, "retry")
def pool_retry(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
    """Try at once to start workers of a key whose starts fail."""
    reach.api.post(_POOL + "/groups/{}/retry", vhost, pool, key, body={})
    return f"key '{key}' of pool '{pool}': is tried again"


@operation(app, "pin")
def pool_pin(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
    """Keep the group of a key, with a worker: it is never idle, and makes no room for others."""
    reach.api.post(_POOL + "/groups/{}/pin", vhost, pool, key, body={})
    return f"key '{key}' of pool '{pool}': is pinned"


@operation(app, "unpin")
def pool_unpin(reach: Target, pool: PoolName, key: Key, vhost: Vhost = "/") -> str:
    """Let the group of a key end when it is idle."""
    reach.api.post(_POOL + "/groups/{}/unpin", vhost, pool, key, body={})
    return f"key '{key}' of pool '{pool}': is not pinned"


@operation(app, "delete")
def pool_delete(
    reach: Target,
    pool: PoolName,
    force: Annotated[bool, typer.Option("--force", help="Also while it has groups.")] = False,
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
