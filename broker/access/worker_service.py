"""amq.worker: what a worker that its pool has started asks of the broker.

    key   {}   the key that it is to serve: `{"outcome": "key", "key": ..., "queue": ...}`

A spare is started without a key: the answer comes when it has one, over the connection that asked last. One that has a
key is answered at once. The answer is the whole protocol, so it needs no queue of the worker's own, and no right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.broker.access.services import Request, Service
from clusterbroker.broker.access.worker_rights import WorkerRights

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.pool_entities import Launch


def _key(request: Request) -> None:
    request.only()
    access = request.access
    if not isinstance(access.rights, WorkerRights):
        request.refuse(403, f"user '{access.user}' is no worker that a pool has started")
        return

    def told(launch: Launch) -> None:
        access.renew(access.rights, access.until_ms)  # what was refused to a spare is not remembered
        names = access.node.map.pools.names(launch.pool_id)
        request.answer({"outcome": "key", "key": launch.key, "queue": names.request_queue(launch.key)})

    access.node.pool_desk.await_key(access.rights.launch_id, request.answers(told))


AMQ_WORKER: Final = Service(needs_write=False, handlers={"key": _key})
