"""How a headers exchange matches: the binding's arguments against the message's headers.

`x-match` says how (RabbitMQ, "headers exchange"): `all` wants every condition met, `any` at least one; both
leave out arguments whose name starts with `x-`, while `all-with-x` and `any-with-x` take them as conditions,
too. `x-match` itself is never a condition, and without it the rule is `all`. Consequently `all` without any
condition matches every message, and `any` without any condition matches none.

A condition whose value is void (None) only asks for the presence of the header. Otherwise the values must be
the same by type class (see `type_class`).
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.routing.type_class import VOID, Canonical, canonical


class HeadersMatch:
    """The arguments of one binding, made ready for matching."""

    __slots__ = ("_all", "_conditions")

    def __init__(self, arguments: Mapping[str, object]) -> None:
        kind = arguments.get("x-match", "all")
        with_x = kind in ("all-with-x", "any-with-x")
        self._all = kind not in ("any", "any-with-x")
        self._conditions: tuple[tuple[str, Canonical], ...] = tuple(
            (name, canonical(value))
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        )

    def matches(self, headers: Mapping[str, object] | None) -> bool:
        """Whether a message with these headers (None: it has none) meets the binding."""
        if headers is None:
            headers = {}
        for name, wanted in self._conditions:
            # "a void value means that the presence of the header is enough"
            met = name in headers and (wanted == VOID or canonical(headers[name]) == wanted)
            if met != self._all:
                return met
        return self._all
