"""A place that is shared, in worlds at chance: foremen of three nodes whose maps lag, die for a while or for good. A
worker that the log wants is ended by nobody, and what it has ended is gone in the end, whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreman_support import spec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterbroker.broker.foreman.reconcile import (
    OTHERS_MS,
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

NAMES = ("a", "b", "c")
STEP_MS = 1_000
SETTLED = OTHERS_MS // STEP_MS + 30
Map = dict[str, tuple[str, bool]]
"""Launch -> (place, whether it is revoked)."""


@dataclass
class World:
    """The log's maps, one after the other; Pods; and a foreman at each node."""

    maps: list[Map] = field(default_factory=lambda: [{}])
    pods: dict[str, tuple[str, State]] = field(default_factory=dict)
    books: dict[str, Books] = field(default_factory=lambda: {name: World.begun(name) for name in NAMES})
    late: dict[str, int] = field(default_factory=dict)
    """Node whose map stands still -> at which index."""
    dead: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    """Nodes that the cluster has forgotten: they never come back."""
    now_ms: int = 0

    @staticmethod
    def begun(name: str) -> Books:
        return Books("c", name, shared=True)

    @property
    def map(self) -> Map:
        return self.maps[-1]

    def order(self, change: Map, without: tuple[str, ...] = ()) -> None:
        self.maps.append({one: facts for one, facts in (self.map | change).items() if one not in without})

    def view(self, name: str) -> View:
        index = self.late.get(name, len(self.maps) - 1)
        known = self.maps[index]
        own = {
            one: Wanted(spec(one), Launch.REVOKED if revoked else Launch.WANTED)
            for one, (place, revoked) in known.items()
            if place == name
        }
        elsewhere = {one: revoked for one, (place, revoked) in known.items() if place != name}
        return View(own, True, elsewhere=elsewhere, index=index)

    def round(self) -> None:
        for name in NAMES:
            if name not in self.dead:
                rows = tuple(Seen(one, state, "c", place) for one, (place, state) in sorted(self.pods.items()))
                for action in self.books[name].decide(self.view(name), Listed(self.now_ms, rows), self.now_ms):
                    self.act(name, action)
        self.now_ms += STEP_MS

    def act(self, name: str, action: object) -> None:
        match action:
            case Start(one):
                self.pods.setdefault(one.worker_id, (name, State.RUNNING))
                self.books[name].started(one.worker_id, self.now_ms)
            case Stop(one) | Kill(one):
                self.ends(name, one)
                if one in self.pods:
                    self.pods[one] = self.pods[one][0], State.EXITED
            case Remove(one):
                self.ends(name, one)
                assert one not in self.map, "the record of a launch stays until the log has dropped it"
                self.pods.pop(one, None)
            case Gone(one):
                assert all(known[one][0] == name for known in self.maps if one in known), "its own place tells its end"
                self.order({}, without=(one,))

    def ends(self, name: str, worker_id: str) -> None:
        _, revoked = self.map.get(worker_id, ("", True))
        assert revoked, f"{worker_id} is wanted, and {name} ends it"


STEPS = st.one_of(
    st.tuples(st.just("launch"), st.sampled_from(NAMES)),
    st.tuples(st.just("revoke"), st.sampled_from(NAMES)),
    st.tuples(st.just("lag"), st.sampled_from(NAMES)),
    st.tuples(st.just("catch up"), st.sampled_from(NAMES)),
    st.tuples(st.just("die"), st.sampled_from(NAMES)),
    st.tuples(st.just("begin"), st.sampled_from(NAMES)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    st.tuples(st.just("wait"), st.integers(1, 15)),
)


def step(world: World, kind: str, what: object) -> None:
    name = str(what)
    if kind == "launch" and name not in world.gone:
        world.order({f"w{len(world.maps)}-0": (name, False)})
    elif kind == "revoke":
        world.order({one: (place, True) for one, (place, _) in world.map.items() if place == name})
    elif kind == "lag":
        world.late.setdefault(name, len(world.maps) - 1)
    elif kind == "catch up":
        world.late.pop(name, None)
    elif kind == "die":
        world.dead.add(name)
    elif kind == "begin" and name not in world.gone:
        world.dead.discard(name)
        world.late.pop(name, None)  # it is fresh when its map has what was there as it began
        world.books[name] = World.begun(name)
    elif kind == "forget" and name in world.dead and len(world.gone | {name}) < len(NAMES):
        world.gone.add(name)
        world.order({}, without=tuple(one for one, (place, _) in world.map.items() if place == name))
    for _ in range(what if isinstance(what, int) else 1):
        world.round()


@settings(max_examples=300, deadline=None)
@example([("launch", "a"), ("die", "a"), ("forget", "a")])
@example([("lag", "b"), ("launch", "a"), ("wait", 15)])
@given(st.lists(STEPS, max_size=25))
def test_what_the_log_has_ended_is_ended_by_any_foreman_and_nothing_else(steps: list[tuple[str, object]]) -> None:
    world = World()
    for each in steps:
        step(world, *each)
    world.late.clear()
    for name in NAMES:
        if name not in world.gone:
            world.dead.discard(name)
            break  # one of them is enough
    for _ in range(SETTLED):
        world.round()
    live = {one for one, (_, state) in world.pods.items() if state is not State.EXITED}
    assert live <= {one for one, (_, revoked) in world.map.items() if not revoked}, "nothing runs that is over"
    assert world.pods.keys() <= world.map.keys(), "and of what the log has dropped nothing is left"
