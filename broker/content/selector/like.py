"""The pattern of LIKE: `%` is any text, `_` any character (pure).

Each piece between two `%` is searched once, from where the one before it ended, so nothing is tried twice but a piece
with `_` in it, which is short.
"""

from __future__ import annotations

import re
from typing import Final

from clusterbroker.broker.content.selector.syntax import BadSelector

TEXT_MAX: Final = 1 << 16
"""Characters of a text that is looked at; a longer one is unknown."""
SLOW_TEXT_MAX: Final = 1 << 12
"""Where a piece with `_` has to be searched for."""
UNKNOWN_PIECE_MAX: Final = 32
"""Characters between two `%`, where a `_` stands among them: such a piece is tried at each place of the text."""


class _Piece:
    __slots__ = ("_exact", "_pattern", "length")

    def __init__(self, characters: list[str | None], searched: bool) -> None:
        self.length = len(characters)
        self._exact = "".join(each for each in characters if each is not None)
        self._pattern: re.Pattern[str] | None = None
        if None in characters:
            if searched and self.length > UNKNOWN_PIECE_MAX:
                raise BadSelector(f"a pattern has at most {UNKNOWN_PIECE_MAX} characters between two '%' with a '_'")
            escaped = ("." if each is None else re.escape(each) for each in characters)
            self._pattern = re.compile("".join(escaped), re.DOTALL)

    def stands(self, text: str, at: int) -> bool:
        if self._pattern is None:
            return text.startswith(self._exact, at)
        return self._pattern.match(text, at) is not None

    def find(self, text: str, at: int, end: int) -> int:
        if self._pattern is None:
            return text.find(self._exact, at, end)
        found = self._pattern.search(text, at, end)
        return -1 if found is None else found.start()


class Like:
    """One pattern. Raises BadSelector."""

    __slots__ = ("_first", "_last", "_middle", "_text_max", "_whole", "is_slow")

    def __init__(self, pattern: str, escape: str) -> None:
        pieces = _pieces(pattern, escape)
        self._whole = len(pieces) == 1
        self._first, self._last = _Piece(pieces[0], searched=False), _Piece(pieces[-1], searched=False)
        self._middle = [_Piece(piece, searched=True) for piece in pieces[1:-1] if piece]
        self.is_slow = any(None in piece for piece in pieces[1:-1])
        """A piece with `_` has to be searched for."""
        self._text_max = SLOW_TEXT_MAX if self.is_slow else TEXT_MAX

    def matches(self, text: str) -> bool | None:
        """Whether all of the text is as the pattern says; None: nobody knows."""
        if len(text) > self._text_max:
            return None
        first, last = self._first, self._last
        if self._whole:
            return len(text) == first.length and first.stands(text, 0)
        at, end = first.length, len(text) - last.length
        if end < at or not first.stands(text, 0) or not last.stands(text, end):
            return False
        for piece in self._middle:  # the first place of each leaves most room for the others
            found = piece.find(text, at, end)
            if found < 0:
                return False
            at = found + piece.length
        return True


def _pieces(pattern: str, escape: str) -> list[list[str | None]]:
    """What stands between the `%`; None: any character."""
    if len(escape) > 1:
        raise BadSelector(f"the escape of LIKE is one character, not '{escape[:20]}'")
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for each in characters:
        if each == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape) or not escaped:
                raise BadSelector(f"'{escape}' in a pattern stands before '%', '_' or itself")
            pieces[-1].append(escaped)
        elif each == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if each == "_" else each)
    return pieces
