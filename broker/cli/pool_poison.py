"""`clusterbroker pools poison ...`: the inventory of requests that workers died of (waits)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from clusterbroker.broker.cli import messages
from clusterbroker.broker.cli.commands import listing, operation
from clusterbroker.broker.cli.parameters import Vhost
from clusterbroker.broker.cli.tables import Document
from clusterbroker.broker.cli.target import Target
from clusterbroker.cluster.wiring.pool_names import PoolNames

PoolName = Annotated[str, typer.Argument(metavar="POOL")]
SHOWN_BYTES: Final = 200


def add_to(app: typer.Typer) -> None:
    """The commands."""
    listing(app, "poison", messages.BROWSED)(pool_poison)
    operation(app, "replay-poison")(pool_replay_poison)
    operation(app, "drop-poison")(pool_drop_poison)


def pool_poison(
    reach: Target,
    pool: PoolName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most this many.")] = 100,
    only: messages.Filter = "",
    vhost: Vhost = "/",
) -> list[Document]:
    """Requests that workers died of, as they were published; header x-poison says which workers, and how."""
    return messages.browsed(reach, vhost, PoolNames(pool).poison, count, only, 1, SHOWN_BYTES, "auto")


def pool_replay_poison(
    reach: Target, pool: PoolName, seq: messages.Seqs = None, only: messages.Wanted = None, vhost: Vhost = "/"
) -> str:
    """Give requests that workers died of to their keys once more; their counts begin anew."""
    names = PoolNames(pool)
    return messages.treated(reach, vhost, names.poison, "move", seq, only, 1, {"exchange": names.exchange})


def pool_drop_poison(
    reach: Target, pool: PoolName, seq: messages.Seqs = None, only: messages.Wanted = None, vhost: Vhost = "/"
) -> str:
    """Delete requests that workers died of."""
    return messages.treated(reach, vhost, PoolNames(pool).poison, "delete", seq, only, 1, {})
