"""The text of a selector, read into a tree (pure).

Two dialects share a grammar: JMS selectors (Jakarta Messaging 3.1, 3.8.1) and the SQL filter expressions of AMQP
(Filter Expressions 1.0). Keywords are of any case; precedence rises downwards:

    condition    condition OR condition | condition AND condition | NOT condition | predicate
    predicate    operand ( = | <> | != | < | <= | > | >= ) operand
                 operand [NOT] BETWEEN operand AND operand
                 operand [NOT] IN ( literal, ... )
                 operand [NOT] LIKE 'pattern' [ESCAPE 'c']
                 operand IS [NOT] NULL
                 operand                                 a boolean
    operand      + - * / % ( ) and signs over literals and names
    name         a.b, or with any characters [a-b], a.[b-c]

A selector is text from outside that is judged once per message, so its length, its nodes and its depth are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

TEXT_BYTES_MAX: Final = 4096
NODES_MAX: Final = 256
DEPTH_MAX: Final = 32
"""Brackets, signs and NOTs inside each other."""

KEYWORDS: Final = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})
COMPARISONS: Final = ("=", "<>", "!=", "<", "<=", ">", ">=")
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<binary>0[xX][0-9a-fA-F]*)(?![\w$])
  | (?P<real>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|\d+[eE][+-]?\d+[fFdD]?|\d+[fFdD])(?![\w$.])
  | (?P<whole>\d+)[lL]?(?![\w$.])
  | (?P<name>[^\W\d][\w$]*(?:\.(?:[^\W\d][\w$]*|\[[^\]]+\]))*|\$[\w$]*)
  | \[(?P<bracketed>[^\]]+)\]
  | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
    )""",
    re.VERBOSE,
)


class BadSelector(ValueError):
    """The text is no selector; says where and why."""


class Node(NamedTuple):
    """`kind`: literal, name, not, and, or, a comparison, an operator, between, in, like, null."""

    kind: str
    of: tuple[Any, ...]


class _Token(NamedTuple):
    kind: str
    value: Any
    at: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        if text[at:].isspace():
            break
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadSelector(f"at {at + 1}: '{text[at : at + 20]}' is not understood")
        kind = found.lastgroup or ""
        value: Any = found[kind]
        start = found.start(kind)
        if kind == "text":
            value = value[1:-1].replace(value[0] * 2, value[0])
        elif kind == "binary":
            kind, value = "literal", bytes.fromhex(value[2:] if len(value) % 2 == 0 else "0" + value[2:])
        elif kind == "real":
            kind, value = "literal", float(value.rstrip("fFdD"))
        elif kind == "whole":
            kind, value = "literal", int(value)
        elif kind == "name" and value.upper() in KEYWORDS:
            kind, value = "keyword", value.upper()
        elif kind in ("name", "bracketed"):
            kind, value = "name", value.replace("[", "").replace("]", "")
        yield _Token(kind, value, start)
        at = found.end()
    yield _Token("end", "", len(text))


def parse(text: str) -> Node:
    """The tree of a selector. Raises BadSelector."""
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise BadSelector(f"a selector has at most {TEXT_BYTES_MAX} bytes")
    return _Parser(text).whole()


class _Parser:
    __slots__ = ("_at", "_depth", "_nodes", "_tokens")

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = self._depth = self._nodes = 0

    # -- tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, kind: str, *values: str) -> str | None:
        """The next token's value, if it is one of these."""
        token = self._next
        if token.kind != kind or token.value not in values:
            return None
        self._at += 1
        return str(token.value)

    def _expect(self, kind: str, value: str) -> None:
        if self._take(kind, value) is None:
            raise self._wrong(f"'{value}' is missing")

    def _wrong(self, why: str) -> BadSelector:
        token = self._next
        found = "the end" if token.kind == "end" else f"'{str(token.value)[:20]}'"
        return BadSelector(f"at {token.at + 1}, before {found}: {why}")

    def _made(self, kind: str, *of: Any) -> Node:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise BadSelector(f"a selector has at most {NODES_MAX} parts")
        return Node(kind, of)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadSelector(f"a selector is at most {DEPTH_MAX} deep")

    # -- conditions

    def whole(self) -> Node:
        found = self._or()
        if self._next.kind != "end":
            raise self._wrong("an operator, or the end of the selector, is missing")
        return found

    def _or(self) -> Node:
        found = self._and()
        while self._take("keyword", "OR"):
            found = self._made("or", found, self._and())
        return found

    def _and(self) -> Node:
        found = self._not()
        while self._take("keyword", "AND"):
            found = self._made("and", found, self._not())
        return found

    def _not(self) -> Node:
        if self._take("keyword", "NOT"):
            self._deeper()
            found = self._made("not", self._not())
            self._depth -= 1
            return found
        return self._predicate()

    def _predicate(self) -> Node:
        left = self._sum()
        sign = self._take("sign", *COMPARISONS)
        if sign is not None:
            return self._made("<>" if sign == "!=" else sign, left, self._sum())
        if self._take("keyword", "IS"):
            negated = self._take("keyword", "NOT") is not None
            self._expect("keyword", "NULL")
            return self._negated(negated, self._made("null", left))
        negated = self._take("keyword", "NOT") is not None
        if self._take("keyword", "BETWEEN"):
            low = self._sum()
            self._expect("keyword", "AND")
            return self._negated(negated, self._made("between", left, low, self._sum()))
        if self._take("keyword", "IN"):
            return self._negated(negated, self._made("in", left, *self._list()))
        if self._take("keyword", "LIKE"):
            pattern = self._text()
            escape = self._text() if self._take("keyword", "ESCAPE") else ""
            return self._negated(negated, self._made("like", left, pattern, escape))
        if negated:
            raise self._wrong("BETWEEN, IN or LIKE is missing")
        return left

    def _negated(self, negated: bool, node: Node) -> Node:
        return self._made("not", node) if negated else node

    def _list(self) -> list[Node]:
        self._expect("sign", "(")
        found = [self._sum()]
        while self._take("sign", ","):
            found.append(self._sum())
        self._expect("sign", ")")
        return found

    def _text(self) -> str:
        token = self._next
        if token.kind != "text":
            raise self._wrong("a text in quotes is missing")
        self._at += 1
        return str(token.value)

    # -- operands

    def _sum(self) -> Node:
        found = self._product()
        while sign := self._take("sign", "+", "-"):
            found = self._made(sign, found, self._product())
        return found

    def _product(self) -> Node:
        found = self._signed()
        while sign := self._take("sign", "*", "/", "%"):
            found = self._made(sign, found, self._signed())
        return found

    def _signed(self) -> Node:
        sign = self._take("sign", "+", "-")
        if sign is None:
            return self._operand()
        self._deeper()
        found = self._made("minus" if sign == "-" else "plus", self._signed())
        self._depth -= 1
        return found

    def _operand(self) -> Node:
        if self._take("sign", "("):
            self._deeper()
            found = self._or()
            self._depth -= 1
            self._expect("sign", ")")
            return found
        word = self._take("keyword", "TRUE", "FALSE")
        if word is not None:
            return self._made("literal", word == "TRUE")
        token = self._next
        if token.kind not in ("literal", "text", "name"):
            raise self._wrong("a name, a number or a text in quotes is missing")
        self._at += 1
        return self._made("name" if token.kind == "name" else "literal", token.value)
