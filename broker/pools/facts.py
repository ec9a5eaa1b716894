"""Input of the scaling policy: what is so in a pool at one moment, and the settings that apply.

The controller makes these values from its map and from what owners and foremen tell. "Section 4" and numbers such as
2.4 are those of the design page of worker pools (docs/design/012-pool-policy-and-library.md is what is built of it).
Times are seconds of one steady clock, that of the policy's `now_s`. Memory is bytes. Counters only rise while a group
lives; a counter that falls (another owner counts from zero) begins anew.

Contract: a launch is in the facts of the step after its order, though the wiring log has not answered yet, and a
retired worker is RETIRING there. So no order is given twice. A launch that the log refuses leaves the facts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MIB: Final = 1 << 20


class Scaling(Enum):
    """Responsibility for the number of workers of a group."""

    OWN = "own"
    """The policy of this package."""
    FIXED = "fixed"
    """`min`, and at least one, while the group is bound."""
    OUTSIDE = "outside"
    """One launch stands for the group: an HPA or KEDA scales what it started."""
    NONE = "none"
    """No launches (driver noop). The need is computed, for figures."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a pool and of its template, as far as the policy reads them."""

    min: int = 0
    """Workers of a key without requests."""
    max: int = 8
    """Workers of a key."""
    max_workers: int = 5_000
    """Workers of the pool."""
    prefetch: int = 1
    """`c`: messages that a worker holds at once."""
    keys_per_worker: int = 1
    """Keys that a worker serves at most."""
    target_wait_s: float = 5.0
    """Time in which a backlog is to be gone."""
    service_s: float = 1.0
    """`s` until SAMPLES_MIN messages were settled."""
    start_s: float = 5.0
    """`L` of a key that never started."""
    memory: int = 256 * MIB
    """Of a worker of a key that never ended."""
    start_timeout_s: float = 120.0
    start_failures_max: int = 5
    grace_s: float = 30.0
    starve_s: float = 30.0
    min_run_s: float = 10.0
    max_share: float = 0.5
    """Of a place's memory for one key, while others wait."""
    rolling: bool = True
    """Workers of an older version are replaced."""
    surge: int = 1
    """Workers above the need, and above `max`, while new ones replace those of an older version; 0: one of these ends
    first."""
    eager: bool = False
    """More than one worker before SAMPLES_MIN messages were settled."""
    scale_to_zero_while_bound: bool = False
    scaling: Scaling = Scaling.OWN
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants; 1 where none is given."""

    def __post_init__(self) -> None:
        assert 0 <= self.min <= self.max, "min and max of a pool are in order"
        assert self.prefetch >= 1, "a worker holds at least one message"
        assert self.keys_per_worker >= 1, "a worker serves a key"
        assert self.target_wait_s > 0, "a backlog has time"
        assert self.memory >= 1, "a worker takes memory"
        assert 0 < self.max_share <= 1, "a share is a part of a place"
        assert self.surge >= 0, "a surge adds workers"
        assert all(weight > 0 for weight in self.weights.values()), "weights are positive"


class WorkerState(Enum):
    """State of a launch: `wanted -> starting -> ready -> retiring -> stopping` (2.4). A gone one is no fact."""

    WANTED = "wanted"
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    STOPPING = "stopping"


COMING: Final = frozenset({WorkerState.WANTED, WorkerState.STARTING})
LEAVING: Final = frozenset({WorkerState.RETIRING, WorkerState.STOPPING})


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A launch that is not gone."""

    id: str
    place: str
    state: WorkerState
    since_s: float
    """Time of the state: of READY the first readiness, of RETIRING when the log had the order (infinite: not yet)."""
    held: int = 0
    idle_since_s: float = 0.0
    """Time of the last settled message, or of the readiness."""
    memory: int = 0
    """Resident bytes as its foreman measures them; 0: unknown."""
    version: str = ""
    pending: bool = False
    """The log has not answered its launch: nothing can be said of it by its id."""
    host: str = ""
    """Where workers serve several keys: the one whose key this is. It is among the pool's spares."""

    @property
    def active(self) -> bool:
        """Counts against the need: ordered, and not on its way out."""
        return self.state not in LEAVING


class GroupState(Enum):
    """State of a group (2.3). An absent one is no fact."""

    ACTIVE = "active"
    UNBOUND = "unbound"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group: its queue's figures and its launches."""

    key: str
    state: GroupState
    ready: int = 0
    held: int = 0
    arrived: int = 0
    """Counter: messages that came into the queue."""
    settled: int = 0
    """Counter: messages acknowledged."""
    service_s: float = 0.0
    """Counter: seconds from delivery to acknowledgement of the settled ones."""
    workers: tuple[WorkerFacts, ...] = ()
    tenant: str = ""
    pinned: bool = False
    suspects: bool = False
    """Workers were lost with some of its requests: they go to a worker that serves no other key."""

    @property
    def backlog(self) -> int:
        """`B`: ready and held."""
        return self.ready + self.held

    @property
    def busy(self) -> bool:
        """A long computation is not idleness: what is held counts as what waits does."""
        return self.ready > 0 or self.held > 0

    @property
    def active(self) -> tuple[WorkerFacts, ...]:
        return tuple(worker for worker in self.workers if worker.active)


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A place: where one foreman starts workers."""

    name: str
    memory: int
    """Capacity for workers of this pool, bytes."""
    workers_max: int | None = None
    suspended: bool = False
    """By its foreman or an operator; nothing is started there."""
    alarm: bool = False
    """Memory alarm of the machine: nothing is started there, and what idles is evicted."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """All of a pool at one moment."""

    groups: Mapping[str, GroupFacts]
    places: Mapping[str, PlaceFacts]
    version: str = ""
    """Of the template: hash of what is executed."""
    paused: bool = False
    """Starts nothing; what runs goes on."""
    spares: tuple[WorkerFacts, ...] = ()
    """Launches without a key; where workers serve several keys, all launches."""
    spares_wanted: int = 0
    strays: int = 0
    """Launches whose group is gone: workers of the pool until they are."""


@dataclass(frozen=True, slots=True)
class Gone:
    """End of a launch, as its foreman tells."""

    key: str
    worker: str
    place: str
    ready: bool
    """It was ready once."""
    asked: bool
    """Revoked, or stopped by a `Stop`."""
    peak: int = 0
    """Bytes; 0: unknown."""
    detail: str = ""
    """Exit status in words."""
