"""Errors between an owner and its backups.

ReplicationError
`-- BadMessage      the peer's fault: it said what no correct peer says; the link ends
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of this floor's errors."""


class BadMessage(ReplicationError):
    """A message that no correct peer sends (parts that do not fill their payload, an answer to what was never sent)."""
