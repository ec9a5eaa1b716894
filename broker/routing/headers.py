"""How a headers exchange matches: the binding's arguments against the message's headers.

`x-match` says how (RabbitMQ, "headers exchange"): `all` wants every condition met, `any` at least one; both
leave out arguments whose name starts with `x-`, while `all-with-x` and `any-with-x` take them as conditions,
too. `x-match` itself is never a condition, and without it the rule is `all`. Consequently `all` without any
condition matches every message, and `any` without any condition matches none.

A condition whose value is void (None) only asks for the presence of the header. Otherwise the values must be
the same by type class (see `journal.values`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

from clusterbroker.broker.routing.labour import Steps
from clusterbroker.journal.values import VOID, Canonical, canonical

D = TypeVar("D", bound=Hashable)

_GROUP_STEPS: Final = 4
_CONDITION_STEPS: Final = 2
"""What a look at a group takes, and each of its conditions."""


class HeadersMatch:
    """The arguments of one binding, made ready for matching."""

    __slots__ = ("conditions", "everything")

    def __init__(self, arguments: Mapping[str, object]) -> None:
        kind = arguments.get("x-match", "all")
        with_x = kind in ("all-with-x", "any-with-x")
        self.everything = kind not in ("any", "any-with-x")
        """Every condition is to be met; else one of them is enough."""
        self.conditions: tuple[tuple[str, Canonical], ...] = tuple(
            (name, canonical(arguments[name]))
            for name in sorted(arguments)
            if name != "x-match" and (with_x or not name.startswith("x-"))
        )

    def matches(self, headers: Mapping[str, object] | None) -> bool:
        """Whether a message with these headers (None: it has none) meets the binding."""
        return self.meets({name: canonical(value) for name, value in (headers or {}).items()})

    def meets(self, values: Mapping[str, Canonical]) -> bool:
        """`matches` for headers of which the values are known by type class: those that any condition names."""
        for name, wanted in self.conditions:
            value = values.get(name)
            # "a void value means that the presence of the header is enough"
            met = value is not None and wanted in (VOID, value)
            if met != self.everything:
                return met
        return self.everything


class HeadersIndex(Generic[D]):
    """All bindings of an exchange, found by what a message says.

    Bindings that ask for the same are one *group*. A group that one condition is enough for stands under each of them,
    one that wants every condition under a single one, that with the fewest groups when it came. So a message costs a
    look for each of its headers, and one at each group that stands there, however many other bindings there are.
    """

    __slots__ = ("_always", "_groups", "_named", "_under")

    def __init__(self) -> None:
        self._groups: dict[tuple[bool, tuple[tuple[str, Canonical], ...]], _Group[D]] = {}
        self._under: dict[str, dict[Canonical, dict[_Group[D], None]]] = {}
        self._named: dict[str, int] = {}  # in so many groups a condition names the header: others are not looked at
        self._always: _Group[D] | None = None

    def add(self, match: HeadersMatch, destination: D) -> None:
        key = (match.everything, match.conditions)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(match)
            if match.everything and not match.conditions:
                self._always = group
            group.places = match.conditions
            if match.everything:
                group.places = tuple(sorted(match.conditions, key=self._crowd)[:1])
            for name, value in group.places:
                self._under.setdefault(name, {}).setdefault(value, {})[group] = None
            for name, _ in match.conditions:
                self._named[name] = self._named.get(name, 0) + 1
        group.destinations[destination] = group.destinations.get(destination, 0) + 1

    def remove(self, match: HeadersMatch, destination: D) -> None:
        key = (match.everything, match.conditions)
        group = self._groups[key]
        group.destinations[destination] -= 1
        if group.destinations[destination]:
            return
        del group.destinations[destination]
        if group.destinations:
            return
        del self._groups[key]
        if group is self._always:
            self._always = None
        for name, value in group.places:
            under = self._under[name]
            del under[value][group]
            if not under[value]:
                del under[value]
            if not under:
                del self._under[name]
        for name, _ in match.conditions:
            self._named[name] -= 1
            if not self._named[name]:
                del self._named[name]

    def find(self, headers: Mapping[str, object] | None, steps: Steps | None = None) -> set[D]:
        """The destinations of a message with these headers (None: it has none). Raises TooCostly."""
        steps = Steps() if steps is None else steps
        found = set(self._always.destinations) if self._always is not None else set()
        steps.take(len(found))
        values = {name: canonical(value) for name, value in (headers or {}).items() if name in self._named}
        for name, value in values.items():
            under = self._under.get(name)
            if under is None:
                continue
            for wanted in dict.fromkeys((value, VOID)):
                for group in under.get(wanted, ()):
                    steps.take(_GROUP_STEPS + _CONDITION_STEPS * len(group.match.conditions))
                    if not group.match.everything or group.match.meets(values):
                        steps.take(len(group.destinations))
                        found.update(group.destinations)
        return found

    def _crowd(self, condition: tuple[str, Canonical]) -> int:
        name, value = condition
        return len(self._under.get(name, {}).get(value, ()))


class _Group(Generic[D]):
    """Bindings that ask for the same. `places`: the conditions under which it stands."""

    __slots__ = ("destinations", "match", "places")

    def __init__(self, match: HeadersMatch) -> None:
        self.match = match
        self.destinations: dict[D, int] = {}
        self.places: tuple[tuple[str, Canonical], ...] = ()
