"""The one loop that drives a node (waits).

Every event (a read of a socket, an answer of the disk, a timer) is handed to the core, and asks for one `run_turn`
soon, which is a turn of the node (`broker.node.driver`) with this process around it.

A bug costs its own part: a client its connection, a queue its turns, another node its link
(`broker.node.mistakes`). One outside of these (a disk that fails, the wiring's fold) ends the node: its memory
may be wrong, its written data is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.fronts.opening import FRONTS, Opening
from clusterbroker.broker.node.clients import Accepted, SocketCore
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.driver import Driver, Proposal
from clusterbroker.broker.node.effects import Check, Group, Load, StreamLoad
from clusterbroker.broker.node.failover import moving_text
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
from clusterbroker.broker.server.alarms import Alarms, watch_disk
from clusterbroker.broker.server.bridging import Bridges
from clusterbroker.broker.server.client import Client, ReceiveBuffer, peer_name
from clusterbroker.broker.server.clock import Clock
from clusterbroker.broker.server.control.server import ControlSocket
from clusterbroker.broker.server.copy_forward import CopyForward
from clusterbroker.broker.server.endings import Restart, proposed
from clusterbroker.broker.server.goodbye import say_goodbye
from clusterbroker.broker.server.inspections import Inspections
from clusterbroker.broker.server.link_ends import LinkEnds
from clusterbroker.broker.server.listener import Listener, peer_identity
from clusterbroker.broker.server.log import Held, NodeLog
from clusterbroker.broker.server.logins import Logins
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.scrub import Apart, Scrub
from clusterbroker.broker.server.storage import Storage
from clusterbroker.broker.server.tls import Chain
from clusterbroker.broker.server.upkeep import begin as begin_upkeep
from clusterbroker.broker.server.upkeep import first_user
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.journal.errors import DamagedJournal, JournalFailed
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.record import DamagedRecord, GroupWriter, Message
from clusterbroker.journal.stream_catalogue import NOTHING, Taken

if TYPE_CHECKING:
    from clusterbroker.broker.server.member.cluster_shell import ClusterShell
    from clusterbroker.broker.server.ports import BridgesPort, LinkEndsPort
    from clusterbroker.broker.stats.inspection import Request, Result

TICK_S = 0.5
HAND_OVER_S = 5.0
GOODBYE_S = 1.0
TICK_SLICE = 500
JUMPED = "the wall clock was set, or the machine slept: this node's time follows by a tenth of the time that passes"
CALM_BYTES = 16 << 10
"""Bytes of clients and other nodes in one turn: with fewer the loop may be held up for one quick flush."""


class NodeShell:
    """`start`, wait for `ended` (or your own reason), `stop`. All on one loop.

    ended   becomes the exception that ended the node, or None when it was stopped
    """

    def __init__(self, options: ServerOptions, log: NodeLog) -> None:
        self.options = options
        self.log = log
        self.clock = Clock()
        self.buffer = ReceiveBuffer(max(options.receive_buffer_bytes, 2 * options.node.frame_max_bytes))
        self.clients: dict[SocketCore, Client] = {}
        self.fronts = FRONTS
        """The protocols that clients may speak."""
        self.listeners: list[Listener] = []
        self.loop: asyncio.AbstractEventLoop
        self.node: Node
        self.storage: Storage
        self.alarms: Alarms
        self.logins: Logins
        self.ended: asyncio.Future[BaseException | None]
        self.cluster: ClusterShell | None = None
        """None: the node is alone."""
        self.control: ControlSocket | None = None
        """None: it is not served, or not yet."""
        self.connections_created = 0
        self.held = Held(log)
        self.started = False
        self.retired = asyncio.Event()
        """The node has left its cluster, and is to be stopped."""
        self._lingering: dict[Client, float] = {}
        self._scheduled = False
        self._received = self._turn_bytes = 0
        self.accepting = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms: int | None = None
        self._timers: dict[Callable[[], object], asyncio.TimerHandle] = {}
        self._copy_forward: CopyForward | None = None
        self._end_spans: Callable[[], None] = lambda: None
        self._driver: Driver
        self._apart: Apart | None = None
        self.scrub: Scrub | None = None
        self.link_ends: LinkEndsPort | None = None
        self.bridges: BridgesPort | None = None
        self.inspections = Inspections(self, None)
        self._stopped = False

    # -- start and stop ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when clients are accepted. Raises JournalError, LogFailure, OSError, ssl.SSLError, ValueError."""
        self.loop = asyncio.get_running_loop()
        self.ended = self.loop.create_future()
        options = self.options
        tls = Chain(options.tls) if options.tls is not None and options.amqps else None
        self.storage = Storage.open(
            options, self.loop.call_soon_threadsafe, self._journal_state, self.fail, self.loop.add_reader
        )
        self.storage.log_findings(self.log)
        try:
            self.logins = Logins(self.loop, self.schedule, self.propose, options, self.log.emit)
            self.alarms = Alarms(options.alarms, options.data_dir, self._alarm_changed)
            for where in options.amqp:  # an address in use ends a start before other members notice it
                self.listeners.append(await Listener.open("amqp", where, partial(Client, self)))
            for where in options.amqps:
                assert tls is not None, "the configuration wants certificates for amqps"
                opened = Listener.open_tls("amqps", where, partial(Client, self), tls, self._room, self.log.turned_away)
                self.listeners.append(await opened)
            if options.cluster is not None:
                # a single node's start would wait for it
                from clusterbroker.broker.server.member.cluster_shell import ClusterShell

                assert options.data_dir is not None, "a member of a cluster has a directory"
                self.cluster = ClusterShell(self, options.data_dir)
                await self._open_control()  # `status` shows what a start waits for
                await self.cluster.open()
                self.storage.order_by(self.cluster.raft, self.cluster.incarnation)
            try:
                self.node = self.storage.recover(self.log, self.clock.now_ms(), self.cluster)
                self.node.alarms_told = self._alarms_told
            except DamagedJournal as damage:
                ending = damage if self.cluster is None else await self.cluster.give_up_copies(damage)
                raise ending from None
            self._driver = Driver(self.node, self, self.clock.now_ms)
            if (journal := self.storage.journal) is not None:
                self._copy_forward = CopyForward(journal, self.node, self.loop, self.schedule, self.fail)
                self._apart = Apart(journal, self.node, self.schedule, self.fail)
                self.scrub = Scrub(journal, self.node, self.loop, self.schedule, self.fail)
                self.scrub.begin()
                watch_disk(journal.flushes, self.node.alerts, str(options.data_dir), self.loop, self.ended)
            self.node.stopwatch = time.monotonic_ns
            if options.spans is not None:
                from clusterbroker.broker.server.spans import begin  # the extra `otel`, and half a second of imports

                self._end_spans = begin(options.spans, self.node).close
            self.storage.wiring.listen(self._applied)
            begin_upkeep(self)
            self.link_ends = LinkEnds(self)
            self.bridges = Bridges(self)
            if self.cluster is not None:
                await self.cluster.join_node(self.node, self._urls())
                self.inspections = self.cluster.census.inspections
            self.node.inspects = self.inspections.begin
            self.node.damages.found_at_start(self.storage.hurt)
            if (definitions := options.definitions) is not None:
                await definitions.bring_in(self)
            await first_user(self)
            self._tick()
            self._check_alarms()
            await self._open_control()
            if self.control is not None and options.management:
                self.control.begin(None if self.cluster is None else self.cluster.census)
            self.accepting = True
            for listener in self.listeners:
                await listener.listen()
            self.started = True
        except BaseException:
            await self._close()
            raise
        self.schedule()

    async def _open_control(self) -> None:
        directory = self.options.control_directory
        if self.control is None and directory is not None:
            self.control = ControlSocket(self, directory)
            await self.control.open()

    @property
    def waits_for(self) -> str:
        """What a start waits for."""
        return self.cluster.waits if self.cluster is not None else "for its disk"

    def _urls(self) -> tuple[str, ...]:
        return tuple(f"{listener.protocol}://{where}" for listener in self.listeners for where in listener.addresses)

    async def stop(self) -> None:
        """Closes clients (320), flushes the journal, takes a last checkpoint. May be called again."""
        if self._stopped:
            return
        if self.cluster is not None and not self.ended.done():
            await self.cluster.hand_over_all(HAND_OVER_S)
        self._stopped = True
        if self.bridges is not None:
            self.bridges.stop()
        for reading in (self._copy_forward, self.scrub):
            if reading is not None:
                reading.stop()
        self._accept_no_more()
        failed = self.ended.done()
        if not failed:
            why = self._elsewhere("broker forced connection closure with reason 'shutdown'")
            await say_goodbye(self, tuple(self.clients), why)
            self.run_turn()
            await self._no_clients(self.options.stop_grace_s)
        for client in tuple(self.clients.values()):
            client.abort()
        await self._no_clients(1.0)
        if not self.ended.done():
            self.run_turn()
            await self.storage.settle(self.node, self.run_turn)
            if self.cluster is not None:
                await self.cluster.say_goodbye(GOODBYE_S)
        await self._close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _accept_no_more(self) -> None:
        self.accepting = False
        for listener in self.listeners:
            listener.close()

    async def _no_clients(self, timeout_s: float) -> None:
        """Polls until all clients are gone, which takes milliseconds or for ever."""
        end_s = self.loop.time() + timeout_s
        while self.clients and self.loop.time() < end_s:  # noqa: ASYNC110 - they may never go
            await asyncio.sleep(0.002)

    async def _close(self) -> None:
        self._stopped = True
        for timer in (*self._timers.values(), *((self._wake,) if self._wake else ())):
            timer.cancel()
        self._accept_no_more()
        if self.control is not None:
            await self.control.close()
        self.inspections.close()
        if hasattr(self, "logins"):
            self.logins.close()
        if self.cluster is not None:
            await self.cluster.close()
        if self.storage.watched is not None:
            self.loop.remove_reader(self.storage.watched)
        await self.loop.run_in_executor(None, self.storage.close)
        await self.loop.run_in_executor(None, self._end_spans)

    def fail(self, error: BaseException) -> None:
        """The node cannot go on, and is to be stopped."""
        if self.ended.done():
            return
        if isinstance(error, Restart):
            self.log.emit("warning", "node.restarts", why=str(error))
            self._turn_out(str(error))
        else:
            self.log.emit("critical", "node.failed", error=str(error), exc_info=error)
        self.ended.set_result(error)
        self._accept_no_more()
        for client in tuple(self.clients.values()):
            client.abort()

    def _turn_out(self, why: str) -> None:
        """Sends the clients the reason and nothing else: what waited for their sockets may be delivered elsewhere by
        now."""
        for connection, client in tuple(self.clients.items()):
            with contextlib.suppress(Exception):
                connection.out.take()
                connection.force_close(self._elsewhere(why))
                client.flush(connection, self.clock.now_ms())

    def _elsewhere(self, why: str) -> str:
        return moving_text(why, self.node.map, self.options.node.name)

    async def propose(self, command: Any) -> Applied:
        """The outcome of a command."""
        outcome = await proposed(self.storage.wiring, command)
        self.schedule()
        return outcome

    async def inspect(self, request: Request) -> Result:
        """The result of a request about single messages, from the queue's leader. Raises Refused, Unanswered."""
        return await self.inspections.ask(request)

    # -- clients ----------------------------------------------------------------------------------------------

    def admit(self, client: Client, transport: asyncio.BaseTransport) -> SocketCore | None:
        """A socket was accepted; None turns it away."""
        peer, loopback = peer_name(transport)
        if not self.accepting:
            return None
        if len(self.clients) >= self.options.node.connections_max:
            self.log.turned_away(peer, f"there are {len(self.clients)} connections already")
            return None
        identity = None
        if self.options.tls is not None and transport.get_extra_info("sslcontext") is not None:
            identity = peer_identity(transport, self.options.tls.identity)
        accepted = Accepted(peer, loopback, self.clock.now_ms(), identity)
        opening = Opening(self.node, accepted, self.fronts, partial(self._opened, client))
        self.clients[opening] = client
        self.connections_created += 1
        return opening

    def _opened(self, client: Client, core: SocketCore) -> None:
        """The protocol of a client is known."""
        assert client.connection is not None, "its first bytes came just now"
        del self.clients[client.connection]
        self.clients[core] = client
        client.connection = core

    def _room(self) -> int:
        return self.options.node.connections_max - len(self.clients)

    def received(self, size: int) -> None:
        """Bytes came from a client or another node: a turn follows, if there is anything to do."""
        self._received += size
        if self._received >= self.options.turn_bytes_max:
            self.run_turn()
        else:
            self.schedule_unless_idle()

    def lost(self, client: Client, connection: SocketCore) -> None:
        del self.clients[connection]
        self._lingering.pop(client, None)
        try:
            connection.lost(self.clock.now_ms())
        except Exception as error:
            self.log.crashed(connection.peer, error)
        self.schedule()

    def lingers(self, client: Client, time_s: float) -> None:
        """The client has been sent the end, and has so long to go."""
        self._lingering[client] = self.loop.time() + time_s

    # -- the turn ---------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Asks for a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.run_turn)

    def schedule_unless_idle(self) -> None:
        """Asks for a turn if it would do anything."""
        if not self._scheduled:
            role = self.node.role
            if (role is not None and role.hub.out) or not self.rests:
                self.schedule()

    def run_turn(self) -> None:
        self._scheduled = False
        self._turn_bytes, self._received = self._received, 0
        if self.ended.done():
            return
        node = self.node
        now_ms = self.clock.now_ms()
        node.longest_ns = 0
        if self.cluster is not None:
            self.cluster.turned()
        try:
            again = self._driver.turn(now_ms)
        except Exception as error:
            self.fail(error)
            return
        if again:
            self.schedule()
        wake_ms = node.next_wake_ms
        if wake_ms != self._wake_ms:
            self._wake_at(wake_ms, now_ms)
        self.held.turn(self.clock.now_ms() - now_ms, node)

    @property
    def rests(self) -> bool:
        """A turn would only pass frames on to their links."""
        return self.node.at_rest and self.node.next_wake_ms == self._wake_ms

    @property
    def may_speak(self) -> bool:
        """Whether something may be written to clients at this moment."""
        return self.cluster is None or self.cluster.may_speak()

    def lease_changed(self) -> None:
        """Without a lease nothing is sent to clients, and nothing read from them is carried out."""
        if self.control is not None:
            self.control.lease_changed()
        self.schedule()

    def receive_frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None:
        """A frame of another node."""
        assert self.cluster is not None, "others speak to members only"
        role = self.node.role
        assert role is not None, "a member has a role"
        if self.ended.done():
            return
        now_ms = self.node.now_ms = self.clock.now_ms()
        try:
            role.hub.received(peer, index, head, payload)
        except Exception as error:
            role.hub.failed(peer, error)
        self.held.frame(self.clock.now_ms() - now_ms, peer)
        self.received(len(payload))

    # -- the world of a turn (`driver.World`)

    @property
    def journal(self) -> Journal | None:
        return self.storage.journal

    def order(self, proposals: Sequence[Proposal]) -> None:
        for command, done in proposals:
            self.storage.wiring.propose(command, partial(self._ordered, done))

    def read(self, loads: Sequence[Load | StreamLoad]) -> None:
        journal = self.storage.journal
        assert journal is not None, "only a journaled queue loads"
        for load in loads:
            if isinstance(load, Load):
                journal.read(load.queue_id, load.locations, partial(self._loaded, load))
            elif (part := load.part()) is not None:
                journal.read_stream(load.queue_id, part, load.wish, partial(self._loaded, load))
            else:
                self._loaded(load, NOTHING)

    def verify(self, checks: Sequence[Check]) -> None:
        self.logins.answer(checks)

    def file(self) -> None:
        journal = self.storage.journal
        assert journal is not None, "there is a disk"
        if self.node.forgotten:
            journal.owe_checkpoint()  # a stream that was deleted may have many files
        if journal.checkpoint_due:
            self.storage.checkpoint(self.node, self._checkpointed)

    def submit(self, writer: GroupWriter, group: Group) -> None:
        journal = self.storage.journal
        assert journal is not None, "there is a disk"
        if self.cluster is not None:
            self.cluster.flushing(True)
        # members wait for each other's disks before anything goes on, and have little else to do meanwhile
        here = self.cluster is not None and self._turn_bytes < CALM_BYTES
        journal.submit(writer, group.sync, partial(self._committed, group), self.loop.call_soon if here else None)

    def later(self, delay_ms: int) -> None:
        if self._due not in self._timers:
            self._again(delay_ms / 1000, self._due)

    def send(self, now_ms: int) -> None:
        sending = self.node.sending
        clients = self.clients
        # clients marked anew meanwhile belong to the next turn
        for connection in tuple(sending):
            del sending[connection]
            client = clients.get(connection)
            if client is not None:
                try:
                    client.flush(connection, now_ms)
                except Exception as error:
                    client.crashed(error)

    def exchange(self) -> None:
        if self.cluster is not None:
            self.cluster.exchange()

    # -- results

    def _ordered(self, done: Callable[[Applied], None], applied: Applied) -> None:
        try:
            done(applied)
        except Exception as error:
            self.fail(error)
        self.schedule()

    def _applied(self, applied: Applied) -> None:
        """The metadata log's listener, called before the proposer's `done`."""
        try:
            with self.held.event("wiring", command=type(applied.command).__name__, changes=len(applied.changes)):
                self.node.apply(applied.changes)
                if self.node.role is not None:
                    self.node.role.hub.advanced()
        except Exception as error:
            self.fail(error)
        self.schedule()

    def _loaded(self, load: Any, messages: list[Message] | Taken | DamagedRecord) -> None:
        if isinstance(messages, DamagedRecord):
            assert self._apart is not None, "only a journal is damaged"
            self._apart.read(load, messages)
            return
        try:
            self.node.loaded(load, messages)
        except Exception as error:
            self.fail(error)
        self.schedule()

    def _due(self) -> None:
        self._timers.pop(self._due, None)
        self.schedule()

    def _committed(self, group: Group) -> None:
        if self.cluster is not None:
            self.cluster.flushing(False)
        try:
            self.node.group_committed(group, self.clock.now_ms())
        except Exception as error:
            self.fail(error)
        if not self.rests:
            self.run_turn()
        else:
            self.exchange()

    # -- timers -----------------------------------------------------------------------------------------------

    def _wake_at(self, wake_ms: int | None, now_ms: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = wake_ms
        self._wake = None
        if wake_ms is not None:
            self._wake = self.loop.call_later(max(0, wake_ms - now_ms) / 1000, self._woken)

    def _woken(self) -> None:
        self._wake = self._wake_ms = None
        self.run_turn()

    def _again(self, delay_s: float, what: Callable[[], object]) -> None:
        if not self._stopped:
            self._timers[what] = self.loop.call_later(delay_s, what)

    def _tick(self) -> None:
        """Heartbeats and deadlines of all connections, a slice at a time, so that many do not hold up the loop."""
        if jumped_s := self.clock.lead():
            self.log.emit("warning", "clock.jumped", by_s=round(jumped_s, 3), what=JUMPED)
        now_s = self.loop.time()
        for client in [client for client, end_s in self._lingering.items() if end_s <= now_s]:
            del self._lingering[client]
            client.abort()
        self._tick_slice(iter(tuple(self.clients)))
        self._again(TICK_S, self._tick)

    def _tick_slice(self, connections: Any) -> None:
        now_ms, wall_ms = self.clock.now_ms(), self.clock.wall_ms()
        until = self.node.labour.done + STEPS_AT_ONCE
        ticked = 0
        for connection in islice(connections, TICK_SLICE):
            ticked += 1
            try:
                connection.tick(now_ms, wall_ms)
            except Exception as error:
                client = self.clients.get(connection)
                if client is not None:
                    client.crashed(error)
            if self.node.labour.done > until:
                break
        self.schedule()
        if ticked == TICK_SLICE or self.node.labour.done > until:
            self.loop.call_soon(self._tick_slice, connections)

    # -- alarms and upkeep ------------------------------------------------------------------------------------

    def _check_alarms(self) -> None:
        with contextlib.suppress(OSError):
            self.alarms.check()
        self._again(self.options.alarms.interval_s, self._check_alarms)

    def _alarm_changed(self, name: str, raised: bool, reason: str) -> None:
        self.log.emit("warning", "alarm.raised" if raised else "alarm.cleared", alarm=name, reason=reason)
        self.node.set_alarm(name, raised)
        self.schedule()

    def _alarms_told(self) -> None:
        if self.control is not None:
            self.control.alarms_changed()

    def _journal_state(self, state: str, detail: str) -> None:
        if state == "failed":
            self.fail(JournalFailed(detail))
            return
        self.log.emit("error" if state == "full" else "info", "journal." + state, detail=detail)
        if not self._stopped:  # perhaps before there was a node
            self.alarms.set("disk", "journal full", state == "full")

    def _checkpointed(self) -> None:
        if self._copy_forward is not None and not self._stopped:
            self._copy_forward.checkpointed()
