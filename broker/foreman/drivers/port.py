"""What a foreman asks of a driver.

All calls are idempotent and may be cancelled. `bounded` gives each of them CALL_S: a daemon that does not answer costs
a round, and no more. What goes wrong is a DriverError with one line that says what to do; of a list it means *unknown*.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

from clusterbroker.broker.foreman.reconcile import Seen
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import Template

CALL_S: Final = 10.0
T = TypeVar("T")


class DriverError(Exception):
    """One line, with a remedy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Labels of all workers of a foreman, and its node's environment."""

    cluster: str
    node: str
    environment: dict[str, str]
    own_output: bool = False
    """Workers write where the foreman does, and not into files of theirs (subprocess)."""

    @property
    def prefix(self) -> str:
        """Of names of workers at a driver that others use as well: 12 hexadecimal digits of cluster and node."""
        return "cb-" + hashlib.sha256(f"{self.cluster}\0{self.node}".encode()).hexdigest()[:12]

    @property
    def labels(self) -> dict[str, str]:
        return {CLUSTER: self.cluster, PLACE: self.node}


@dataclass(frozen=True, slots=True)
class Capacity:
    """Room of a place; None: not known, or without a bound."""

    memory_bytes: int | None = None
    workers: int | None = None


class Driver(Protocol):
    """One way of running workers."""

    name: str
    shared: bool
    """Other foremen see and may act on the same workers."""

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        """Returns when the worker is begun; one that is there already, ended or not, is a success. Where `spec.scale`
        says so it stands for several, and has the bounds of the spec from now on."""

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """TERM, to all its processes. `grace_s`: when KILL follows, for drivers that see to it themselves."""

    async def kill(self, worker_id: str) -> None:
        """KILL, to all its processes."""

    async def remove(self, worker_id: str) -> None:
        """Forgets a worker that has ended."""

    async def list(self) -> tuple[Seen, ...]:
        """All workers with the labels of this place, those that have ended as well; where it is shared, those of the
        cluster's other places too."""

    def watch(self) -> AsyncIterator[str]:
        """The id of a worker whose state may have changed, "" for any; without end, unless it raises DriverError."""

    async def capacity(self) -> Capacity:
        """Of this place."""

    async def close(self) -> None:
        """Gives connections back; workers go on."""


@runtime_checkable
class Marks(Protocol):
    """A driver that stops some of a launch's replicas, and is told which of them it had better not."""

    async def mark(self, busy: Mapping[str, bool]) -> None:
        """Replica -> whether it holds a request; those of others are not in it. Raises DriverError."""


CLUSTER: Final = "clusterbroker.cluster"
PLACE: Final = "clusterbroker.place"
WORKER: Final = "clusterbroker.worker"
POOL: Final = "clusterbroker.pool"
TEMPLATE: Final = "clusterbroker.template"


def labels(place: Place, spec: WorkerSpec) -> dict[str, str]:
    """Of one worker. The key is there as a hash: its bytes may break a label, or be nobody else's business."""
    return {
        **place.labels,
        WORKER: spec.worker_id,
        POOL: spec.pool,
        TEMPLATE: spec.template,
        "clusterbroker.generation": str(spec.generation),
        "clusterbroker.version": spec.version,
        "clusterbroker.key": spec.key_hash,
    }


async def bounded(driver: str, what: str, call: Awaitable[T], bound_s: float = CALL_S) -> T:
    """Raises DriverError when the time is over."""
    try:
        async with asyncio.timeout(bound_s):
            return await call
    except TimeoutError:
        raise DriverError(f"{driver}: {what}: no answer within {bound_s:g} s: is its service at work?") from None
