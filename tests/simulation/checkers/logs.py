"""I1 to I5, I7, I14, I20, I30, I38: what owners write, commit, and what the copies have of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.queues.attributes import DUE_TARGET, LINK_ATTACH, LINK_DELIVERY, LINK_HELD, LINK_WITHDRAWN
from clusterbroker.cluster.wiring.changes import TimePassed
from clusterbroker.cluster.wiring.commands import ForceOwner, RegisterNode
from clusterbroker.journal.layout import ENQ, SET
from tests.simulation.checkers.history import Checker
from tests.simulation.workload import DELAYING

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.map import Applied
    from tests.simulation.sim_journal import Written
    from tests.simulation.site import Site


OF_LINKS: Final = b"".join(kind.prefix for kind in (LINK_DELIVERY, LINK_HELD, LINK_ATTACH, LINK_WITHDRAWN))
"""First bytes of the names that say what links hold and know."""


class I1OneOwner(Checker):
    """At most one (node, inc) acts as owner per (quid, epoch)."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._owners: dict[tuple[int, int], tuple[str, int]] = {}

    def began(self, site: Site, queue_id: int, epoch: int) -> None:
        owner = (site.name, site.life)
        known = self._owners.setdefault((queue_id, epoch), owner)
        self.require(known == owner, f"{known} and {owner} own queue {queue_id} in epoch {epoch}")


class I2SameRecord(Checker):
    """Same (seq, epoch): the identical message on all replicas; a seq is given anew only when its message has left."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._records: dict[tuple[int, int, int], bytes] = {}

    def submitted(self, site: Site, group: int, records: list[Written]) -> None:
        for record in records:
            if record.kind == ENQ:
                key = (record.queue_id, record.epoch, record.seq)
                known = self._records.setdefault(key, record.body)
                self.require(
                    known == record.body, f"{site.name} writes {record.body!r} at {key}, where {known!r} was written"
                )

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        before = self.history.committed[queue_id]
        for record in records:
            if record.kind == ENQ and record.seq in before:
                known = before[record.seq]
                if known[0] < record.epoch and record.seq in self.history.settled_ever[queue_id]:
                    continue
                self.require(
                    known == (record.epoch, record.body),
                    f"{record.body!r} of epoch {record.epoch} is committed at {record.seq} of {queue_id}, {known} was",
                )


class I3OnEveryMember(Checker):
    """A committed record is durable on every member of every later in-sync and eligible set."""

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        entity = self.world.newest_map.queue_by_id(queue_id)  # type: ignore[arg-type]
        if entity is None or self.history.in_gap(queue_id):
            return
        for member in (*entity.in_sync, *entity.eligible):
            if self.world.disk_unknown(member):
                continue
            live = self.world.sites[member].journal.live.get(queue_id, {})
            for record in records:
                if record.kind != ENQ or record.seq in self.history.settle_written[queue_id]:
                    continue
                self.require(
                    live.get(record.seq) == (record.epoch, record.body),
                    f"{site.name} commits {record.seq} {record.body!r} of {entity.name}, which {member} has not: "
                    f"{live.get(record.seq)}, in sync {entity.in_sync}, eligible {entity.eligible}",
                )

    def ordered(self, applied: Applied) -> None:
        if isinstance(applied.command, RegisterNode) and applied.ok:
            name = applied.command.node
            for queue in self.world.queues:
                if name in queue.in_sync or name in queue.eligible:
                    self._has_all(queue, name, applied)
        for change in applied.changes:
            queue = getattr(change, "queue", None)
            if queue is None or not hasattr(queue, "in_sync") or type(change).__name__ in _UNCONCERNED:
                continue
            for member in (*queue.in_sync, *queue.eligible):
                self._has_all(queue, member, applied)

    def _has_all(self, queue: Any, member: str, applied: Applied) -> None:
        committed = self.history.committed.get(queue.queue_id)
        if not committed or self.world.disk_unknown(member) or self.world.volatile(queue.name):
            return
        if self.history.in_gap(queue.queue_id):
            return
        live = self.world.sites[member].journal.live.get(queue.queue_id, {})
        gone = self.history.settle_written[queue.queue_id]
        for seq, record in committed.items():
            if seq not in gone:
                self.require(
                    live.get(seq) == record,
                    f"{member} is in sync or eligible for {queue.name} by {type(applied.command).__name__} "
                    f"{applied.index} and has not {seq} {record}, but {live.get(seq)}",
                )


_UNCONCERNED = ("QueueDeclared", "QueueDeleted")


class I30GapsAreOrdered(Checker):
    """That messages may be gone is said where an operator chose a copy that lacks them, and nowhere else; and what that
    copy had of them is there when it takes over. What is lost without such a word is found by I3, I4 and I6."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._kept: dict[int, dict[int, tuple[int, bytes]]] = {}

    def gap(self, applied: Applied, queue: Any) -> None:
        command = applied.command
        self.require(
            isinstance(command, ForceOwner) and queue.owner == command.node,
            f"{queue.name} has a gap by {type(command).__name__} {applied.index}",
        )
        self.world.schedule.counts["gaps"] += 1
        live = self.world.sites[command.node].journal.live.get(queue.queue_id, {})
        committed = self.history.committed[queue.queue_id]
        self._kept[queue.queue_id] = {seq: record for seq, record in live.items() if committed.get(seq) == record}

    def behind_gap(self, site: Site, queue_id: int) -> None:
        live, gone = site.journal.live.get(queue_id, {}), self.history.settle_written[queue_id]
        for seq, record in self._kept.pop(queue_id, {}).items():
            self.require(
                live.get(seq) == record or seq in gone,
                f"{site.name} was forced to own {queue_id} with {seq} {record}, and begins with {live.get(seq)}",
            )


class I4OwnerHasAll(Checker):
    """An owner of a later epoch has every committed record at its seq."""

    def taken_over(self, site: Site, queue_id: int, epoch: int) -> None:
        gone = self.history.settle_written[queue_id]
        live = site.journal.live.get(queue_id, {})
        for seq, record in self.history.committed[queue_id].items():
            if seq not in gone and record[0] <= epoch:  # it may learn late that its epoch is over
                self.require(
                    live.get(seq) == record,
                    f"{site.name} owns {queue_id} in epoch {epoch} without {seq} {record}: {live.get(seq)}",
                )


class I5EnoughCopies(Checker):
    """Confirm: committed in every routed queue by >= min_isr durable copies."""

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        entity = self.world.newest_map.queue_by_id(queue_id)  # type: ignore[arg-type]
        if entity is None or any(other.journal.lost for other in self.world.sites.values()):
            return
        known = site.wiring.map.queue_by_id(queue_id)  # the owner may not have heard yet that there are more replicas
        if site.node is not None and site.late and queue_id in site.node.queues:  # nor carried it out (decision 027)
            known = site.node.queues[queue_id].entity
        least = min(self.world.newest_map.min_in_sync(entity), site.wiring.map.min_in_sync(known or entity))
        if site.node is not None and site.node.postponed.renewals:  # nor looked at a policy yet (decision 044)
            least = min(least, site.role.copying.primary._owned[queue_id].min_in_sync)
        # a member that is added stops nobody before it has a copy, or the owner has heard of it
        least = min(least, len(entity.replicas), len((known or entity).replicas))
        members = [member.name for member in site.wiring.map.members()]
        left = [other for other in self.world.left if other.name in members]  # it counts on these, and has not heard
        for record in records:
            if record.kind == ENQ:
                copies = sum(
                    other.journal.live.get(queue_id, {}).get(record.seq) == (record.epoch, record.body)
                    for other in (*self.world.sites.values(), *left)
                )
                gone = record.seq in self.history.settle_written[queue_id]
                self.require(
                    copies >= least or gone,
                    f"{record.seq} of {entity.name} is committed with {copies} of {least} durable copies",
                )

    def confirmed(self, body: bytes, queues: tuple[str, ...]) -> None:
        for name in queues:
            queue_id = self.history.queue_id(name)
            if queue_id is not None and self.world.keeps_all(name):
                there = body in self.history.places[queue_id] or body in self.history.given_up[name]
                self.require(there, f"{body!r} is confirmed and not committed in {name}")


class I7NoDuplicates(Checker):
    """No (sid, pseq) twice in one committed log."""

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        if self.history.queue_name(queue_id) == DELAYING:
            return  # what one of several targets refuses is written anew for that one alone (I36 looks at the targets)
        places = self.history.places[queue_id]
        for record in records:
            if record.kind == ENQ:
                known = places.get(record.body)
                self.require(
                    known is None or known == record.seq,
                    f"{record.body!r} is committed at {known} and {record.seq} of queue {queue_id}",
                )


class I7NumbersStay(Checker):
    """A later owner knows of every producer all that was committed: else what comes again is taken again."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._known: dict[int, tuple[int, dict[bytes, int]]] = {}

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        queue = site.node.queues.get(queue_id) if site.node is not None else None
        if queue is not None and queue.ring.epoch >= self._known.get(queue_id, (0, {}))[0]:
            self._known[queue_id] = queue.ring.epoch, dict(queue.ring.emitted_attributes())

    def taken_over(self, site: Site, queue_id: int, epoch: int) -> None:
        assert site.node is not None, "an owner runs"
        before, known = self._known.get(queue_id, (0, {}))
        if before > epoch or before < self.history.gaps[queue_id]:  # it may learn late that its epoch is over
            return
        now = site.node.queues[queue_id].ring.emitted_attributes()
        starts = {f"{member.name}/{member.incarnation}".encode() for member in self.world.newest_map.alive_members()}
        for producer, value in known.items():
            if producer[:1] in (b"n", b"r") and producer[1:] not in starts:
                continue  # a proxy whose start is over asks nobody any more
            if producer[:1] in b"lau":
                continue  # a lease, which ends, and its runs with it
            if producer[:1] == DUE_TARGET.prefix:
                continue  # a letter that was narrowed: the name goes when its target has answered
            if producer[:1] in OF_LINKS:
                continue  # what is settled and returns; what is lost of the rest is found by I7NoDuplicates and I31
            if producer[:1] == b"t" and self.world.newest_map.queue_by_id(int.from_bytes(producer[1:])) is None:  # type: ignore[arg-type]
                continue  # all rows of that segment have been moved
            has = now.get(producer, 0)
            lost = value & ~has if producer[:1] == b"d" else max(0, value - has)
            self.require(
                not lost, f"{site.name} owns {queue_id} in epoch {epoch} and knows {has} of {producer!r}, not {value}"
            )


class I13LogOrder(Checker):
    """Per publisher channel, queue and priority: order in the committed log = publish order."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._last: dict[tuple[int, bytes], tuple[int, int]] = {}

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        if not self.history.keeps_order(self.history.queue_name(queue_id)):
            return
        for record in records:
            if record.kind != ENQ:
                continue
            publisher, _, number = record.body.rpartition(b":")
            if not self.world.goes_on_in_order(publisher):
                continue
            seq, last = self._last.get((queue_id, publisher), (0, 0))
            if record.seq > seq:
                self.require(
                    int(number) > last, f"{record.body!r} is at {record.seq} of queue {queue_id}, after number {last}"
                )
                self._last[queue_id, publisher] = record.seq, int(number)


class I14SameMaps(Checker):
    """All maps are prefixes of one sequence, digests equal."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._digests: dict[int, str] = {}

    def applied(self, site: Site, applied: Applied) -> None:
        if applied.index % 64 == 0:
            digest = site.wiring.map.digest()
            known = self._digests.setdefault(applied.index, digest)
            self.require(known == digest, f"{site.name} has another map at {applied.index}")


class I38LogAge(Checker):
    """The log's age grows by the time that passes, whatever wall clocks say: it is never beyond the time of the whole
    run, by clocks that go too fast by 8 % at most (`edges`)."""

    def ordered(self, applied: Applied) -> None:
        for change in applied.changes:
            if isinstance(change, TimePassed):
                lived_s, run_s = change.time.lived_ms / 1000, self.world.schedule.now_s
                self.require(lived_s <= 1.1 * run_s + 1, f"the log is {lived_s:.0f} s old after {run_s:.0f} s")


class I20NeverBack(Checker):
    """The commit point of an owner never decreases; a SET is committed of what was committed."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._points: dict[tuple[int, int, str, int], int] = {}

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        queue = site.node.queues.get(queue_id) if site.node is not None else None
        if queue is None:
            return
        key = (queue_id, queue.ring.epoch, site.name, site.life)
        point = queue.ring.committed
        self.require(point >= self._points.get(key, 0), f"queue {queue_id} goes back to {point} at {site.name}")
        self._points[key] = point
        for record in records:
            if record.kind == SET:
                for first, last in record.ranges:
                    self.require(last < queue.ring.next_seq, f"{first}-{last} of {queue_id} left before they came")
