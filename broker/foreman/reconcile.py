"""From what the map wants and what a driver has: what to do next (pure).

The theory. The map says which launches a place has; a driver's list says which workers there are. Both are read anew
each time, so an action that was lost is decided again, and one that was done is not seen any more: no action needs an
answer. Every action is idempotent at the driver, for the worker's id is its name there.

    map \\ list     absent, not begun   absent, begun      starting, running          exited
    wanted          Start               Gone (vanished)    - (Adjust, rule 10)        Gone
    retiring        Gone (never begun)  Gone (vanished)    Stop(grace), Kill          Gone
    revoked         Gone (never begun)  Gone (vanished)    Stop(FENCED_S), Kill       Gone
    not in the map  -                   -                  Stop(FENCED_S), Kill       Remove

Rules beside the table:

1. A list that failed is unknown, and nothing follows from it.
2. A map without a lease, or older than the foreman's start, is stale: nothing is started and nothing removed by it.
3. A worker that is not in the map is left alone unless the map is fresh, and the worker bears this cluster's and
place's label. 4. A launch that ended keeps its record at the driver until the map has dropped it: so it cannot be
   started twice, by another foreman either. `Gone` is told until then, each TELL_AGAIN_MS.
5. *Lease*: without one, all workers of the place are told to stop after 15 s and killed at 25 s: before
   `lost_place_s` = 30 s, at which the controller launches them elsewhere. Not where the place is shared (Kubernetes).
6. At most IN_FLIGHT_MAX starts at once and STARTS_PER_S in a second, for all drivers of the place together.
7. *Absent, begun* holds only of a list that was asked for after the start was answered.
8. A list without a worker that ends takes nothing off its time, for lists may be short by mistake: KILL comes when it
   was due, and is put off only to the next list that has the worker. After UNLISTED_MS without it the worker is gone.
9. *A shared place*: a list has the workers of the cluster's other places as well. What the map has ended there, and is
   still listed OTHERS_MS later, any foreman ends: the last two rows of the table, never a Start, never a Gone. Its own
   foreman does it at once, if there is one; two at a time are harmless. Ended is a launch that is revoked, or one that
   the map does not have at an index from its order on: one of later is not known yet. A node alone tells its foreman
   of no other places, so it ends nothing of theirs: its label is its directory's, which a copy of that has too.
10. A launch that stands for all workers of its key (`WorkerSpec.scale`) has bounds, which may change while it lives: it
   is started again until the list has those of the map, each ADJUST_AGAIN_MS, and at most IN_FLIGHT_MAX of them in a
   round. A start of what is there changes nothing else.
11. *What no list had may be there*: a list was short by mistake, or a start that failed has begun late. The map drops
   it, and where nothing else runs nothing would be listed from then on. So lists go on for DOUBT_MS.

Invariants: of a launch at most one process lives (I4: Start only where rule 4 and 7 leave no other reading); no process
without a launch lives longer than a fence and two rounds (I6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from clusterbroker.broker.foreman.spec import WorkerSpec, ordered_at

IN_FLIGHT_MAX: Final = 8
STARTS_PER_S: Final = 20
FENCED_S: Final = 5.0
"""From TERM to KILL of a worker that gets, acks and answers nothing any more."""
LEASE_STOP_MS: Final = 15_000
LEASE_KILL_MS: Final = 25_000
TELL_AGAIN_MS: Final = 5_000
KILL_AGAIN_MS: Final = 2_000
ADJUST_AGAIN_MS: Final = 5_000
UNLISTED_MS: Final = 10_000
"""All lists of so long are not short by mistake."""
DOUBT_MS: Final = 60_000
DOUBT_LOOK_MS: Final = 2_000
OTHERS_MS: Final = 10_000
"""A foreman that lives has ended its own by then: FENCED_S, KILL, and two rounds."""
SECOND_MS: Final = 1_000
OUT_OF_MEMORY: Final = "out of memory"
"""Why a worker ended, where its driver knows of the kernel that it was that."""


class Launch(Enum):
    """State of a launch in the map."""

    WANTED = "wanted"
    RETIRING = "retiring"
    """It gets no more messages, and holds none or has been waited for: it ends by TERM, and KILL after its grace."""
    REVOKED = "revoked"
    """It is fenced."""


class State(Enum):
    """State of a worker at its driver."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch of this place."""

    spec: WorkerSpec
    state: Launch = Launch.WANTED


@dataclass(frozen=True, slots=True)
class Seen:
    """A row of a driver's list."""

    worker_id: str
    state: State
    cluster: str
    """Label: id of the cluster."""
    place: str
    """Label: name of the node."""
    pool: str = ""
    exit: int | None = None
    """Exit status as a shell has it: 128 + n for signal n. None: it runs, or nobody knows."""
    memory_bytes: int = 0
    """Now."""
    peak_bytes: int = 0
    """The most so far; 0: the driver cannot tell."""
    why: str = ""
    """More of its end than the exit status: OUT_OF_MEMORY."""
    template: str = ""
    """By which it was started; empty: not known."""
    fit: str = ""
    """`WorkerSpec.fit` of its last start that was answered."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A driver's list. `asked_ms`: when it was asked for."""

    asked_ms: int
    workers: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What the node tells of the map."""

    launches: Mapping[str, Wanted]
    """By worker id: those of this driver."""
    fresh: bool
    """The node holds its lease, and has applied all that was there when the foreman began."""
    unleased_since_ms: int | None = None
    """None: it holds its lease."""
    elsewhere: Mapping[str, bool] | None = None
    """Launches of other places, and whether they are revoked; None: not told."""
    index: int = 0
    """Of the wiring log, up to which the map counts."""

    def is_over_elsewhere(self, seen: Seen) -> bool:
        """A worker of another place, which has no business any more; rule 9."""
        if self.elsewhere is None or not self.fresh:
            return False
        revoked = self.elsewhere.get(seen.worker_id)
        if revoked is None:
            return ordered_at(seen.worker_id) <= self.index
        return revoked and seen.state is not State.EXITED  # its record stays, rule 4


@dataclass(frozen=True, slots=True)
class Start:
    spec: WorkerSpec


@dataclass(frozen=True, slots=True)
class Adjust:
    """Start of what is there, whose bounds have changed."""

    spec: WorkerSpec


@dataclass(frozen=True, slots=True)
class Stop:
    worker_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    worker_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    worker_id: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Closes the books of a launch. `exit` None: nobody knows, or it never ran."""

    worker_id: str
    exit: int | None
    peak_bytes: int = 0
    why: str = ""


Action = Start | Adjust | Stop | Kill | Remove | Gone


@dataclass(slots=True)
class Pace:
    """Starts of a place: bounded at once and in a second."""

    in_flight: set[str] = field(default_factory=set)
    _begun_ms: deque[int] = field(default_factory=deque)

    def may_start(self, now_ms: int) -> bool:
        while self._begun_ms and self._begun_ms[0] <= now_ms - SECOND_MS:
            self._begun_ms.popleft()
        return len(self.in_flight) < IN_FLIGHT_MAX and len(self._begun_ms) < STARTS_PER_S

    def begin(self, worker_id: str, now_ms: int) -> None:
        self.in_flight.add(worker_id)
        self._begun_ms.append(now_ms)

    def next_ms(self) -> int | None:
        """When the next start may be; None: when one of those in flight is answered."""
        if len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        return self._begun_ms[0] + SECOND_MS if self._begun_ms else 0


@dataclass(slots=True)
class _Ending:
    kill_ms: int
    killed_ms: int | None = None
    unlisted_ms: int | None = None
    """Since when no list has it."""

    @property
    def due_ms(self) -> int:
        """When KILL is due, or is again."""
        return self.kill_ms if self.killed_ms is None else self.killed_ms + KILL_AGAIN_MS


@dataclass(slots=True)
class Books:
    """What a foreman remembers of one driver's workers: nothing that its successor could not do without."""

    cluster: str
    place: str
    pace: Pace = field(default_factory=Pace)
    shared: bool = False
    """Other foremen act on the same workers."""
    begun: dict[str, int] = field(default_factory=dict)
    """Launch -> when its start was answered."""
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Launch -> when its start failed, and why."""
    next_ms: int | None = None
    """When to look again though nothing happens; None: nothing is due."""
    _ending: dict[str, _Ending] = field(default_factory=dict)
    _told_ms: dict[str, int] = field(default_factory=dict)
    _adjusted_ms: dict[str, int] = field(default_factory=dict)
    _doubts_ms: dict[str, int] = field(default_factory=dict)
    """Worker that was told gone because no list had it -> until when lists are read for it."""
    _adjusts_left: int = 0
    """In this round."""
    _over_ms: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Worker of another place, of a shared one -> since when the map has ended it, and when it was listed last."""

    # -- what came of a start -----------------------------------------------------------------------------------------

    def started(self, worker_id: str, now_ms: int) -> None:
        """The driver has it, or had it already."""
        self.pace.in_flight.discard(worker_id)
        self.begun[worker_id] = now_ms

    def start_failed(self, worker_id: str, now_ms: int, why: str) -> None:
        """It may be there all the same: only a list that is asked for from now on says that it is not."""
        self.pace.in_flight.discard(worker_id)
        self.failed[worker_id] = now_ms, why

    # -- a round ------------------------------------------------------------------------------------------------------

    def decide(self, view: View, listed: Listed | None, now_ms: int) -> list[Action]:
        """What to do now. Raises nothing; may be called at any time."""
        self.next_ms, self._adjusts_left = None, IN_FLIGHT_MAX
        if listed is None:  # rule 1
            return []
        own = {seen.worker_id: seen for seen in listed.workers if self.is_ours(seen)}
        self._forget(view)
        others = {seen.worker_id: seen for seen in listed.workers if self.is_others(seen)}
        self._forget_ends(view, {**others, **own}, now_ms)
        actions: list[Action] = []
        for worker_id, wanted in view.launches.items():
            seen = own.get(worker_id)
            if seen is None:
                actions += self._absent(wanted, view, listed, now_ms)
            elif seen.state is State.EXITED:
                actions += self._tell(Gone(worker_id, seen.exit, seen.peak_bytes, seen.why), now_ms)
            elif wanted.state is Launch.WANTED:
                actions += self._adjust(wanted.spec, seen, view, now_ms)
            elif wanted.state is Launch.RETIRING:
                actions += self._end(worker_id, wanted.spec.grace_s, now_ms)
            elif wanted.state is Launch.REVOKED:
                actions += self._end(worker_id, FENCED_S, now_ms)
        if view.fresh:  # rules 2 and 3
            for worker_id, seen in own.items():
                if worker_id in view.launches or worker_id in self.pace.in_flight:
                    continue
                if seen.state is State.EXITED:
                    actions.append(Remove(worker_id))
                else:
                    actions += self._end(worker_id, FENCED_S, now_ms)
        self._look_for_doubted(own, now_ms)
        actions += self._end_others(view, others, now_ms)
        actions += self._fence(view, own.values(), now_ms)
        return actions

    def is_ours(self, seen: Seen) -> bool:
        """It bears this cluster's and place's label."""
        return seen.cluster == self.cluster and seen.place == self.place

    def is_others(self, seen: Seen) -> bool:
        """It bears this cluster's label, and another place's, which is shared."""
        return self.shared and seen.cluster == self.cluster and seen.place != self.place

    def _absent(self, wanted: Wanted, view: View, listed: Listed, now_ms: int) -> Sequence[Action]:
        worker_id = wanted.spec.worker_id
        if worker_id in self.pace.in_flight:
            return ()
        answer = self.failed.get(worker_id)
        if answer is None and worker_id in self.begun:
            answer = self.begun[worker_id], "it vanished: somebody else removed it"
        if answer is not None:
            answered_ms, why = answer
            if answered_ms < listed.asked_ms:  # rule 7
                return self._not_there(worker_id, why, now_ms)
            self._look_at(now_ms + 1)  # by another list, though nothing happens
            return ()
        if not view.fresh:  # rule 2
            return ()
        if wanted.state is not Launch.WANTED:
            return self._not_there(worker_id, "it was never started", now_ms)
        if not self.pace.may_start(now_ms):  # rule 6
            self._look_at(self.pace.next_ms())
            return ()
        self.pace.begin(worker_id, now_ms)
        return (Start(wanted.spec),)

    def _not_there(self, worker_id: str, why: str, now_ms: int) -> Sequence[Action]:
        """No list has it. Rule 11."""
        self._doubts_ms.setdefault(worker_id, now_ms + DOUBT_MS)
        return self._tell(Gone(worker_id, None, why=why), now_ms)

    def _look_for_doubted(self, own: Mapping[str, Seen], now_ms: int) -> None:
        """Rule 11."""
        for worker_id, until_ms in tuple(self._doubts_ms.items()):
            if now_ms >= until_ms or worker_id in own:
                del self._doubts_ms[worker_id]
        if self._doubts_ms:
            self._look_at(now_ms + DOUBT_LOOK_MS)

    def _adjust(self, spec: WorkerSpec, seen: Seen, view: View, now_ms: int) -> Sequence[Action]:
        """Rule 10."""
        worker_id = spec.worker_id
        if not spec.fit or seen.fit == spec.fit or not view.fresh or worker_id in self.pace.in_flight:
            return ()
        due_ms = self._adjusted_ms.get(worker_id, now_ms - ADJUST_AGAIN_MS) + ADJUST_AGAIN_MS
        if now_ms < due_ms or not self._adjusts_left:
            self._look_at(max(due_ms, now_ms + 1))
            return ()
        self._adjusts_left -= 1
        self._adjusted_ms[worker_id] = now_ms
        return (Adjust(spec),)

    def _tell(self, gone: Gone, now_ms: int) -> Sequence[Action]:
        told_ms = self._told_ms.get(gone.worker_id)
        if told_ms is not None and now_ms < told_ms + TELL_AGAIN_MS:
            self._look_at(told_ms + TELL_AGAIN_MS)
            return ()
        self._told_ms[gone.worker_id] = now_ms
        self._look_at(now_ms + TELL_AGAIN_MS)
        return (gone,)

    def _end(self, worker_id: str, grace_s: float, now_ms: int) -> Sequence[Action]:
        """TERM once, KILL when its time is over and then again; a shorter grace shortens the time that is left."""
        kill_ms = now_ms + int(grace_s * 1000)
        ending = self._ending.get(worker_id)
        if ending is None:
            self._ending[worker_id] = _Ending(kill_ms)
            self._look_at(kill_ms)
            return (Stop(worker_id, grace_s),)
        ending.kill_ms = min(ending.kill_ms, kill_ms)
        if now_ms < ending.due_ms:
            self._look_at(ending.due_ms)
            return ()
        ending.killed_ms = now_ms
        self._look_at(now_ms + KILL_AGAIN_MS)
        return (Kill(worker_id),)

    def _end_others(self, view: View, others: Mapping[str, Seen], now_ms: int) -> list[Action]:
        """Rule 9."""
        for worker_id, (_, listed_ms) in tuple(self._over_ms.items()):
            if worker_id not in others and now_ms >= listed_ms + UNLISTED_MS:
                del self._over_ms[worker_id]
        actions: list[Action] = []
        for worker_id, seen in others.items():
            if not view.is_over_elsewhere(seen):
                self._over_ms.pop(worker_id, None)
                continue
            since_ms, _ = self._over_ms.get(worker_id, (now_ms, 0))
            self._over_ms[worker_id] = since_ms, now_ms
            if now_ms < since_ms + OTHERS_MS:
                self._look_at(since_ms + OTHERS_MS)
            elif seen.state is State.EXITED:
                actions.append(Remove(worker_id))
            else:
                actions += self._end(worker_id, FENCED_S, now_ms)
        return actions

    def _fence(self, view: View, own: Iterable[Seen], now_ms: int) -> list[Action]:
        """Rule 5."""
        since_ms = view.unleased_since_ms
        if since_ms is None or self.shared:
            return []
        if not self._is_fenced(view, now_ms):
            self._look_at(since_ms + LEASE_STOP_MS)
            return []
        left_s = max(0, since_ms + LEASE_KILL_MS - now_ms) / 1000
        return [
            action
            for seen in own
            if seen.state is not State.EXITED
            for action in self._end(seen.worker_id, left_s, now_ms)
        ]

    def _is_fenced(self, view: View, now_ms: int) -> bool:
        """All workers of the place are to end."""
        since_ms = view.unleased_since_ms
        return since_ms is not None and not self.shared and now_ms >= since_ms + LEASE_STOP_MS

    def _forget_ends(self, view: View, own: Mapping[str, Seen], now_ms: int) -> None:
        """Of those that have ended, and of those that are to run: the next end begins with TERM again. Rule 8."""
        fenced = self._is_fenced(view, now_ms)
        for worker_id, ending in tuple(self._ending.items()):
            seen, wanted = own.get(worker_id), view.launches.get(worker_id)
            if seen is None and ending.unlisted_ms is None:
                ending.unlisted_ms = now_ms
            elif seen is not None:
                ending.unlisted_ms = None
            has_ended = seen is not None and seen.state is State.EXITED
            is_gone = ending.unlisted_ms is not None and now_ms >= ending.unlisted_ms + UNLISTED_MS
            is_to_run = wanted is not None and wanted.state is Launch.WANTED and not fenced
            if has_ended or is_gone or is_to_run:
                del self._ending[worker_id]
            elif ending.unlisted_ms is not None:
                due_ms = ending.due_ms if now_ms < ending.due_ms else now_ms + KILL_AGAIN_MS
                self._look_at(min(due_ms, ending.unlisted_ms + UNLISTED_MS))

    def _forget(self, view: View) -> None:
        """What the map does not have any more has no entry."""
        for book in (self.begun, self.failed, self._told_ms, self._adjusted_ms):
            for worker_id in book.keys() - view.launches.keys():
                del book[worker_id]

    def _look_at(self, at_ms: int | None) -> None:
        if at_ms is not None and (self.next_ms is None or at_ms < self.next_ms):
            self.next_ms = at_ms
