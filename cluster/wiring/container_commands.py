"""Commands about containers with a sole connection (containers.py): what commands.py says holds for them as well."""

from __future__ import annotations

from .command import Command, OfProcess


class HoldContainer(OfProcess, frozen=True, kw_only=True, tag="hold_container"):
    """A client's connection asks to be the sole one of its container. Result: the SoleConnection. Refused: 405 if
    another connection is, and does not give way; 406 for one too many."""

    vhost: str
    container: str
    user: str
    connection: str
    """Its id, which no other connection of the cluster ever has."""
    gives_way: bool = False
    """The next connection that asks ends this one; else that one is refused."""


class ReleaseContainer(Command, frozen=True, kw_only=True, tag="release_container"):
    """The connection has ended. Result: whether it was the sole one."""

    vhost: str
    container: str
    user: str
    connection: str
