"""Whether every bug can still be put in, and its place is still on the way: the cheap half of the mutation gate.

    python -m tests.simulation.fitting [--in-model]

The gate itself takes half an hour, and a commit runs a sixth of it. A name that moved is found here at once: each bug
is put in with a counter in place of what it would do, and the worlds of the bugs then run until each place of each bug
was called. Nothing else differs from the sound code, so one world counts for all bugs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests import model
from tests.simulation import bugs, bugs_edges, bugs_links, bugs_pipeline, mutations
from tests.simulation.bugs import MUTATIONS, Mutation

assert bugs_edges, "its bugs stand among the others"
assert bugs_pipeline, "its bugs stand among the others"
assert bugs_links, "its bugs stand among the others"
LOOK_S: Final = 0.2
"""Simulated seconds between two looks at what was called."""
SEEDS_MAX: Final = 4
"""In so many worlds, besides the one where the bug was found, each of its places is called."""


class Enough(Exception):
    """Everything that this world was to call was called."""


class Places:
    """What bugs are put into. `uncalled`: by bug, the places that nothing has called yet."""

    def __init__(self) -> None:
        self.uncalled: dict[str, dict[tuple[int, str], str]] = {}
        self.misfits: dict[str, str] = {}
        """Bugs that cannot be put in, and why."""
        self._by_place: dict[tuple[int, str], list[str]] = {}
        self._called: set[tuple[int, str]] = set()
        self._bug = ""

    def find(self, names: list[str]) -> None:
        """Puts a counter into each place of these bugs."""
        kept, bugs.patched = bugs.patched, self._patched
        try:
            for name in names:
                self._bug = name
                self.uncalled[name] = {}
                try:
                    MUTATIONS[name].put_in()
                except Exception as error:
                    self.misfits[name] = f"{type(error).__name__} {error}"
                else:
                    if not self.uncalled[name]:
                        self.misfits[name] = "it patches nothing"
        finally:
            bugs.patched = kept

    def _patched(self, owner: Any, name: str, _make: Callable[[Any], Any]) -> None:
        place = id(owner), name
        said = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
        self.uncalled[self._bug][place] = said
        bugs_here = self._by_place.setdefault(place, [])
        bugs_here.append(self._bug)
        found = getattr(owner, name)
        if len(bugs_here) == 1:
            setattr(owner, name, self._counted(found, place))

    def _counted(self, found: Any, place: tuple[int, str]) -> Any:
        def note() -> None:
            if place not in self._called:
                self._called.add(place)
                for name in self._by_place[place]:
                    del self.uncalled[name][place]

        if callable(found):

            def counted(*arguments: Any, **named: Any) -> Any:
                note()
                return found(*arguments, **named)

            return counted

        def get(self: Any) -> Any:
            note()
            return found.__get__(self)

        return property(get, getattr(found, "__set__", None))

    def all_called(self, name: str) -> bool:
        return not self.uncalled[name]


def worlds(names: list[str], places: Places) -> Iterator[str]:
    """Runs the world of each bug whose places were not called in those before; the names of the bugs that had one."""
    known = mutations.found_by()
    for name in names:
        first = MUTATIONS[name].first
        for seed in (known.get(name, first), *range(first, first + SEEDS_MAX)):
            if name in places.misfits or places.all_called(name):
                break
            yield f"{name} {seed}"
            _run(MUTATIONS[name], seed, lambda name=name: places.all_called(name))


def _run(chosen: Mutation, seed: int, enough: Callable[[], bool]) -> None:
    from tests.simulation.run import Failure

    def tamper(world: Any) -> None:
        def look() -> None:
            if enough():
                raise Enough
            world.schedule.after(LOOK_S, look)

        world.schedule.after(LOOK_S, look)

    try:
        mutations.run_of(chosen, seed, tamper)
    except Failure as failure:
        if not isinstance(failure.__cause__, Enough):
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fitting", description=__doc__)
    parser.add_argument("--in-model", action="store_true", help="the bugs of the ring's model; else all others")
    in_model: bool = parser.parse_args().in_model
    if in_model:
        model.stand_in()
    names = [name for name, one in MUTATIONS.items() if one.in_model == in_model]
    places = Places()
    places.find(names)
    ran = list(worlds(names, places))
    for name, why in places.misfits.items():
        print(f"{name} cannot be put in: {why}")
    uncalled = {name: places.uncalled[name] for name in names if places.uncalled[name] and name not in places.misfits}
    for name, where in uncalled.items():
        print(f"{name}: nothing calls {', '.join(where.values())}")
    print(f"{len(names)} bugs, {len(places.misfits) + len(uncalled)} do not fit; worlds of {', '.join(ran)}")
    return 1 if places.misfits or uncalled else 0


if __name__ == "__main__":
    sys.exit(main())
