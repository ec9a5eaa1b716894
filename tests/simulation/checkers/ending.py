"""I16 to I19: what must be when the last fault is healed, and what is bounded at all times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.history import Checker
from tests.simulation.workload import DELAYING

if TYPE_CHECKING:
    from tests.simulation.site import Site

PRODUCERS_MAX = 200


class I16DeadLetters(Checker):
    """Each dead message ends once in its target or is still held: none is lost, none is there twice."""

    def ended(self) -> None:
        for source, target in self.world.dead_letters:
            for body, queues in self.history.confirmed.items():
                if source in queues:
                    there = body in self.history.delivered[target] or body in self.history.doubtful[target]
                    came = there or body in self.history.acknowledged[source]
                    self.require(came, f"{body!r} was confirmed in {source} and is neither there nor in {target}")


class I17WholeTransactions(Checker):
    """Each queue's part of a transaction commits as a whole or not at all, and everything that commit-ok answered."""

    def ended(self) -> None:
        for part in self.world.transactions:
            for name in part.queues:
                queue_id = self.history.queue_id(name)
                if queue_id is None or self.history.gaps[queue_id]:
                    continue
                there = [body in self.history.places[queue_id] for body in part.bodies]
                self.require(
                    all(there) or (not any(there) and not part.answered),
                    f"{name} has {sum(there)} of {len(there)} messages of {part.bodies[0]!r}",
                )


class I18Convergence(Checker):
    """After heal + 30 s: owner set, in sync = replicas, every alive node attached, nothing unconfirmed, backlog 0."""

    def missing(self) -> str:
        """What is not yet as it must be; empty: nothing."""
        for site in self.world.sites.values():
            if not site.up or site.node is None or not site.role.registered or not site.leased():
                return f"{site.name} is not back"
        for queue in self.world.newest_map.queues("/"):
            if queue.transient or queue.name not in (*self.world.kinds, DELAYING):
                continue
            if queue.owner is None:
                return f"{queue.name} has no owner"
            if set(queue.in_sync) != set(queue.replicas):
                return f"{queue.name} is in sync on {queue.in_sync} of {queue.replicas}"
            owned = self.world.sites[queue.owner].role.owned_queues.queues.get(queue.queue_id)
            if owned is None or not owned.open:
                return f"{queue.name} is not served by {queue.owner}: {getattr(owned, 'missing', None)}"
            ring = owned.queue.ring
            if (ring.ready or ring.unacked) and not self.world.is_stream(queue.name):
                return f"{queue.name} has {ring.ready} ready and {ring.unacked} unacknowledged messages"
            if (self.world.keeps_all(queue.name) or queue.name == DELAYING) and ring.dead():
                return f"{queue.name} holds {len(ring.dead())} dead letters"
        for segment in self.world.newest_map.segments("/"):
            if segment.place is not None:
                return f"rows of {segment.name} are on their way"
        for site in self.world.sites.values():
            if site.role.remote_queues.unacknowledged_bytes:
                return f"{site.name} waits for {site.role.remote_queues.unacknowledged_bytes} bytes of publishes"
        for actor in self.world.actors:
            if actor.waits:
                return f"{actor.name} waits for {actor.waits}"
        return ""


class I29NoDefinitionLost(Checker):
    """A queue whose declaration was answered is there."""

    def ended(self) -> None:
        for name in self.world.kinds:
            self.require(self.history.queue_id(name) is not None, f"{name} was declared, and is not there")


class I19Bounds(Checker):
    """What nodes remember is bounded: producers, frames that wait, journal segments. So is what they do for nothing: a
    turn leaves nothing that is due already, or the next one would come at once, without end."""

    def wakes(self, site: Site, at_ms: int) -> None:
        node = site.node
        assert node is not None, "a node that runs turns"
        self.require(at_ms > node.now_ms, f"{site.name} has turned, and wants to {node.now_ms - at_ms} ms ago")

    def ended(self) -> None:
        for site in self.world.sites.values():
            assert site.node is not None, "everybody is back"
            for queue in site.node.queues.values():
                count = len(queue.ring.attributes)
                self.require(count <= PRODUCERS_MAX, f"{queue.name} remembers {count} producers")
            held = sum(site.role.hub.held_bytes.values())
            self.require(not held, f"{site.name} holds {held} bytes of frames back")
