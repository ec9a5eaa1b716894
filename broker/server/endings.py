"""Reasons for a node's end or restart."""

from __future__ import annotations


class Restart(Exception):
    """The node must begin again: the others have taken it for dead, or it fell behind the wiring log."""


class Unstarted(ValueError):
    """The node cannot take part in its cluster; one line says why."""
