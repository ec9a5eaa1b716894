"""Bugs that are put into the real code from outside, each of which the simulation must find (see mutations.py).

Bugs of the ring are put into its model, which then stands in for it (tests/model): the compiled one cannot be patched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutation:
    """A bug. `in_model`: it is put into the model of the ring; `only`: the faults that are aimed at it, all if empty;
    `first`: the seed from which it is looked for; `pipeline`: what its runs have of `workload.PIPELINE`."""

    put_in: Callable[[], None]
    row: str
    """As `PLANNED` has it, or what it is."""
    in_model: bool = False
    only: tuple[str, ...] = ()
    nodes: int | None = None
    first: int = 1
    pipeline: tuple[str, ...] = ()
    journal: bool = False
    """Whether it is looked for on the real journal."""


PLANNED = (
    "dispatch without lease / early fail-over",
    "redelivered watermark not reserved",
    "no publish dedup",
    "ack before fsync",
    "catch-up replica added while behind",
    "pending expansion ignored (trap 5)",
    "pending expansion cleared by unrelated entry",
    "no attach generation",
    "dispatch before all proxies attached",
    "commits below min_isr (no ELR rule)",
    "ISR shrink used before it is committed",
    "stale durable index after truncation (B1)",
    "wiped node re-added (B18)",
    "settle accepted from a former holder",
)
"""The bugs that any simulation of this protocol has to find: each is a row here; what is more came with the code."""
MUTATIONS: dict[str, Mutation] = {}


def mutation(row: str, **more: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(put_in: Callable[[], None]) -> Callable[[], None]:
        MUTATIONS[put_in.__name__] = Mutation(put_in, row, **more)
        return put_in

    return add


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Puts `make(what is there)` in the place of `owner.name`. Every bug does it here, so that `fitting` can look."""
    patched(owner, name, make)


# -- leases and maps


@mutation("dispatch without lease / early fail-over")
def early_fail_over() -> None:
    from clusterbroker.cluster.liveness.lease import LeaseGranter, LeaseOptions

    hasty = LeaseOptions()
    object.__setattr__(hasty, "grace_s", 0.5)

    def make(init: Any) -> Any:
        return lambda self, _options=None: init(self, hasty)

    patch(LeaseGranter, "__init__", make)


@mutation("dispatch without lease / early fail-over (the gate before the socket)")
def no_gate() -> None:
    from clusterbroker.cluster.liveness.lease import LeaseKeeper
    from tests.simulation.pulse import Pulse

    def make(leased: Any) -> Any:
        return lambda self, now: self.lease_until > 0

    patch(LeaseKeeper, "leased", make)
    patch(Pulse, "allows", lambda allows: lambda self: True)


@mutation("a port that refuses is taken for a dead process (C3)", only=("lie", "kill", "heal"))
def refused_is_dead() -> None:
    from clusterbroker.cluster.liveness.contact import Hearing

    patch(Hearing, "silent", lambda silent: lambda self, name, incarnation, now: True)


@mutation("a lease alone allows to hand out, and two signs fail a member early (C3)", only=("lie", "heal"))
def no_contact() -> None:
    from tests.simulation.pulse import Pulse

    patch(Pulse, "allows", lambda allows: lambda self: True)


@mutation("wiped node re-added (B18)", only=("kill", "pause", "wipe_newcomer", "reset"))
def any_incarnation() -> None:
    from clusterbroker.cluster.wiring.members import Members

    def make(is_current: Any) -> Any:
        def anybody(self: Any, name: str, incarnation: int) -> bool:
            member = self.get(name)
            return member is not None and member.alive

        return anybody

    patch(Members, "is_current", make)


# -- the owner's side of replication


@mutation("commits below min_isr (no ELR rule)")
def below_the_minimum() -> None:
    from clusterbroker.replication.primary import Primary

    def make(committable: Any) -> Any:
        def lax(self: Any, owned: Any, group: int) -> bool:
            kept, owned.min_in_sync = owned.min_in_sync, 1
            try:
                return bool(committable(self, owned, group))
            finally:
                owned.min_in_sync = kept

        return lax

    patch(Primary, "_committable", make)


@mutation("ISR shrink used before it is committed")
def early_shrink() -> None:
    from clusterbroker.replication.primary import Primary

    def make(wish: Any) -> Any:
        def used(self: Any, owned: Any, now_ms: int) -> Any:
            found = wish(self, owned, now_ms)
            kept = tuple(node for node in owned.in_sync if node in found)
            if len(kept) < len(owned.in_sync):
                owned.in_sync = kept
            return found

        return used

    patch(Primary, "_wish", make)


@mutation("catch-up replica added while behind")
def added_while_behind() -> None:
    from clusterbroker.replication.copies import Copy

    def make(_: Any) -> Any:
        return lambda self, _group: self.follows

    patch(Copy, "has_all_before", make)


@mutation("pending expansion ignored (trap 5)", only=("kill", "reset", "cut_after_in_sync"))
def expansion_ignored() -> None:
    from clusterbroker.replication.copies import Owned

    def make(_: Any) -> Any:
        return lambda self: self.in_sync

    patch(Owned, "waits_for", make)


@mutation("pending expansion cleared by unrelated entry", only=("kill", "reset", "unrelated_entry"))
def expansion_cleared() -> None:
    from clusterbroker.replication.primary import Primary

    def make(entity_changed: Any) -> Any:
        def cleared(self: Any, queue: Any, *rest: Any) -> None:
            owned = self._owned.get(queue.queue_id)
            if owned is not None and owned.epoch == queue.epoch:
                owned.added.clear()  # without a look at the version
            entity_changed(self, queue, *rest)

        return cleared

    patch(Primary, "entity_changed", make)


@mutation("acknowledgements of an earlier link count")
def stale_links_count() -> None:
    from clusterbroker.replication.primary import Primary

    def make(unlinked: Any) -> Any:
        def kept(self: Any, peer: str, now_ms: int) -> None:
            it = self._peer(peer)
            if it.linked:
                it.linked, it.since_ms = False, now_ms
                it.owed.clear()
                it.owed_bytes = 0
                for copy in it.queues.values():
                    copy.owed_first = copy.owed_last = 0

        return kept

    patch(Primary, "unlinked", make)


# -- copies in the node's groups


@mutation("a copy's records count as durable with a group that was made before them")
def portion_too_early() -> None:
    from clusterbroker.replication.copying import Copying

    patch(Copying, "_last_group", lambda _: property(lambda self: self._node.newest_group))


# -- the backup's side


@mutation("ack before fsync")
def ack_before_fsync() -> None:
    from clusterbroker.replication.backup import Backup

    def make(answer: Any) -> Any:
        def hasty(self: Any, link: Any) -> None:
            kept, self._durable = self._durable, 1 << 60
            answer(self, link)
            self._durable = kept

        return hasty

    patch(Backup, "_answer", make)


@mutation("stale durable index after truncation (B1)")
def stale_durable() -> None:
    from clusterbroker.replication.backup import Backup
    from clusterbroker.replication.messages import SyncDone

    def make(answer: Any) -> Any:
        def stale(self: Any, link: Any) -> None:
            for one in link.answers:
                if isinstance(one.to, SyncDone):
                    one.mark = 0
            answer(self, link)

        return stale

    patch(Backup, "_answer", make)


@mutation("truncation of a foreign suffix left out")
def nothing_foreign() -> None:
    import msgspec

    from clusterbroker.replication.backup import Backup

    def make(begin: Any) -> Any:
        def kept(self: Any, link: Any, following: Any, offer: Any) -> None:
            store = self._store(offer.queue_id)
            begin(self, link, following, msgspec.structs.replace(offer, epochs=tuple(store.epochs)))

        return kept

    patch(Backup, "_begin", make)


@mutation("a half sync is elected", only=("reset", "half_sync"))
def never_atomic() -> None:
    """A copy may be elected with publishes whose numbers it has not counted, and their proxies send them again."""
    from clusterbroker.replication.following import Following

    patch(Following, "atomic", lambda _: property(lambda self: False, lambda self, value: None))


# -- proxies and owners


@mutation("no publish dedup")
def no_dedup() -> None:
    from clusterbroker.broker.remote.attachment import Attachment

    def make(init: Any) -> Any:
        def forgetful(self: Any, *arguments: Any) -> None:
            init(self, *arguments)
            self.accepted = 0

        return forgetful

    patch(Attachment, "__init__", make)


@mutation("a refused number of a client counts when a later one is taken")
def forgotten_refusals() -> None:
    from clusterbroker.broker.queues.producers import Producers

    patch(Producers, "refuse", lambda _: lambda self, producer, number: False)


@mutation("no attach generation", only=("hand_over", "reset", "late_attached"))
def no_generation() -> None:
    """Most frames of an older gen come before the answer to the newer Attach, and a proxy that is not attached drops
    them. What is left is the answer to the older one itself, when it is slower than the proxy's patience."""
    import msgspec

    from clusterbroker.broker.remote.owned_queue import OwnedQueue
    from clusterbroker.broker.remote.remote_queue import RemoteQueue

    def on_deliver(deliver: Any) -> Any:
        return lambda self, epoch, gen, *rest: deliver(self, epoch, self.gen, *rest)

    def attachment(find: Any) -> Any:
        def lax(self: Any, node: str, gen: int) -> Any:
            known = self._attachments.get(node)
            return find(self, node, gen if known is None else known.gen)

        return lax

    def on_attached(attached: Any) -> Any:
        return lambda self, message: attached(self, msgspec.structs.replace(message, gen=self.gen))

    patch(RemoteQueue, "on_deliver", on_deliver)
    patch(RemoteQueue, "on_attached", on_attached)
    patch(OwnedQueue, "attachment", attachment)


@mutation("dispatch before all proxies attached", only=("hand_over", "kill", "drop_attach"), nodes=5)
def no_barrier() -> None:
    from clusterbroker.broker.remote.owned_queue import OwnedQueue

    patch(OwnedQueue, "open", lambda _: property(lambda self: self._synced and self.leased and not self.frozen))


@mutation("settle accepted from a former holder", only=("stall_settler",))
def anybody_settles() -> None:
    """Two layers keep a former holder out: its attachment has ended, and the message is held by another number. The
    bug leaves out both. Its one chance is a frame that a process had sent before it heard that it has been failed."""
    from clusterbroker.broker.queues.states import HOLDER_MAX
    from clusterbroker.broker.remote.messages import SETTLE_ACK
    from clusterbroker.broker.remote.owned_queues import OwnedQueues

    def make(settle: Any) -> Any:
        def lax(self: Any, peer: str, message: Any, payload: Any) -> None:
            settle(self, peer, message, payload)
            owned = self.queues.get(message.queue_id)
            known = owned is not None and owned.epoch == message.epoch
            for settlement in message.settlements if known else ():
                if settlement.outcome == SETTLE_ACK:
                    for first, last in settlement.ranges:
                        for holder in range(1, HOLDER_MAX + 1):
                            owned.queue.ring.settle_held(first, last, holder)

        return lax

    patch(OwnedQueues, "_settle", make)


@mutation("a delivery that was dropped forces no new attach (B3)", only=("drop_delivery",))
def dropped_and_forgotten() -> None:
    from clusterbroker.broker.remote.remote_queues import RemoteQueues

    def make(regained: Any) -> Any:
        return lambda self, node: self._linked.update({node: None})

    patch(RemoteQueues, "linked", make)


@mutation("publishes that came while the queue was frozen are not asked for again, and the gap is skipped (B2)")
def gaps_are_skipped() -> None:
    from clusterbroker.broker.remote.attachment import Attachment
    from clusterbroker.broker.remote.owned_queue import OwnedQueue

    def follows(_: Any) -> Any:
        return lambda self, first: first > self.accepted

    def thaw(_: Any) -> Any:
        def silent(self: Any) -> None:
            self.frozen_until_ms = None
            self._gate()

        return silent

    patch(Attachment, "follows", follows)
    patch(OwnedQueue, "thaw", thaw)


@mutation("a frame is looked at before its wiring index is applied", only=("hand_over", "late_owner"), nodes=5)
def no_index() -> None:
    """What comes too early is mostly dropped and said again. A complete Attach that does not list a queue is said
    once: an owner that does not know yet that it is one waits for its sender for ever."""
    from clusterbroker.broker.node.hub import Hub

    def make(received: Any) -> Any:
        return lambda self, peer, index, head, payload: received(self, peer, 0, head, payload)

    patch(Hub, "received", make)


# -- the ring


@mutation("redelivered watermark not reserved", in_model=True)
def not_reserved() -> None:
    from clusterbroker.broker.queues.states import HEAD_NOT_RESERVED, HEAD_OK
    from tests.model.ring_local import LocalRing

    def head(look: Any) -> Any:
        def lax(self: Any, now_ms: int) -> int:
            found = look(self, now_ms)
            return HEAD_OK if found == HEAD_NOT_RESERVED else int(found)

        return lax

    patch(LocalRing, "head", head)
    patch(LocalRing, "reserve", lambda _: lambda self: None)
    patch(LocalRing, "reserve_ahead", lambda _: lambda self, seq: None)


@mutation("redelivered: only what is committed of the watermark counts", in_model=True)
def forgets_reserved() -> None:
    from tests.model.ring import Ring

    def make(take_over: Any) -> Any:
        def forgetful(self: Any, epoch: int, *rest: Any) -> None:
            kept, self.reserved = self.reserved, 0
            self._reserved_written = 0
            take_over(self, epoch, *rest)
            self.next_seq = max(self.next_seq, kept + 1)

        return forgetful

    patch(Ring, "take_over", make)


@mutation("handed out before it is committed", in_model=True)
def not_committed() -> None:
    from tests.model.ring_local import LocalRing

    def make(commit: Any) -> Any:
        def early(self: Any, data: Any, *rest: Any) -> Any:
            found = commit(self, data, *rest)
            self.committed = self._unwritten
            return found

        return early

    patch(LocalRing, "write", make)
