"""Lives of recoverable sender links on three nodes in memory: clients that resume, reuse tags, lie and change nodes.

    python -m tests.property.link_lives --seed 1 --count 100 [--mutations]

Each seed is one life: a queue with three copies, clients that number what they send by unique bodies, nodes that die
and come back, disks that wait. At its end everything is healed, and the queue's content is compared with what the
clients know (design page, 4.5):

    L1   what was told or answered accepted is in the queue, once
    L2   no delivery is in the queue twice
    L3   what was refused, or answered absent and not sent again, is not in the queue
    L4   a new delivery is stored though its tag is known of an earlier one (it would be missing by L1)
    L7   what a late writer sends after its link was attached anew is not in the queue
    L9   owner and copies know the same names
    L10  the queue knows every accepted delivery that its client has not settled
    L12  of a link that has ended the queue knows nothing

A client that lies (its map lacks what it has, or names what it never sent) gives up what it lied about; nothing else
changes. A tag that is used again at once is ambiguous when its client comes back without an outcome: what is known by
it may be the delivery before, whose end was lost with the node. One that the queue has said to be forgotten is not.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.attributes import LINK_DELIVERY
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged, value_of
from clusterbroker.broker.queues.ticket import Outcome, Ticket
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message, read_records
from tests.unit.broker.node.node_cluster import Cluster, Site

NAMES: Final = ("a", "b", "c")
CLIENTS: Final = 3
STEPS: Final = 200
TAGS: Final = 6
"""Of a client; few, so that they are used again."""


class Broken(AssertionError):
    """An invariant does not hold."""


def check(holds: bool, invariant: str, what: str) -> None:
    if not holds:
        raise Broken(f"{invariant}: {what}")


class Delivery:
    """What a client knows of one."""

    def __init__(self, tag: bytes, body: bytes) -> None:
        self.tag, self.body = tag, body
        self.accepted = self.refused = self.settled = False
        self.absent = False
        """The node said that it has not got it, and it was not sent again since."""
        self.early = False
        """Its tag was used again at once: without an outcome nobody can tell it from the delivery before."""
        self.sure = True
        """The client has not lied about it, and its link has not ended."""


class Attached:
    """One attach of a client's link."""

    def __init__(self, client: Client, site: Site, resumes: bool) -> None:
        self.client, self.site = client, site
        self.attachment: Attachment | None = None
        self.number = 0
        self.hears = True
        """Its connection stands."""
        self.open = False
        """It is answered: deliveries may be sent."""
        self.asked: dict[bytes, Delivery] = {}
        self.blind = False
        """Nobody has said what is known."""
        command = c.AttachLink(
            node=NodeId(site.name), incarnation=Incarnation(site.incarnation), vhost="/", container="c",
            name=client.name, role="sender", terminus="/queues/q", user="guest", timeout_ms=10**9, resumes=resumes,
        )  # fmt: skip
        site.node.recovery.attach(command, self._lost, self._ordered)

    def _lost(self, _: bool) -> None:
        self.hears = False

    @property
    def handle(self) -> Any:
        return self.site.node.vhosts["/"].queues["q"]

    @property
    def link(self) -> Any:
        assert self.attachment is not None, "it was ordered"
        return self.attachment.link

    def _ordered(self, answer: Any) -> None:
        client = self.client
        if not isinstance(answer, Attachment):
            if client.attached is self:
                client.refused(answer)
            return
        self.attachment = answer
        if client.attached is not self or not self.hears:
            self.site.node.recovery.suspend(answer)
            return
        client.link = answer.link.link
        if answer.link.since == answer.link.attach:
            client.gives_up()
            self.open = True
            return
        self.asked, tags = client.map()
        if client.world.chance.random() < 0.3:  # as through an exchange: nobody is asked
            self.blind = True
            self._known([tag for tag, delivery in self.asked.items() if delivery.accepted])
            return
        self.handle.known_tags(AskedTags(self.link.link, self.link.attach, tuple(tags)), self._known)

    def _known(self, known: list[bytes] | str) -> None:
        if self.client.attached is not self or not self.hears:
            return
        if isinstance(known, str):
            self.hears = False
            return
        self.client.answered(self, frozenset(known))
        self.site.node.recovery.keep(self.link, list(self.asked))

    def send(self, deliveries: list[Delivery], again: bool = False) -> None:
        """`again`: the client has named them in its map."""
        tags = [delivery.tag for delivery in deliveries]
        for delivery in deliveries:
            delivery.absent = False
        tagged = Tagged(self.link.link, self.link.attach, self.number, tags, frozenset(tags if again else ()))
        self.number += len(tags)
        ticket = Ticket(1, 1, lambda done: self._done(deliveries, done))
        messages = [Message(b"\0\1q", b"\x10\0\2" + d.body, 3, PERSISTENT) for d in deliveries]
        self.handle.publish_tagged(tagged, messages, ticket, self.site.now_ms)
        ticket.pass_()

    def _done(self, deliveries: list[Delivery], ticket: Ticket) -> None:
        if self.hears and self.client.attached is self:
            for delivery in deliveries:
                delivery.accepted = ticket.outcome is Outcome.ACCEPTED
                delivery.refused = ticket.outcome is Outcome.REJECTED

    def settle(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.settled = True
        upto, over = value_of(self.link.attach, self.number) - 1, list(deliveries)
        tags = [delivery.tag for delivery in over]
        self.handle.forget_tags(self.link.link, upto, tags, lambda: self.client.forgotten(over))


class Client:
    """One sender."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"link {number}"
        self.number = number
        self.unsettled: dict[bytes, Delivery] = {}
        self.everything: list[Delivery] = []
        self.free = [b"t%d" % place for place in range(TAGS)]
        self.resting: list[bytes] = []
        """Settled, but perhaps not forgotten before the queue has said so, or the world has come to rest."""
        self.last: dict[bytes, Delivery] = {}
        """Of each tag."""
        self.attached: Attached | None = None
        self.former: list[Attached] = []
        self.link = 0

    def new(self) -> Delivery:
        early = bool(self.resting) and (not self.free or self.world.chance.random() < 0.3)
        tag = self.resting.pop() if early else self.free.pop(0)
        delivery = Delivery(tag, b"%d:%d" % (self.number, len(self.everything)))
        delivery.early = early
        self.everything.append(delivery)
        self.unsettled[delivery.tag] = self.last[delivery.tag] = delivery
        return delivery

    def forgotten(self, deliveries: list[Delivery]) -> None:
        """The queue has forgotten these, whoever owns it next: their tags are as good as new."""
        for tag in [each.tag for each in deliveries if self.last[each.tag] is each and each.tag in self.resting]:
            self.resting.remove(tag)
            self.free.append(tag)

    def gives_up(self) -> None:
        """Nobody knows what became of its deliveries."""
        for delivery in self.unsettled.values():
            delivery.sure = delivery.accepted
            self.resting.append(delivery.tag)
        self.unsettled.clear()

    def refused(self, answer: Any) -> None:
        self.attached = None
        if answer.error.kind == "not_found":
            self.gives_up()

    def map(self) -> tuple[dict[bytes, Delivery], list[bytes]]:
        """What it names as it attaches."""
        chance = self.world.chance
        if chance.random() < 0.15 and self.unsettled:  # a lie: it has forgotten one
            tag = chance.choice(list(self.unsettled))
            delivery = self.unsettled.pop(tag)
            delivery.sure = delivery.accepted
            self.resting.append(tag)
        tags = list(self.unsettled)
        if chance.random() < 0.15:  # a lie: it never sent this
            tags.append(b"never")
        return dict(self.unsettled), tags

    def answered(self, attached: Attached, known: frozenset[bytes]) -> None:
        check(b"never" not in known, "L3", "the node knows what was never sent")
        again, over = [], []
        for tag, delivery in attached.asked.items():
            if tag in known:
                if delivery.early and not delivery.accepted:
                    delivery.sure = False  # perhaps it is the delivery before that is known
                    over.append(delivery)
                else:
                    delivery.accepted = True
                continue
            check(not delivery.accepted, "L10", f"{delivery.body!r} was accepted, and is not known")
            delivery.absent = True
            if delivery.early:  # sent again, it may be taken for the delivery before
                delivery.sure = False
            if delivery.early or delivery.refused or self.world.chance.random() < 0.2:  # it is not worth it any more
                delivery.sure = delivery.sure and not attached.blind
                over.append(delivery)
            else:
                again.append(delivery)
        attached.open = True
        for delivery in over:
            del self.unsettled[delivery.tag]
            self.resting.append(delivery.tag)
        attached.settle(over)
        if again:
            attached.send(again, again=True)

    # -- what it may do

    def attach(self) -> None:
        if self.attached is not None:
            return
        fresh = not self.link or (not self.unsettled and self.world.chance.random() < 0.3)
        site = self.world.chance.choice(self.world.cluster.running)
        self.attached = Attached.__new__(Attached)  # it may be answered before it is there
        self.attached.__init__(self, site, not fresh)  # type: ignore[misc]

    def publish(self) -> None:
        attached = self.attached
        if attached is None or not attached.open or not attached.hears:
            return
        count = min(self.world.chance.randint(1, 3), len(self.free) + len(self.resting))
        if count:
            attached.send([self.new() for _ in range(count)])

    def settle(self) -> None:
        attached = self.attached
        if attached is None or not attached.open or not attached.hears:
            return
        over = [delivery for delivery in self.unsettled.values() if delivery.accepted or delivery.refused]
        self.world.chance.shuffle(over)
        del over[self.world.chance.randint(0, 3) :]
        for delivery in over:
            del self.unsettled[delivery.tag]
            self.resting.append(delivery.tag)
        if over:
            attached.settle(over)

    def leave(self) -> None:
        """Its connection breaks; its node notices that now, or never."""
        attached, self.attached = self.attached, None
        if attached is None:
            return
        attached.hears = False
        if attached.attachment is None or not attached.open:
            return
        if self.world.chance.random() < 0.5 and attached.site.alive:
            attached.site.node.recovery.suspend(attached.attachment)
        else:
            self.former.append(attached)

    def break_off(self) -> None:
        """In the middle of what it sends."""
        self.publish()
        self.leave()
        self.attach()

    def haunt(self) -> None:
        """A node sends what it had of an earlier attach, after the link was attached anew and answered."""
        attached = self.attached
        former = [one for one in self.former if one.site.alive and one.site.incarnation == one.link.incarnation]
        if attached is None or not attached.open or not former:
            return
        late = Delivery(b"late%d" % len(self.everything), b"%d:%d" % (self.number, len(self.everything)))
        self.everything.append(late)
        self.world.chance.choice(former).send([late])
        late.absent = True  # it is of the past

    def end(self) -> None:
        """The link is closed."""
        attached = self.attached
        if attached is not None and attached.open and attached.hears and attached.attachment is not None:
            self.attached, attached.hears = None, False
            attached.site.node.recovery.forget(attached.attachment)
            self.gives_up()
            self.link = 0


class World:
    """One life."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster(*NAMES)
        self.cluster[NAMES[0]].client().declare("q")
        self.clients = [Client(self, number) for number in range(CLIENTS)]

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self._heal()
        self._judge()

    def _step(self) -> None:
        chance, cluster = self.chance, self.cluster
        client = chance.choice(self.clients)
        what: Callable[[], Any] = chance.choices(
            (client.attach, client.publish, client.settle, client.leave, client.haunt, client.end, self._lose,
             self._wait, self._rest, client.break_off),
            (20, 25, 15, 3, 5, 1, 3, 5, 8, 6),
        )[0]  # fmt: skip
        what()
        if chance.random() < 0.5:
            cluster.turn()

    def _lose(self) -> None:
        """A node dies, and what it had not flushed; or the one that has died comes back."""
        cluster, dead = self.cluster, [name for name in NAMES if not self.cluster[name].alive]
        if dead:
            cluster.restart(dead[0])
            cluster.wait(1000)
            return
        name = self.chance.choice(NAMES)
        for client in self.clients:
            if client.attached is not None and client.attached.site.name == name:
                client.attached.hears = False
                client.attached = None
        cluster.kill(name)

    def _wait(self) -> None:
        """A disk waits, or goes on."""
        site = self.chance.choice(self.cluster.running)
        site.disk_waits = not site.disk_waits

    def _rest(self) -> None:
        for site in self.cluster.sites.values():
            site.disk_waits = False
        self.cluster.turn()
        self.cluster.wait(300)
        if all(site.alive for site in self.cluster.sites.values()):
            for client in self.clients:
                if client.attached is None or client.attached.open:
                    client.free += client.resting
                    client.resting.clear()

    def _heal(self) -> None:
        self._rest()
        for name in NAMES:
            if not self.cluster[name].alive:
                self.cluster.restart(name)
        self._rest()
        self.cluster.wait(3000)
        for client in self.clients:  # each knows in the end
            client.leave()
            client.attach()
        self.cluster.turn()
        self._rest()

    # -- judgement

    def _owned(self) -> Any:
        return next(q for site in self.cluster.running for q in site.node.queues.values() if q.name == "q")

    def _judge(self) -> None:
        queue, found = self._owned(), []
        queue.copy([(1, queue.ring.next_seq - 1)], 1 << 30, found.append)
        self.cluster.turn()
        counts = Counter(message.body for _, message, _, _ in read_records(found[0]))
        for client in self.clients:
            for delivery in client.everything:
                self._judge_one(delivery, counts[delivery.body])
        live = {link.link for link in self.cluster[NAMES[0]].map.links()}
        for (link, _), _ in LINK_DELIVERY.of(queue.ring.attributes):
            check(LogIndex(link) in live, "L12", f"link {link} has ended, and its deliveries are known")
        for client in self.clients:
            self._judge_names(client, queue)
        for site in self.cluster.running:
            assert site.node.role is not None
            ring = site.node.role.copying.replicas.get(queue.entity.queue_id)
            if ring is not None:
                same = dict(LINK_DELIVERY.of(ring.attributes)) == dict(LINK_DELIVERY.of(queue.ring.attributes))
                check(same, "L9", f"the copy at {site.name} knows other names than the owner")

    def _judge_one(self, delivery: Delivery, count: int) -> None:
        body = delivery.body
        check(count <= 1, "L2", f"{body!r} is there {count} times")
        if delivery.accepted:
            check(count == 1, "L1", f"{body!r} of tag {delivery.tag!r} was accepted, and is not there")
        elif delivery.sure and (delivery.absent or delivery.refused):
            late = delivery.tag.startswith(b"late")
            check(count == 0, "L7" if late else "L3", f"{body!r} was refused or absent, and is there")

    def _judge_names(self, client: Client, queue: Any) -> None:
        names = dict(LINK_DELIVERY.of(queue.ring.attributes))
        for delivery in client.unsettled.values():
            if delivery.accepted and client.link:
                known = (client.link, delivery.tag) in names
                check(known, "L10", f"{delivery.body!r} was accepted and not settled, and is not known")


def life(seed: int) -> None:
    """Raises Broken."""
    World(seed).run()


def _mutations(seeds: range) -> int:
    from tests.property.link_mutations import MUTATIONS, put_in

    hidden = 0
    for name, bug in MUTATIONS.items():
        says = "is not found"
        with put_in(bug):
            for seed in seeds:
                try:
                    life(seed)
                except Exception as error:
                    says = f"| {seed} | {error if isinstance(error, Broken) else repr(error)}"
                    break
        hidden += says == "is not found"
        print(f"| {bug.__doc__} (`{name}`) {says} |")
    return hidden


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--mutations", action="store_true", help="say what finds each seeded bug")
    options = parser.parse_args(arguments)
    if options.mutations:
        return _mutations(range(options.seed, options.seed + options.count))
    for seed in range(options.seed, options.seed + options.count):
        try:
            life(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
    print(f"{options.count} lives")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
