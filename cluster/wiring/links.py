"""Links that outlive their connections and nodes: who they are, and where each is attached.

    none --AttachLink--> attached --SuspendLink, its node fails or begins anew--> suspended --ExpireLink--> none
                         attached <--AttachLink-- suspended, attached
                         attached, suspended --ForgetLink, end of its vhost or user--> none

A link's number is the index of the command that made it. `attach` counts its attaches, and is its fencing token: what
nodes tell each other about a link carries both, and wiring indices let a receiver know the newest attach before it
reads that. What was written under an older attach is refused (`since`).

The leader proposes ExpireLink when the link was suspended for its timeout as this leader has seen it: a new leader
begins anew, so a link ends late, and never early.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound, PreconditionFailed
from clusterbroker.cluster.ids import LogIndex, NodeId

from . import commands as c
from .changes import Change, LinkAttached, LinkEnded, LinkSuspended
from .entities import RecoverableLink
from .members import Members
from .passing import LogClock
from .snapshot import Snapshot
from .vhosts import Vhosts

LINKS_MAX: Final = 10_000
"""Of a vhost. A user who is no administrator has half of what others leave at most."""
NAME_BYTES_MAX: Final = 256
"""Of a container-id, and of a link's name."""
TERMINUS_BYTES_MAX: Final = 1024
TIMEOUT_MS_MAX: Final = 30 * 24 * 3_600_000
"""Of a user who is no administrator, whose links also end when they should last for ever."""

_Key = tuple[str, str, str]  # container, name, role


class Links:
    """The part of the map that has recoverable links, with the commands about them."""

    __slots__ = ("_by_id", "_by_node", "_by_vhost", "_clock", "_members", "_vhosts")

    def __init__(self, clock: LogClock, members: Members, vhosts: Vhosts) -> None:
        """No link."""
        self._clock = clock
        self._members = members
        self._vhosts = vhosts
        self._by_id: dict[LogIndex, RecoverableLink] = {}  # oldest first
        self._by_vhost: dict[str, dict[_Key, LogIndex]] = {}
        self._by_node: dict[NodeId, dict[LogIndex, None]] = {}  # of those that are attached

    # ---- questions ----

    def get(self, link: LogIndex) -> RecoverableLink | None:
        """The link of this number."""
        return self._by_id.get(link)

    def find(self, vhost: str, container: str, name: str, role: c.LinkRole) -> RecoverableLink | None:
        """The link of this identity."""
        link = self._by_vhost.get(vhost, {}).get((container, name, role))
        return None if link is None else self._by_id[link]

    def all(self, vhost: str | None = None) -> tuple[RecoverableLink, ...]:
        """The links of a vhost, or of all, oldest first."""
        if vhost is None:
            return tuple(self._by_id.values())
        return tuple(self._by_id[link] for link in self._by_vhost.get(vhost, {}).values())

    def since(self, link: int, attach: int) -> int:
        """The attach since which deliveries of the link are one life (`RecoverableLink.since`), said to an attach that
        is obeyed: there was none after it, and the link has not ended. 0: it is not."""
        found = self._by_id.get(LogIndex(link))
        return found.since if found is not None and found.attach == attach else 0

    # ---- commands ----

    def attach(self, command: c.AttachLink, changes: list[Change]) -> RecoverableLink:
        """Fold AttachLink."""
        self._check(command)
        known = self.find(command.vhost, command.container, command.name, command.role)
        if known is None and command.resumes:
            raise NotFound(f"{_text(command)} is not known: it has ended, or never was")
        if known is not None and known.user != command.user:
            raise AccessRefused(f"{_text(command)} belongs to user '{known.user}'")
        if known is not None and known.terminus != command.terminus:
            if command.resumes:
                raise PreconditionFailed(f"{_text(command)} has terminus '{known.terminus}', not '{command.terminus}'")
            self._end(known, changes)
            known = None
        timeout_ms = command.timeout_ms
        if not command.is_administrator:
            timeout_ms = TIMEOUT_MS_MAX if timeout_ms is None else min(timeout_ms, TIMEOUT_MS_MAX)
        if known is None:
            self._check_room(command)
            link = RecoverableLink(
                command.vhost, command.container, command.name, command.role, self._clock.applied, 1, command.terminus,
                command.user, command.node, command.incarnation, timeout_ms,
            )  # fmt: skip
        else:
            link = replace(
                known, attach=known.attach + 1, node=command.node, incarnation=command.incarnation, suspended=False,
                timeout_ms=timeout_ms, since=known.since if command.resumes else known.attach + 1,
            )  # fmt: skip
        self._put(link)
        changes.append(LinkAttached(link))
        return link

    def suspend(self, command: c.SuspendLink, changes: list[Change]) -> bool:
        """Fold SuspendLink."""
        found = self._of(command)
        if found is None or found.suspended:
            return False
        self._suspend(found, changes)
        return True

    def expire(self, command: c.ExpireLink, changes: list[Change]) -> bool:
        """Fold ExpireLink."""
        found = self._of(command)
        if found is None or not found.suspended:
            return False
        self._end(found, changes)
        return True

    def forget(self, command: c.ForgetLink, changes: list[Change]) -> bool:
        """Fold ForgetLink."""
        found = self._of(command)
        if found is None:
            return False
        self._end(found, changes)
        return True

    # ---- ends of other things ----

    def suspend_of(self, node: NodeId, changes: list[Change]) -> None:
        """The node's process is over: its links are attached nowhere."""
        for link in sorted(self._by_node.get(node, ())):
            self._suspend(self._by_id[link], changes)

    def suspend_all(self, changes: list[Change]) -> None:
        """Also those of a node that has another name from now on."""
        for node in sorted(self._by_node):
            self.suspend_of(node, changes)

    def end_of_vhost(self, vhost: str, changes: list[Change]) -> None:
        """The vhost is deleted."""
        for found in self.all(vhost):
            self._end(found, changes)

    def end_of_user(self, user: str, changes: list[Change]) -> None:
        """The user is deleted: the next one of this name is somebody else."""
        for found in self.all():
            if found.user == user:
                self._end(found, changes)

    # ---- inner ----

    def _of(self, command: c.SuspendLink | c.ExpireLink | c.ForgetLink) -> RecoverableLink | None:
        found = self._by_id.get(command.link)
        return found if found is not None and found.attach == command.attach else None

    def _check(self, command: c.AttachLink) -> None:
        self._vhosts.require(command.vhost)
        for what, text in (("container-id", command.container), ("name", command.name)):
            if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
                raise PreconditionFailed(f"the {what} of a recoverable link has 1 to {NAME_BYTES_MAX} bytes")
        if len(command.terminus.encode("utf-8", "surrogatepass")) > TERMINUS_BYTES_MAX:
            raise PreconditionFailed(f"the terminus of a recoverable link has at most {TERMINUS_BYTES_MAX} bytes")
        if command.timeout_ms is not None and command.timeout_ms < 0:
            raise PreconditionFailed(f"the timeout of a recoverable link is negative: {command.timeout_ms}")
        if self._members and not self._members.is_current(command.node, command.incarnation):
            raise PreconditionFailed(f"node '{command.node}' has failed since, or begun anew: attach again")

    def _check_room(self, command: c.AttachLink) -> None:
        count = len(self._by_vhost.get(command.vhost, ()))
        if count >= LINKS_MAX:
            raise LimitReached(f"vhost '{command.vhost}' has {LINKS_MAX} recoverable links")
        if command.is_administrator or 2 * (count + 1) <= LINKS_MAX:
            return
        own = sum(found.user == command.user for found in self.all(command.vhost))
        if 2 * (own + 1) > LINKS_MAX - (count - own):
            raise LimitReached(
                f"user '{command.user}' has {own} recoverable links in vhost '{command.vhost}', half of what others "
                "leave"
            )

    def _put(self, link: RecoverableLink) -> None:
        before = self._by_id.get(link.link)
        if before is not None:
            self._leave(before)
        self._by_id[link.link] = link
        self._by_vhost.setdefault(link.vhost, {})[link.container, link.name, link.role] = link.link
        if not link.suspended:
            self._by_node.setdefault(link.node, {})[link.link] = None

    def _leave(self, link: RecoverableLink) -> None:
        if link.suspended:
            return
        of = self._by_node[link.node]
        del of[link.link]
        if not of:
            del self._by_node[link.node]

    def _suspend(self, link: RecoverableLink, changes: list[Change]) -> None:
        after = replace(link, suspended=True)
        self._put(after)
        changes.append(LinkSuspended(after))

    def _end(self, link: RecoverableLink, changes: list[Change]) -> None:
        self._leave(link)
        del self._by_id[link.link]
        of = self._by_vhost[link.vhost]
        del of[link.container, link.name, link.role]
        if not of:
            del self._by_vhost[link.vhost]
        changes.append(LinkEnded(link))

    # ---- snapshots ----

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.links = list(self._by_id.values())

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot. KeyError, AssertionError: the snapshot contradicts itself."""
        for link in snapshot.links:
            self._vhosts.by_name[link.vhost]
            assert link.link not in self._by_id, "a number stands for one link"
            self._put(link)


def _text(command: c.AttachLink) -> str:
    return f"link '{command.name}' of container '{command.container}' in vhost '{command.vhost}'"
