"""What a request says of workers that were lost with it: annotations that its log has, so they survive owners (pure).

    x-lost-WORKER     when and how this worker was lost with the request; WORKER: its launch, or its connection
    x-last-return     `lost`, or `rejected`: how it came back last

A request that dies of its delivery limit after a loss is poison: a copy goes to the pool's inventory, as it was
published, with the header x-poison, a table of `workers` (worker -> how), `key`, `at`, ms since 1970, and of workers
whose end their places have told by then `exits` (worker -> exit status) and `out_of_memory`, a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.loss_headers import COUNT, LAST, LOST, POISON, REASON
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.wire.amqp10.types import DecodeError, Symbol, decode, encode
from clusterbroker.journal.record import Message


class WorkerEnd(NamedTuple):
    """How a worker ended, as its place has told."""

    exit_status: int | None = None
    out_of_memory: bool = False


NO_ENDS: Final[Mapping[str, WorkerEnd]] = MappingProxyType({})
_DEATHS: Final = ("x-death", "x-first-death-", "x-last-death-", "x-opt-deaths", COUNT, LOST, LAST, POISON)


def lost(worker: str, why: str, now_ms: int, *, in_company: bool = False) -> Modification:
    """A request returns whose worker was lost: a mark of it, and a failure, unless the worker held others as well, each
    of which may have ended it (`suspects`)."""
    name = LOST + worker.encode("ascii", "replace").decode()[:200]
    return Modification(not in_company, change=encode({Symbol(name): f"{why}, at {now_ms}", Symbol(LAST): "lost"}))


REJECTED: Final = Modification(True, change=encode({Symbol(LAST): "rejected"}))
"""A request returns that a worker did not want, after one was lost with it."""


def last_return(modification: Modification) -> str:
    """What the modification says of how the request comes back; empty: nothing."""
    try:
        annotations, _ = decode(modification.change, 0) if modification.change else ({}, 0)
    except DecodeError:
        return ""
    return str(annotations.get(LAST, "")) if isinstance(annotations, dict) else ""


def was_lost(message: Message) -> bool:
    """Whether the request came back last because its worker was lost."""
    return (properties_of(message).headers or {}).get(LAST) == "lost"


def poisoned(request: Message) -> dict[str, Any] | None:
    """Of a request that is poison: the workers that were lost with it, and how. None: it is none."""
    headers = properties_of(request).headers or {}
    if headers.get(REASON) != "delivery_limit" or headers.get(LAST) != "lost":
        return None
    return {name.removeprefix(LOST): how for name, how in headers.items() if name.startswith(LOST)}


def poison_of(request: Message, exchange: str, now_ms: int, ends: Mapping[str, WorkerEnd] = NO_ENDS) -> Message | None:
    """The copy for the inventory, addressed as the request was; None: it is no poison. `ends`: of workers."""
    workers = poisoned(request)
    if workers is None:
        return None
    properties = properties_of(request)
    headers = properties.headers or {}
    key = request.routing_key.decode("utf-8", "surrogateescape")
    about: dict[str, Any] = {"workers": workers, "key": key, "at": now_ms}
    known = {worker: ends[worker] for worker in workers if worker in ends}
    if exits := {worker: end.exit_status for worker, end in known.items() if end.exit_status is not None}:
        about["exits"] = exits
    if out_of_memory := [worker for worker, end in known.items() if end.out_of_memory]:
        about["out_of_memory"] = out_of_memory
    kept = {name: value for name, value in headers.items() if not name.startswith(_DEATHS)}
    return republished(request, exchange, key, replace(properties, headers={**kept, POISON: about}), now_ms)
