"""Base of all commands of the wiring log.

A command that changes a row may set a part of it, by `only`: the names of the fields that it sets. The row must exist
(404), and its other fields stay as they are when the command is applied. The proposer never fills them in from an
earlier read, which would undo others' changes. Without `only` a command sets the whole row.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="command"):
    """Root of all commands."""

    at_ms: int = 0
    """When it was proposed, wall clock of the proposer, ms since 1970; for display: nothing ends by it."""
