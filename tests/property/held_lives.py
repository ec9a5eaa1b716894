"""Random lives of recoverable receiver links on a cluster, beside consumers of the common kind.

Clients read, acknowledge, give back, lose connections, resume at any node with their maps, begin anew and end. Those at
a node that is cut off go on there. Nodes are killed, cut off and started again, disks wait. The checkers:

    L5   what a link holds nobody else is handed before its end
    L6   what was settled, and that was committed, never comes back
    L7   what an older attach says changes nothing
    L9   after any fault a live link holds what its client has read and not settled
    L11  without the flag means: nobody was ever handed it
    L12  an ended link holds nothing
    E1   a link is handed what its filter takes, and nothing else (choosy lives)
    T1   what a transaction has taken comes to nobody when what it has put is here (patient lives)
    T2   what a refused transaction has put is nowhere (patient lives)
    T3   of a transaction over two queues that was answered both parts are done, or none (lives apart)
    O1   one link alone is handed for the first time what a node has published in the order of publishing (lives alone)
    E2   what a link has excluded, and that was committed, is never handed to it again (choosy lives)
    end  each message that was confirmed was settled, or comes to the last consumer
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from clusterbroker.broker.content.selector.filters import Filter, selector_of
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import read_records
from tests.unit.broker.node.link_clients import Apart, Awaited, Choosy, Client, Receiver, message
from tests.unit.broker.node.node_cluster import Cluster

NAMES = ("l1", "l2")
SELECTOR = "JMSPriority >= 2"
PRIORITIES = 4
NODES = ("a", "b", "c")
APART_MAX = 6
"""Messages that the other queue has room for."""


class Link:
    """A client's side of a link: what it has unsettled survives its connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.map: dict[bytes, bool] = {}  # body -> whether the client has settled it
        self.receiver: Receiver | None = None
        self.number = 0
        self.attach = 0
        self.wanted: Filter | None = None
        self.excluded: set[bytes] = set()

    @property
    def id(self) -> str:
        """As its queue knows it (`ReceiverLink.link`)."""
        return f"c\0{self.name}"


class Life:
    """`choosy`: the first link has a filter, and both exclude some of what they give back. `patient`: clients wait
    until some of what they settle is committed (rcv-settle-mode second), alone or with a message that they put;
    `apart`: into another queue. `alone`: one link has the queue, and is always resumed; reading waits as well.
    `alarmed`: the queue's owner runs out of memory now and then, as its other nodes hear, one sooner than another."""

    def __init__(
        self, seed: int, choosy: bool = False, patient: bool = False, apart: bool = False, alone: bool = False,
        alarmed: bool = False,
    ) -> None:  # fmt: skip
        self.apart = apart
        self.alone = alone
        self.sources: dict[bytes, str] = {}  # body -> the node that has published it
        self.newest: dict[str, int] = {}  # by node
        self.wholes: list[Apart] = []
        self.put_apart: dict[bytes, str] = {}
        patient = patient or apart or alarmed
        self.alarms = random.Random(seed ^ 77) if alarmed else None
        self.rng = random.Random(seed)
        self.patience = random.Random(seed) if patient else None
        self.choice = random.Random(seed) if choosy else None  # others' lives stay as they are
        self.cluster = Cluster(*NODES)
        self.cluster["a"].client().declare("q")
        if apart:
            self.cluster["b"].client().declare("out", x_max_length=APART_MAX, x_overflow="reject-publish")
        self.links = [Link(name) for name in NAMES[: 1 if alone else None]]
        if choosy:
            self.links[0].wanted = selector_of(SELECTOR)
        self.plain: list[Client] = []
        self.late: list[Receiver] = []
        self.seen: set[bytes] = set()
        self.gone: set[bytes] = set()  # settled, and that is committed
        self.settling: set[bytes] = set()
        self.sure: set[bytes] = set()
        self.published = 0
        self.doubtful: set[bytes] = set()  # a transaction has taken them, and is not answered
        self.moved: dict[bytes, bytes] = {}  # what transactions have taken, and put for it
        self.never: set[bytes] = set()

    # -- checkers

    def handed(self, to: object, body: bytes, again: bool) -> None:
        assert body not in self.gone, f"L6: {body!r} comes back"
        assert body not in self.never, f"T2: {body!r} comes, though its transaction was refused"
        put = self.moved.get(body)
        assert put not in self.seen, f"T1: {body!r} comes back, and {put!r} is here"
        assert again or body not in self.seen, f"L11: {body!r} comes again without the flag"
        for link in self.links:
            if link is not to and body in link.map and not link.map[body]:
                raise AssertionError(f"L5: {body!r}, which {link.name} holds, is handed to somebody else")
            if link is to:
                assert link.wanted is None or number_of(body) % PRIORITIES >= 2, (
                    f"E1: {link.name} does not take {body!r}"
                )
                assert body not in link.excluded, f"E2: {body!r} comes again to {link.name}, which excluded it"
        if self.alone and to is self.links[0] and body not in self.seen:
            number, source = number_of(body), self.sources[body]
            assert number > self.newest.get(source, -1), f"O1: {body!r} comes first behind m{self.newest[source]}"
            self.newest[source] = number
        self.seen.add(body)

    def check_holds(self) -> None:
        """L9, where everything is at rest."""
        ring = self.owned.ring
        seqs = self.stored()
        for link in self.links:
            if not link.number:
                continue
            held = {seq for seq, _, _ in ring.held_by_link(link.number, 1, 1 << 20)}
            for body, settled in link.map.items():
                if not settled and body not in self.settling:
                    assert seqs.get(body) in held, f"L9: {link.name} has {body!r}, and the queue does not say so"
        for body in tuple(self.settling):
            if body not in seqs:
                self.gone.add(body)
                self.settling.discard(body)

    def check_apart(self) -> None:
        """T3, where everything is at rest."""
        (out,) = [queue for site in self.cluster.running for queue in site.node.queues.values() if queue.name == "out"]
        bodies = self.bodies_of(out)
        for put, answer in self.put_apart.items():
            count = bodies.count(put)
            assert count <= 1, f"T3: {put!r} is there {count} times"
            if answer:
                assert count == (answer == "done"), f"T3: {put!r} is there {count} times, and was answered: {answer}"

    def bodies_of(self, queue: Any) -> list[bytes]:
        found: list[bytes] = []
        seqs = [seq for seq, *_ in queue.ring.living(1, queue.ring.next_seq, 1 << 20)]
        queue.copy([(seq, seq) for seq in seqs], 1 << 30, found.append)
        self.cluster.turn()
        return [message.body for data in found for _, message, _, _ in read_records(data)]

    def stored(self) -> dict[bytes, int]:
        """Body -> seq of what lives in the queue."""
        queue, found = self.owned, []
        queue.copy(
            [(seq, seq) for seq, *_ in queue.ring.living(1, queue.ring.next_seq, 1 << 20)], 1 << 30, found.append
        )
        self.cluster.turn()
        return {message.body: seq for data in found for seq, message, _, _ in read_records(data)}

    # -- the cluster

    @property
    def owned(self) -> Any:
        found = [
            queue for site in self.cluster.running for queue in site.node.queues.values() if queue.name == "q"
        ]  # fmt: skip
        return found[0] if len(found) == 1 else None

    @property
    def at_rest(self) -> bool:
        queue = self.owned
        waits = any(site.disk_waits for site in self.cluster.running)
        return queue is not None and not queue.paused and not waits and len(self.cluster.running) == len(NODES)

    def step(self) -> None:
        for whole in self.wholes:
            whole.whole.overdue(self.cluster.now_ms)
        if self.alarms is not None and self.alarms.random() < 0.08 and self.owned is not None:
            self.alarm(self.alarms.choice(self.cluster.running))
        rng, roll = self.rng, self.rng.random()
        if roll < 0.20:
            self.publish(rng.choice((1, 1, 5)))
        elif roll < 0.50:
            self.use(rng.choice(self.links))
        elif roll < 0.62:
            if self.alone:
                self.use(self.links[0])
            else:
                self.use_plain()
        elif roll < 0.70:
            self.move(rng.choice(self.links))
        elif roll < 0.74:
            self.part(rng.choice(self.links))
        elif roll < 0.76 and not self.alone:
            self.end(rng.choice(self.links))
        elif roll < 0.80:
            self.be_late()
        elif roll < 0.86:
            self.fault()
        elif roll < 0.93:
            self.heal()
        else:
            self.cluster.wait(rng.choice((50, 500)))
        self.cluster.turn()

    def publish(self, count: int) -> None:
        site = self.rng.choice(self.cluster.running)
        bodies = [b"m%d" % (self.published + n) for n in range(count)]
        messages = [message(body, priority=self.choice and number_of(body) % PRIORITIES) for body in bodies]
        self.published += count
        self.sources.update(dict.fromkeys(bodies, site.name))
        ticket = Ticket(1, 1, lambda done: None if done.rejected else self.sure.update(bodies))
        site.node.vhosts["/"].queues["q"].publish(messages, ticket, site.now_ms)
        ticket.pass_()

    def use(self, link: Link) -> None:
        """Its client reads, and settles some."""
        receiver = link.receiver
        if receiver is None or not receiver.site.alive or receiver.lost:
            return
        for body, again in receiver.read():
            self.handed(link, body, again)
            link.map[body] = False
        hands = [
            body for body in receiver.hands if body in link.map and not link.map[body] and body not in self.doubtful
        ]  # fmt: skip
        for body in self.rng.sample(hands, min(len(hands), self.rng.choice((0, 1, 3)))):
            if body not in receiver.hands:
                break  # it has left amid this
            if self.patience and self.patience.random() < 0.6:
                self.await_(link, receiver, body, self.patience.random() < 0.5)
            elif self.alone or self.rng.random() < 0.75:
                receiver.ack(body)
                link.map[body] = True
                self.settling.add(body)
                if not receiver.lost and not receiver.handle._settlements:
                    self.settling.discard(body)
                    self.gone.add(body)  # the owner has answered
            else:
                del link.map[body]
                counted = self.rng.random() < 0.5
                if self.choice and self.choice.random() < 0.5:
                    receiver.exclude(body, link.id)
                    if not receiver.lost and not receiver.handle._settlements:
                        link.excluded.add(body)  # the owner has answered
                else:
                    receiver.give_back(body, counted)

    def await_(self, link: Link, receiver: Receiver, body: bytes, puts: bool) -> None:
        """Its client waits for the answer, and believes in it."""
        if puts and self.apart:
            self.await_apart(link, receiver, body)
            return
        put = b"m%d" % self.published if puts else b""
        link.map[body] = True
        self.settling.add(body)
        if puts:
            self.published += 1
            self.moved[body] = put
            self.doubtful.add(body)

        def answered(answer: str) -> None:
            self.doubtful.discard(body)
            if answer == "done":
                self.settling.discard(body)
                self.gone.add(body)
                if puts:
                    self.sure.add(put)
            elif puts:
                assert answer == "refused", "it is carried out whole or not"
                self.never.add(put)
                self.has_again(link, body)

        Awaited(receiver, body, publishes=put, then=answered)
        if self.patience.random() < 0.3 and link.receiver is receiver:  # type: ignore[union-attr]
            self.part(link)

    def await_apart(self, link: Link, receiver: Receiver, body: bytes) -> None:
        """Likewise, with a message that goes into another queue, which may be full."""
        put = b"p%d" % len(self.put_apart)
        self.put_apart[put] = ""
        link.map[body] = True
        self.settling.add(body)
        self.doubtful.add(body)

        def answered(answer: str) -> None:
            self.put_apart[put] = answer
            self.doubtful.discard(body)
            if answer == "done":
                self.settling.discard(body)
                self.gone.add(body)
            else:
                self.has_again(link, body)

        if receiver.site.node.vhosts["/"].queues.get("out") is not None:
            self.wholes.append(Apart(receiver, body, put, "out", answered))
        assert self.patience is not None, "such clients wait"
        if self.patience.random() < 0.3 and link.receiver is receiver:
            self.part(link)

    def has_again(self, link: Link, body: bytes) -> None:
        """The client's transaction was refused. If the link has begun anew since, somebody else may have settled it."""
        if body in link.map:
            self.settling.discard(body)
            link.map[body] = False

    def move(self, link: Link) -> None:
        """It is attached at some node, resumed with its map, or anew."""
        site = self.rng.choice(self.cluster.running)
        if site.node.vhosts["/"].queues.get("q") is None:
            return
        if link.receiver is not None and link.receiver.site.alive:
            self.late.append(link.receiver)
        resumes = (self.alone or self.rng.random() < 0.8) and bool(link.number)
        link.receiver = None
        receiver = Receiver(self.cluster, site.name, resumes=resumes, name=link.name, deaf=False)
        if not receiver.attached or not hasattr(receiver.attached[0], "link"):
            return
        if not resumes:
            link.map.clear()
        link.number, link.attach = receiver.link
        answers: list[Any] = []
        over = False

        def held(answer: Any) -> None:
            answers.append(answer)
            if over or receiver.lost:
                receiver.leave_to_link(answer)

        receiver.handle.held_by(receiver.link, held)
        self.cluster.turn()
        self.cluster.wait(200)
        over = True
        if not answers or isinstance(answers[0], str) or receiver.lost:
            if answers and not receiver.lost:
                receiver.leave_to_link(answers[0])
            receiver.leave()
            return
        seqs = [seq for one in answers[0] for seq in one.seqs]
        found: dict[int, bytes] = {}
        if seqs:
            receiver.handle.reread(seqs, lambda messages, _: found.update({at: m.body for at, m in messages.items()}))
            self.cluster.turn()
            if len(found) < len(seqs) or receiver.lost:
                receiver.leave_to_link(answers[0])
                receiver.leave()
                return
        bodies = {body: seq for seq, body in sorted(found.items())}
        for body, settled in tuple(link.map.items()):
            if body not in bodies:
                assert settled, f"L9: {link.name} has {body!r}, and the queue does not say so"
                del link.map[body]
            elif settled and body not in self.doubtful:
                receiver.handle.settle(bodies[body])
            elif settled:  # its client waits for the answer, or in vain: it has it, and says nothing
                receiver.ledger.add(receiver.resumed_by(), bodies[body], receiver.site.now_ms)
        for body, seq in bodies.items():
            if body not in link.map:
                self.handed(link, body, True)
                link.map[body] = False
            if not link.map[body]:
                receiver.hands[body] = receiver.ledger.add(receiver.resumed_by(), seq, receiver.site.now_ms)
        if self.choice:
            receiver.kind = partial(Choosy, link.id, link.wanted)
        if not receiver.lost:
            receiver.consume(prefetch=self.rng.choice((1, 3, 0)))
        link.receiver = receiver

    def part(self, link: Link) -> None:
        if link.receiver is not None and link.receiver.site.alive and not link.receiver.lost:
            link.receiver.leave()
        link.receiver = None

    def end(self, link: Link) -> None:
        """It expires, or its client closes it: whatever it held is anybody's."""
        if link.number:
            kind = self.rng.choice((c.ForgetLink, c.ExpireLink))
            self.part(link)
            link.map.clear()
            link.excluded.clear()  # they end with it
            known = self.cluster.running[0].map.link(LogIndex(link.number))
            self.cluster.order(kind(link=LogIndex(link.number), attach=link.attach if known is None else known.attach))
            self.cluster.turn()
            link.number = 0
            if self.at_rest:
                self.cluster.wait(500)
                alive = {one.number for one in self.links}
                assert not self.owned.ring.links().keys() - alive, "L12: a link that has ended holds something"

    def be_late(self) -> None:
        """Somebody who does not know that the link goes on elsewhere: nothing of this counts."""
        late, self.late = self.late, []
        for receiver in late:
            if receiver.site.alive:
                for body in list(receiver.hands)[:2]:
                    receiver.ack(body)
                for _, _, seq in receiver.ledger.drain():
                    receiver.handle.requeue(seq, True)
                if receiver.subscription is not None:
                    receiver.handle.unsubscribe(receiver.subscription, 0)

    def use_plain(self) -> None:
        self.plain = [one for one in self.plain if one.site.alive]
        if len(self.plain) < 2:
            one = Client(self.cluster, self.rng.choice(self.cluster.running).name)
            if one.site.node.vhosts["/"].queues.get("q") is None:
                return
            if self.at_rest:
                one.consume(prefetch=2)
                self.plain.append(one)
            return
        one = self.rng.choice(self.plain)
        for body, again in one.read():
            self.handed(one, body, again)
        for body in list(one.hands):
            if self.rng.random() < 0.5:
                one.give_back(body)
            else:
                one.ack(body)
                self.settling.add(body)

    def lose_on_the_way(self) -> None:
        """What the link was handed is committed, and does not arrive; perhaps its owner dies with that."""
        receiver, owner = self.links[0].receiver, self.site_of_owner()
        for site in self.cluster.running:
            site.disk_waits = True
        self.publish(3)
        self.cluster.turn()
        if receiver is not None and receiver.site.alive and receiver.site is not owner:
            self.cluster.unlink(owner.name, receiver.site.name)
        for site in self.cluster.running:
            site.disk_waits, site.reads_wait = False, self.rng.random() < 0.7
        self.cluster.wait(300)
        if self.rng.random() < 0.7:
            self.kill(owner.name)
        self.cluster.relink()
        self.cluster.wait(500)
        self.publish(2)

    def site_of_owner(self) -> Any:
        return next(site for site in self.cluster.running if self.owned in site.node.queues.values())

    def kill(self, name: str) -> None:
        self.cluster.kill(name)
        for link in self.links:
            if link.receiver is not None and link.receiver.site.name == name:
                link.receiver = None
        self.plain = [one for one in self.plain if one.site.name != name]
        self.late = [one for one in self.late if one.site.name != name]
        self.cluster.wait(500)

    def fault(self) -> None:
        rng, running = self.rng, self.cluster.running
        if self.alone and self.at_rest and rng.random() < 0.5:
            self.lose_on_the_way()
            return
        roll = rng.random()
        if roll < 0.4 and len(running) == len(NODES) and self.owned is not None:
            self.kill(rng.choice(running).name)
        elif roll < 0.7 and len(running) > 1:
            one, other = rng.sample([site.name for site in running], 2)
            self.cluster.unlink(one, other)
        else:
            for site in running:
                site.disk_waits = rng.random() < 0.5
                site.reads_wait = self.alone and rng.random() < 0.5

    def alarm(self, site: Any) -> None:
        """Begins or ends, as this node hears."""
        owner, queues = self.site_of_owner().name, site.node.role.remote_queues
        if (outbox := queues._outboxes.get(owner)) is not None:
            queues.alarmed(owner, not outbox.shut)

    def calm(self) -> None:
        """No alarm is left."""
        for site in self.cluster.running if self.alarms is not None else ():
            queues = site.node.role.remote_queues
            for owner, outbox in list(queues._outboxes.items()):
                if outbox.shut:
                    queues.alarmed(owner, False)

    def heal(self) -> None:
        if self.alarms is not None and self.alarms.random() < 0.5:
            self.calm()
        for site in self.cluster.running:
            site.disk_waits = site.reads_wait = False
        self.cluster.relink()
        for name in NODES:
            if not self.cluster[name].alive:
                self.cluster.restart(name)
        self.cluster.wait(2000)
        if self.at_rest:
            self.check_holds()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.calm()
        self.heal()
        for link in self.links:
            self.end(link)
        self.cluster.wait(2000)
        if self.apart:
            self.check_apart()
        for one in self.plain:
            if one.subscription is not None:
                one.handle.unsubscribe(one.subscription, 0)
                for _, _, seq in one.ledger.drain():
                    one.handle.requeue(seq, False)
        for one in self.late:
            if one.site.alive:
                one.leave()
        self.cluster.wait(2000)
        last = Client(self.cluster, "a")
        assert last.consume() == ""
        self.cluster.wait(1000)
        left = dict(last.read())
        for body, again in left.items():
            self.handed(last, body, again)
        for body in left:
            assert self.moved.get(body) not in self.seen, f"T1: {body!r} stays, and {self.moved[body]!r} is here"
        ring = self.owned.ring
        rest = {body: seq for body, seq in self.stored().items() if body not in left}
        assert not rest, f"stays in the queue: {rest}, {ring.living(1, ring.next_seq, 100)}, {ring.links()}"
        lost = self.sure - self.gone - self.settling - left.keys()
        assert not lost, f"confirmed, not settled, and nowhere: {sorted(lost)}"


def number_of(body: bytes) -> int:
    return int(body[1:])


def live(
    seed: int, steps: int = 120, choosy: bool = False, patient: bool = False, apart: bool = False, alone: bool = False,
    alarmed: bool = False,
) -> None:  # fmt: skip
    Life(seed, choosy, patient, apart, alone, alarmed).run(steps)
