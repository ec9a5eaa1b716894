"""amq.worker: what a worker that its pool has started asks of the broker, or tells it.

    key      {}                          the key that it is to serve: `{"outcome": "key", "key": ..., "queue": ...}`
             {"known": {KEY: since}}     where workers serve several: its keys, as soon as it knows others:
                                         `{"outcome": "keys", "keys": [{"key": ..., "queue": ..., "since": ...}, ...]}`
    failed   {"key": ..., "reason": ...} it cannot serve this key of several: `{"outcome": "told"}`

A spare is started without a key: the answer comes when it has one, over the connection that asked last. One that has a
key is answered at once. A worker of several keys asks again after each answer. The answer is the whole protocol, so it
needs no queue of the worker's own, and no right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.services import Request, Service
from clusterbroker.broker.access.worker_rights import WorkerRights
from clusterbroker.broker.pools.messages import KeyFailed

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.pool_entities import Launch

REASON_BYTES_MAX: Final = 1000


def _worker(request: Request) -> str | None:
    """Its id; None: it was refused."""
    rights = request.access.rights
    if isinstance(rights, WorkerRights):
        return rights.launch_id
    request.refuse(403, f"user '{request.access.user}' is no worker that a pool has started")
    return None


def _key(request: Request) -> None:
    request.only("known")
    access, known = request.access, _known(request)
    launch_id = _worker(request)
    if launch_id is None:
        return
    pools = access.node.map.pools

    def told(launch: Launch) -> None:
        access.renew(access.rights, access.until_ms)  # what was refused to a spare is not remembered
        names = pools.names(launch.pool_id)
        if not launch.spare:
            request.answer({"outcome": "key", "key": launch.key, "queue": names.request_queue(launch.key)})
            return
        keys = [
            {"key": one.key, "queue": names.request_queue(one.key), "since": one.assigned}
            for one in pools.assignments(launch.launch_id)
        ]
        request.answer({"outcome": "keys", "keys": keys})

    access.node.pool_desk.await_key(launch_id, known, request.answers(told))


def _known(request: Request) -> Mapping[str, int]:
    known: Any = request.body.get("known", {})
    if not isinstance(known, dict) or not all(isinstance(since, int) for since in known.values()):
        raise request.invalid("'known' must be an object of integers by key")
    return known


def _failed(request: Request) -> None:
    request.only("key", "reason")
    key, reason = request.body.get("key"), request.text("reason", REASON_BYTES_MAX)
    launch_id = _worker(request)
    if launch_id is None:
        return
    node = request.access.node
    launch = node.map.pools.launch(launch_id)
    if launch is None or not isinstance(key, str) or node.map.pools.assignment(launch_id, key) is None:
        request.refuse(404, "that is no key of this worker")
        return
    node.pool_desk.tell_controller(KeyFailed(launch.pool_id, launch_id, key, reason))
    request.answer({"outcome": "told"})


AMQ_WORKER: Final = Service(needs_write=False, handlers={"key": _key, "failed": _failed})
