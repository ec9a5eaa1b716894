"""A seeded world in which the cores of replication live: nodes, disks, links, a wiring log, faults, and checks.

    python -m tests.property.replication_world --seed 1 --count 100                     100 lives from seed 1
    python -m tests.property.replication_world --seed 1 --count 100 --mutation NAME     with a bug put in: found?
    python -m tests.property.replication_world --mutations                              seeds until each bug is found

Checked (docs: the invariants' numbers), after every event that may matter, and again when all faults are healed:
I1 one owner per epoch. I2 one message per (seq, epoch), wherever it lies. I3 what is committed is durable on every
member of the in-sync and eligible sets. I4 every later owner has it. I5 a confirm has the minimum of durable copies. I6
what was confirmed is there or was acknowledged. I7 no publish twice. I12 what was acknowledged and committed never
comes back. I20 no cut below the committed. At the end: all in sync, all copies equal, all publishes confirmed. And a
message that a queue moved to another seq in one group is never in neither place.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from clusterbroker.cluster.wiring.commands import InSyncProposal
from clusterbroker.replication import offers, sync
from clusterbroker.replication.backup import Backup
from clusterbroker.replication.errors import ReplicationError
from clusterbroker.replication.places import PLACE, place_of
from clusterbroker.replication.primary import Primary
from tests.property.replication_mutations import MUTATIONS
from tests.property.replication_node import Node
from tests.property.replication_parts import CONTROL, Control, Events, Links, Ring, Violation, unpack

FAULTY_MS = 15_000
HEALING_MS = 12_000
FAILED_AFTER_MS = 1800
REFUSED_AFTER_MS = 200
SHAPES = ((4, 3, 2, 2), (3, 3, 1, 2), (3, 2, 1, 2), (5, 3, 2, 3), (4, 3, 1, 1))
"""(nodes, replicas, minimum in sync, queues), by seed."""


class Producer:
    """Numbers its messages, keeps them until they are confirmed, and says them again to every next owner."""

    def __init__(self, name: str, queue_id: int) -> None:
        self.name, self.queue_id = name, queue_id
        self.newest = self.sent = 0
        self.unconfirmed: dict[int, None] = {}
        self.attached: tuple[Node, int, int] | None = None

    def token(self, number: int) -> str:
        return f"{self.name}:{number}"


class Ended(NamedTuple):
    """A copy that was damaged, as it was on the disk when its node began it anew."""

    node: str
    queue_id: int
    place: int
    """In the wiring log."""
    live: dict[int, str]


class World:
    """One life of one cluster."""

    primary: type[Primary] = Primary
    backup: type[Backup] = Backup

    def __init__(self, seed: int, mutation: str | None = None) -> None:
        nodes, replicas, minimum, queues = SHAPES[seed % len(SHAPES)]
        self.events = Events(seed)
        self.random = self.events.random
        self.past = random.Random(seed) if seed % 2 and minimum > 1 else None
        """Of lives in which disks go back: the others are the stories that they were."""
        self.rots = seed % 8 == 3 and minimum > 1
        """In such lives single copies are found damaged."""
        self.stats: Counter[str] = Counter()
        self.names = tuple("abcdefg"[:nodes])
        self.control = Control(self.names, replicas, minimum, queues, self.events)
        self.control.committed = self._ordered
        self.links = Links(self.events, lambda name: name == CONTROL or self.nodes[name].up)
        self.links.told = self._told
        self.links.deliver = self._deliver
        self.nodes = {name: Node(self, name) for name in self.names}
        self.faulty = True
        self.owners: dict[tuple[int, int], tuple[str, int]] = {}
        self.identity: dict[tuple[int, int, int], str] = {}
        self.committed_tokens: dict[int, dict[str, int]] = {q: {} for q in self.control.queues}
        self.committed_at: dict[int, dict[str, int]] = {q: {} for q in self.control.queues}
        self.committed_as: dict[int, dict[str, tuple[int, int]]] = {q: {} for q in self.control.queues}
        """As which (seq, epoch)."""
        self.asked_away: dict[int, set[str]] = {q: set() for q in self.control.queues}
        self.leaving: dict[int, set[str]] = {q: set() for q in self.control.queues}
        """Those of them that are not known to be gone."""
        self.due: dict[int, set[str]] = {q: set() for q in self.control.queues}
        """What is committed and not asked away."""
        self.rolled: dict[tuple[str, int], None] = {}
        """Disks that went back, and what they hold of which queue; until they have all of it again."""
        self.ever_rolled: dict[tuple[str, int], None] = {}
        self.gone: dict[int, dict[str, int]] = {q: {} for q in self.control.queues}
        """What was acknowledged and committed, and at which epoch: an owner of an earlier one may not know."""
        self.ended: list[Ended] = []
        self.places = dict.fromkeys(self.control.queues, 0)
        """Of the newest group that is committed."""
        self.moves: dict[int, dict[str, str]] = {q: {} for q in self.control.queues}
        self.seen = dict.fromkeys(self.names, 0)
        self.dead_since = dict.fromkeys(self.names, 0)
        self.producers = [Producer(f"p{n}", 1 + n % queues) for n in range(queues * 2)]
        if mutation is not None:
            MUTATIONS[mutation](self)

    @property
    def now(self) -> int:
        return self.events.now

    def run(self) -> Counter[str]:
        """To its end. Raises Violation, or the AssertionError of a core."""
        kept = sync.BUCKET_SEQS, offers.LARGE_BUCKETS
        sync.BUCKET_SEQS, offers.LARGE_BUCKETS = 8, 3  # type: ignore[misc]
        try:
            for node in self.nodes.values():
                node.start()
            self.events.after(50, self._watch)
            self.events.after(100, self._noise)
            self.events.after(1500, self._nemesis)
            if self.past is not None:
                self.events.after(1000, self._past)
            if self.rots:
                self.events.after(1000, self._rot)
            for producer in self.producers:
                self.events.after(self.random.randint(300, 600), self._publish, producer)
            for queue_id in self.control.queues:
                self.events.after(700, self._consume, queue_id)
            while self.now < FAULTY_MS + HEALING_MS:
                if self.faulty and self.now >= FAULTY_MS:
                    self._heal_all()
                self.events.step()
            self._check_end()
        finally:
            sync.BUCKET_SEQS, offers.LARGE_BUCKETS = kept  # type: ignore[misc]
        self.stats["confirmed"] = sum(p.newest - len(p.unconfirmed) for p in self.producers)
        return self.stats

    # -- the wiring log over its links

    def _ordered(self) -> None:
        self.check_copies("a command")
        for name in self.names:
            self._push(name)

    def _push(self, name: str) -> None:
        upto, node = len(self.control.log), self.nodes[name]
        self.links.send(CONTROL, name, lambda: node.log_came(upto))

    def to_control(self, node: Node, order: Callable[[], None]) -> None:
        self.links.send(node.name, CONTROL, order)

    def answer(self, node: Node, incarnation: int, done: Callable[[], None]) -> None:
        self.links.send(CONTROL, node.name, lambda: done() if node.incarnation == incarnation else None)

    def _told(self, at: str, peer: str, linked: bool, session: int) -> None:
        if at == CONTROL:
            if linked:
                self._push(peer)
        elif peer != CONTROL and self.nodes[at].up:
            self.nodes[at].link(peer, linked)

    def _deliver(self, to: str, sender: str, frame: Any) -> None:
        if CONTROL in (to, sender):
            frame()
        else:
            self.nodes[to].receive(sender, frame)

    def propose_in_sync(self, node: Node, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        incarnation = node.incarnation

        def order(again: bool = False) -> None:
            added = [
                name
                for change in changes
                for name in change.in_sync
                if name not in self.control.queues[change.queue_id].in_sync
            ]
            if added and self.faulty and not again and self.random.random() < 0.3:
                self.stats["directed delays"] += 1
                self.control.noise()
                self.events.after(self.random.randint(5, 60), order, True)
                return
            if added and self.faulty and not again and self.random.random() < 0.15 and self._may_wipe(added[0]):
                self.stats["directed wipes"] += 1
                self.nodes[added[0]].crash(wipe=True)
                self.events.after(30, self.nodes[added[0]].start)
                self.events.after(500, order, True)
                return
            changed = self.control.change_in_sync(node.name, incarnation, changes)
            self.stats["in-sync changes"] += len(changed)
            self.answer(node, incarnation, done)
            if added and changed and self.faulty and self.random.random() < 0.25:
                self.stats["directed cuts"] += 1
                self.links.block([(node.name, CONTROL), *((node.name, name) for name in added)])
                self.events.after(self.random.randint(200, 1000), self._kill, node)
                self.events.after(1500, self.links.heal, (*self.names, CONTROL))

        self.to_control(node, order)

    def _may_wipe(self, name: str) -> bool:
        """Whether no in-sync or eligible set counts on its disk, and no other disk has gone back: of a minimum of two
        copies one may be lost."""
        return (
            self.nodes[name].up
            and not self.rolled
            and not any(name in (*queue.in_sync, *queue.eligible) for queue in self.control.queues.values())
        )

    def _watch(self) -> None:
        for name, node in self.nodes.items():
            if self.links.can(name, CONTROL):
                self.seen[name] = self.now
            if node.up:
                self.dead_since[name] = self.now
            gone = self.now - self.seen[name] > FAILED_AFTER_MS or self.now - self.dead_since[name] > REFUSED_AFTER_MS
            if gone and self.control.alive(name):
                self.control.fail(name)
        self.events.after(50, self._watch)

    def _noise(self) -> None:
        if self.faulty:
            self.control.noise()
            self.events.after(self.random.randint(30, 300), self._noise)

    # -- faults

    def _nemesis(self) -> None:
        if not self.faulty:
            return
        rnd, names = self.random, self.names
        node = self.nodes[rnd.choice(names)]
        fault = rnd.choice(
            ("kill", "kill", "restart", "all", "link", "link", "one", "halves", "control", "slow", "slow", "transfer",
             "transfer", "wipe", "heal")
        )  # fmt: skip
        self.stats["fault " + fault] += 1
        if fault == "kill":
            self._kill(node, rnd.randint(50, 4000))
        elif fault == "restart":
            self._kill(node, rnd.randint(5, 100))
        elif fault == "all":
            for other in self.nodes.values():
                self._kill(other, rnd.randint(50, 2500))
        elif fault == "link":
            a, b = rnd.sample(names, 2)
            if rnd.random() < 0.5:
                self.links.reset(a, b)
            else:
                self.links.block([(a, b)])
        elif fault == "one":
            self.links.block([(node.name, other) for other in (*names, CONTROL) if other != node.name])
        elif fault == "halves":
            mixed = rnd.sample(names, len(names))
            few, many = mixed[: len(names) // 2], mixed[len(names) // 2 :]
            self.links.block([(a, b) for a in few for b in (*many, CONTROL)])
        elif fault == "control":
            self.links.block([(node.name, CONTROL)])
        elif fault == "slow":
            node.disk_ms = (rnd.randint(20, 200), rnd.randint(200, 1800))
            self.events.after(rnd.randint(500, 4000), self._quick, node)
        elif fault == "transfer" and node.up:
            for queue_id in node.owned:
                others = [name for name in node.queues[queue_id].in_sync if name != node.name]
                if others and rnd.random() < 0.7:
                    node.primary.transfer(queue_id, rnd.choice(others), self.now)
                    node.turn()
        elif fault == "wipe" and self._may_wipe(node.name):
            node.crash(wipe=True)
            self.events.after(rnd.randint(20, 1000), node.start)
        if fault == "heal" or rnd.random() < 0.5:
            self.events.after(rnd.randint(100, 2500), self.links.heal, (*names, CONTROL))
        self.events.after(rnd.expovariate(1 / 500), self._nemesis)

    def _past(self) -> None:
        """The power goes, and one of the disks is that of an earlier moment when all are back: as many disks as a
        minimum of two bears, and everybody who counts can tell."""
        if not self.faulty:
            return
        rnd = self.past
        assert rnd is not None, "in this life disks go back"
        self.events.after(rnd.randint(50, 300), self._past)
        node = self.nodes[rnd.choice(self.names)]
        whole = all(
            sorted((*queue.in_sync, *queue.eligible)) == sorted(queue.replicas)
            for queue in self.control.queues.values()
            if node.name in queue.replicas
        )
        if not node.up or node.flying is not None:
            return
        if node.saved is None:
            counted = [queue_id for queue_id in node.held_queues() if queue_id in node.durable]
            node.saved = {queue_id: node.durable[queue_id].copy() for queue_id in counted}
        elif whole and not self.rolled and node.held_queues() and rnd.random() < 0.5:
            self.stats["disks gone back"] += 1
            for other in self.nodes.values():
                self._kill(other, rnd.randint(20, 600))
            back = node.before if rnd.random() < 0.5 else node.saved
            for queue_id in back:
                if queue_id in node.held_queues():
                    self.rolled[node.name, queue_id] = self.ever_rolled[node.name, queue_id] = None
            node.durable, node.saved, node.before = {**node.durable, **back}, None, {}

    def _rot(self) -> None:
        if not self.faulty:
            return
        self.events.after(self.random.randint(100, 600), self._rot)
        node, queue_id = self.random.choice(self.names), self.random.choice(sorted(self.control.queues))
        if not self.rolled:
            self.stats["copies lost"] += self.control.lose_copy(node, queue_id)

    def told(self, who: str, event: str, queue_id: int, node: str, detail: str) -> None:
        """What the cores of `who` say to operators must be true."""
        if event == "rolled_back" and (node, queue_id) not in self.ever_rolled:
            raise Violation(
                f"a false alarm: the disk of {node} is said to have gone back in queue {queue_id}: {detail}"
            )
        if event == "kept_apart" and (who, queue_id) not in self.rolled:
            raise Violation(f"a false alarm: {node} is kept apart in queue {queue_id}: {detail}")

    def _kill(self, node: Node, back_ms: int = 800) -> None:
        if self.faulty and node.up:
            node.crash()
            self.events.after(back_ms, node.start)

    def _quick(self, node: Node) -> None:
        node.disk_ms = (1, 4)

    def _heal_all(self) -> None:
        self.faulty = False
        self.links.calm = True
        for node in self.nodes.values():
            node.disk_ms = (1, 4)
            node.start()
        self.links.heal((*self.names, CONTROL))

    # -- clients

    def _publish(self, producer: Producer) -> None:
        self.events.after(self.random.randint(10, 80), self._publish, producer)
        at = producer.attached
        queue_id = producer.queue_id
        stale = at is None or not at[0].up or at[0].incarnation != at[1] or at[0].owned.get(queue_id) != at[2]
        if stale or self.random.random() < 0.02:
            able = [node for node in self.nodes.values() if node.up and queue_id in node.owned]
            if not able:
                producer.attached = None
                return
            node = self.random.choice(able)
            producer.attached = at = (node, node.incarnation, node.owned[queue_id])
            producer.sent = node.rings[queue_id].accepted.get(producer.name.encode(), 0)
            if producer.sent > producer.newest:
                raise Violation(f"I8: {producer.name} published {producer.newest}, its queue knows {producer.sent}")
            self._confirm(producer, node)
        assert at is not None
        node, ring = at[0], at[0].rings[queue_id]
        if not node.open[queue_id] and self.random.random() < 0.5:
            return
        if self.faulty and len(producer.unconfirmed) < 8:
            for _ in range(self.random.randint(1, 3)):
                producer.newest += 1
                producer.unconfirmed[producer.newest] = None
        while producer.sent < producer.newest:
            producer.sent += 1
            token = producer.token(producer.sent)
            if self.random.random() < 0.03:
                ring.allocated += 1  # a message that was acknowledged before it was written
            ring.unwritten.append(("ENQ", ring.allocated, at[2], token, 0))
            ring.allocated += 1
            ring.accepted[producer.name.encode()] = producer.sent
        if self.random.random() < 0.1:
            ring.unwritten.append(("RSV", ring.allocated + 5))
        node.turn()

    def _consume(self, queue_id: int) -> None:
        self.events.after(self.random.randint(10, 60), self._consume, queue_id)
        able = [node for node in self.nodes.values() if node.up and node.open.get(queue_id)]
        if not able:
            return
        node = self.random.choice(able)
        ring = node.rings[queue_id]
        if ring.unwritten or not self.faulty:
            return
        for seq in self.random.sample(sorted(ring.live), min(3 if len(ring.live) < 80 else 9, len(ring.live))):
            token = ring.live[seq][0]
            if self.committed_tokens[queue_id].get(token) != seq:
                continue
            chance = self.random.random()
            if len(ring.live) > 40 or chance < 0.4:
                ring.unwritten.append(("SET", [[seq, seq]]))
                self._asked_away(queue_id, token)
                self.moves[queue_id].pop(token, None)
            elif chance < 0.6:
                ring.unwritten.append(("REQ", seq, ring.live[seq][2] + 1))
            elif chance < 0.7:
                ring.unwritten.append(("DEAD", seq, self.random.randint(1, 3)))
            elif chance < 0.85:
                heir = f"{token}/{node.owned[queue_id]}.{self.now}"
                ring.unwritten.append(("ENQ", ring.allocated, node.owned[queue_id], heir, 0))
                ring.unwritten.append(("SET", [[seq, seq]]))
                ring.allocated += 1
                self._asked_away(queue_id, token)
                self.moves[queue_id][token] = heir
        node.turn()

    def _asked_away(self, queue_id: int, token: str) -> None:
        self.due[queue_id].discard(token)
        if token not in self.asked_away[queue_id]:
            self.asked_away[queue_id].add(token)
            self.leaving[queue_id].add(token)

    # -- checks

    def took_over(self, node: Node, queue_id: int, epoch: int) -> None:
        who = self.owners.setdefault((queue_id, epoch), (node.name, node.incarnation))
        if who != (node.name, node.incarnation):
            raise Violation(f"I1: {node.name} and {who} own queue {queue_id} at epoch {epoch}")
        self.stats["take-overs"] += 1
        if (node.name, queue_id) not in self.rolled:  # else it must not begin, which `committed` looks at
            self._complete(node.rings[queue_id], queue_id, f"I4: owner {node.name} of epoch {epoch}", epoch)

    def check_identity(self, node: Node, queue_id: int) -> None:
        for seq, slot in node.rings[queue_id].live.items():
            token = self.identity.setdefault((queue_id, seq, slot[1]), slot[0])
            if token != slot[0]:
                raise Violation(
                    f"I2: seq {seq} epoch {slot[1]} of queue {queue_id} is {slot[0]} at {node.name}, was {token}"
                )

    def _complete(self, ring: Ring, queue_id: int, who: str, before: int | None = None) -> None:
        """It holds all that was committed, or all before that epoch: a late owner may not know its successor."""
        missing = self._missing(ring, queue_id)
        if before is not None:
            missing = {token for token in missing if self.committed_at[queue_id][token] < before}
        if missing:
            raise Violation(f"{who} of queue {queue_id} lacks committed {sorted(missing)[:4]}")

    def _missing(self, ring: Ring, queue_id: int) -> set[str]:
        return self.due[queue_id] - ring.tokens().keys()

    def check_copies(self, why: str) -> None:
        for queue_id, queue in self.control.queues.items():
            for name in (*queue.in_sync, *queue.eligible):
                ring = self.nodes[name].durable.get(queue_id, Ring())
                behind = place_of(ring.attributes) < self.places[queue_id]
                if (name, queue_id) in self.rolled and (behind or self._missing(ring, queue_id)):
                    continue
                self.rolled.pop((name, queue_id), None)
                self._complete(ring, queue_id, f"I3: after {why} the disk of {name}")

    def check_producers(self, node: Node, queue_id: int) -> None:
        """A copy that may be elected holds every message that it counts: its successors' proxies forget those."""
        queue = self.control.queues[queue_id]
        if node.name not in (*queue.in_sync, *queue.eligible) or (node.name, queue_id) in self.rolled:
            return
        ring = node.durable[queue_id]
        tokens = ring.tokens()
        counted = {producer.name: ring.attributes.get(producer.name.encode(), 0) for producer in self.producers}
        for producer in self.producers:
            upto = counted[producer.name]
            for token in map(producer.token, range(max(1, upto - 20), upto + 1)):
                if token not in tokens and token not in self.asked_away[queue_id]:
                    raise Violation(f"I6: {node.name} counts {token} of queue {queue_id} and does not have it")
        for token in tokens:
            name, number = number_of(token)
            if number > counted[name]:
                raise Violation(f"I7: {node.name} has {token} of queue {queue_id} and does not count it")

    def guard_cut(self, node: Node, queue_id: int, data: bytes) -> None:
        queue = self.control.queues[queue_id]
        if node.name not in (*queue.in_sync, *queue.eligible):
            return
        for record in unpack(data):
            if record[0] != "CUT":
                continue
            self.stats["cuts"] += 1
            for seq, slot in node.ring(queue_id).live.items():
                kept = slot[0] not in self.asked_away[queue_id]
                if seq >= record[1] and kept and self.committed_as[queue_id].get(slot[0]) == (seq, slot[1]):
                    raise Violation(f"I20: {node.name} cuts committed {slot[0]} at {seq} of queue {queue_id}")

    def committed(self, node: Node, queue_id: int) -> None:
        """All that the owner's ring has emitted is committed now."""
        ring, known = node.rings[queue_id], self.committed_tokens[queue_id]
        epoch = node.owned[queue_id]
        self._complete(ring, queue_id, f"I4: owner {node.name}", epoch + 1)
        tokens = ring.tokens()
        if len(tokens) != len(ring.live):
            raise Violation(f"I7: a publish stands twice in queue {queue_id} at {node.name}")
        late = self.control.queues[queue_id].epoch > epoch
        disks = [other.durable[queue_id].live for other in self.nodes.values() if queue_id in other.durable]
        for token, seq in tokens.items():
            if token not in known:
                known[token], self.committed_at[queue_id][token] = seq, node.owned[queue_id]
                self.committed_as[queue_id][token] = seq, ring.live[seq][1]
                if token not in self.asked_away[queue_id]:
                    self.due[queue_id].add(token)
            elif known[token] != seq:
                raise Violation(f"I7: {token} of queue {queue_id} was committed as {known[token]}, and as {seq}")
            copies = 0
            for live in disks:
                copies += seq in live and live[seq][0] == token
            if late and token in self.asked_away[queue_id]:
                continue  # its successor has written the acknowledgement
            if copies < self.control.min_in_sync:
                copies += self._copies_ended(node, queue_id, seq, token)
            if copies < self.control.min_in_sync:
                raise Violation(f"I5: {token} of queue {queue_id} is committed with {copies} durable copies")
        back = sorted(token for token in tokens if self.gone[queue_id].get(token, epoch + 1) <= epoch)
        if back:
            raise Violation(f"I12: {back[:4]} of queue {queue_id} came back at {node.name}")
        for token in (self.leaving[queue_id] & known.keys()) - tokens.keys():
            self.gone[queue_id][token] = epoch
            self.leaving[queue_id].discard(token)
        for old, heir in self.moves[queue_id].items():
            if old not in tokens and heir not in tokens and heir not in self.asked_away[queue_id]:
                raise Violation(f"a move of {old} to {heir} in queue {queue_id} was torn: neither is at {node.name}")
        self.places[queue_id] = max(self.places[queue_id], place_of(ring.attributes))
        self.check_copies("a commit")
        for producer in self.producers:
            if producer.queue_id == queue_id and producer.attached == (node, node.incarnation, node.owned[queue_id]):
                self._confirm(producer, node)

    def copy_ends(self, node: Node, queue_id: int, place: int) -> None:
        """A damaged copy begins anew: at `place` of the wiring log, as the node applies it."""
        live = node.durable.get(queue_id, Ring()).live
        ended = Ended(node.name, queue_id, place, {seq: slot[0] for seq, slot in live.items()})
        self.ended.append(ended)

    def _copies_ended(self, owner: Node, queue_id: int, seq: int, token: str) -> int:
        """How many copies of a message an owner counts rightly that are there no more. A disk may fail between its
        acknowledgement and the commit: of this the owner hears with the wiring, and until then it confirms what was
        durable on the minimum of disks, as if the disk had failed a moment later."""
        names = {
            ended.node
            for ended in self.ended
            if ended.queue_id == queue_id and owner.applied <= ended.place and ended.live.get(seq) == token
        }
        return sum(self.nodes[name].durable[queue_id].live.get(seq, [""])[0] != token for name in names)

    def _confirm(self, producer: Producer, node: Node) -> None:
        """What the owner has committed of this producer is confirmed to it."""
        queue_id = producer.queue_id
        if node.primary.may_write(queue_id):
            upto = node.rings[queue_id].attributes.get(producer.name.encode(), 0)
            for number in [number for number in producer.unconfirmed if number <= upto]:
                token = producer.token(number)
                if token not in self.committed_tokens[queue_id] and token not in self.asked_away[queue_id]:
                    raise Violation(f"I6: {token} of queue {queue_id} is confirmed and was never committed")
                del producer.unconfirmed[number]

    def _check_end(self) -> None:
        for queue_id, queue in self.control.queues.items():
            if queue.owner is None or sorted(queue.in_sync) != sorted(queue.replicas):
                raise Violation(
                    f"end: queue {queue_id} has owner {queue.owner}, in sync {queue.in_sync} of {queue.replicas}"
                )
            owner = self.nodes[queue.owner].rings[queue_id]
            for name in queue.replicas:
                for kind, ring in (
                    ("memory", self.nodes[name].rings[queue_id]),
                    ("disk", self.nodes[name].durable[queue_id]),
                ):
                    ahead = place_of(owner.attributes) - place_of(ring.attributes)  # one group may be on its way
                    if (ring.live, without_place(ring)) != (owner.live, without_place(owner)) or not 0 <= ahead <= 1:
                        raise Violation(f"end: the copy of queue {queue_id} at {name} ({kind}) is not the owner's")
        late = [producer.name for producer in self.producers if producer.unconfirmed]
        if late:
            raise Violation(f"end: publishes of {late} were never confirmed")


@cache
def number_of(token: str) -> tuple[str, int]:
    """Whose message it is and its number; 0 for one that a queue moved."""
    name, _, number = token.partition(":")
    return name, 0 if "/" in number else int(number)


def without_place(ring: Ring) -> dict[bytes, int]:
    return {name: upto for name, upto in ring.attributes.items() if name != PLACE}


def live(seed: int, mutation: str | None = None) -> tuple[Counter[str], str | None]:
    """One life: what happened, and what went wrong."""
    world = World(seed, mutation)
    try:
        world.run()
    except (Violation, AssertionError, ReplicationError, ValueError) as error:
        return world.stats, f"{type(error).__name__} at {world.now} ms: {error}"
    return world.stats, None


def seeds_until_found(mutation: str, first: int, count: int) -> int | None:
    """How many lives it took until the bug showed; None: it did not."""
    for lived in range(count):
        if live(first + lived, mutation)[1] is not None:
            return lived + 1
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Lives of a simulated cluster; exit status 1 when an invariant failed."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--mutation", choices=sorted(MUTATIONS))
    parser.add_argument("--mutations", action="store_true")
    options = parser.parse_args()
    if options.mutations:
        for mutation in MUTATIONS:
            found = seeds_until_found(mutation, options.seed, options.count)
            print(f"{mutation:32} {'NOT FOUND' if found is None else found}", flush=True)
        return 0
    total: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        stats, wrong = live(seed, options.mutation)
        total += stats
        if wrong is not None:
            failed += 1
            print(f"seed {seed}: {wrong}", flush=True)
    print(f"{options.count} lives, {failed} failed, {time.monotonic() - began:.1f} s; {dict(sorted(total.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
