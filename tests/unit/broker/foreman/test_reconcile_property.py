"""Worlds at chance: maps that change, foremen that die, drivers that fail, lie and are slow. I4 and I6 hold in each."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreman_support import spec
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.foreman.reconcile import (
    UNLISTED_MS,
    Books,
    Gone,
    Kill,
    Launch,
    Listed,
    Remove,
    Seen,
    Start,
    State,
    Stop,
    View,
    Wanted,
)

IDS = [f"w{index}-0" for index in range(3)]
STEP_MS = 1000
SETTLED = 45
"""Rounds: a fence (25 s without lease), KILL, and two more, with room."""


@dataclass
class World:
    """A map, a driver with processes, and a foreman."""

    launches: dict[str, Launch] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    processes: dict[str, int] = field(default_factory=dict)
    """Live ones of each id."""
    records: set[str] = field(default_factory=set)
    """Names at the driver, of workers that live or have ended."""
    deaf: set[str] = field(default_factory=set)
    books: Books = field(default_factory=lambda: Books("c", "p"))
    now_ms: int = 0
    unleased_since_ms: int | None = None
    spawned: dict[str, int] = field(default_factory=dict)

    def rows(self) -> tuple[Seen, ...]:
        return tuple(
            Seen(one, State.RUNNING if self.processes.get(one) else State.EXITED, "c", "p")
            for one in sorted(self.records)
        )

    def start(self, worker_id: str) -> None:
        if worker_id in self.records:
            return  # exists already
        self.records.add(worker_id)
        self.processes[worker_id] = self.processes.get(worker_id, 0) + 1
        self.spawned[worker_id] = self.spawned.get(worker_id, 0) + 1

    def round(self, listing: str, answers: str) -> None:
        """`listing`: right, unknown, late (asked for before what is in flight), empty by mistake. `answers`: to
        starts."""
        rows = {"unknown": None, "empty": ()}.get(listing, self.rows())
        listed = None if rows is None else Listed(self.now_ms, rows)
        wanted = {one: Wanted(spec(one, grace_s=5.0), state) for one, state in self.launches.items()}
        held = self.unleased_since_ms is None
        for action in self.books.decide(View(wanted, held, self.unleased_since_ms), listed, self.now_ms):
            assert rows is not None, "nothing follows from an unknown list"
            match action:
                case Start(one):
                    assert held, "a foreman without a lease starts nothing"
                    if answers != "lost before":
                        self.start(one.worker_id)
                    if answers == "done":
                        self.books.started(one.worker_id, self.now_ms)
                    else:
                        self.books.start_failed(one.worker_id, self.now_ms, "no answer")
                case Stop(one):
                    if one not in self.deaf:
                        self.processes[one] = 0
                case Kill(one):
                    self.processes[one] = 0
                case Remove(one):
                    assert one not in self.launches, "the record of a launch stays until the map has dropped it"
                    assert held
                    if not self.processes.get(one):
                        self.records.discard(one)
                case Gone(one):
                    self.launches.pop(one, None)
        self.now_ms += STEP_MS
        assert all(count <= 1 for count in self.processes.values()), "I4: of a launch at most one process lives"
        assert all(count <= 1 for count in self.spawned.values()), "and one ever"


STEPS = st.one_of(
    st.tuples(st.just("launch"), st.sampled_from(IDS)),
    st.tuples(st.just("retire"), st.sampled_from(IDS)),
    st.tuples(st.just("revoke"), st.sampled_from(IDS)),
    st.tuples(st.just("die"), st.sampled_from(IDS)),
    st.tuples(st.just("deaf"), st.sampled_from(IDS)),
    st.tuples(st.just("foreman"), st.just("")),
    st.tuples(st.just("lease"), st.sampled_from(["lost", "held"])),
    st.tuples(st.just("list"), st.sampled_from(["unknown", "empty"])),
    st.tuples(st.just("answer"), st.sampled_from(["lost before", "lost after"])),
    st.tuples(st.just("wait"), st.integers(1, 30)),
)


def act(world: World, step: tuple[str, object]) -> None:
    kind, what = step
    if kind == "launch" and what not in world.ever:  # an id is unique for ever
        world.ever.add(str(what))
        world.launches[str(what)] = Launch.WANTED
    elif kind in ("retire", "revoke") and what in world.launches:
        world.launches[str(what)] = Launch.RETIRING if kind == "retire" else Launch.REVOKED
    elif kind == "die":
        world.processes[str(what)] = 0
    elif kind == "deaf":
        world.deaf.add(str(what))
    elif kind == "foreman":
        world.books = Books("c", "p")
    elif kind == "lease":
        world.unleased_since_ms = None if what == "held" else world.now_ms
    for _ in range(what if isinstance(what, int) else 1):
        world.round(str(what) if kind == "list" else "right", str(what) if kind == "answer" else "done")


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_i4_i6(steps: list[tuple[str, object]]) -> None:
    world = World()
    for step in steps:
        act(world, step)
    if world.unleased_since_ms is not None:
        for _ in range(SETTLED):
            world.round("right", "done")
        assert not any(world.processes.values()), "I6: without a lease nothing runs after the fence"
        world.unleased_since_ms = None
    for _ in range(SETTLED):
        world.round("right", "done")
    live = {one for one, count in world.processes.items() if count}
    assert live <= world.launches.keys(), "I6: no process lives without a launch"
    assert all(state is Launch.WANTED for state in world.launches.values()), "each launch that should end has a Gone"
    assert live == world.launches.keys(), "and each that should not, runs"
    assert world.records == live, "nothing is left of the others"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.sampled_from([None, Launch.RETIRING, Launch.REVOKED]))
def test_kill_comes_with_the_first_list_after_its_time(lies: list[bool], state: Launch | None) -> None:
    """However many lists before it lack the worker, if not all of UNLISTED_MS do."""
    books = Books("c", "p")
    launches = {} if state is None else {IDS[0]: Wanted(spec(IDS[0], grace_s=5.0), state)}
    seen = Seen(IDS[0], State.RUNNING, "c", "p")
    books.decide(View(launches, True), Listed(0, (seen,)), 0)
    books.started(IDS[0], 0)
    missed = 0
    for round_, lies_now in enumerate(lies, 1):
        now_ms = STEP_MS * round_
        lies_now = lies_now and missed * STEP_MS < UNLISTED_MS
        missed = missed + 1 if lies_now else 0
        done = books.decide(View(launches, True), Listed(now_ms, () if lies_now else (seen,)), now_ms)
        assert not any(isinstance(action, Stop) for action in done), "its time does not begin anew"
        if not lies_now and now_ms >= 5_000:
            assert Kill(IDS[0]) in done
            return
