"""A node's end of its foreman: launches of the map go there, what it tells goes to the map and to controllers (waits).

    map: launches of this place --> `wants`; lease --> `lease`    (those of others as well, where the place is shared)
    Hello, PlaceRow             --> PlaceTold to all members
    WorkerRow                   --> WorkerTold to the pool's controller
    GoneRow                     --> WorkersGone, and why to the controller

The foreman is told of launches only while the map is caught up: this process is registered in it, so it has all that
was there when the process began. Changes are told together, the more launches there are (`_wants`). It is told of the
lease every LOOK_S, changed or not. A GoneRow comes again until the map has dropped its launch, so a command that fails
is given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.foreman.frames import GoneRow, Hello, LaunchRow, PlaceRow, WorkerRow
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY
from clusterbroker.broker.foreman.spec import Scale, WorkerSpec
from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold, WorkerTold
from clusterbroker.broker.pools.places import InUse, share
from clusterbroker.broker.server.replicas import Replicas
from clusterbroker.broker.server.worker_addresses import worker_addresses
from clusterbroker.cluster.ids import LOCAL_NODE, Incarnation, NodeId
from clusterbroker.cluster.wiring.commands import WorkersGone
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import Launch, MoreSettings, Pool, PoolSettings

if TYPE_CHECKING:
    import asyncio

    from clusterbroker.broker.node.foreman_link import Event
    from clusterbroker.broker.server.foreman_process import ForemanProcess
    from clusterbroker.broker.server.shell import NodeShell
    from clusterbroker.cluster.wiring.map import Applied

LOOK_S: Final = 0.5
WANTS_S: Final = 10e-6
"""Between two looks at the launches of this place there is so much for each of them, some ten times what it costs: a
look costs all of them, and a first request waits for the next one."""
TEXT_MAX: Final = 1000
NUMBER_MAX: Final = 1 << 62
EXIT_MAX: Final = (1 << 32) - 1


class ForemanDesk:
    """Of one life of a node. `begin`, when clients are accepted; `end`."""

    def __init__(self, shell: NodeShell, foreman: ForemanProcess) -> None:
        self._shell = shell
        self._foreman = foreman
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._wants_s = 0.0
        """Loop time before which launches are not looked at again."""
        self._specs: dict[str, LaunchRow] = {}
        self._specs_of: tuple[Any, ...] = ()
        """What the specs were made of, beside their launches."""
        self._lease: tuple[bool, bool] | None = None
        self._replicas = Replicas()

    def begin(self) -> None:
        """The foreman may run already: it lives longer than this life of the node."""
        self._foreman.heard = self.heard
        desk = self._shell.node.pool_desk
        desk.launches_told = self._launches
        desk.tell_again = self._tell_again
        self._place()
        self._look()

    def end(self) -> None:
        """Nothing is told any more."""
        desk = self._shell.node.pool_desk
        desk.launches_told = desk.tell_again = _unasked
        self._foreman.heard = _unheard  # a GoneRow comes again, to the next life
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- to the foreman -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """The lease, and what changed."""
        self._timer = self._shell.loop.call_later(LOOK_S, self._look)
        lease = self._held, self._caught_up
        self._foreman.lease(*lease)  # each time: the foreman takes silence for a lease that is lost
        if lease != self._lease:
            self._lease = lease
            self._soon()
        self._place()
        if self._foreman.link.shared:
            busy = self._replicas.look(self._shell.node, self._shell.node.now_ms)
            if busy is not None:
                self._foreman.busy(busy)

    @property
    def _held(self) -> bool:
        role = self._shell.node.role
        return role is None or role.leased

    @property
    def _caught_up(self) -> bool:
        role = self._shell.node.role
        return role is None or role.registered

    def _launches(self, place: str) -> None:
        if place == self._shell.node.options.name or self._foreman.link.shared:
            self._soon()

    def _soon(self) -> None:
        """Changes of one turn, and those until the next look is due, are told together."""
        if not self._due:
            self._due = True
            self._shell.loop.call_at(self._wants_s, self._wants)

    def _wants(self) -> None:
        self._due = False
        if self._timer is None or not self._caught_up:
            return
        alone = self._shell.node.role is None  # it has a label of its directory, which a copy of that has as well
        elsewhere = self._elsewhere() if self._foreman.link.shared and not alone else None
        self._foreman.wants(self._rows(), self._shell.node.map.applied, elsewhere)
        self._wants_s = self._shell.loop.time() + WANTS_S * len(self._specs)

    def _elsewhere(self) -> dict[str, bool]:
        pools, own = self._shell.node.map.pools, self._shell.node.options.name
        launches = (launch for pool in pools.all() for launch in pools.launches(pool.pool_id))
        return {launch.launch_id: bool(launch.revoked) for launch in launches if launch.place != own}

    def _rows(self) -> Iterator[LaunchRow]:
        pools, own = self._shell.node.map.pools, self._shell.node.options.name
        addresses, key = self._addresses(), self._shell.node.pools.key
        starting = tuple((pool, pools.more(pool.pool_id)) for pool in pools.all() if pool.starts_workers)
        known, made_of = self._specs, (addresses, key, bool(key), starting)
        if made_of != self._specs_of:
            known, self._specs_of = {}, made_of
        self._specs = {}
        for pool, _ in starting:
            for launch in pools.launches(pool.pool_id):
                if launch.place == own:
                    state = "revoked" if launch.revoked else "wanted"
                    row = known.get(launch.launch_id)
                    if row is None or row.state != state:
                        spec = self._spec(pool, launch, addresses) if row is None else row.spec
                        row = LaunchRow(spec=spec, state=state)
                    self._specs[launch.launch_id] = row
                    yield row

    def _spec(self, pool: Pool, launch: Launch, addresses: list[tuple[str, str]]) -> WorkerSpec:
        names, key = self._shell.node.map.pools.names(pool.pool_id), self._shell.node.pools.key
        uris = [key.uri(launch.launch_id, scheme, where, pool.vhost) for scheme, where in addresses] if key else []
        return WorkerSpec(
            worker_id=launch.launch_id,
            pool=pool.name,
            template=pool.template,
            key="" if launch.spare else launch.key,
            spare=launch.spare,
            generation=launch.generation,
            version=launch.version,
            queue="" if launch.spare else names.request_queue(launch.key),
            activity_exchange=names.exchange_of(names.activity),
            prefetch=pool.settings.prefetch,
            grace_s=float(pool.settings.grace_s),
            scale=scale_of(pool.settings, self._shell.node.map.pools.more(pool.pool_id)),
            vhost=pool.vhost,
            uris=tuple(uris),
        )

    def _addresses(self) -> list[tuple[str, str]]:
        """(scheme, host:port). A node that is alone is no member, and may be advertised all the same."""
        own = self._shell.node.options.name
        listeners = [(one.protocol, str(bound)) for one in self._shell.listeners for bound in one.addresses]
        members = {member.name: member.amqp for member in self._shell.node.map.alive_members()}
        advertised = members.pop(NodeId(own), self._shell.options.advertised_amqp)
        return worker_addresses(listeners, advertised, members.values())

    # -- from the foreman ---------------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """What it told."""
        if isinstance(event, GoneRow):
            self._gone(event)
        elif isinstance(event, WorkerRow):
            running = event.state == "running"
            self._tell(event.worker_id, running=running, memory_bytes=_whole(event.memory_bytes))
        else:
            if isinstance(event, Hello) and event.shared:
                self._soon()  # what it was told as it began has nothing of other places
            self._place()
        self._shell.schedule()

    def _tell(self, worker_id: str, *, running: bool = False, memory_bytes: int = 0, why: str = "") -> None:
        node = self._shell.node
        launch = node.map.pools.launch(worker_id)
        if launch is not None:
            node.pool_desk.tell_controller(
                WorkerTold(launch.pool_id, worker_id, memory_bytes, running, why=why[:TEXT_MAX])
            )

    def _gone(self, row: GoneRow) -> None:
        node = self._shell.node
        launch = node.map.pools.launch(row.worker_id)
        if launch is None or launch.place != node.options.name:
            self._soon()  # it is not wanted any more, or never was here
            return
        self._tell(row.worker_id, why=row.why)
        command = WorkersGone(
            at_ms=node.now_ms,
            node=NodeId(node.options.name) if node.role is not None else LOCAL_NODE,
            incarnation=Incarnation(node.options.incarnation),
            ended=(
                Ended(row.worker_id, _exit(row.exit), _whole(row.peak_bytes), out_of_memory=row.why == OUT_OF_MEMORY),
            ),
        )
        node.propose(command, _done)

    def _place(self) -> None:
        link, node = self._foreman.link, self._shell.node
        if not link.templates:
            return
        templates = {
            name: TemplateTold(
                one.version,
                one.driver,
                _whole(one.max_workers),
                _whole(one.memory_bytes),
                one.endpoint[:TEXT_MAX],
                one.rolling,
                _whole(one.surge),
            )
            for name, one in link.templates.items()
        }
        row: PlaceRow | None = link.place
        suspended = {} if row is None else {where[:TEXT_MAX]: why[:TEXT_MAX] for where, why in row.suspended.items()}
        told = PlaceTold(templates, 0 if row is None else _whole(row.memory_bytes), suspended, "memory" in node.alarms)
        if row is not None:
            node.pool_desk.in_use = InUse(_whole(row.running), _whole(row.starting), _whole(row.used_bytes))
        node.pool_desk.tell_place(told)

    def _tell_again(self, pool_id: int) -> None:
        """A controller begins."""
        node = self._shell.node
        for worker_id, row in self._foreman.link.workers.items():
            launch = node.map.pools.launch(worker_id)
            if launch is not None and launch.pool_id == pool_id:
                self._tell(worker_id, running=row.state == "running", memory_bytes=_whole(row.memory_bytes))


def scale_of(settings: PoolSettings, more: MoreSettings) -> Scale | None:
    """Of a launch, where something else has the number of workers. A key that has a group has one worker at least: to
    have none is for the group's end, which the broker decides."""
    if settings.scaling == "own" or settings.scaling == "fixed":
        return None
    least = max(1, settings.min)
    return Scale(by=settings.scaling, least=least, most=max(least, settings.max), backlog=share(settings, more))


def _whole(number: int) -> int:
    """A number of a foreman, within what frames and the map take."""
    return min(max(number, 0), NUMBER_MAX)


def _exit(status: int | None) -> int | None:
    """An exit status that there can be; None for another one."""
    return status if status is not None and 0 <= status <= EXIT_MAX else None


def _done(applied: Applied) -> None:
    """Told again by the foreman, if it failed."""


def _unasked(of: object) -> None:
    """Between two lives."""


def _unheard(event: Event) -> None:
    """Between two lives."""
