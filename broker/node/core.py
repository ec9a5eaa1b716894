"""The core of one node: connections, virtual hosts and queues, without a socket, a file or a clock.

The shell (`broker.server.shell`) calls in with events and the time, and takes out what the node wants:

    proposals    commands for the wiring log; `done` hears of the result when the command is applied
    loads        messages to read from the journal; the answer goes to `loaded`
    checks       passwords and tokens to verify off the loop; the answer goes to the connection
    writes       queues with records for the next group commit: `write_group`, then `group_committed`
    sending      clients with bytes to send
    next_wake_ms when `turn` must be called even if nothing happens

One loop turn of a busy node: sockets are read (`ClientCore.receive`), `turn` lets every marked queue hand out, and
the shell persists, then sends. What must not be said before it is durable is not in a buffer before
`group_committed`: confirms are tickets until then (`broker.queues.ticket`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from clusterbroker.broker.node import effects, grouping, queue_factory, reactions
from clusterbroker.broker.node.alerts import Alerts
from clusterbroker.broker.node.counts import Churn, Flows
from clusterbroker.broker.node.damages import Damages
from clusterbroker.broker.node.dead_letters import DeadLetters
from clusterbroker.broker.node.effects import Check, StreamLoad
from clusterbroker.broker.node.effects import Group as Group
from clusterbroker.broker.node.effects import Load as Load
from clusterbroker.broker.node.ends import Ends
from clusterbroker.broker.node.histories import Histories
from clusterbroker.broker.node.link_recovery import LinkRecovery
from clusterbroker.broker.node.links import Links
from clusterbroker.broker.node.log import Fault, Log, Silence
from clusterbroker.broker.node.log_clock import LogClock
from clusterbroker.broker.node.mistakes import SettingAside
from clusterbroker.broker.node.occupancy import Occupancy
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.node.pool_desk import PoolDesk
from clusterbroker.broker.node.pools import NodePools
from clusterbroker.broker.node.postponed import Postponed
from clusterbroker.broker.node.sole_connections import SoleConnections
from clusterbroker.broker.node.verdicts import SharedVerdicts
from clusterbroker.broker.node.vhost import VirtualHost
from clusterbroker.broker.node.wakes import Wakes, earliest
from clusterbroker.broker.node.watching import Watching
from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.effort import TURN, Effort
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.host import Loaded
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.labour import Labour
from clusterbroker.broker.streams.streams import Streams
from clusterbroker.broker.transactions.moving import Moving
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import changes
from clusterbroker.cluster.wiring.commands import (
    AnyCommand,
    CommitTransaction,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    ExchangeDeclaration,
    RemoveConnection,
)
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.exchange_rules import STAGING
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import GroupWriter, Message, SegmentUse
from clusterbroker.journal.stream_catalogue import Filing, Taken, Wish

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ChannelCore, ClientCore, SocketCore
    from clusterbroker.broker.node.member import MemberRole
    from clusterbroker.broker.remote.replies import Replies, Target
    from clusterbroker.broker.stats.inspection import Asks

RATE_MS = 8
REFUSED_MS = 1000
"""When the node asks the wiring log again for what a full disk refused."""
PATIENCE_BYTES_PER_MS = 64 << 10
"""More than this published (64 MB/s) is worth sparing the disk."""

Done = Callable[[Applied], None]
Entropy = Callable[[int], bytes]
"""So many random bytes that nobody can foretell. A core has none of its own; a simulated node gets them by its seed."""


class Node:
    """The node's core. `cluster_map` is shared with the wiring log, which alone changes it."""

    def __init__(
        self, options: NodeOptions, cluster_map: ClusterView, use: SegmentUse | None = None, log: Log | None = None, *,
        entropy: Entropy,
    ) -> None:  # fmt: skip
        self._entropy = entropy
        self.options = options
        self.map = cluster_map
        self.use = use
        self.log: Log = log or Silence()
        self.cluster_name = f"clusterbroker@{options.name}"
        self.turns_away = False
        """It drains: no client may stay, nor open a connection, but for its own management process."""
        self.now_ms = 0
        self.log_clock = LogClock()
        self.churn = Churn()
        self.occupancy = Occupancy()
        self.flows = Flows()
        self.watching: Watching = Watching(self)
        self.watches = self.watching.watches
        self.vhosts: dict[str, VirtualHost] = {}
        self.queues: dict[int, LocalQueue] = {}
        self.clients: dict[str, ClientCore] = {}
        self.reply_targets: dict[str, Target] = {}
        self.replies: Replies | None = None  # the way to requesters at other nodes
        self.links = Links()
        self.alarms: dict[str, None] = {}
        self.alerts: Alerts = Alerts(self.log, lambda: self.now_ms)
        self.damages: Damages = Damages(self)
        self.congested: Mapping[Any, None] = {}
        """Queues elsewhere that have too much uncommitted: who publishes to them waits."""
        self.alarms_elsewhere: dict[str, tuple[str, ...]] = {}
        """Of other nodes, which own queues that clients of this node publish to."""
        self.role: MemberRole | None = None
        """What the node is to others; None: it is alone."""
        self.authorization_generation = 0
        self.verdicts = SharedVerdicts()
        self.exchange_count = 0
        self.unwritten_bytes = 0
        self.partial_bytes = 0
        """Of contents that clients have not sent to their end."""
        self.alarms_told: Callable[[], None] = lambda: None
        """Called when the alarms of this node, or of another one, are others than before."""
        self.throttled = False
        # what the shell takes out
        self.proposals: list[tuple[AnyCommand, Done]] = []
        self.loads: list[Load | StreamLoad] = []
        self.checks: list[Check] = []
        self.writes: dict[LocalQueue, None] = {}
        self.touched: dict[Ring, None] = {}  # for the next checkpoint
        self.forgotten: list[int] = []  # queue ids whose journal is to be dropped
        self.set_aside: dict[int, Ring] = {}
        """What the journal has of queues that the wiring does not know, neither that they are nor that they were
        deleted: kept until it does, at a later start."""
        self.filings: list[Filing] = []  # of streams, for the checkpoint that was just taken
        self.files_streams = False  # the journal has files for them: else they stay in their rings
        self.sending: dict[SocketCore, None] = {}
        self.confirming: dict[ChannelCore, None] = {}  # with confirms to send
        self._barriers: list[Ticket] = []
        self._group_barriers: list[Ticket] = []
        self._group_in_flight = self._undivided = False
        self._group_count = 0
        self._dead_letters = DeadLetters(self)
        self.due = self._dead_letters.due
        self.effort = Effort()
        self.labour = Labour()
        self.setting_aside = SettingAside(self)
        self.postponed = Postponed(self)
        self.stopwatch: Callable[[], int] = lambda: 0  # ns since some moment; a node without a shell has none
        self.inspects: Asks | None = None  # a node without a shell looks at no single messages for its clients
        self.longest: LocalQueue | None = None  # whose turn took longest of those since its time was last set to 0
        self.longest_ns = 0
        self.moving = Moving(self)
        self.ends = Ends(self)
        self.histories = Histories(self)
        self.recovery = LinkRecovery(self)
        self.pool_desk: PoolDesk = PoolDesk(self)
        self.pools = NodePools(self)
        self.sole_connections = SoleConnections(self, self.ends)
        self.urgent = False  # somebody waits for the next group; otherwise it holds acknowledgements only
        self._rate_since_ms = self._rate_bytes = 0
        self._patient = False
        self.agenda: list[LocalQueue] = []
        self.streams: Streams = Streams(self, int(self.options.incarnation))
        self._wakes = Wakes()
        self._serial = 0

    # -- connections ------------------------------------------------------------------------------------------

    def connection_id(self) -> str:
        self._serial += 1
        return f"{self.options.name}.{self.options.incarnation}.{self._serial}"

    def unique(self) -> str:
        """A name part that no other node, no other start and no earlier call has given."""
        self._serial += 1
        return f"{self.options.name}-{self.options.incarnation:x}-{self._serial}"

    def secret_name(self) -> str:
        """A name part that says where it was made, as `unique` does, and that nobody else can guess: for names whose
        knowledge is a right. `broker.remote.replies` reads node and start from it."""
        return f"{self.options.name}-{self.options.incarnation:x}-{self._entropy(16).hex()}"

    def requester(self, vhost: str, key: str) -> Target | None:
        """Direct reply-to: the channel of this node that waits for replies by this key, in this vhost."""
        target = self.reply_targets.get(key)
        return target if target is not None and target.vhost_name == vhost else None

    def reply(self, vhost: str, key: str, message: Message) -> bool:
        """Direct reply-to: hands the message to the channel that waits for it, here or elsewhere, if there is one."""
        target = self.requester(vhost, key)
        if target is not None:
            target.reply(message)
            return True
        return self.replies is not None and self.replies.send(vhost, key, message)

    def seek_requester(self, vhost: str, key: str, then: Callable[[bool], None]) -> None:
        """Direct reply-to: whether the requester of this key is still there, here or at another node."""
        if self.replies is not None:
            self.replies.seek(vhost, key, then)
        else:
            then(self.requester(vhost, key) is not None)

    def remove_connection(self, connection_id: str, then: Callable[[], None] = lambda: None) -> None:
        """Ends the queues that were exclusive to it; `then` is called when that was tried. Their names stay locked
        until it is done: with a full disk for a while."""
        command = RemoveConnection(connection=connection_id)
        self.ends.order(command, then, more=lambda: bool(self.map.exclusive_queues(connection_id)))

    def log_fault(self, client: SocketCore, error: Fault, channel: int) -> None:
        self.log.fault(client.peer, client.user, channel, error)

    def log_cut(self, client: SocketCore, why: str) -> None:
        self.log.cut(client.peer, client.user, why)

    def propose(self, command: AnyCommand, done: Done) -> None:
        if self.role is not None and isinstance(command, (DeclareQueue, ExchangeDeclaration)):
            name, incarnation = NodeId(self.options.name), Incarnation(self.options.incarnation)
            command = replace(command, owner=name, incarnation=incarnation)
        if isinstance(command, CommitTransaction) or (isinstance(command, DeclareExchange) and command.type == STAGING):
            command = replace(command, lived_ms=self.log_clock.lived_ms(self.now_ms))
        reactions.order(self, command, done)

    @property
    def low_on_memory(self) -> bool:
        return "memory" in self.alarms

    def set_alarm(self, name: str, raised: bool) -> None:
        """A resource alarm ("memory", "disk"): publishers are blocked while any is raised (amqp-rules 5.2)."""
        before = bool(self.alarms)
        if raised:
            self.alarms[name] = None
        else:
            self.alarms.pop(name, None)
        if self.role is not None:
            self.role.alarms.changed()
        if bool(self.alarms) != before:
            self._alarms_changed()
        self.alarms_told()

    def set_alarms_elsewhere(self, node: str, names: tuple[str, ...]) -> None:
        """Those of another node: its queues take nothing."""
        if names:
            self.alarms_elsewhere[node] = names
        else:
            self.alarms_elsewhere.pop(node, None)
        self._alarms_changed()
        self.alarms_told()

    def _alarms_changed(self) -> None:
        for client in tuple(self.clients.values()):
            self.setting_aside.notify(client, client.alarmed)

    # -- the wiring -------------------------------------------------------------------------------------------

    def apply(self, happened: Sequence[changes.Change]) -> None:
        """What a command changed, in log order, before its proposer hears of it."""
        reactions.carry_out(self, happened)

    def react(self, change: changes.Change) -> None:
        reactions.react(self, change)

    def adopt(self, rings: dict[int, Ring]) -> None:
        """Builds the node from the map at start; `rings` are those with recovered messages, by queue id."""
        self.log_clock.passed(self.map.time, self.now_ms)
        for vhost in self.map.vhosts():
            self.react(changes.VhostAdded(vhost.name))
            for exchange in self.map.exchanges(vhost.name):
                self.react(changes.ExchangeDeclared(exchange))
            for queue in (*self.map.queues(vhost.name), *self.map.staging_queues(vhost.name)):
                if self.role is not None:
                    self.role.declared(queue, rings.get(queue.queue_id), found=True)
                else:
                    self.add_queue(queue, rings.get(queue.queue_id))
            for binding in self.map.bindings(vhost.name):
                self.react(changes.Bound(binding))
            for segment in self.map.segments(vhost.name):
                self.react(changes.SegmentOpened(segment))

    def new_ring(self, entity: QueueEntity, replica: bool = False) -> Ring:
        return queue_factory.new_ring(self, entity, replica)

    def add_queue(self, entity: QueueEntity, ring: Ring | None = None) -> None:
        """A queue that lives here and nowhere else."""
        queue = queue_factory.new_queue(self, entity, ring)
        self.queues[entity.queue_id] = queue
        self.add_handle(entity, queue)
        self.moving.own(queue)
        self.recovery.own(queue)
        self.setting_aside.began(queue)

    def add_handle(self, entity: QueueEntity, handle: QueueHandle) -> None:
        """What sessions and routes of this node hold instead of the queue."""
        vhost = self.vhosts[entity.vhost]
        if entity.staging:
            vhost.staging[entity.name] = handle
            return
        self.watching.began(entity.vhost, handle)
        vhost.add_queue(entity.name, handle, keyless=self.map.pools.takes_no_keys(entity.queue_id))
        reactions.queue_begins(self, vhost, entity)

    def forget_ring(self, ring: Ring) -> None:
        """What the journal has of it is not wanted any more."""
        if not ring.destroyed:
            ring.destroy()
        self.touched.pop(ring, None)
        if ring.journaled:
            self.forgotten.append(ring.queue_id)

    # -- what queues ask (broker.queues.log.Host) -----------------------------------------------------------

    @property
    def ages_by_ms(self) -> int | None:
        return self.log_clock.ages_by(self.now_ms)

    def load(self, queue: LocalQueue, locations: list[Location], loaded: Loaded) -> None:
        effects.load(self, queue, locations, loaded)

    def fetch(
        self, queue: LocalQueue, locations: Sequence[Location], then: Callable[[Sequence[Message]], None],
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        effects.fetch(self, queue, locations, then, otherwise)

    def read_stream(self, queue: LocalQueue, wish: Wish, then: Callable[[Taken], None]) -> None:
        effects.read_stream(self, queue, wish, then)

    def begins_late(self, queue: LocalQueue, offset: int) -> None:
        self.log.begins_late(queue.entity.vhost, queue.name, offset)

    def loaded(self, load: Any, content: Sequence[Message] | Taken) -> None:
        """What a Load or StreamLoad asked for."""
        queue = self.queues.get(load.queue_id)
        if queue is None:
            load.then(content)
        else:
            self.setting_aside.work(queue, load.then, content)

    def write(self, queue: LocalQueue) -> None:
        if self._awaits_copies(queue):
            return  # asked again when that is committed
        self.writes[queue] = None
        self.urgent = self.urgent or queue.ring.urgent

    def rest(self, queue: LocalQueue) -> None:
        """It was marked because something was published to it just now. While its last group is on its way to the
        copies a turn could neither write nor hand that out, and the commit of that group marks it again."""
        if self._awaits_copies(queue) and self.agenda and self.agenda[-1] is queue:
            self.agenda.pop()
            queue.ring.marked = False

    def _awaits_copies(self, queue: LocalQueue) -> bool:
        """Whether its last group is on its way to the copies: its records cannot go into the next one."""
        role = self.role
        return role is not None and queue.ring.replicated and not role.copying.primary.may_write(queue.entity.queue_id)

    def later(self, queue: LocalQueue) -> None:
        self.postponed.later[queue] = None

    def stumbled(self, queue: QueueHandle, error: Exception, seq: int = 0) -> None:
        self.setting_aside.stumbled(queue, error, seq)

    @property
    def dead_lettering(self) -> bool:
        return self._dead_letters.dead_lettering

    def wake(self, queue: LocalQueue, at_ms: int) -> None:
        self._wakes.wish(queue, at_ms)

    def moves(self, segment_id: int) -> bool:
        return self.moving.moves(segment_id)

    def routed(self, vhost: str, exchange: str, rows: int, copies: int, lost: int) -> None:
        counts = self.vhosts[vhost].counts(exchange)
        counts.publish_in += rows
        counts.publish_out += copies
        counts.drop_unroutable += lost

    def keeps(self, queue: LocalQueue, segment_id: int) -> None:
        self.moving.keeps(queue, segment_id)

    def end(self, queue: LocalQueue) -> None:
        entity = queue.entity
        command = DeleteQueue(vhost=entity.vhost, name=entity.name, queue_id=entity.queue_id, epoch=entity.epoch)

        def done(applied: Applied) -> None:
            if isinstance(applied.error, Unavailable) and not queue.deleted:
                queue.survived()
                self.wake(queue, self.now_ms + REFUSED_MS)

        self.propose(command, done)

    def repeated(self, queue: LocalQueue) -> None:
        self.vhosts[queue.entity.vhost].counts(queue.entity.compares).drop_repeated += 1

    def dead_letter(self, queue: LocalQueue, message: Message, reason: Reason) -> None:
        self._undivided = True
        self._dead_letters.publish(queue, message, reason)

    def dead_letter_once(
        self, queue: LocalQueue, message: Message, reason: Reason, number: int, ticket: Ticket
    ) -> bool:
        return self._dead_letters.publish_once(queue, message, reason, number, ticket)

    # -- the turn ---------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, goes_on: bool = False) -> None:
        """Lets every marked queue work until none is marked, then says the confirms that came of it. `goes_on`: it is
        the same turn of the loop, and what it may do has been done in part."""
        self.now_ms = now_ms
        if not goes_on:
            self.effort.left = TURN
            self.postponed.begin_turn()
            if self.role is not None and self.role.arrears.owing:
                self.role.go_on()
        self._wakes.mark(now_ms)
        if (links_ms := self.links.next_ms) is not None and links_ms <= now_ms:
            self.links.turn(now_ms, self.setting_aside.link)
        self.recovery.turn(now_ms)
        self.ends.turn(now_ms)
        self.histories.turn(now_ms)
        self._work(now_ms)
        while self._barriers and not self.writes and not self._group_in_flight:
            self._pass(self._barriers)
            self._work(now_ms)  # who waited goes on, perhaps to the next commit
        if self.effort.owed or self.throttled:
            self.review_throttle()
        if self.confirming:
            self.flush_confirms()

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Calls it in the next turn, or a later one if others there are much work already."""
        self.postponed.soon.append(goes_on)

    def _work(self, now_ms: int) -> None:
        agenda = self.agenda
        moved = True
        while agenda or moved:
            while agenda:
                due = agenda[:]
                agenda.clear()
                at_ns = self.stopwatch()
                for queue in due:
                    try:
                        queue.turn(now_ms)
                    except Exception as error:
                        self.stumbled(queue, error)
                    before_ns, at_ns = at_ns, self.stopwatch()
                    if at_ns - before_ns > self.longest_ns:
                        self.longest, self.longest_ns = queue, at_ns - before_ns
            moved = self.role is not None and self.role.turn(now_ms)
            if self.watches:
                moved = self.watching.turn() or moved
            if self.moving.due or self.moving.is_late(now_ms):
                self.moving.turn(now_ms)

    @property
    def busy(self) -> bool:
        """Something is marked: `turn` must be called again."""
        late = self.role is not None and self.role.arrears.owing and self.role.arrears.due
        return bool(self.agenda or self.postponed.soon or self.postponed.later or late)

    @property
    def at_rest(self) -> bool:
        """A turn would find nothing to do but what is due by the clock."""
        return not (
            self.agenda or self.writes or self.proposals or self.sending or self.confirming or self._barriers
            or self.postponed.soon or self.postponed.later
            or self.loads or self.checks or (self.role is not None and not self.role.at_rest)
        )  # fmt: skip

    @property
    def next_wake_ms(self) -> int | None:
        role = None if self.role is None else self.role.next_wake_ms
        return earliest(
            (self._wakes.next_ms, self.moving.next_wake_ms, self.links.next_ms, self.recovery.next_ms,
             self.ends.next_ms, self.histories.next_ms, role)
        )  # fmt: skip

    @property
    def newest_group(self) -> int:
        """Number of the last group that was made: all that was written until now is durable with it."""
        return self._group_count

    def flush_confirms(self) -> None:
        while self.confirming:
            channels = tuple(self.confirming)
            self.confirming.clear()
            for channel in channels:
                try:
                    channel.flush_confirms()
                except Exception as error:
                    channel.connection.crashed(error)

    def barrier(self, ticket: Ticket) -> None:
        """Passes the ticket when all that was done until now is durable."""
        self._barriers.append(ticket)
        self._undivided = self.urgent = True

    @staticmethod
    def _pass(tickets: list[Ticket]) -> None:
        passed = tickets[:]
        tickets.clear()
        for ticket in passed:
            ticket.pass_()

    # -- the journal ------------------------------------------------------------------------------------------

    @property
    def wants_group(self) -> bool:
        """Something waits to be written."""
        return bool(self.writes) or (self.role is not None and self.role.copying.waits)

    @property
    def wants_group_now(self) -> bool:
        """Somebody waits for it."""
        return self.urgent or (self.role is not None and self.role.copying.waits)

    def group_bytes(self, room: int = 0) -> int:
        """About so many bytes the next group will take: more than `room`, what a segment has left, and a new segment
        begins with it."""
        return grouping.expected_bytes(self, self._undivided, room)

    def write_group(self, writer: GroupWriter, now_ms: int) -> Group:
        """Puts the records of all waiting queues into one group, and what this node holds for other owners.

        A group holds everything that the turns before it did, so what belongs together is never cut in two, but for
        very much (`grouping`). When much is published (`_patient`) and nothing belongs together, messages are left out
        that came just now and have consumers: most are acknowledged before they are PATIENCE_MS old and need no disk.
        """
        # what came since the turn may have one half in a queue that writes, the other in one that is only marked
        role = self.role
        if self.agenda or self.moving.due or role is not None:
            self._work(now_ms)
        self._group_count += 1
        queues, sync, parted = grouping.fill(self, writer, self._undivided, self._patient, now_ms)
        self._undivided = parted
        self._group_in_flight = True
        if not parted:
            self._group_barriers, self._barriers = self._barriers, []
        if role is None:
            return Group(self._group_count, queues, [], sync)
        sync = role.copying.write_copies(writer, self._group_count) or sync
        return Group(self._group_count, queues, role.cut(self._group_count, now_ms), sync)

    def group_committed(self, group: Group, now_ms: int) -> None:
        self.now_ms = now_ms
        for queue, upto in group.queues:
            self.setting_aside.work(queue, queue.committed, upto)
            if not queue.deleted:
                self.touched[queue.ring] = None
        if self.role is not None:
            self.role.group_durable(group, now_ms)
        self._group_in_flight = False
        self._pass(self._group_barriers)
        self.review_throttle()
        self.flush_confirms()

    def published(self, size: int) -> None:
        """So many bytes were taken for journaled queues."""
        self.unwritten_bytes += size
        self._rate_bytes += size
        elapsed_ms = self.now_ms - self._rate_since_ms
        if elapsed_ms >= RATE_MS:
            self._patient = self._rate_bytes > elapsed_ms * PATIENCE_BYTES_PER_MS
            self._rate_since_ms, self._rate_bytes = self.now_ms, 0
        if self.unwritten_bytes > self.options.unwritten_bytes_max:
            self.review_throttle()

    def review_throttle(self) -> None:
        """Publishers wait while the journal cannot keep up; seen by clients as back pressure of the socket only."""
        waiting = self.unwritten_bytes + self.effort.owed
        if self.role is not None:
            waiting += self.role.remote_queues.unacknowledged_bytes
        throttled = waiting > self.options.unwritten_bytes_max
        if throttled != self.throttled:
            self.throttled = throttled
            for client in self.clients.values():
                client.review_reading()

    def checkpoint(self) -> queue_factory.Written:
        """What the next checkpoint writes down; with it go the `filings`."""
        return queue_factory.checkpoint(self)
