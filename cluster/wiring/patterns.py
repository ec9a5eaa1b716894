"""Regular expressions from users, matched in linear time.

Permissions and policies hold patterns of users with few rights, and `(a+)+$` must not stop a node. Patterns therefore
run on RE2, an automaton without backtracking: time is linear in the name, memory is capped. RE2 has no look-around,
and one kind is common in RabbitMQ's world: `^(?!amq\\.).*`, "all names but the server's own". Look-aheads at the very
start, behind `^`, are therefore split off and matched as patterns of their own, which is the same set of names:
`^(?!A)B` = matches `^B` and not `^(?:A)`.

A pattern is searched for, not matched in full, as RabbitMQ does. `$` is the very end of the name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]

PATTERN_CHARS_MAX: Final = 1024
COMPILED_BYTES_MAX: Final = 1 << 20

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = COMPILED_BYTES_MAX
_OPTIONS.never_capture = True


_LITERAL: Final = re.compile(r"\^((?:[A-Za-z0-9_]|-|\\[.-])*)([*?{]?)")


class PatternError(ValueError):
    """The pattern is too long, too large or not in RE2's syntax."""


class Pattern:
    """One compiled pattern. `text` is what the user wrote."""

    __slots__ = ("_always", "_begin", "_conditions", "_main", "text")

    def __init__(self, text: str) -> None:
        """Compile; raises PatternError with a reason that can be shown to the user."""
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"pattern of {len(text)} characters is longer than {PATTERN_CHARS_MAX}")
        self.text = text
        conditions, rest = _split_lookaheads(text)
        self._conditions = [(wanted, _compile(f"^(?:{inner})")) for wanted, inner in conditions]
        self._main = _compile(rest)
        self._begin = literal_begin(rest)
        self._always = text in {".*", "^.*", "^.*$", ".*$"}

    def matches(self, name: str) -> bool:
        """Whether the pattern is found in the name."""
        if self._always and "\n" not in name:
            return True
        return self.found_in(name.encode())

    def found_in(self, name: bytes) -> bool:
        """Whether the pattern is found in the name, which is UTF-8: half the cost of a text, in which the engine would
        count places. Most names do not begin as the pattern wants it: these cost no search."""
        if not name.startswith(self._begin):
            return False
        for wanted, condition in self._conditions:
            if (condition.search(name) is not None) is not wanted:
                return False
        return self._main.search(name) is not None


def literal_begin(text: str) -> bytes:
    """What each name begins with in which the pattern `text` is found; b"" when it does not say."""
    found = _LITERAL.match(text)
    if found is None or "|" in text:
        return b""
    begin = found[1].replace("\\", "")
    return (begin[:-1] if found[2] else begin).encode()


@lru_cache(maxsize=4096)
def compiled(text: str) -> Pattern:
    """The pattern for a text, compiled once per process; raises PatternError."""
    return Pattern(text)


def matches(text: str, name: str) -> bool:
    """Whether a stored pattern is found in the name; one that this build's engine refuses matches nothing.

    Stored patterns were checked when they were set, but maybe by another release of the engine.
    """
    try:
        return compiled(text).matches(name)
    except PatternError:
        return False


def _compile(text: str) -> Any:
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else "not a regular expression"
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise PatternError(str(reason)) from None
    except UnicodeEncodeError:
        raise PatternError("pattern is not valid Unicode") from None


def _split_lookaheads(text: str) -> tuple[list[tuple[bool, str]], str]:
    """`^(?!A)(?=B)C` -> ([(False, A), (True, B)], `^C`); anything else is left to RE2 as it is."""
    conditions: list[tuple[bool, str]] = []
    while text.startswith(("^(?!", "^(?=")):
        end = _closing_parenthesis(text, 1)
        if end is None or _alternates(text, end + 1):
            break
        conditions.append((text[3] == "=", text[4:end]))
        text = "^" + text[end + 1 :]
        if text[1:2] in {"*", "+", "?", "{"}:
            raise PatternError("a look-ahead cannot be repeated")
    return conditions, text


def _closing_parenthesis(text: str, opening: int) -> int | None:
    for at, depth in _depths(text, opening):
        if depth == 0:
            return at
    return None


def _alternates(text: str, start: int) -> bool:
    """Whether an alternative follows outside all groups: `^(?!A)B|C` is not "not A and ..."."""
    return any(depth == 0 and text[at] == "|" for at, depth in _depths(text, start))


def _depths(text: str, start: int) -> list[tuple[int, int]]:
    """(place, depth of groups after it) for each character from `start` that has a meaning of its own."""
    depths: list[tuple[int, int]] = []
    depth = 0
    class_from: int | None = None
    at = start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if class_from is not None:
            first = at == class_from or (at == class_from + 1 and text[class_from] == "^")
            if char == "]" and not first:
                class_from = None
        elif char == "[":
            class_from = at + 1
        else:
            if char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
            depths.append((at, depth))
        at += 1
    return depths
