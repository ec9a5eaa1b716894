"""The first user of a broker that never had one (waits)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.passwords import SCRYPT, hashed
from clusterbroker.cluster.wiring import commands as c

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

GUEST_HASH: Final = "$scrypt$ln=14,r=8,p=1$Y2x1c3RlcmJyb2tlci0wMA$ZnLafsfnVR9QKJnC/OhXEnONAR2QHZEcGvrP2rrTeVE"
"""Of the password that everybody knows, so it needs no salt of its own and a first start no 50 ms."""


async def first_user(shell: ServerPort) -> None:
    """Somebody who may do everything in "/", of a broker that never had a user: who was deleted does not come back."""
    name, password = shell.options.default_user, shell.options.default_password
    if not name or shell.node.map.had_users:
        return
    if (name, password) == ("guest", "guest"):
        stored = GUEST_HASH
    else:
        stored = await asyncio.to_thread(hashed, password, cost=shell.options.password_cost)
    shell.logins.credentials.remember(name, stored, SCRYPT, password.encode())
    # a member may have to wait for others, and without the user nobody could do anything about it
    ordered = shell.propose if shell.cluster is None else shell.cluster.ordered
    await ordered(c.PutUser(name=name, password_hash=stored, hash_algorithm=SCRYPT, tags=("administrator",)))
    await ordered(c.SetPermission(user=name, vhost="/", configure=".*", write=".*", read=".*"))
