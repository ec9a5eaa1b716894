"""Commands that end things, possibly with very many dependents (cluster/wiring/cascade.py)."""

from __future__ import annotations

from typing import Any

from clusterbroker.cluster.ids import Epoch, QueueId

from .command import Command
from .entities import DestinationKind


class DeleteExchange(Command, frozen=True, kw_only=True, tag="delete_exchange"):
    """exchange.delete; a missing one is a success."""

    vhost: str
    name: str
    if_unused: bool = False


class DeleteQueue(Command, frozen=True, kw_only=True, tag="delete_queue"):
    """Delete one declaration of a queue. Its owner has decided if-unused, if-empty and exclusive access before.

    A queue that was deleted and declared again since has another id and is not hit.
    """

    vhost: str
    name: str
    queue_id: QueueId
    epoch: Epoch = Epoch(0)
    """In which its owner decided so: a later owner did not, and in a later epoch nothing happens. 0: nobody had to."""


class Unbind(Command, frozen=True, kw_only=True, tag="unbind"):
    """queue.unbind or exchange.unbind; a missing binding is a success."""

    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}
    connection: str | None = None


class RemoveConnection(Command, frozen=True, kw_only=True, tag="remove_connection"):
    """A connection ended: delete the queues that were exclusive to it, the oldest first and not all of very many; who
    proposes it looks whether there are more."""

    connection: str


class DeleteVhost(Command, frozen=True, kw_only=True, tag="delete_vhost"):
    """Delete a vhost and all in it; a missing one is a success."""

    name: str


Ending = DeleteExchange | DeleteQueue | Unbind | RemoveConnection | DeleteVhost


class Loosen(Command, frozen=True, kw_only=True, tag="loosen"):
    """End some of what would end with another command, which comes next: bindings, and queues and exchanges of a vhost.
    The answer is whether more is left than that one should end itself. Nothing, when the other one would be refused, or
    has nothing to do."""

    ending: Ending
