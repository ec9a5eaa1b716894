"""A pool on a cluster of three in virtual time: real nodes, foremen and desks; callers, workers, drivers and faults.

    callers --real frames--> nodes (real cores: exchanges, orphan queue with controller and policy, groups' queues,
                             responder, copies) --one log--> maps (real fold) --desks--> foremen --> driver --> workers

Everything follows from the seed. A tick is TICK_MS; in it what is due happens to agents and nodes, then nodes take
turns until nothing moves at that moment.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal
from unittest.mock import patch

from msgspec.structs import replace

from clusterbroker.broker.foreman import foreman as foreman_module
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import Template
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import Pool, PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Content

from .agents import ANSWERS, POOL, Agent, Caller, Process, Request
from .checkers import Checkers
from .nodes import TICK_MS, Nodes, Socket
from .places import Clockwork, SimDriver, Site
from .several import SeveralProcess

MEMORY: Final = 100 << 20
"""Of a worker."""
SURE_MS: Final = 2_000
"""An acknowledgement has come to its queue and all copies by then, if nothing failed, and the queue has one owner all
the time: it is heard when the owner's map is as far as that of the worker's node, which its lag delays (1,500 ms). An
owner that hands over takes none any more, and its successor takes them when all copies have told, so it begins anew."""


class Reader(Agent):
    """Reads all answers in the end."""

    def first(self) -> list[Any]:
        return [m.BasicConsume(queue=ANSWERS, consumer_tag="r", no_ack=True)]

    def heard(self, channel: int, said: Any) -> None:
        if isinstance(said, Content):
            self.world.answered(said)


class EventReader(Agent):
    """Reads all that the pool has told."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.found: list[dict[str, Any]] = []

    def first(self) -> list[Any]:
        consume = m.BasicConsume(queue=f"{POOL}-events", consumer_tag="e", arguments={"x-stream-offset": "first"})
        return [m.BasicQos(prefetch_count=60_000), consume]

    def heard(self, channel: int, said: Any) -> None:
        if isinstance(said, Content):
            self.found.append(json.loads(said.body))


class World:
    """One run: `settings` of the pool, `nature` of its keys. `tick` until it is over, then `end`."""

    def __init__(
        self, seed: int, settings: PoolSettings, places: int = 4, keys_per_worker: int = 1, shared: bool = False
    ) -> None:
        self.shared = shared
        """All foremen see the workers of all."""
        self.lost = ""
        """A node that never comes back."""
        self.rng = random.Random(seed)
        self.settings = settings
        self.ttl_ms = settings.request_ttl_ms
        self.over = False
        self.spares = 0
        """Most that were ever wanted."""
        self.calm = False
        """Nothing fails any more."""
        self.start_ms = (200, 1500)
        self.service = (50, 600)
        self.hangs = self.deaf = self.poison = 0.0
        """Chances: a worker never consumes, hears no TERM; a request kills its worker."""
        self.checks_waiting = False
        """Nodes are well all the time, and so are places: I8 holds at each moment."""
        self.checks_suspects = False
        """Nodes are well, and workers hold several requests: rule 35 holds at each moment."""
        self._stickiness = random.Random(f"sticky {seed}")  # one of its own: runs without it are those of before
        self.sticky = self._stickiness.choice((0.0, 0.0, 0.6))
        """Chance: a request is meant for a worker of its key."""
        self._delays = random.Random(f"later {seed}")  # likewise
        self.later = self._delays.choice((0.0, 0.0, 0.0, 0.0, 0.4))
        """Chance: a request is delayed."""
        self.tells = random.Random(f"events {seed}").random() < 0.25
        """The pool tells its events."""
        self._rolling = random.Random(f"rolling {seed}")
        self.rolled = 0
        """Versions of the template since the first."""
        self.counts: Counter[str] = Counter()
        self.disturbed_ms = 0
        """When something failed last."""
        self.requests: list[Request] = []
        self._looked = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._nth = 0
        self.processes: list[Process] = []
        driver: Literal["kubernetes", "subprocess"] = "kubernetes" if shared else "subprocess"
        self.templates = {
            POOL: Template(driver=driver, command=("worker",), memory_bytes=MEMORY, max_workers=places if shared else 0)
        }
        self.nodes = Nodes(self.rng, "a", "b", "c")
        self._patches = (
            patch.object(foreman_module, "now_ms", lambda: self.now_ms),
            patch.object(foreman_module, "ALWAYS_READ", frozenset(("kubernetes", "subprocess"))),  # no file
        )
        for each in self._patches:
            each.start()
        self.loop = Clockwork(lambda: self.now_ms)
        self.checkers = Checkers(self)
        self.nodes.proposes = self.checkers.proposes
        self.nodes.before = self.checkers.before
        self.nodes.applied = self.checkers.applied
        self.nodes.unsure = self.checkers.unsure
        self.sites = {name: Site(self, member, places * MEMORY) for name, member in self.nodes.sites.items()}
        self.nodes.order(c.DeclareQueue(vhost="/", name=ANSWERS, durable=True, arguments={}))
        self.keys_per_worker = keys_per_worker
        self.nodes.order(
            c.DeclarePool(
                vhost="/",
                name=POOL,
                template=POOL,
                settings=settings,
                keys_per_worker=keys_per_worker,
                events=self.tells,
            )
        )
        self.callers = [Caller(self), Caller(self)]
        self.agents: list[Agent] = list(self.callers)

    @property
    def now_ms(self) -> int:
        return self.nodes.now_ms

    @property
    def pool(self) -> Pool:
        (pool,) = self.nodes.truth.pools.all()
        return pool

    def want_spares(self, count: int) -> None:
        """So many from now on."""
        self.spares = max(self.spares, count)
        only = ("spares",)
        self.nodes.order(c.SetPool(vhost="/", name=POOL, settings=self.pool.settings, only=only, spares=count))

    def owner(self, queue: str) -> str | None:
        """The node that owns it, as the log has it."""
        entity = self.nodes.truth.queue("/", queue)
        return None if entity is None else entity.owner

    # -- time

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._nth += 1
        heapq.heappush(self._events, (self.now_ms + int(delay_ms), self._nth, action))

    def run(self, for_ms: int) -> None:
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.tick()

    def tick(self) -> None:
        self.nodes.tick(self.now_ms + TICK_MS)
        while self._events and self._events[0][0] <= self.now_ms:
            heapq.heappop(self._events)[2]()
        self.loop.pump()
        if self.loop.errors:
            raise self.loop.errors[0]
        for agent in self.agents:
            agent.poll()
        self.nodes.turn()
        self.checkers.look()

    def end(self) -> None:
        """Nothing of it is left."""
        self.over = True
        self.loop.end()
        for each in self._patches:
            each.stop()

    def disturbed(self) -> None:
        self.disturbed_ms = self.now_ms

    # -- requests

    def meant(self, key: str) -> str:
        """The worker that a request is meant for; empty: any."""
        if self._stickiness.random() >= self.sticky:
            return ""
        workers = sorted(self.nodes.truth.pools.workers_of(self.pool.pool_id, key))
        return self._stickiness.choice(workers) if workers else "nobody"

    def put_off_ms(self) -> int:
        """Of a request: for so long it is delayed."""
        return self._delays.choice((200, 1_000, 2_000, 5_000)) if self._delays.random() < self.later else 0

    def delayed(self) -> bool:
        """Whether requests wait for their time, or are on their way from there."""
        for site in self.nodes.running:
            queue = site.node.queues.get(self.pool.delayed)
            if queue is not None and queue.ring.living(1, queue.ring.next_seq - 1, 1):
                return True
        return False

    def request(self, key: str, poison: bool, ttl_ms: int, by_name: bool, later_ms: int) -> Request:
        request = Request(
            len(self.requests), key, self.now_ms, ttl_ms, poison=poison, by_name=by_name, later_ms=later_ms
        )
        self.requests.append(request)
        return request

    def new_requests(self) -> list[Request]:
        """Since it was asked last: those that are confirmed, or may be."""
        new = self.requests[self._looked :]
        self._looked = len(self.requests)
        return new

    def service_ms(self, request: Request) -> int:
        return self.rng.randint(*self.service)

    def acknowledged(self, request: Request, process: Process, socket: Socket) -> None:
        """Of a worker, for a request that it has answered."""
        self.counts["acked"] += 1
        request.acks += 1
        group = self.nodes.truth.pools.group(self.pool.pool_id, request.key)
        queue_id = None if group is None else group.queue_id
        sent_ms = self.now_ms

        def sure(at_ms: int) -> None:
            """`at_ms`: by then it was on its way to the queue's owner of now."""
            if self.disturbed_ms >= sent_ms - SURE_MS or not socket.open:
                return
            changed_ms = self.checkers.owned_since_ms(queue_id)
            if self.nodes.hands_over(queue_id) or changed_ms > at_ms:
                self.after(SURE_MS, lambda: sure(max(at_ms, changed_ms)))
            else:
                request.doubts -= 1

        self.after(SURE_MS, lambda: sure(sent_ms))
        self.checkers.acknowledged(request, process)

    def answered(self, said: Content) -> None:
        """An answer was read out of the reply queue."""
        request = self.requests[int(said.properties.correlation_id or 0)]
        if said.properties.type == "error":
            request.errors.append((said.properties.headers or {})["x-status"].decode())
        else:
            request.oks += 1

    def read_answers(self) -> None:
        """All of them."""
        reader = Reader(self)
        self.agents = [reader]
        before = -1
        while before < (count := sum(each.oks + len(each.errors) for each in self.requests)) or reader.socket is None:
            before = count
            self.run(1_000)

    def read_events(self) -> list[dict[str, Any]]:
        """All of them; none of a pool that tells none."""
        reader = EventReader(self)
        self.agents = [reader] if self.tells else []
        before = -1
        while self.tells and before < len(reader.found):
            before = len(reader.found) if reader.socket is not None else -1
            self.run(1_000)
        return reader.found

    # -- processes

    def begin_process(self, driver: SimDriver, spec: WorkerSpec) -> Process:
        rng = self.rng
        kind = Process if self.keys_per_worker == 1 else SeveralProcess
        process = kind(
            self,
            driver,
            spec,
            rng.randint(*self.start_ms),
            hangs=rng.random() < self.hangs,
            deaf=rng.random() < self.deaf,
        )
        self.checkers.process_begins(process)
        self.processes.append(process)
        self.agents.append(process)
        self.counts["processes"] += 1
        return process

    def forget_ended(self) -> None:
        self.processes = [each for each in self.processes if each.alive]
        self.agents = [each for each in self.agents if not isinstance(each, Process) or each.alive]

    # -- what goes wrong with nodes

    def kill(self, name: str, machine: bool, for_ms: int, rounds: int = 0) -> None:
        """A node's process, or its machine; it begins again."""
        member = self.nodes[name]
        if not member.alive:
            return
        self.disturbed()
        self.nodes.half_turn(rounds)
        self.counts["kills"] += 1
        self.nodes.stop(name)
        if machine:
            self.sites[name].machine_dies()
        else:
            self.sites[name].node_is_over()
        self.after(for_ms, lambda: self.begin(name))

    def lose(self, name: str) -> None:
        """Its machine is gone for good, and somebody has the cluster forget it."""
        self.lost = name
        if self.nodes[name].alive:
            self.kill(name, True, 0)
        self.after(5_000, lambda: self.nodes.order(c.ForgetNode(node=NodeId(name), accept_loss=True)))

    def roll(self) -> None:
        """Another version of the template: foremen begin again with it, one after the other."""
        self.rolled += 1
        template = replace(self.templates[POOL], command=("worker", f"version {self.rolled}"))
        for nth, site in enumerate(
            self._rolling.sample(sorted(self.sites.values(), key=lambda one: one.member.name), 3)
        ):
            self.after(nth * self._rolling.choice((0, 2_000)), lambda site=site: self._roll(site, template))  # type: ignore[misc]

    def _roll(self, site: Site, template: Template) -> None:
        site.templates = {POOL: template}
        site.kill()

    def begin(self, name: str) -> None:
        if not self.nodes[name].alive and name != self.lost:
            self.disturbed()
            self.nodes.again(name)

    def pause(self, name: str, for_ms: int, rounds: int = 0) -> None:
        """SIGSTOP."""
        member = self.nodes[name]
        if member.works:
            self.disturbed()
            self.nodes.half_turn(rounds)
            self.counts["pauses"] += 1
            member.paused = True
            life = member.incarnation

            def on() -> None:
                if member.incarnation == life and member.paused:
                    self.disturbed()
                    member.paused = False

            self.after(for_ms, on)

    def cut(self, name: str, for_ms: int) -> None:
        """It reaches nobody."""
        member = self.nodes[name]
        if member.alive:
            self.disturbed()
            self.counts["cuts"] += 1
            member.cut = True

            def heal() -> None:
                self.disturbed()
                member.cut = False

            self.after(for_ms, heal)

    def reset(self, one: str, other: str) -> None:
        self.disturbed()
        self.counts["resets"] += 1
        self.nodes.unlink(one, other)

    def heal(self) -> None:
        """All is well from now on."""
        self.nodes.slow_ms = (0, 50)
        self.nodes.latency_ms = 0
        self.hangs = self.deaf = 0.0
        for name, site in self.sites.items():
            member = self.nodes[name]
            member.cut = member.paused = False
            member.lag_ms = 0
            member.clock_to_ms = 0
            site.driver.temper = type(site.driver.temper)()
            site.hears_ms = 0
            self.begin(name)
        if self.pool.paused:
            self.nodes.order(c.PausePool(vhost="/", name=POOL, paused=False))
        for group in self.nodes.truth.pools.groups(self.pool.pool_id):
            self.nodes.order(c.DirectGroup(vhost="/", name=POOL, key=group.key, word="unpin"))
        self.disturbed()
        self.calm = True
