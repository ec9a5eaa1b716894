"""What only the management process asks of its node (waits).

    rows      this node's census and those of all linked members; a member without an answer within ANSWER_S is left out
    order     a command for the wiring log, of those that an operator may give
    call      an operation (`calls`); also `connection.close` and `link.end`, wherever that is; `messages`: to look at
              single messages of a queue, wherever its owner is, to delete, move or replay them;
    as_user   declare, bind, delete, publish and get with the rights of a user (`control.as_user`)

Orders and calls need a lease: without one the wiring that they would be carried out on may be of the past. The process
is trusted as the node's owner is: it has asked its users who they are, and what they may do.

A question never waits for another one; QUESTIONS_MAX of them may be open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.fronts.amqp10.ending import end_link
from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.as_user import TIMEOUT_S, carried_out
from clusterbroker.broker.server.control.calls import Calls
from clusterbroker.broker.server.control.operations import NO_LEASE, Facts, Refused
from clusterbroker.broker.server.inspecting import Unanswered
from clusterbroker.broker.server.peer_census import PeerCensus
from clusterbroker.broker.server.sampling import Sampling
from clusterbroker.broker.stats.as_user import Outcome
from clusterbroker.broker.stats.batches import split
from clusterbroker.broker.stats.inspection import decode_request
from clusterbroker.broker.stats.inspection import encode as encode_result
from clusterbroker.broker.stats.peer_messages import EndLink
from clusterbroker.broker.stats.rows import Batch, encode
from clusterbroker.cluster.errors import PreconditionFailed, Unavailable, WiringError
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.exchange_rules import EXCHANGE_DECLARATIONS
from clusterbroker.cluster.wiring.levels import LINK_POLICIES
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

ANSWER_S: Final = 1.0
ORDER_S: Final = 10.0
QUESTIONS_MAX: Final = 256
LOOKS_MAX: Final = 64
"""Of these so many may be about single messages: who may look into a queue must not keep operators from their work."""
OPERATORS: Final = (
    c.AddVhost, c.DeleteVhost, *EXCHANGE_DECLARATIONS, c.DeclareQueue, c.Bind, c.PutUser, c.SetUserLimits,
    c.DeleteUser, c.SetPermission, c.ClearPermission, c.SetTopicPermission, c.ClearTopicPermission,
    c.PutPolicy, c.DeletePolicy, c.PutOperatorPolicy, c.DeleteOperatorPolicy, c.PutParameter, c.DeleteParameter,
    c.SetVhostLimits, c.ClearVhostLimits, c.ImportDefinitions, c.DropImport, c.PauseQueue,
    c.DeclarePool, c.SetPool, c.PausePool, c.DirectGroup, c.RetireWorkers, c.DeletePool,
)  # fmt: skip
"""Members, owners and the lives of connections are no affair of a management process."""

Tell = Callable[[m.ControlMessage], None]


class Service:
    """Answers questions, each by as many messages as it takes."""

    def __init__(self, shell: ServerPort, calls: Calls, peers: PeerCensus | None) -> None:
        self._shell = shell
        self._calls = calls
        self._peers = peers
        self._sampling = Sampling(shell) if peers is None else peers.sampling
        self.logins = m.Logins()
        """At the management process, as it told last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks: set[asyncio.Task[None]] = set()  # of these

    @property
    def leased(self) -> bool:
        """Whether what this node knows is what the cluster agrees on."""
        return self._shell.cluster is None or self._shell.cluster.heart.leased()

    def close(self) -> None:
        """Whoever waits for an answer gets none."""
        for task in tuple(self._tasks):
            task.cancel()

    # -- rows -------------------------------------------------------------------------------------------------

    def rows(self, asked: m.AskRows, tell: Tell) -> None:
        """Own rows and those of the linked members, then RowsEnd."""
        _Round(self, asked, tell).begin()

    # -- orders and calls -------------------------------------------------------------------------------------

    def order(self, asked: m.Order, tell: Tell) -> None:
        """Ordered follows, once it is applied everywhere or refused."""
        self._begin(self._order(asked, tell), lambda why: tell(m.Ordered(asked.number, Unavailable.kind, why)))

    def call(self, asked: m.Call, tell: Tell) -> None:
        """Done follows."""
        if asked.operation != "messages":
            self._begin(self._call(asked, tell), lambda why: tell(m.Done(asked.number, {}, why)))
            return

        def unavailable(why: str) -> None:
            tell(m.Done(asked.number, {"unavailable": why}, ""))

        if len(self._looks) >= LOOKS_MAX:
            unavailable("too many queues are looked into at once: try again")
        else:
            task = self._begin(self._call(asked, tell), unavailable)
            if task is not None:
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)

    def as_user(self, asked: m.AsUser, tell: Tell) -> None:
        """Outcome follows."""

        def unavailable(why: str) -> None:
            tell(m.Outcome(asked.number, Outcome(), why))

        async def answer() -> None:
            try:
                tell(m.Outcome(asked.number, await carried_out(self._shell, asked.asked)))
            except TimeoutError:
                unavailable(f"the node did not answer within {TIMEOUT_S:g} s")
            except EOFError:
                unavailable("there is no AMQP connection to the node")
            except Exception as mistake:
                self._shell.log.crashed(m.NAME, mistake)
                unavailable("the broker made a mistake; see its log")

        if self.leased:
            self._begin(answer(), unavailable)
        else:
            unavailable(NO_LEASE)

    def _begin(self, work: Any, refuse: Callable[[str], None]) -> asyncio.Task[None] | None:
        if len(self._tasks) >= QUESTIONS_MAX:
            work.close()
            refuse("too many calls are open: try again")
            return None
        task: asyncio.Task[None] = self._shell.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _order(self, asked: m.Order, tell: Tell) -> None:
        outcome = await self._ordered(asked.command)
        if isinstance(outcome, Unavailable):
            tell(m.Ordered(asked.number, outcome.kind, outcome.text))
        elif outcome.error is not None:
            tell(m.Ordered(asked.number, outcome.error.kind, outcome.error.text, outcome.index))
        else:
            tell(m.Ordered(asked.number, "", "", outcome.index))

    async def _ordered(self, stored: bytes) -> Applied | Unavailable:
        if not self.leased:
            return Unavailable(NO_LEASE)
        try:
            command = c.decode(stored)
        except (WiringError, ValueError) as error:
            return Unavailable(f"this node does not know the command: {error}")
        if not isinstance(command, OPERATORS):
            return Unavailable(f"{type(command).__name__} is no command of an operator")
        if isinstance(command, (c.DeclarePool, c.SetPool)):
            try:
                self._shell.node.pool_desk.check(command)
            except PreconditionFailed as refused:
                return Applied(LogIndex(0), command, refused, None, ())
        if isinstance(command, c.ImportDefinitions) and self._peers is not None:
            command = replace(command, commands=tuple(map(self._at_home, command.commands)))
        return await self._proposed(command)

    async def _proposed(self, command: c.AnyCommand) -> Applied | Unavailable:
        applied: asyncio.Future[Applied] = self._shell.loop.create_future()

        def told(outcome: Applied) -> None:
            if not applied.done():  # else it came too late
                applied.set_result(outcome)

        self._shell.node.propose(command, told)
        self._shell.schedule()
        try:
            return await asyncio.wait_for(applied, ORDER_S)
        except TimeoutError:
            return Unavailable(f"no majority has agreed within {ORDER_S:g} s; it may still be carried out")

    def _at_home(self, command: c.Defining) -> c.Defining:
        """A transient queue lives at the node that imports it."""
        if not isinstance(command, c.DeclareQueue) or command.durable:
            return command
        options = self._shell.node.options
        return replace(command, owner=NodeId(options.name), incarnation=Incarnation(options.incarnation))

    async def _call(self, asked: m.Call, tell: Tell) -> None:
        try:
            answer, error = await self._done(asked.operation, asked.arguments), ""
        except Refused as refused:
            answer, error = {}, str(refused)
        except Exception as mistake:
            self._shell.log.crashed(m.NAME, mistake)
            answer, error = {}, "the broker made a mistake; see its log"
        tell(m.Done(asked.number, answer, error))

    async def _done(self, operation: str, arguments: Facts) -> Facts:
        if not self.leased:
            raise Refused(NO_LEASE)
        if operation == "connection.close":
            return self._close_connection(
                str(arguments.get("id")), str(arguments.get("reason") or "closed by operator")
            )
        if operation == "messages":
            return await self._inspected(arguments)
        if operation == "link.end":
            return await self._end_link(arguments)
        return await self._calls.perform(operation, arguments)

    async def _inspected(self, arguments: Facts) -> Facts:
        """`result`, or `unavailable`: why it cannot be done now."""
        try:
            request = decode_request(arguments["request"])
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"no request about messages: {error}") from error
        try:
            return {"result": encode_result(await self._shell.inspect(request))}
        except Unanswered as why:
            return {"unavailable": str(why)}

    async def _end_link(self, arguments: Facts) -> Facts:
        """`link` and `attach` of a recoverable one that is suspended; of others `node` and identity, and `force` if it
        may be attached."""
        if "link" in arguments:
            command = c.ExpireLink(link=LogIndex(arguments["link"]), attach=int(arguments["attach"]))
            outcome = await self._proposed(command)
            if isinstance(outcome, Unavailable):
                raise Refused(outcome.text)
            if outcome.error is not None or not outcome.result:
                raise Refused("the link is not suspended any more: it was attached, or has ended")
            return {}
        said = {name: str(arguments[name]) for name in ("vhost", "container", "name", "user")}
        by, force = str(arguments.get("by"))[:200], bool(arguments.get("force"))
        reason = f"link '{said['name']}' was ended by user '{by}'"
        asked = EndLink(**said, receives=bool(arguments["receives"]), force=force, reason=reason[:1024])
        where, node = str(arguments["node"]), self._shell.node
        if where == self._shell.options.node.name:
            if not end_link(node, asked):
                raise Refused("the link is not as it was any more: look again")
            self._shell.schedule()
        elif node.map.level < LINK_POLICIES:
            raise Refused(f"links at other members are ended from feature level {LINK_POLICIES} on: ask '{where}'")
        elif self._peers is None or not self._peers.end_link(where, asked):
            raise Refused(f"there is no node '{where}', or it is not linked")
        return {}

    def _close_connection(self, connection_id: str, reason: str) -> Facts:
        connection = self._shell.node.clients.get(connection_id)
        if connection is not None:
            connection.force_close(reason[:200])
            self._shell.schedule()
            return {}
        node = connection_id.rsplit(".", 2)[0]
        if self._peers is None or not self._peers.close(node, connection_id[:256], reason[:200]):
            raise Refused(f"there is no connection '{connection_id}', or its node is not linked")
        return {}


class _Round:
    """One question for rows: open until all members have answered, or ANSWER_S is over."""

    def __init__(self, service: Service, asked: m.AskRows, tell: Tell) -> None:
        self._service = service
        self._asked = asked
        self._tell = tell
        self._open: dict[str, int] = {}  # who has not answered in full, and the number of the question to it
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def begin(self) -> None:
        service, asked = self._service, self._asked
        name = service._shell.options.node.name
        self._open[name] = 0
        self._timer = service._shell.loop.call_later(ANSWER_S, self._end)
        peers = service._peers
        if peers is not None:
            for peer in peers.peers:
                life, number = asked.since.get(peer, (0, 0))
                self._open[peer] = peers.ask(peer, life, number, asked.max_age_ms, self._teller(peer))
        life, number = asked.since.get(name, (0, 0))
        service._sampling.ask(life, number, asked.max_age_ms, lambda batch: self._own(split(batch)))

    def _own(self, parts: list[Batch]) -> None:
        part, *rest = parts
        self._heard(self._service._shell.options.node.name, encode(part), bool(rest))
        if rest:
            self._service._shell.loop.call_soon(self._own, rest)

    def _teller(self, peer: str) -> Callable[[bytes, bool], None]:
        return lambda batch, more: self._heard(peer, batch, more)

    def _heard(self, member: str, batch: bytes, more: bool) -> None:
        if self._over:
            return
        self._tell(m.Rows(self._asked.number, batch, more))
        if not more:
            self._open.pop(member, None)
            if not self._open:
                self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._service._peers is not None:
            for ask in self._open.values():
                self._service._peers.forget(ask)
        self._tell(m.RowsEnd(self._asked.number, self._service.leased))
