"""The thirteen invariants of the design page, judged from the log, from processes and from what clients saw.

No checker asks the product what it counted, but for the need that a controller's policy names (I3), the rest of a node
(I11), and what an owner has in its queue as its group ends (I7).
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.foreman.reconcile import OTHERS_MS
from clusterbroker.broker.pools.group_queue import IDLE_LEAST_MS
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.changes import AssignmentEnded, LaunchChanged
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.simulation.pools.checkers import STARTS_MAX, require

from .nodes import least_ms
from .several import SeveralProcess

if TYPE_CHECKING:
    from .agents import Process, Request
    from .world import World

MINUTE_MS: Final = 60_000
DEADLINE_SLACK_MS: Final = 2_500
"""Clocks of two nodes differ by so much, with a turn and a delivery."""
FENCE_MS: Final = 18_000
"""FENCED_S, and two rounds of LOOK_S, and what a frame and a command are under way."""
ELSEWHERE_MS: Final = FENCE_MS + OTHERS_MS
"""So much later a foreman of another place ends it, where that is shared."""
ROUND_MS: Final = 16_000
"""A foreman tries again so long after a list that failed."""
SETTLE_MS: Final = 10_000
NEED_MS: Final = 20_000
"""So long after its step an order may come into the log."""
STARTED_MS: Final = 20_000
"""A start times out, is revoked, and after its back-off there is another."""
LAG_MS: Final = 2_000
"""A node hears of a command so late."""
CALM_MS: Final = 6_000
KEY_LAG_MS: Final = 300
"""A request is on its way to a worker so long, while nodes are well."""
EXPECTED: Final = ("its place is lost", "its group has ended")
"""Why a worker is revoked that was not retired before; and `not ready`."""


class Checkers:
    """Told what happens; each method or part of one says which invariant it holds against."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._needs: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._retired_ms: dict[str, int] = {}
        self._revoked: dict[str, tuple[int, str]] = {}
        self._fenced_ms: dict[Process, int] = {}
        """Since when the node that a worker is connected to knows that it is revoked."""
        self._unwanted_ms: dict[Process, int] = {}
        """So long a process has run without a launch while its foreman could end it."""
        self._unwanted_elsewhere_ms: dict[Process, int] = {}
        """So while foremen of other places could, without a break."""
        self._epochs: dict[str, tuple[int, int, int]] = {}
        """Queue -> (epoch, since when, launches then)."""
        self._events_ms: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=100))
        """Key -> when workers got or settled its requests."""
        self._starts: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._starts_epoch = 0
        self._ended_ms: dict[str, list[int]] = defaultdict(list)
        self._died_ms: dict[str, int] = {}
        """When workers' processes were seen to have ended."""
        self._gone_ms: dict[str, int] = {}
        """When the log was told that launches are gone, rightly or by a list that lied."""
        self._extra_ms: dict[str, int] = {}
        self._unsure_ms: dict[str, int] = {}
        """When a command about workers of a key was given up: for its controller it is void, yet it may come true."""
        self._launched_ms: dict[str, int] = {}
        self._waiting: dict[str, dict[int, Request]] = defaultdict(dict)
        self._waits_ms: dict[str, int] = {}
        self._alive_ms: dict[str, int] = {}
        self._left: str = ""
        self._key_ended_ms: dict[tuple[str, str], int] = {}
        """Worker of several keys, and key -> when it had it last, if it has it no more."""
        self._guarded = True
        self._active: dict[str, int] = {}
        self._suspects: set[int] = set()
        """Numbers of requests with which a worker was lost."""

    @property
    def _now_ms(self) -> int:
        return self._world.now_ms

    # -- the log

    def proposes(self, command: c.AnyCommand) -> None:
        """A node thinks of it. What its policy needs is asked now: it may die before the moment is over, and its
        command comes into the log all the same."""
        if isinstance(command, (c.LaunchWorkers, c.AssignWorkers)):
            self._note_needs()

    def before(self, command: c.AnyCommand) -> None:
        """The log is about to have it: what its map says before it counts."""
        truth = self._world.nodes.truth
        if isinstance(command, c.OfController):
            pool = truth.pools.get(command.pool_id)
            orphans = None if pool is None else truth.queue_by_id(pool.orphans)
            self._guarded = orphans is not None and orphans.epoch == command.epoch
        if isinstance(command, c.LaunchWorkers):
            self._active = {key: len(self._launches(key)) for key, _, _ in command.workers}
        if isinstance(command, c.AssignWorkers):
            self._active = {key: len(self._launches(key)) for _, key in command.workers}
        if isinstance(command, c.RevokeKeys):
            self._check_given_back(command)
        if isinstance(command, c.DropGroup):
            self._left = self._held_by_owner(command)

    def _launches(self, key: str) -> list[Any]:
        found = self._world.nodes.truth.pools.launches_of(self._world.pool.pool_id, key)
        return [one for one in found if not one.retired and not one.revoked]

    def unsure(self, command: c.AnyCommand) -> None:
        """Its proposer was told that it was given up."""
        keys: set[str] = set()
        if isinstance(command, c.LaunchWorkers):
            keys.update(key for key, *_ in command.workers)
        elif isinstance(command, c.AssignWorkers):
            keys.update((NO_KEY, *(key for _, key in command.workers)))
        elif isinstance(command, c.RetireWorkers | c.RevokeWorkers):
            pools = self._world.nodes.truth.pools
            keys.update(launch.key for one in command.launches if (launch := pools.launch(one)) is not None)
            keys.update(each.key for one in command.launches for each in pools.assignments(one))
        elif isinstance(command, c.RetireKeys | c.RevokeKeys):
            keys.update(key for _, key in command.keys)
        self._unsure_ms.update(dict.fromkeys(keys, self._now_ms))

    def _may_be_more(self, key: str) -> bool:
        """A command about its workers was given up lately."""
        since_ms = max(self._extra_ms.get(key, -NEED_MS), self._unsure_ms.get(key, -NEED_MS))
        return self._now_ms - since_ms < NEED_MS

    def applied(self, applied: Applied) -> None:
        """The log has it, and its map what came of it."""
        command = applied.command
        self._note_owners()
        for change in applied.changes:
            if isinstance(change, LaunchChanged) and change.launch.retired:
                self._retired_ms.setdefault(change.launch.launch_id, self._now_ms)
            elif isinstance(change, AssignmentEnded):
                one = change.assignment
                self._key_ended_ms[one.launch_id, one.key] = self._now_ms
        if not applied.ok:
            return
        if isinstance(command, c.LaunchWorkers):
            require(self._guarded, f"I3: a controller of epoch {command.epoch} launches, and is none any more")
            self._check_launches(applied.result)
        elif isinstance(command, c.AssignWorkers):
            require(self._guarded, f"I3: a controller of epoch {command.epoch} assigns, and is none any more")
            if self._world.keys_per_worker > 1:
                self._check_assigned(command)
                return
            found = (self._world.nodes.truth.pools.launch(launch_id) for launch_id in applied.result)
            self._check_launches(tuple(launch for launch in found if launch is not None))
        elif isinstance(command, c.RetireKeys):
            if applied.result:
                self._settles(command, f"retires {applied.result}: {command.why}")
        elif isinstance(command, c.RetireWorkers):
            self._check_retired(applied.result, command)
        elif isinstance(command, c.RevokeWorkers):
            self._check_revoked(applied.result, command)
        elif isinstance(command, c.WorkersGone):
            self._check_gone(applied.result)
        elif isinstance(command, c.UnbindGroup) and applied.result:
            self._check_unbound(command)
        elif isinstance(command, c.DropGroup) and applied.result:
            require(not self._left, f"I7: the group of {command.key!r} ends with {self._left}")
            self._starts[command.key].clear()
            self._ended_ms[command.key].append(self._now_ms)

    def _note_owners(self) -> None:
        truth = self._world.nodes.truth
        for pool in truth.pools.all():
            for queue_id in (pool.orphans, *(group.queue_id for group in truth.pools.groups(pool.pool_id))):
                queue = truth.queue_by_id(queue_id)
                if queue is not None and self._epochs.get(queue_id, (0,))[0] != queue.epoch:
                    self._epochs[queue_id] = queue.epoch, self._now_ms, len(truth.pools.launches(pool.pool_id))

    def owned_since_ms(self, queue_id: str | None) -> int:
        """Since when a group's queue has its owner, as the log has it; 0: it never was."""
        return 0 if queue_id is None else self._epochs.get(queue_id, (0, 0, 0))[1]

    # -- launches

    def _check_launches(self, launches: tuple[Any, ...]) -> None:
        """I3: launches in the log are at most the need when they were ordered; one whose command was given up, and came
        true all the same, is one too many until it is retired. I9: memory promised at a place is at
        most what it has. I13: a key is started 6 times a minute at most, beside its growth, by one controller."""
        world, truth = self._world, self._world.nodes.truth
        self._note_needs()
        for launch in launches:
            key = launch.key
            active = len(self._launches(key))
            if launch.spare:
                self._check_spares(sum(one.version == launch.version for one in self._launches(key)))  # others go now
                continue
            need = max((need for at_ms, need in self._needs[key] if at_ms >= self._now_ms - NEED_MS), default=1)
            if world.nodes.given_up or active == 1:
                self._extra_ms[key] = self._now_ms if world.nodes.given_up else 0
            extra = self._may_be_more(key)
            most = max(1, need) + 2 * extra
            replaces = len({one.version for one in self._launches(key)}) > 1
            if replaces:
                lately = max(need for _, need in self._needs[key]) if self._needs[key] else 1
                most = max(most, min(world.settings.max, lately) + 1 + 2 * extra)
            require(active <= most, f"I3: {active} launches of {key!r} stand for a need of {need}")
            self._launched_ms[key] = self._now_ms
            if not replaces:  # workers of a new version come one by one
                self._check_pace(key)
        for place in {launch.place for launch in launches}:
            member = truth.member(NodeId(place))
            if any(self._now_ms - at_ms < NEED_MS for at_ms in self._extra_ms.values()):
                continue
            if member is None or not member.alive or self._alive_ms.get(place, 0) > self._now_ms - SETTLE_MS:
                continue
            promised = sum(one.place == place for one in truth.pools.launches(world.pool.pool_id))
            memory = world.sites[place].driver.memory_bytes
            each = world.templates["core"].memory_bytes
            require(promised * each <= memory, f"I9: {place} has {memory} bytes, and {promised} workers of {each}")

    def _check_spares(self, active: int) -> None:
        """I3 of spares: launches without a key are at most as many as the pool has wanted lately."""
        world = self._world
        if world.nodes.given_up:
            self._extra_ms[NO_KEY] = self._now_ms
        extra = self._may_be_more(NO_KEY)
        if world.keys_per_worker > 1:
            most = world.settings.max_workers
            require(active <= most + 2 * extra, f"I3: {active} workers of several keys, and {most} are allowed")
            return
        require(active <= world.spares + 2 * extra, f"I3: {active} spares, and the pool wants {world.spares}")

    def _check_assigned(self, command: c.AssignWorkers) -> None:
        """I3 of workers that serve several keys: a worker has as many as it may, and a key as many workers as it
        needs."""
        world, pools = self._world, self._world.nodes.truth.pools
        self._note_needs()
        for worker, key in command.workers:
            count = len(pools.assignments(worker))
            require(count <= world.keys_per_worker, f"I3: {worker} has {count} keys")
            workers = [one for one, leaves in pools.workers_of(world.pool.pool_id, key).items() if not leaves]
            versions = {launch.version for one in workers if (launch := pools.launch(one)) is not None}
            need = max((need for at_ms, need in self._needs[key] if at_ms >= self._now_ms - NEED_MS), default=1)
            if world.nodes.given_up:
                self._extra_ms[key] = self._now_ms
            extra = self._may_be_more(key)
            most = max(1, need) + 2 * extra + (len(versions) > 1)  # one of a new version comes before the old one goes
            require(len(workers) <= most, f"I3: {len(workers)} workers of {key!r} stand for a need of {need}")

    def _check_given_back(self, command: c.RevokeKeys) -> None:
        """I10 of keys: none is taken from a worker that holds a request of it."""
        if self._now_ms - self._world.disturbed_ms < CALM_MS:
            return
        for worker, key in command.keys:
            for process in self._world.processes:
                holds = [each.number for each in process.held.values() if each.key == key]
                reaches = process.socket is not None and process.socket.open and process.socket.world.accepting
                alike = process.spec.worker_id == worker and reaches
                require(not (alike and holds), f"I10: {worker} holds {holds} of {key!r}, and loses the key")

    def _check_pace(self, key: str) -> None:
        epoch = self._epochs[self._world.pool.orphans][0]
        if epoch != self._starts_epoch:
            self._starts_epoch = epoch
            self._starts.clear()
        # the policy counts by when it orders, not by when the log has it
        starts, at_ms, active = self._starts[key], self._world.nodes.proposed_ms, self._active[key]
        starts.append((at_ms, active))
        self._active[key] += 1
        while starts[0][0] <= at_ms - MINUTE_MS:
            starts.popleft()
        peak = max(before for _, before in starts) + 1
        again = len(starts) - (peak - starts[0][1])
        require(again <= max(STARTS_MAX, peak), f"I13: {key!r} is started {len(starts)} times in a minute")

    def _consumes(self, key: str) -> set[str]:
        """Workers whose consumers the owner of the key's queue has."""
        group = self._world.nodes.truth.pools.group(self._world.pool.pool_id, key)
        queues = [site.node.queues.get(group.queue_id) for site in self._world.nodes.running] if group else []
        return {member.worker for queue in queues if queue is not None for member in queue.subscriptions}

    def _check_retired(self, retired: tuple[str, ...], command: c.RetireWorkers) -> None:
        """I12: in SETTLE_MS after a take-over, by the controller's clock, nothing is retired."""
        if retired:
            self._settles(command, f"retires {retired}: {command.why}")
        if command.why == "an older version" and self._now_ms - self._world.disturbed_ms > CALM_MS:
            for launch_id in retired:
                self._check_replaced(launch_id)

    def _check_replaced(self, launch_id: str) -> None:
        """Rule 59: a worker of an older version is retired when another one of its key serves."""
        launch = self._world.nodes.truth.pools.launch(launch_id)
        assert launch is not None, "it was retired a moment ago"
        if launch.spare:
            return
        others = {one.launch_id for one in self._launches(launch.key)}
        served = self._consumes(launch.key)  # its process may hear a moment later that it does
        ready = [
            each for each in self._world.processes
            if each.spec.worker_id in others and each.alive and (each.ready or each.spec.worker_id in served)
        ]  # fmt: skip
        since_ms = self._now_ms - LAG_MS  # its controller does not know yet that it has ended
        lately = any(
            self._gone_ms.get(each.spec.worker_id, 0) >= since_ms
            if each.alive
            else each.spec.worker_id in others and self._died_ms.get(each.spec.worker_id, self._now_ms) >= since_ms
            for each in self._world.processes
            if each.spec.key == launch.key and each.ready
        )
        require(bool(ready) or lately, f"59: {launch_id} of {launch.key!r} is replaced, and nobody else serves it")

    def _settles(self, command: c.RetireWorkers | c.RevokeWorkers | c.RetireKeys, what: str) -> None:
        require(self._guarded, f"I12: a controller of epoch {command.epoch} {what}, and is none any more")
        _, since_ms, launches = self._epochs[self._world.pool.orphans]
        since_ms = self._now_ms - since_ms
        require(
            not launches or since_ms >= least_ms(SETTLE_MS),
            f"I12: {since_ms} ms after it took over a controller {what}",
        )

    def _check_revoked(self, revoked: tuple[str, ...], command: c.RevokeWorkers) -> None:
        """I10: no worker that holds something is revoked before its grace, which the log begins, is over by the
        controller's clock. I12: after a take-over only those
        are revoked that were retired, or whose place, group or start is lost."""
        grace_ms = 1000 * self._world.settings.grace_s
        expected = command.why in EXPECTED or "ready" in command.why
        for launch_id in revoked:
            self._revoked[launch_id] = self._now_ms, command.why
            if expected:
                require(self._guarded, f"I12: a controller of epoch {command.epoch} revokes, and is none any more")
                continue
            retired_ms = self._retired_ms.get(launch_id)
            if retired_ms is None:
                self._settles(command, f"revokes {launch_id}: {command.why}")
            require(self._guarded, f"I12: a controller of epoch {command.epoch} revokes, and is none any more")
            if self._now_ms - self._world.disturbed_ms < CALM_MS:
                continue
            for process in self._world.processes:
                socket = process.socket
                reaches = socket is not None and socket.open and socket.world.accepting
                if process.spec.worker_id == launch_id and process.held and reaches:
                    waited_ms = -1 if retired_ms is None else self._now_ms - retired_ms
                    require(
                        waited_ms >= least_ms(grace_ms), f"I10: {launch_id} holds, {waited_ms} ms after it was retired"
                    )

    def _check_gone(self, ended: tuple[Any, ...]) -> None:
        """I4: the books of a launch are closed when its process has ended, unless the driver has said so."""
        for launch in ended:
            self._gone_ms[launch.launch_id] = self._now_ms
            site = self._world.sites[launch.place]
            if self._now_ms - site.driver.lied_ms < ROUND_MS:
                continue
            for process in self._world.processes:
                require(
                    not (process.alive and process.spec.worker_id == launch.launch_id),
                    f"I4: {launch.launch_id} is gone by its books, and runs",
                )

    def _check_unbound(self, command: c.UnbindGroup) -> None:
        """I12: after a take-over of its queue, a group's idle time begins anew. And it is not idle while one of its
        requests is handed out or settled."""
        delay_ms = max(IDLE_LEAST_MS, 1000 * self._world.settings.unbind_delay_s) * 9 // 10 - 100
        at_ms = self._world.nodes.proposed_ms
        _, since_ms, _ = self._epochs[command.queue_id]
        idle_ms = at_ms - since_ms
        require(idle_ms >= delay_ms, f"I12: {command.key!r} is unbound {idle_ms} ms after its queue was taken over")
        if at_ms - self._world.disturbed_ms < CALM_MS:
            return
        idle_ms = at_ms - max((event_ms for event_ms in self._events_ms[command.key] if event_ms <= at_ms), default=0)
        require(idle_ms >= delay_ms, f"I12: {command.key!r} is unbound {idle_ms} ms after a request of it")

    def _held_by_owner(self, command: c.DropGroup) -> str:
        """I7: what the queue has, as its owner sees it, when its group ends."""
        entity = self._world.nodes.truth.queue_by_id(command.queue_id)
        site = None if entity is None or entity.owner is None else self._world.nodes[entity.owner]
        queue = None if site is None or not site.alive else site.node.queues.get(command.queue_id)
        if queue is None:
            return ""
        ring = queue.ring  # type: ignore[attr-defined]
        rows = ring.living(1, ring.next_seq - 1, 9)
        return f"{len(rows)} requests in its queue" if rows else ""

    # -- workers

    def process_begins(self, process: Process) -> None:
        """I4: per launch at most one live process."""
        for other in self._world.processes:
            require(
                not (other.alive and other.spec.worker_id == process.spec.worker_id),
                f"I4: {process.spec.worker_id} is started twice",
            )

    def process_ended(self, process: Process) -> None:
        self._unwanted_ms.pop(process, None)
        self._fenced_ms.pop(process, None)

    def handed(self, request: Request, process: Process) -> None:
        """I2: no request reaches another key's worker. I5: nothing is handed to a revoked worker. I1: nothing is handed
        out after its time. And rule 35."""
        if isinstance(process, SeveralProcess):
            self._check_its_own(request, process)
        else:
            require(request.key == process.spec.key, f"I2: a request of {request.key!r} comes to {process.spec.key!r}")
            launch = self._world.nodes.truth.pools.launch(process.spec.worker_id)
            given = request.key if launch is None else launch.key
            what = f"I2: {process.spec.worker_id} serves {request.key!r}, and was given {given!r}"
            require(request.key == given, what)
        self._fenced(process, "gets a request")
        late_ms = self._now_ms - request.deadline_ms
        require(late_ms < DEADLINE_SLACK_MS, f"I1: request {request.number} is handed out {late_ms} ms after its time")
        self._check_alone(request, process)
        self._events_ms[request.key].append(self._now_ms)

    def _check_its_own(self, request: Request, process: SeveralProcess) -> None:
        """I2 of workers that serve several keys: the log has given it the key, or has taken it a moment ago."""
        worker, key, truth = process.spec.worker_id, request.key, self._world.nodes.truth
        require(key in process.keys, f"I2: a request of {key!r} comes to {worker}, which serves {sorted(process.keys)}")
        if truth.pools.launch(worker) is None or truth.pools.assignment(worker, key) is not None:
            return
        if self._now_ms - self._world.disturbed_ms < CALM_MS:
            return
        late_ms = self._now_ms - self._key_ended_ms.get((worker, key), -LAG_MS)
        require(late_ms < KEY_LAG_MS, f"I2: {worker} gets a request of {key!r} {late_ms} ms after it had it last")

    def _fenced(self, process: Process, what: str) -> None:
        since_ms = self._fenced_ms.get(process)
        require(
            since_ms is None or self._now_ms - since_ms < 200,
            f"I5: {process.spec.worker_id} {what}, and its node knows that it is revoked",
        )

    def _check_alone(self, request: Request, process: Process) -> None:
        """Rule 35: a request with which a worker was lost is handed to one that holds nothing, and nothing is handed
        out beside it, until it has ended."""
        if not self._world.checks_suspects:
            return
        beside = [other.number for other in process.held.values()]
        together = [number for number in (request.number, *beside) if number in self._suspects]
        what = f"{process.spec.worker_id} gets request {request.number} beside {beside}"
        require(not beside or not together, f"rule 35: {what}, and workers were lost with {together}")

    def returned(self, request: Request, process: Process) -> None:
        """A worker lost its connection with it."""
        self._suspects.add(request.number)

    def acknowledged(self, request: Request, process: Process) -> None:
        """I5: a revoked worker settles nothing."""
        self._fenced(process, "settles a request")
        self._events_ms[request.key].append(self._now_ms)
        self._waiting[request.key].pop(request.number, None)

    # -- at the end of a tick

    def look(self) -> None:
        """I5 (who is fenced by now), I6, I8, and the needs that I3 goes by."""
        self._note_needs()
        for process in self._world.processes:
            if process.alive:
                self._look_at(process)
            else:
                self._died_ms.setdefault(process.spec.worker_id, self._now_ms)
        self._check_foreign()
        for name in self._world.sites:
            member = self._world.nodes.truth.member(NodeId(name))
            if member is None or not member.alive:
                self._alive_ms[name] = self._now_ms
        self._check_waiting()

    def _note_needs(self) -> None:
        orphans = self._world.pool.orphans
        for site in self._world.nodes.running:
            queue = site.node.queues.get(orphans)
            policy = queue.fleet._policy if isinstance(queue, OrphanQueue) and queue.fleet is not None else None
            for key, need in policy.needs.items() if policy is not None else ():
                past = self._needs[key]
                if not past or past[-1][1] != need:
                    if past:
                        past.append((self._now_ms, past[-1][1]))
                    past.append((self._now_ms, need))
                else:
                    past[-1] = self._now_ms, need
                while past[0][0] < self._now_ms - MINUTE_MS - NEED_MS:
                    past.popleft()

    def _look_at(self, process: Process) -> None:
        """I6: no process lives without a launch for longer than a fence and two rounds, while its foreman is there and
        its driver answers; none at all when its launch was given up as its place's was."""
        world, worker_id = self._world, process.spec.worker_id
        socket = process.socket
        if socket is not None and socket.open and socket.world.works:
            known = socket.world.map.pools.launch(worker_id)
            if known is None or known.revoked:
                self._fenced_ms.setdefault(process, self._now_ms)
        else:
            self._fenced_ms.pop(process, None)
        launch = world.nodes.truth.pools.launch(worker_id)
        if launch is not None and not launch.revoked:
            return
        place = process.driver.place
        site = world.sites[place]
        could = self._now_ms - process.driver.silent_ms > ROUND_MS and self._now_ms - site.gone_ms > 45_000
        own = not world.shared  # its foreman ends it without a lease
        if own and launch is not None and launch.revoked == "its place is lost" and could and site.life is not None:
            since_ms = self._now_ms - self._revoked[worker_id][0]
            require(since_ms < 1_000, f"I6: {worker_id} runs {since_ms} ms after its place was given up")
        if self._is_able(place):
            ran_ms = self._unwanted_ms[process] = self._unwanted_ms.get(process, 0) + 100
            require(ran_ms <= FENCE_MS, f"I6: {worker_id} runs without a launch for {ran_ms} ms")
        if world.shared:
            able = any(self._is_able(other) for other in world.sites if other != place)
            ran_ms = self._unwanted_elsewhere_ms[process] = (
                self._unwanted_elsewhere_ms.get(process, 0) + 100 if able else 0
            )
            what = f"{worker_id} of {place} runs without a launch for {ran_ms} ms, and other foremen see it"
            require(ran_ms <= ELSEWHERE_MS, f"I6: {what}")

    def _is_able(self, place: str) -> bool:
        """Its foreman is there, with a lease, and has been for long; its driver answers."""
        member, site = self._world.nodes[place], self._world.sites[place]
        able = member.leased and member.accepting and site.life is not None and not site.life.winds_up
        return able and self._now_ms - max(site.driver.silent_ms, site.gone_ms) > ROUND_MS

    def ended_elsewhere(self, worker_id: str) -> None:
        """I4, I6: a foreman ends a worker of another place, which is shared: only what the log has ended."""
        launch = self._world.nodes.truth.pools.launch(worker_id)
        require(launch is None or bool(launch.revoked), f"I6: {worker_id} is wanted, and ended by another's foreman")

    def _check_foreign(self) -> None:
        """I6, the other side of it: processes of another cluster are left alone."""
        for site in self._world.sites.values():
            require(len(site.driver.foreign) == 2, f"I6: a process of another cluster at {site.member.name} is ended")

    def _check_waiting(self) -> None:
        """I8: a key whose requests wait has a worker starting within the bound, while nodes are well."""
        world = self._world
        if self._now_ms - world.disturbed_ms < CALM_MS or world.pool.paused or not world.checks_waiting:
            self._waits_ms.clear()
            return
        serving = {each.spec.key for each in world.processes if each.alive and each.ready and each.term_ms is None}
        for request in world.new_requests():
            if not request.later_ms:
                self._waiting[request.key][request.number] = request
        for key, waiting in self._waiting.items():
            for number in [n for n, each in waiting.items() if each.refused or each.deadline_ms < self._now_ms]:
                del waiting[number]
            if not waiting or key in serving or self._fails(key):
                self._waits_ms.pop(key, None)
                continue
            since_ms = max(self._waits_ms.setdefault(key, self._now_ms), self._launched_ms.get(key, 0))
            waited_ms = self._now_ms - since_ms
            require(waited_ms <= STARTED_MS, f"I8: {key!r} waits, and no worker was started for {waited_ms} ms")

    def _fails(self, key: str) -> bool:
        """Its callers are told that starts fail."""
        nodes = self._world.nodes
        group = nodes.truth.pools.group(self._world.pool.pool_id, key)
        for site in nodes.running if group is not None else ():
            queue = site.node.queues.get(group.queue_id)
            if queue is not None and getattr(queue, "_failing_ms", 0) > site.now_ms:
                return True
        return False

    # -- at the end

    def rest(self) -> None:
        """I11: with no load everything is gone after the delays but the spares, and nothing ticks."""
        world, pools = self._world, self._world.nodes.truth.pools
        groups = {group.key: group for group in pools.groups(world.pool.pool_id)}
        require(not groups, f"I11: without load these groups stay: {groups}")
        launches = {one.launch_id: one for one in pools.launches(world.pool.pool_id)}
        spares = [one for one in launches.values() if one.spare]
        require(len(spares) == len(launches), f"I11: without load these launches stay: {launches}")
        wanted = pools.spares(world.pool.pool_id)
        require(len(spares) == wanted, f"I11: without load {wanted} spares are wanted: {spares}")
        running = [
            each.spec.worker_id for each in world.processes if each.alive and each.spec.worker_id not in launches
        ]
        require(not running, f"I11: without load these processes run: {running}")
        for site in world.nodes.running:
            require(site.node.at_rest, f"I11: {site.name} has something to do")
            queue = site.node.queues.get(world.pool.orphans)
            if isinstance(queue, OrphanQueue) and queue.fleet is not None:
                next_s = queue.fleet.next_s(site.now_ms / 1000)
                require(next_s is None and not queue.fleet.wakes, f"I11: the controller at {site.name} ticks")
        require(not world.nodes.ordering, f"I11: {world.nodes.ordering} commands are under way")

    def _meets_the_end(self, request: Request) -> bool:
        """Published to the name of a queue that ends while it is under way there: as to any queue that is deleted."""
        since_ms = request.published_ms
        return request.by_name and any(
            since_ms - LAG_MS <= at_ms <= request.deadline_ms - request.ttl_ms + LAG_MS
            for at_ms in self._ended_ms[request.key]
        )

    def ends(self) -> None:
        """I1: every accepted request has ended in one of: answered by a worker, answered dead. It is answered dead once
        at most, and answered once in all unless an acknowledgement may have been lost. Rule 35: the guilty
        alone reach their limit."""
        for request in self._world.requests:
            what = f"I1: request {request.number} of {request.key!r}"
            answers = request.oks + len(request.errors)
            lost = request.confirmed and not answers and not self._meets_the_end(request)
            require(not lost, f"{what} was accepted, and is lost: {request}")
            require(len(request.errors) <= 1, f"{what} is answered dead {len(request.errors)} times: {request}")
            require(answers <= 1 or request.doubts > 0, f"{what} is answered {answers} times: {request}")
            require(request.oks <= len(request.handed), f"{what} is answered by nobody: {request}")
            innocent = self._world.checks_suspects and not request.poison
            require(not innocent or "delivery_limit" not in request.errors, f"rule 35: {what} dies of another's guilt")
