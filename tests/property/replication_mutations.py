"""Bugs to be put into the cores, each of which the simulated world must find. Each patches one world before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from clusterbroker.replication.backup import Backup
from clusterbroker.replication.copies import Owned, State
from clusterbroker.replication.following import Following, Link
from clusterbroker.replication.messages import LATER, OTHER, AppendAck, SyncOffer, SyncRefused
from clusterbroker.replication.ports import Replica, ReplicaStore
from clusterbroker.replication.primary import Primary

if TYPE_CHECKING:
    from tests.property.replication_world import World

MUTATIONS: dict[str, Callable[[World], None]] = {}


def backup_bug(bug: type[Backup]) -> type[Backup]:
    def put_in(world: World) -> None:
        world.backup = bug

    MUTATIONS[_name(bug)] = put_in
    return bug


def primary_bug(bug: type[Primary]) -> type[Primary]:
    def put_in(world: World) -> None:
        world.primary = bug

    MUTATIONS[_name(bug)] = put_in
    return bug


def _name(bug: type) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in bug.__name__).strip("_")


# -- the backup's


@backup_bug
class AckBeforeDurable(Backup):
    """It answers when it has written, not when the disk has."""

    def _answer(self, link: Link) -> None:
        kept, self._durable = self._durable, 1 << 60
        super()._answer(link)
        self._durable = kept


@backup_bug
class NothingForeign(Backup):
    """The divergence of epochs is not cut."""

    def _begin(self, link: Link, following: Following, offer: SyncOffer) -> None:
        store = self._store(offer.queue_id)
        super()._begin(link, following, msgspec.structs.replace(offer, epochs=tuple(store.epochs)))


@backup_bug
class RemovesNothing(Backup):
    """What the owner has not is kept."""

    def _finish(self, link: Link, following: Following) -> None:
        following.remove.clear()
        super()._finish(link, following)


@backup_bug
class NeverAtomic(Backup):
    """A copy that may be elected writes half a sync."""

    def _begin(self, link: Link, following: Following, offer: SyncOffer) -> None:
        host = self._host
        replica = host.queue(offer.queue_id)
        assert replica is not None
        self._host = _Altered(host, replica._replace(electable=False))  # type: ignore[assignment]
        try:
            super()._begin(link, following, offer)
        finally:
            self._host = host


class _Altered:
    """A host that says something else of one queue."""

    def __init__(self, host: Any, replica: Any) -> None:
        self._host, self._replica = host, replica

    def queue(self, queue_id: int) -> Any:
        return self._replica

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


@backup_bug
class ProducersNotLowered(Backup):
    """Producers' numbers stay when the messages that they counted are cut."""

    def _begin(self, link: Link, following: Following, offer: SyncOffer) -> None:
        known = {**self._store(offer.queue_id).emitted_attributes()}
        upto = {**dict(offer.attributes)}
        raised = tuple((name, max(upto.get(name, 0), known.get(name, 0))) for name in {**upto, **known})
        super()._begin(link, following, msgspec.structs.replace(offer, attributes=raised))


@backup_bug
class StaleOwnerObeyed(Backup):
    """Records of an owner whose epoch is over are taken."""

    def _current(self, link: Link, following: Following) -> ReplicaStore | None:
        replica = self._host.queue(following.queue_id)
        return None if replica is None else replica.store


@backup_bug
class CutsBelowTheCommitted(Backup):
    """Whatever the owner of the epoch offers is taken, however little it is."""

    def _judge(self, offer: SyncOffer, replica: Replica, store: ReplicaStore) -> tuple[int, str]:
        return OTHER, ""


@backup_bug
class DoubtsAreMembers(Backup):
    """Only who may own the queue says that it has a group more than an owner that knows its copy from its disk."""

    def _judge(self, offer: SyncOffer, replica: Replica, store: ReplicaStore) -> tuple[int, str]:
        ground, why = super()._judge(offer, replica, store)
        return (OTHER, "") if ground == LATER and not replica.electable else (ground, why)


# -- the owner's


@primary_bug
class LostCopyBelieved(Primary):
    """What was heard of a copy counts for the one that began anew."""

    def copy_lost(self, queue_id: int, node: str, now_ms: int) -> None:
        pass


@primary_bug
class WhoIsAheadWaits(Primary):
    """An owner that is told that it lacks something offers the same again, and shrinks its set meanwhile."""

    def received(self, peer: str, message: Any, payload: memoryview, now_ms: int) -> None:
        if isinstance(message, SyncRefused):
            message = msgspec.structs.replace(message, ground=OTHER)
        super().received(peer, message, payload, now_ms)


@primary_bug
class OldSessionAcks(Primary):
    """A copy that was in sync when its link broke is believed to be so after it."""

    def unlinked(self, peer: str, now_ms: int) -> None:
        kept = {q: copy for q, copy in self._peer(peer).queues.items() if copy.state is State.SYNCED}
        owed = {q: (copy.owed_first, copy.owed_last) for q, copy in kept.items()}
        super().unlinked(peer, now_ms)
        self._kept = {(peer, q): owed[q] for q in kept}

    def linked(self, peer: str, now_ms: int) -> None:
        super().linked(peer, now_ms)
        for node, queue_id in getattr(self, "_kept", {}):
            copy = self._peer(peer).queues.get(queue_id)
            if node == peer and copy is not None and copy.state in (State.SYNCING, State.WAITING):
                copy.state = State.SYNCED
                copy.owed_first = copy.owed_last = 0
                self._peer(peer).unsynced.pop(queue_id, None)
        for owned in tuple(self._owned.values()):
            self._try_commit(owned)


@primary_bug
class PendingAdditionIgnored(Primary):
    """Commits wait only for the in-sync set as applied."""

    def _committable(self, owned: Owned, group: int) -> bool:
        kept, owned.added = owned.added, {}
        try:
            return super()._committable(owned, group)
        finally:
            owned.added = kept


@primary_bug
class PendingAdditionCleared(Primary):
    """A command that has nothing to do with the queue ends the waiting for an addition."""

    def members_changed(self, members: Any, now_ms: int) -> None:
        super().members_changed(members, now_ms)
        for owned in self._owned.values():
            owned.added.clear()


@primary_bug
class ShrinkBeforeApplied(Primary):
    """A removal counts when it is proposed."""

    def _propose(self, now_ms: int) -> None:
        super()._propose(now_ms)
        for queue_id in tuple(self._proposing):
            owned = self._owned.get(queue_id)
            if owned is not None:
                wish = self._wish(owned, now_ms)
                owned.in_sync = tuple(node for node in owned.in_sync if node in wish)
                self._try_commit(owned)


@primary_bug
class BelowMinimum(Primary):
    """Groups are committed although the set is too small."""

    def _committable(self, owned: Owned, group: int) -> bool:
        kept, owned.min_in_sync = owned.min_in_sync, 1
        try:
            return super()._committable(owned, group)
        finally:
            owned.min_in_sync = kept


@primary_bug
class RefusedIgnored(Primary):
    """What a backup refused counts as taken."""

    def _acked(self, peer: Any, ack: AppendAck, now_ms: int) -> None:
        super()._acked(peer, AppendAck(ack.group), now_ms)


@primary_bug
class WritesBeforeFirstSync(Primary):
    """A new owner writes before all members have what it took over."""

    def may_write(self, queue_id: int) -> bool:
        owned = self._owned.get(queue_id)
        if owned is not None and owned.first and owned.in_flight is not None and owned.in_flight <= self._durable:
            owned.first = False
            owned.in_flight = None
        return super().may_write(queue_id)


@primary_bug
class LocalDiskIgnored(Primary):
    """A group counts as durable here as soon as it is cut."""

    def group_cut(self, group: int, parts: Any, now_ms: int) -> None:
        self._durable = group
        super().group_cut(group, parts, now_ms)


@primary_bug
class HalfSyncedProposed(Primary):
    """A copy is proposed while its sync is under way."""

    def _wish(self, owned: Owned, now_ms: int) -> tuple[str, ...]:
        wish = super()._wish(owned, now_ms)
        half = [node for node, copy in owned.copies.items() if copy.state is State.SYNCING and node not in wish]
        return (*wish, *half)


@primary_bug
class BehindProposed(Primary):
    """A copy is proposed although it owes older groups."""

    def _wish(self, owned: Owned, now_ms: int) -> tuple[str, ...]:
        kept = {node: (copy.owed_first, copy.owed_last) for node, copy in owned.copies.items()}
        for copy in owned.copies.values():
            copy.owed_first = copy.owed_last = 0
        wish = super()._wish(owned, now_ms)
        for node, copy in owned.copies.items():
            copy.owed_first, copy.owed_last = kept[node]
        return wish


def _incarnation_ignored(world: World) -> None:
    """The map takes additions of an earlier life of the newcomer."""
    world.control.check_incarnations = False


MUTATIONS["incarnation_ignored"] = _incarnation_ignored
