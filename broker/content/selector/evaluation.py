"""A selector's tree, compiled into one function of a message (pure).

Logic has three values: true, false and None, which is unknown, as in SQL: what a message does not have is unknown, and
so is what is reckoned with it. A message is taken when the selector is true of it. Values of different kinds (number,
text, boolean, binary) are never equal and never ordered: such a comparison is false. Whole numbers are reckoned as
such, and their division drops the rest; what cannot be reckoned is unknown.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.content.selector.like import Like
from clusterbroker.broker.content.selector.syntax import COMPARISONS, BadSelector, Node

WHOLE_MAX: Final = 2**63
SLOW_MAX: Final = 4
"""Patterns of LIKE in one selector that are slow: up to 1 ms each."""
Value = Callable[[Any], Any]
"""Of a message: a value, or None."""
Names = Callable[[str], Value]
"""What a name of the selector means. Raises BadSelector for one that cannot be."""

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compiled(node: Node, names: Names, *, orders_texts: bool) -> Value:
    """The function of a tree. `orders_texts`: `<` and its like hold between texts, too."""
    make = _Maker(names, orders_texts)
    return make.of(node)


def kind_of(value: Any) -> str:
    """Values of one kind can be compared."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "binary" if isinstance(value, bytes) else ""


class _Maker:
    def __init__(self, names: Names, orders_texts: bool) -> None:
        self._names = names
        self._slow = 0
        self._ordered = ("number", "text", "binary") if orders_texts else ("number",)

    def of(self, node: Node) -> Value:
        kind, of = node
        if kind == "literal":
            value = of[0]
            return lambda _: value
        if kind == "name":
            return self._names(of[0])
        if kind in COMPARISONS:
            return self._comparison(kind, *map(self.of, of))
        if kind == "between":
            value, low, high = map(self.of, of)
            return _and(self._comparison(">=", value, low), self._comparison("<=", value, high))
        if kind == "like":
            like = Like(of[1], of[2])
            self._slow += like.is_slow
            if self._slow > SLOW_MAX:
                raise BadSelector(f"a selector has at most {SLOW_MAX} patterns with '_' between two '%'")
            return _like(self.of(of[0]), like)
        return _MAKERS[kind](*map(self.of, of))

    def _comparison(self, sign: str, left: Value, right: Value) -> Value:
        if sign in ("=", "<>"):
            negated = sign == "<>"

            def equal(message: Any) -> bool | None:
                one, other = left(message), right(message)
                if one is None or other is None:
                    return None
                kind = kind_of(one)
                return kind == kind_of(other) and kind != "" and (one == other) is not negated

            return equal
        order, ordered = _ORDERS[sign], self._ordered

        def compare(message: Any) -> bool | None:
            one, other = left(message), right(message)
            if one is None or other is None:
                return None
            kind = kind_of(one)
            return kind in ordered and kind == kind_of(other) and order(one, other)

        return compare


def _and(left: Value, right: Value) -> Value:
    def both(message: Any) -> bool | None:
        one = _truth(left(message))
        if one is False:
            return False
        other = _truth(right(message))
        return other if one is True or other is False else None

    return both


def _or(left: Value, right: Value) -> Value:
    def either(message: Any) -> bool | None:
        one = _truth(left(message))
        if one is True:
            return True
        other = _truth(right(message))
        return other if one is False or other is True else None

    return either


def _not(of: Value) -> Value:
    def negated(message: Any) -> bool | None:
        value = _truth(of(message))
        return None if value is None else not value

    return negated


def _truth(value: Any) -> bool | None:
    """What is no boolean is unknown."""
    return value if isinstance(value, bool) else None


def _null(of: Value) -> Value:
    return lambda message: of(message) is None


def _in(of: Value, *listed: Value) -> Value:
    def found(message: Any) -> bool | None:
        value, unknown = of(message), False
        if value is None:
            return None
        for each in listed:
            other = each(message)
            if other is None:
                unknown = True
            elif kind_of(other) == kind_of(value) and other == value:
                return True
        return None if unknown else False

    return found


def _like(of: Value, like: Like) -> Value:
    def matches(message: Any) -> bool | None:
        value = of(message)
        if value is None:
            return None
        return like.matches(value) if isinstance(value, str) else False

    return matches


def _reckoned(reckon: Callable[..., Any]) -> Callable[..., Value]:
    def make(*of: Value) -> Value:
        def value(message: Any) -> int | float | None:
            values = [each(message) for each in of]
            if any(kind_of(each) != "number" for each in values):
                return None
            try:
                found = reckon(*values)
            except ArithmeticError:
                return None
            if isinstance(found, float):
                return None if math.isnan(found) else found
            return int(found) if -WHOLE_MAX <= found < WHOLE_MAX else None

        return value

    return make


def _divided(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        found = abs(one) // abs(other)
        return found if (one < 0) == (other < 0) else -found
    return one / other


def _rest(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return one - other * _divided(one, other)
    if not other or math.isinf(one):
        raise ZeroDivisionError
    return math.fmod(one, other)


_MAKERS: Final[dict[str, Callable[..., Value]]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "null": _null,
    "in": _in,
    "+": _reckoned(operator.add),
    "-": _reckoned(operator.sub),
    "*": _reckoned(operator.mul),
    "/": _reckoned(_divided),
    "%": _reckoned(_rest),
    "plus": _reckoned(operator.pos),
    "minus": _reckoned(operator.neg),
}

__all__ = ["BadSelector", "Value", "compiled", "kind_of"]
