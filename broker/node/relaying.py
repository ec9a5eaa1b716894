"""Relayed links between the relay's core and the rest of the node (see `broker.node.relay`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.node.hub import Hub, MemberShell, Payload
from clusterbroker.broker.node.relay import Relay
from clusterbroker.broker.node.relay_messages import (
    Reach,
    RelayAccept,
    RelayClose,
    Relayed,
    RelayMessage,
    RelayOpen,
    RelayTook,
)

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


class Relaying:
    """What a node and its shell give the node's `Relay`."""

    def __init__(
        self,
        node: NodeCore,
        hub: Hub,
        shell: MemberShell,
        begins: Callable[[str, int], None],
        ends: Callable[[str], None],
    ) -> None:
        self._node = node
        self._hub = hub
        self._shell = shell
        self._begins = begins
        self._ends = ends
        self.relay = Relay(hub.name, node.options.incarnation, self)
        hub.carry = self.relay.carry
        heads = (Reach, RelayOpen, RelayAccept, RelayClose, Relayed, RelayTook)
        hub.handlers.update(dict.fromkeys(heads, self.relay.received))

    @property
    def now_ms(self) -> int:
        return self._node.now_ms

    @property
    def leader(self) -> str | None:
        return self._shell.leader

    def send_direct(self, peer: str, head: RelayMessage, payload: Iterable[Payload] = ()) -> None:
        self._hub.send(peer, head, payload)

    def gathered(self, peer: str) -> Sequence[bytes]:
        return self._hub.out.pop(peer, ())

    def held_bytes(self, peer: str) -> int:
        return self._hub.held_bytes.get(peer, 0)

    def relayed(self, peer: str, number: int, via: str) -> None:
        self._shell.log_event("link.relayed", {"peer": peer, "via": via})
        self._begins(peer, number)

    def frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None:
        self._hub.received(peer, index, head, payload)

    def lost(self, peer: str, why: str) -> None:
        self._shell.log_event("link.relay_ended", {"peer": peer, "why": why})
        self._ends(peer)

    def silent(self, peer: str, silent_ms: int) -> None:
        self._shell.silent(peer, silent_ms)

    def stumbled(self, peer: str, error: Exception) -> None:
        self._hub.failed(peer, error)
