"""Direct reply-to between nodes: a reply goes straight to the requester's node.

A reply key ends with `<node>-<incarnation, hexadecimal>-<secret>` of the channel that consumes it
(`Node.secret_name`), so any node can read from it the target node, and whether that start of the node is over.
Knowledge of the key allows a reply, because the key cannot be guessed; and from the requester's vhost only, so that
vhosts stay apart even with a disclosed key. A reply is sent once and not acknowledged, as between a client and its
node: a loss with a link stays lost.

Only the requester's node knows its presence (passive declare of its key), and is asked: `Seek`, `Sought`. When the
link to it ends, the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from clusterbroker.broker.remote.host import Payload
from clusterbroker.broker.remote.messages import ProxyMessage, Reply, Seek, Sought
from clusterbroker.journal.record import Message, RecordBuffer, read_records


class Target(Protocol):
    """The channel that waits for the reply."""

    @property
    def vhost_name(self) -> str:
        """Where it is: replies come from there."""

    def reply(self, message: Message) -> None: ...


class ReplyHost(Protocol):
    """The node, as replies see it."""

    @property
    def reply_targets(self) -> Mapping[str, Target]:
        """The channels of this node that wait for replies, by key."""

    def send(self, node: str, head: ProxyMessage, payload: Iterable[Payload] = ()) -> bool:
        """One frame to a node. False: there is no link."""


class Replies:
    """The way to requesters at other nodes. `incarnation_of`: the start of a node that is alive, None otherwise."""

    def __init__(self, host: ReplyHost, incarnation_of: Callable[[str], int | None]) -> None:
        self._host = host
        self._incarnation_of = incarnation_of
        self._sought: dict[int, tuple[str, Callable[[bool], None]]] = {}  # by request: the node that is asked
        self._requests = 0

    def seek(self, vhost: str, key: str, then: Callable[[bool], None]) -> None:
        """Whether the requester of this key, in this vhost, still waits for replies."""
        if self._target(vhost, key) is not None:
            then(True)
            return
        node = self._node_of(key)
        if node is None:
            then(False)
            return
        self._requests += 1
        self._sought[self._requests] = (node, then)
        if not self._host.send(node, Seek(self._requests, key, vhost)):
            self._answer(self._requests, False)

    def unlinked(self, node: str) -> None:
        """Nobody at this node can be reached."""
        for request in [request for request, (asked, _) in self._sought.items() if asked == node]:
            self._answer(request, False)

    def _answer(self, request: int, there: bool) -> None:
        sought = self._sought.pop(request, None)
        if sought is not None:
            sought[1](there)

    def looked_for(self, peer: str, message: Seek, _: memoryview) -> None:
        self._host.send(peer, Sought(message.request, self._target(message.vhost, message.key) is not None))

    def found(self, peer: str, message: Sought, _: memoryview) -> None:
        sought = self._sought.get(message.request)
        if sought is not None and sought[0] == peer:
            self._answer(message.request, message.there)

    @property
    def handlers(self) -> dict[type, Callable[[str, Any, memoryview], None]]:
        """By head: what the node's links bring."""
        return {Reply: self.received, Seek: self.looked_for, Sought: self.found}

    def send(self, vhost: str, key: str, message: Message) -> bool:
        """Sends the reply; False when it can reach nobody."""
        node = self._node_of(key)
        if node is None:
            return False
        buffer = RecordBuffer()
        buffer.enqueue(0, 0, 1, message, 0, False)
        return self._host.send(node, Reply(key, vhost), (buffer.take(),))

    def received(self, _: str, message: Reply, payload: memoryview) -> None:
        """A reply for a channel of this node, which may be gone by now."""
        target = self._target(message.vhost, message.key)
        if target is not None:
            for _seq, reply, _count, _redelivered in read_records(payload):
                target.reply(reply)

    def _target(self, vhost: str, key: str) -> Target | None:
        target = self._host.reply_targets.get(key)
        return target if target is not None and target.vhost_name == vhost else None

    def _node_of(self, key: str) -> str | None:
        """The node of a key whose channel may still wait. Publishers write keys: one that is no text is nobody's."""
        if not _is_text(key):
            return None
        parts = key.rpartition(".reply-to.")[2].rsplit("-", 2)
        if len(parts) != 3:
            return None
        node, start, _ = parts
        incarnation = self._incarnation_of(node)
        return node if incarnation is not None and f"{incarnation:x}" == start else None


def _is_text(key: str) -> bool:
    """Not so of bytes that were no UTF-8, which properties carry through text."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
