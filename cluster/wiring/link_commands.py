"""Commands about recoverable links (links.py): what commands.py says holds for them as well."""

from __future__ import annotations

from typing import Literal

from clusterbroker.cluster.ids import LogIndex

from .command import Command, OfProcess

LinkRole = Literal["sender", "receiver"]
"""Of the client."""


class AttachLink(OfProcess, frozen=True, kw_only=True, tag="attach_link"):
    """A client attaches a recoverable link at a node; wherever it was attached before, it is not any more. Result: the
    RecoverableLink. Refused: 404 if it is resumed and not known, 403 for another user's, 406 for one that is resumed
    with another terminus, 406 beyond the number of links."""

    vhost: str
    container: str
    name: str
    role: LinkRole
    terminus: str
    """The node's end, as the front writes it: two that are equal are one."""
    user: str
    is_administrator: bool = False
    timeout_ms: int | None = None
    """So long it outlives its last attach; None: for ever."""
    resumes: bool = False
    """The client has deliveries of it: it must be known. Else another terminus begins another link."""


class _OfAttach(Command, frozen=True, kw_only=True):
    """About one attach of a link: void when there was another one since. Result: whether it was that one."""

    link: LogIndex
    attach: int


class SuspendLink(_OfAttach, frozen=True, kw_only=True, tag="suspend_link"):
    """The link is attached nowhere; its timeout begins."""


class ExpireLink(_OfAttach, frozen=True, kw_only=True, tag="expire_link"):
    """The link was suspended for its timeout: it ends. Void for one that is attached."""


class ForgetLink(_OfAttach, frozen=True, kw_only=True, tag="forget_link"):
    """The client, or an operator, ends the link."""
