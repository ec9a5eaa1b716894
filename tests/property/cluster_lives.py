"""One queue of a cluster and its clients through all that may befall them at once; what was promised is checked.

    python -m tests.property.cluster_lives --seeds 100 --first 5000
    python -m tests.property.cluster_lives --seed 7              one life, told line by line

The nodes are real, disks and links are played (`tests.unit.broker.node.node_cluster`), and the cluster is never at
rest: frames and groups are under way whenever something happens (`cluster_lives_world`). The simulation of the cluster
(`tests/simulation`) has clocks, leases and the wiring's log; this one has copy forward, checkpoints, clients that
number their messages, transactions, limits of deliveries, expiry, rules of dead letters, copies that are made anew,
losses that an operator accepts, and operators who pause the queue and take single messages out of it. The promises
stand in `cluster_lives_books` and `cluster_lives_operators`. A seed chooses the queue's rules, its durability, its
copies, how many names a queue remembers, and how often each thing happens: so some lives have very much of one thing.
Queues of durability "disk" lose processes and no power, which is all that they promise.

At the end all heals. All copies must be alike, all nodes must have heard the same wiring, and each node must find in
its journal, after a last restart, the messages that it had; then the queue and the target of its dead letters are
emptied and the books are closed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from typing import Any, Final

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.property.cluster_lives_books import Books, Broken
from tests.property.cluster_lives_clients import QUEUE, Names, Publisher, Talker, Teller, Worker, name_of
from tests.property.cluster_lives_kinds import COPIES, LIMITS, NAMES, RULES, limited
from tests.property.cluster_lives_operators import SHELF, SIZES, Operators, sized
from tests.property.cluster_lives_world import Faults, Shaky, index_is_whole, journal_of
from tests.unit.broker.fronts.amqp091.harness import bodies

TARGET: Final = "graves"
STEPS: Final = 400
CLIENTS_MAX: Final = 4
TELLERS_MAX: Final = 3
HEALING_MS: Final = 8000
LETTERS_MS: Final = 4000
BULK: Final = 150
"""More letters than a target remembers, when limits are small."""

DEEDS: Final = {
    "publish": 10, "number": 5, "repeat": 4, "bulk": 0.5, "settle": 16, "reject_all": 0.5, "transact": 6,
    "new_publisher": 2, "new_worker": 3, "leave": 1, "wait": 6,
    "kill": 1.2, "start": 4, "reset": 2, "cut": 0.7, "heal": 2, "disk": 3, "wiring": 1, "checkpoint": 3, "forward": 5,
    "move": 2, "replace": 0.5, "policy": 0.6, "force": 0.7, "forget": 0.2,
    "pause": 0.7, "resume": 2, "operate": 5,
}  # fmt: skip
AIMS: Final[tuple[dict[str, float], ...]] = (
    {},
    {},
    {"number": 15, "repeat": 15, "replace": 4, "move": 4, "start": 8},
    {"bulk": 6, "reject_all": 8, "publish": 2, "settle": 2, "kill": 3, "start": 8, "disk": 6},
    {"replace": 6, "wiring": 6, "cut": 3, "heal": 6, "kill": 3, "start": 8, "new_worker": 1, "settle": 4},
    {"operate": 15, "pause": 3, "resume": 4, "move": 4, "kill": 2, "start": 8},
)
"""What some lives have very much of: numbers, letters, copies that are made anew, operators."""
FAULTS: Final = (
    "start", "reset", "cut", "heal", "disk", "wiring", "checkpoint", "forward", "move", "replace", "policy", "force",
    "forget",
)  # fmt: skip
OPERATED: Final = ("pause", "resume", "operate")
VITAL: Final = ("publish", "settle", "new_publisher", "new_worker", "start", "heal", "disk", "wait", "resume")
"""A life without them would stand still."""


class Life:
    """`story` tells it line by line, from the queue's declaration to its end."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.rules = rng.choice(RULES)
        self.copies = rng.choice(COPIES)
        aim = rng.choice(AIMS)
        self.limits = LIMITS[-1] if "number" in aim or "bulk" in aim else rng.choice(LIMITS)
        self.names = Names(self.limits.names)
        self.cluster = Shaky(rng, *rng.choice(("abc", "abc", "abcd")))
        self.faults = Faults(self.cluster, QUEUE, power=self.copies.get("x_durability") != "disk")
        refuses = "reject" in self.rules.get("x_overflow", "")
        ordered = "x_max_priority" not in self.rules and not refuses
        self.books = Books(ordered=ordered, dies_again=self.rules.get("x_overflow") == "reject-publish-dlx")
        self.operators = Operators(self.cluster, self.books)
        self.sizes = rng.choice(SIZES)
        self.memory = self.copies.get("x_durability") == "memory"
        self.weights = {
            deed: weight * rng.choice((0.3, 1, 1, 3) if deed in VITAL else (0, 0.3, 1, 1, 4))
            for deed, weight in DEEDS.items()
        }
        self.weights |= aim
        self.publishers: list[Publisher] = []
        self.workers: list[Worker] = []
        self.tellers: list[Teller] = []
        self.count = 0
        self.story = [f"seed {seed}: {self.rules} {self.copies} {self.limits}, nodes {''.join(self.cluster.sites)}"]
        with_target = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": TARGET}
        first = self.cluster["a"].client()
        first.declare(TARGET)
        shelf = rng.choice(({}, {}, {"x_max_length": 20, "x_overflow": "reject-publish"}))
        first.declare(SHELF, **shelf)
        first.declare(QUEUE, **self.rules, **self.copies, **with_target)
        self._gap_epoch = self.cluster.truth(QUEUE).gap_epoch
        self._gap_heard = True
        self.cluster.worked = self.operators.worked
        self.books.listener = self.operators.heard
        self.cluster.shaky = True

    def _number(self) -> int:
        self.count += 1
        return self.count

    # -- one step

    def step(self) -> None:
        deed = self.rng.choices(tuple(self.weights), tuple(self.weights.values()))[0]
        of = self.faults if deed in FAULTS else self.operators if deed in OPERATED else self
        said = getattr(of, deed)()
        if said:
            self.story.append(said)
        for _ in range(self.rng.randint(0, 3)):
            self.cluster.round()
        self._look()

    def _look(self) -> None:
        """Who is still there, and what the wiring says of the queue."""
        self.publishers = [client for client in self.publishers if client.there]
        self.workers = [client for client in self.workers if client.there]
        self.tellers = [client for client in self.tellers if client.there]
        for site in self.cluster.running:
            self.operators.count(site)
        gap_epoch = self.cluster.truth(QUEUE).gap_epoch
        if gap_epoch != self._gap_epoch:
            self.story.append(f"a gap: epoch {gap_epoch} may begin without what was committed")
            if not self.faults.accepted_loss and not (self.memory and self.faults.ended):
                raise Broken("kept: nobody accepted a loss, and there is a gap")
            self._gap_epoch = gap_epoch
            self._gap_heard = False
        if not self._gap_heard:
            self.books.gap()
            self._gap_heard = self.cluster.all_have_heard

    # -- what clients do

    def new_publisher(self) -> str:
        if len(self.publishers) >= CLIENTS_MAX:
            return ""
        site = self.rng.choice(self.cluster.running)
        client = Publisher(self.cluster, site, self.books, f"p{self._number()}", self.names)
        self.publishers.append(client)
        return f"{client} is there"

    def new_worker(self) -> str:
        if len(self.workers) >= CLIENTS_MAX:
            return ""
        site = self.rng.choice(self.cluster.running)
        client = Worker(self.cluster, site, self.books, f"w{self._number()}", self.rng.choice((0, 1, 5, 50)))
        self.workers.append(client)
        return f"{client} is there"

    def publish(self, count: int = 0) -> str:
        if not self.publishers:
            return ""
        rng = self.rng
        client = rng.choice(self.publishers)
        first = self.count + 1
        for _ in range(count or rng.choice((1, 1, 3, 10))):
            properties: dict[str, Any] = {"priority": rng.randint(0, 3)} if "x_max_priority" in self.rules else {}
            if rng.random() < 0.05:
                properties["expiration"] = "2000"
            client.publish_one(self._number(), 0 if count else rng.choice((0, 300)), **properties)
        return f"{client} publishes m{first} to m{self.count}"

    def bulk(self) -> str:
        return self.publish(BULK)

    def number(self) -> str:
        """A client goes on numbering, after it has said again all that was not answered."""
        if not self.publishers:
            return ""
        client = self.rng.choice(self.publishers)
        names = self.names
        name = self.rng.choice(NAMES if self.limits.names < len(NAMES) else NAMES[:3])
        speaker = names.speakers.get(name)
        if speaker is not client and speaker is not None and speaker.there and names.open[name]:
            return ""
        said = []
        if speaker is not client:
            names.speakers[name] = client
            for number in tuple(names.open[name]):
                if not names.may(name, True):
                    del names.speakers[name]
                    return ""
                client.say_number(name, number, True, 0)
                said.append(number)
        for _ in range(self.rng.choice((1, 1, 3))):
            if names.may(name, False):
                number = names.next[name] = names.next.get(name, 0) + 1
                client.say_number(name, number, False, self.rng.choice((0, 300)))
                said.append(number)
        return f"{client} says {said} as {name}"

    def repeat(self) -> str:
        """A client says again what it said, answered or not."""
        names = self.names
        able = [name for name, client in names.speakers.items() if client.there and names.may(name, True)]
        if not able:
            return ""
        name = self.rng.choice(able)
        last = names.next.get(name, 0)
        if not last:
            return ""
        number = self.rng.randint(max(1, last - 5), last)
        client = self.names.speakers[name]
        client.say_number(name, number, True, 0)
        return f"{client} says {number} again as {name}"

    def settle(self) -> str:
        if not self.workers:
            return ""
        client = self.rng.choice(self.workers)
        said = []
        for _ in range(self.rng.choice((1, 3, 8))):
            if client.held:
                tag = self.rng.choice(tuple(client.held))
                how = self.rng.choices(("ack", "reject", "requeue"), (60, 15, 25))[0]
                said.append(f"{how} {client.settle(tag, how)}")
        return f"{client}: {', '.join(said)}" if said else ""

    def reject_all(self) -> str:
        able = [client for client in self.workers if client.held]
        if not able:
            return ""
        client = self.rng.choice(able)
        count = len(client.held)
        client.reject_all()
        return f"{client} rejects all {count}"

    def transact(self) -> str:
        rng = self.rng
        if not self.tellers or (len(self.tellers) < TELLERS_MAX and rng.random() < 0.2):
            site = rng.choice(self.cluster.running)
            client = Teller(self.cluster, site, self.books, f"t{self._number()}", rng.choice((3, 10)))
            self.tellers.append(client)
            return f"{client} is there"
        client = rng.choice(self.tellers)
        if not client.free:
            return ""
        tags = rng.sample(tuple(client.held), min(len(client.held), rng.choice((0, 1, 3))))
        settlements = [(tag, rng.choices(("ack", "reject", "requeue"), (70, 10, 20))[0]) for tag in tags]
        what = [f"{how} {client.held[tag]}" for tag, how in settlements]
        numbers = [self._number() for _ in range(rng.choice((0, 1, 4)))]
        client.commit(settlements, numbers)
        return f"{client} commits {what} and publishes {[f't{number}' for number in numbers]}"

    def leave(self) -> str:
        if not self.workers:
            return ""
        client = self.workers.pop(self.rng.randrange(len(self.workers)))
        client.leave()
        return f"{client} leaves"

    def wait(self) -> str:
        time_ms = self.rng.choice((20, 100, 500, 2000))
        self.cluster.pass_time(time_ms)
        return f"{time_ms} ms pass"

    def kill(self) -> str:
        ended = self.faults.kill()
        if ended is None:
            return ""
        name, power = ended
        self.books.died(name, power=power)
        self.operators.ended(name)
        return f"{name} {'loses its power' if power else 'is killed'}"

    # -- a whole one

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.step()
        self.story.append("all heals")
        self.faults.begin_all()
        self._look()
        self.cluster.shaky = False
        self.cluster.turn()
        self.cluster.wait(HEALING_MS)
        self._look()
        self.operators.finish()
        if self.rng.random() < 0.5:
            self.operators.resume()
            self.cluster.turn()
        for client in (*self.publishers, *self.tellers):
            if unanswered := client.unanswered():
                raise Broken(f"answered: {client} waits for {unanswered[:8]}")
        talkers: list[Talker] = [*self.workers, *self.tellers]
        for client in talkers:
            client.leave()
        self.cluster.wait(LETTERS_MS)
        self._alike()
        if self.memory:
            left = self._emptied(QUEUE)
        self._begin_again()
        if not self.memory:
            left = self._emptied(QUEUE)
        dead, shelf = self._emptied(TARGET), self._emptied(SHELF)
        self.operators.close(left, dead, shelf)
        self.books.close(left, dead, self.operators.taken(shelf))

    def _alike(self) -> None:
        cluster = self.cluster
        if cluster.bad_frames:
            raise Broken(f"links were ended: {cluster.bad_frames[:3]}")
        if len(cluster.digests()) != 1:
            raise Broken("nodes have different maps")
        for name in (QUEUE, TARGET, SHELF):
            entity = cluster.queue(name)
            if set(entity.in_sync) != set(entity.replicas):
                raise Broken(f"{name} is in sync at {entity.in_sync} of {entity.replicas} only")
            owner = cluster.ring(cluster[entity.owner], entity.queue_id)
            if owner.unacked or owner.owner.aside:
                raise Broken(f"{name} has {owner.unacked} in nobody's hands, {owner.owner.aside} of them aside")
            for replica in entity.replicas:
                copy = cluster.ring(cluster[replica], entity.queue_id)
                if list(copy.emitted_buckets()) != list(owner.emitted_buckets()):
                    raise Broken(f"the copy of {name} at {replica} is not the one at {entity.owner}")
                here, there = known(owner), known(copy)
                if here != {producer: value for producer, value in there.items() if producer in here}:
                    raise Broken(f"of {name} {replica} remembers {there}, and {entity.owner} {here}")

    def _begin_again(self) -> None:
        """All processes end and begin again from their journals, some after a checkpoint."""
        cluster = self.cluster
        ids = [cluster.queue(name).queue_id for name in (QUEUE, TARGET, SHELF)]
        if self.memory:
            ids = ids[1:]
        sites = cluster.running
        before = []
        for site in sites:
            if self.rng.random() < 0.5:
                site.checkpoint()
            index_is_whole(site)
            before.append([cluster.holds(site, queue_id) for queue_id in ids])
        for site in sites:
            site.crash(journal_of(site).unsynced)
        cluster.links.clear()
        for site, had in zip(sites, before, strict=True):
            site.start()
            if (found := [cluster.holds(site, queue_id) for queue_id in ids]) != had:
                raise Broken(f"{site.name} had {had} and finds {found}")
        cluster.relink()
        cluster.turn()
        cluster.wait(LETTERS_MS)

    def _emptied(self, queue: str) -> list[str]:
        client = self.cluster.running[0].client()
        found = bodies(client.consume(queue))
        if self.cluster.queue(queue).paused:
            if found:
                raise Broken(f"paused: {len(found)} messages come of a paused queue")
            self.operators.resume()
            self.cluster.turn()
            found = bodies(client.say())
        client.say(m.BasicAck(0, True))
        self.cluster.turn()
        return [name_of(body) for body in found]


def known(ring: Any) -> dict[bytes, int]:
    """What a copy remembers of those who number, but for starts of nodes that are over: the next owner forgets these. A
    copy may remember more: who was forgotten while it was synced comes back there."""
    return {name: value for name, value in ring.emitted_attributes().items() if name[:1] not in (b"n", b"r")}


def broken(seed: int, steps: int = STEPS) -> list[str]:
    """The story of the life if a promise was broken, which one as its last line; else nothing."""
    story = [f"seed {seed}"]
    try:
        life = Life(seed)
        story = life.story
        with limited(life.limits), sized(life.sizes):
            life.run(steps)
    except Broken as error:
        return [*story, f"BROKEN {error}"]
    except Exception:
        return [*story, f"BROKEN {traceback.format_exc()}"]
    return []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with its story")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--until-broken", action="store_true", help="end with the first that breaks a promise")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        story = broken(options.seed, options.steps)
        print("\n".join(story) or "all promises were kept")
        return bool(story)
    end_s = time.monotonic() + options.seconds
    found = lived = 0
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() > end_s:
            break
        lived += 1
        if story := broken(seed, options.steps):
            found += 1
            print("\n".join([story[0], *story[-6:], "-----"]), flush=True)
            if options.until_broken:
                break
    print(f"{lived} lives, {found} with a broken promise")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
