"""What the node itself is asked to do about its cluster: a table from method and path to an operation of the node.

These are operations of `broker.server.control.cluster_operations`, which the command line also calls through
`control.sock`. A plan checks rights and form; whether it can be done is the node's to say.

A node drains itself alone, so that is asked of the node that shall drain. RabbitMQ has the first and the last path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from . import bodies
from .errors import bad_request, object_not_found
from .forms import Form, Said
from .nodes import forget_login_sources
from .principals import ADMINISTRATOR
from .reading import Reading
from .reads import Path


class Asked(msgspec.Struct, frozen=True):
    """An operation of the node, and what it needs to know."""

    what: str
    arguments: dict[str, Any] = {}


class Operation(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    plan: Callable[[Reading, Path, Said], Asked]
    form: type[Form] | None = None
    """What the plan reads of a body."""
    status: int = 200
    """With what the node told; of 204 with nothing."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of a success."""
        return (self.status,)


def run(operation: Operation, reading: Reading, path: Path, said: Said) -> Asked:
    """The plan. Refused as rights and body demand."""
    reading.principal.require(ADMINISTRATOR)
    return operation.plan(reading, path, said)


def _queue(what: str, form: type[bodies.Move | bodies.ForceOwner]) -> Callable[[Reading, Path, Said], Asked]:
    def plan(r: Reading, p: Path, said: Said) -> Asked:
        body = form.of(said)
        if isinstance(body, bodies.ForceOwner) and body.confirm_loss is not True:
            raise bad_request("messages that this copy lacks are lost: say 'confirm_loss': true")
        if r.map.queue(p["vhost"], p["name"]) is None:
            raise object_not_found()
        return Asked(what, {"vhost": p["vhost"], "queue": p["name"], "to": body.to})

    return plan


def _drain(r: Reading, p: Path, said: Said) -> Asked:
    _there(r, p)
    if p["name"] != r.replica.node:
        raise bad_request(f"node '{p['name']}' drains itself: ask its own management API")
    return Asked("drain", {"undo": bodies.Drain.of(said).undo})


def _forget(r: Reading, p: Path, _said: Said) -> Asked:
    _there(r, p)
    if p["name"] == r.replica.node:
        raise bad_request(f"node '{p['name']}' is the one that is asked: 'clusterbroker leave' there takes it out")
    return Asked("leave", {"member": p["name"], "accept_loss": r.query.get("accept-loss", "").lower() == "true"})


def _forget_logins(r: Reading, p: Path, _said: Said) -> Asked:
    forget_login_sources(r, p["name"])
    return Asked("logins.forget")


def _raise_level(_r: Reading, _p: Path, said: Said) -> Asked:
    level = bodies.FeatureLevel.of(said).level
    return Asked("level.raise", {} if level is msgspec.UNSET else {"level": level})


def _there(r: Reading, p: Path) -> None:
    if p["name"] not in r.replica.node_names():
        raise object_not_found()


_QUEUE: Final = "/api/queues/{vhost}/{name}"
OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("GET", "/api/bridges", "Bridges: which node runs each, and what those of this node do",
              lambda _r, _p, _said: Asked("bridges")),
    Operation("POST", "/api/rebalance/queues", "Hand queues over until members own about as many",
              lambda _r, _p, _said: Asked("queues.rebalance")),
    Operation("POST", _QUEUE + "/move", "Hand a queue over to another in-sync member",
              _queue("queues.move", bodies.Move), bodies.Move),
    Operation("POST", _QUEUE + "/force-owner", "Make a replica the leader, whatever it lacks",
              _queue("queues.force-owner", bodies.ForceOwner), bodies.ForceOwner),
    Operation("POST", "/api/nodes/{name}/drain", "Hand this node's queues and clients to others", _drain, bodies.Drain),
    Operation("DELETE", "/api/nodes/{name}", "Forget a member that is dead", _forget),
    Operation("PUT", "/api/feature-level", "Raise the cluster's feature level: there is no way back", _raise_level,
              bodies.FeatureLevel),
    Operation("DELETE", "/api/auth/attempts/{name}/source", "Count sign-in attempts anew", _forget_logins, status=204),
)  # fmt: skip
