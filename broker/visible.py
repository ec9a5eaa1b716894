"""Text of strangers on a terminal: nothing in it moves a cursor, colours, begins a line or hides another character."""

from __future__ import annotations

from typing import Final

_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def visible(text: str) -> str:
    """The text with everything that does not print written out; the result has no character that moves a cursor."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        # a byte that was not UTF-8, carried through the text by surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
