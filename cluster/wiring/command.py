"""Base of all commands of the wiring log.

A command that changes a row may set a part of it, by `only`: the names of the fields that it sets. The row must exist
(404), and its other fields stay as they are when the command is applied. The proposer never fills them in from an
earlier read, which would undo others' changes. Without `only` a command sets the whole row.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from clusterbroker.cluster.errors import PreconditionFailed

_Row = TypeVar("_Row", bound=msgspec.Struct)


class Command(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="command"):
    """Root of all commands."""

    at_ms: int = 0
    """When it was proposed, wall clock of the proposer, ms since 1970; for display: nothing ends by it."""


def in_part(present: _Row, wanted: _Row, only: tuple[str, ...]) -> _Row:
    """The present row with the named fields of the wanted one; `only` empty: the wanted row. Raises 406."""
    if not only:
        return wanted
    unknown = [name for name in only if name not in present.__struct_fields__]
    if unknown:
        raise PreconditionFailed(f"no such field: '{unknown[0]}'")
    return replace(present, **{name: getattr(wanted, name) for name in only})
