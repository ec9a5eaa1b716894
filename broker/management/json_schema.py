"""JSON schemas by hand, for what no struct says: arguments of declarations, queries and answers."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]
INTEGER_MAX: Final = 2**63 - 1


def text(description: str = "", **more: Any) -> Schema:
    """A text."""
    return {"type": "string", **_described(description), **more}


def integer(least: int, most: int, description: str = "", **more: Any) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer", "minimum": least, "maximum": most, **_described(description), **more}


def flag(description: str = "") -> Schema:
    """A truth value."""
    return {"type": "boolean", **_described(description)}


def one_of(*allowed: str, **more: Any) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(allowed), **more}


def table(fields: dict[str, Schema] | None = None, required: tuple[str, ...] = (), **more: Any) -> Schema:
    """An object; fields beyond these are passed over."""
    schema: Schema = {"type": "object"}
    if fields:
        schema["properties"] = fields
    if required:
        schema["required"] = list(required)
    return {**schema, **more}


def list_of(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


def _described(description: str) -> Schema:
    return {"description": description} if description else {}
