"""The links of a session, by handle; of its connection, by name; and how many the node has.

A link's name is one link's, in its direction, between two containers (2.6.1). A connection has few sessions, but may
have very many links, and each attach asks for its name.
"""

from __future__ import annotations

from typing import Any, Final

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.wire.amqp10.errors import RESOURCE_LIMIT, LinkError

LINKS_MAX: Final = 65_536
"""Of a node: each takes about 2 KB."""


class Names:
    """Of one connection: its links by name and role."""

    __slots__ = ("links", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.links: dict[tuple[str, bool], Any] = {}

    def find(self, name: str, role: bool) -> Any:
        """The link of this name, or None. `role`: as the client says it."""
        return self.links.get((name, role))

    def check(self) -> None:
        """Raises LinkError for one more than the node has room for."""
        if self.node.links >= LINKS_MAX:
            raise LinkError(RESOURCE_LIMIT, f"the node has {self.node.links} links; the most is {LINKS_MAX}")


class Links(dict[int, Any]):
    """Of one session, by handle."""

    __slots__ = ("_names",)

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names

    def __setitem__(self, handle: int, link: Any) -> None:
        assert handle not in self, "a handle in use is refused"
        super().__setitem__(handle, link)
        self._names.links[link.name, link.role] = link
        self._names.node.links += 1

    def pop(self, handle: int, *default: Any) -> Any:
        """As a dict's."""
        if handle in self:
            self._gone(self[handle])
        return super().pop(handle, *default)

    def clear(self) -> None:
        """As a dict's."""
        for link in self.values():
            self._gone(link)
        super().clear()

    def _gone(self, link: Any) -> None:
        self._names.node.links -= 1
        key = (link.name, link.role)
        if self._names.links.get(key) is link:
            del self._names.links[key]
