"""The rights of a worker that its pool has started: those of its launch, and no account's.

    read     the queue of its key, or of each one that it has; a spare, which has none yet, reads none
    write    the pool's exchange of reports; the pool's delayed exchange under its keys (a request that it puts off);
             the default exchange, for reply addresses of requests that it holds at that moment, and whose publisher may
             hear an answer there (flag ANSWERABLE, `broker.access.pool_requests`): a worker has no more rights than
             those whom it serves. An answer to any other address of a request that it holds is taken, and goes nowhere
    call     where the pool's setting `workers_may_call` says so: write the pool's two exchanges of requests

Each connection has rights of its own, for what is held is its own. A launch that is revoked, or gone, has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.cluster.wiring.authorization import PermissionKind, TopicPermissionKind
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.pool_entities import Launch
    from clusterbroker.cluster.wiring.pool_names import PoolNames
    from clusterbroker.cluster.wiring.view import ClusterView

ASKED: Final = "amq.worker"
"""The exchange where it asks for its key (`worker_service`)."""
FORGET_AT: Final = 64
"""Reply addresses that are remembered before those of settled requests are looked for."""


class Ledger(Protocol):
    """Of a session: what it holds."""

    def holds(self, tag: int) -> bool:
        """Whether this delivery is not settled yet."""


class _Addresses:
    """Of requests that are held: the address of each."""

    __slots__ = ("_count", "_forget_at", "_held")

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[Ledger, int]]] = {}
        """Address -> deliveries that may be held, the newest last."""
        self._count = 0
        self._forget_at = FORGET_AT

    def __len__(self) -> int:
        return len(self._held)

    def add(self, address: str, ledger: Ledger, tag: int) -> None:
        if self._count >= self._forget_at:
            held = {at: [one for one in some if one[0].holds(one[1])] for at, some in self._held.items()}
            self._held = {at: some for at, some in held.items() if some}
            self._count = sum(map(len, self._held.values()))
            self._forget_at = max(FORGET_AT, 2 * self._count)
        self._held.setdefault(address, []).append((ledger, tag))
        self._count += 1

    def has(self, address: str) -> bool:
        """Whether a request of it is held. What is settled is looked at once."""
        found = self._held.get(address)
        while found:
            ledger, tag = found[-1]
            if ledger.holds(tag):
                return True
            found.pop()
            self._count -= 1
        self._held.pop(address, None)
        return False


class WorkerRights:
    """See the module (`broker.access.rights.Rights`)."""

    __slots__ = ("_addresses", "_deaf", "_map", "launch_id")
    tags: tuple[str, ...] = ()

    def __init__(self, map_: ClusterView, launch_id: str) -> None:
        self._map = map_
        self.launch_id = launch_id
        self._addresses = _Addresses()
        self._deaf = _Addresses()
        """Where the publisher of a request may not hear an answer."""

    @property
    def _launch(self) -> Launch | None:
        known = self._map.pools.launch(self.launch_id)
        return None if known is None or known.revoked else known

    def _keys(self, launch: Launch) -> Sequence[str]:
        """Those that are its own now."""
        if not launch.spare:
            return (launch.key,)
        return [one.key for one in self._map.pools.assignments(launch.launch_id)]

    @property
    def gone(self) -> str:
        """Why the connection ends; empty: it may go on."""
        known = self._map.pools.launch(self.launch_id)
        if known is None:
            return f"worker '{self.launch_id}' is over"
        return f"worker '{self.launch_id}' is revoked: {known.revoked}" if known.revoked else ""

    def enters(self, vhost: str) -> bool:
        """The pool's alone."""
        launch = self._launch
        pool = None if launch is None else self._map.pools.get(launch.pool_id)
        return pool is not None and pool.vhost == vhost

    def allowed(self, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """See the module; which keys of an exchange is `may_publish`'s."""
        launch = self._launch
        if launch is None or not self.enters(vhost):
            return False
        names = self._map.pools.names(launch.pool_id)
        if kind == "read":
            return any(resource == names.request_queue(key) for key in self._keys(launch))
        own = ("", names.exchange_of(names.activity), names.delayed)
        return kind == "write" and (resource in own or self._calls(launch, names, resource))

    def _calls(self, launch: Launch, names: PoolNames, exchange: str) -> bool:
        return exchange in (names.exchange, names.requests) and self._map.pools.more(launch.pool_id).workers_may_call

    def topic_allowed(self, vhost: str, kind: TopicPermissionKind, exchange: str, routing_key: str) -> bool:  # noqa: ARG002
        """A pool has no topic exchange."""
        return False

    def topic_limited(self, vhost: str, exchange: str) -> bool:  # noqa: ARG002
        """To none."""
        return True

    def may_publish(self, exchange: str, key: str) -> bool:
        """Asked for each batch, and for each key of CC and BCC."""
        launch = self._launch
        if launch is None:
            return False
        names = self._map.pools.names(launch.pool_id)
        if exchange in (names.exchange_of(names.activity), ASKED):
            return True
        if self._calls(launch, names, exchange):
            return True
        if exchange == names.delayed:
            return key in self._keys(launch)
        return not exchange and self._addresses.has(key)

    def unheard(self, key: str) -> bool:
        """Whether what is published there by the default exchange goes nowhere: it answers a request whose publisher
        may not hear it there. To refuse it would end the worker's channel, for what a caller wrote."""
        return self._launch is not None and self._deaf.has(key) and not self._addresses.has(key)

    def took(self, ledger: Ledger, tag: int, message: Message) -> None:
        """A delivery is handed out, under this tag of the session's ledger."""
        try:
            address: Any = properties_of(message).reply_to
        except Exception:  # a message that cannot be read here has no address that may be answered
            return
        if address:
            (self._addresses if message.flags & ANSWERABLE else self._deaf).add(address, ledger, tag)
