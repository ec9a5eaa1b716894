"""Bridges that this node runs: those whose own small queue it owns (waits).

    parameter put or changed       it is read once, and the bridge begins (anew)
    parameter deleted              it ends, and its queue is deleted with what it knew, by whoever leads then or later
    src-delete-after is reached    its parameter is deleted, as by RabbitMQ, and so what it knew
    its queue is not there         the node that leads declares it; one that is refused is tried again later and later
    its queue has another owner    it ends here, and begins there
    this node may not speak        it ends: its lease is over

The small queue is durable and replicated as any, so the ownership token says which node runs a bridge. Two that run for
a moment do no harm: the lock at the source and at the ledger lets one of them in.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.bridges.shovel import COMPONENT, QUEUE, BadBridge, Bridge, bridge
from clusterbroker.broker.stats.bridges import BridgeRow
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import LOCAL_NODE
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.changes import ParameterChanged
from clusterbroker.cluster.wiring.entities import Parameter, Queue

if TYPE_CHECKING:
    from clusterbroker.broker.bridges.places import Place
    from clusterbroker.broker.bridges.standing import Standing, Status
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.cluster.wiring.map import Applied
    from clusterbroker.cluster.wiring.view import ClusterView

EVERY_S: Final = 1.0
AGAIN_S_MAX: Final = 60.0
"""Between two tries to declare or delete a queue, or to begin what ended by an error."""
ALERT: Final = "bridge.refused"
WHY_MAX: Final = 300
"""Characters that are shown."""
Key = tuple[str, str]


@dataclass(slots=True)
class Known:
    """What a parameter says. `wanted` None: `why` it cannot be done."""

    parameter: Parameter
    wanted: Bridge | None
    why: str = ""


class Backoff:
    """Doubles the time between two tries."""

    __slots__ = ("_delay_s", "_until_s")

    def __init__(self) -> None:
        self._delay_s, self._until_s = EVERY_S, 0.0

    def due(self, now_s: float) -> bool:
        """Whether to try; if so, the next time is later."""
        if now_s < self._until_s:
            return False
        self._until_s = now_s + self._delay_s
        self._delay_s = min(2 * self._delay_s, AGAIN_S_MAX)
        return True


class Bridges:
    """Reads a parameter when it changes, and looks at owners every EVERY_S: without a bridge that is nothing."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._map: ClusterView | None = None
        self._known: dict[Key, Known] = {}
        self._running: dict[Key, tuple[Known, Standing, asyncio.Task[None]]] = {}
        self._gone: set[Key] = set()
        """Deleted, and perhaps with a queue: any node may be the one that leads, and so all remember."""
        self._tries: dict[Key, Backoff] = {}
        self._failed: dict[Key, str] = {}
        shell.storage.wiring.listen(self._applied)
        self._look()

    def stop(self) -> None:
        """Ends all; what is on its way comes again."""
        for key in list(self._running):
            self._end(key)

    def rows(self) -> list[dict[str, Any]]:
        """All bridges of the cluster: those that run here with what they do, of others the node."""
        answer = []
        for key, known in self._known.items():
            row: dict[str, Any] = {"vhost": key[0], "name": key[1], "node": "", "state": "elsewhere", "why": ""}
            wanted = known.wanted
            if wanted is None:
                answer.append(row | {"state": "refused", "why": known.why})
                continue
            row["source"] = f"{wanted.sources[0]} queue {wanted.queue}"
            target = f"exchange {wanted.exchange}" if wanted.exchange else f"queue {wanted.key}"
            row["destination"] = f"{wanted.destinations[0]} {target}"
            queue = self._queue(key)
            if queue is not None and queue.owner is not None:
                row["node"] = self._shell.options.node.name if queue.owner == LOCAL_NODE else queue.owner
            if key in self._running:
                standing = self._running[key][1]
                standing.status.lag_s = round(standing.lag_s, 3)
                row |= asdict(standing.status)
            elif key in self._failed:
                row |= {"state": "waiting", "why": self._failed[key]}
            answer.append(row)
        return answer

    def counted(self) -> list[BridgeRow]:
        """Those that run here, for statistics."""
        return [
            BridgeRow(
                *key, standing.status.state, standing.status.moved, standing.status.again, standing.status.doubtful,
                standing.status.lost, standing.status.held, round(1000 * standing.lag_s), standing.status.counted,
            )
            for key, (_, standing, _) in self._running.items()
        ]  # fmt: skip

    # -- parameters -------------------------------------------------------------------------------------------

    def _applied(self, applied: Applied) -> None:
        for change in applied.changes:
            if isinstance(change, ParameterChanged) and change.component == COMPONENT and change.vhost:
                self._read((change.vhost, change.name))

    def _read_all(self) -> None:
        """At the start, and when a snapshot took the place of the map."""
        self._map = self._shell.storage.wiring.map
        there = {(one.vhost, one.name) for one in self._map.parameters() if one.component == COMPONENT and one.vhost}
        for key in there | self._known.keys():
            self._read(key)

    def _read(self, key: Key) -> None:
        """The parameter is there, has changed or is gone."""
        parameter = self._shell.storage.wiring.map.parameter(key[0], COMPONENT, key[1])
        known = self._known.get(key)
        if known is not None and known.parameter == parameter:
            return
        self._failed.pop(key, None)
        self._tries.pop(key, None)
        self._shell.node.alerts.clear(ALERT, _named(key))
        if parameter is None:
            if self._known.pop(key, None) is not None:
                self._gone.add(key)
            return
        self._gone.discard(key)
        try:
            self._known[key] = Known(parameter, bridge(*key, parameter.value))
        except BadBridge as bad:
            self._known[key] = Known(parameter, None, str(bad)[:WHY_MAX])
            self._alert(key, str(bad)[:WHY_MAX])

    # -- looking ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        shell = self._shell
        if shell.ended.done():
            return
        shell.loop.call_later(EVERY_S, self._look)
        if shell.storage.wiring.map is not self._map:
            self._read_all()
        if not shell.accepting:
            return
        for key in [key for key in self._running if self._known.get(key) is not self._running[key][0]]:
            self._end(key)
        for key in list(self._gone):
            self._forget(key)
        for key, known in self._known.items():
            if known.wanted is not None:
                self._review(key, known, known.wanted)

    def _forget(self, key: Key) -> None:
        queue = self._queue(key)
        if queue is None:
            self._gone.discard(key)
            self._tries.pop(key, None)
        elif self._leads and self._due(key):
            at_ms = self._shell.clock.now_ms()
            self._propose(key, c.DeleteQueue(at_ms=at_ms, vhost=queue.vhost, name=queue.name, queue_id=queue.queue_id))

    def _review(self, key: Key, known: Known, wanted: Bridge) -> None:
        queue = self._queue(key)
        if queue is None:
            if self._leads and self._due(key):
                at_ms = self._shell.clock.now_ms()
                self._propose(key, c.DeclareQueue(at_ms=at_ms, vhost=key[0], name=wanted.own_queue, durable=True))
            return
        own = queue.owner in (LOCAL_NODE, self._shell.options.node.name) and self._shell.may_speak
        if not own:
            self._failed.pop(key, None)
            if key in self._running:
                self._end(key)
        elif key not in self._running:
            if key not in self._failed or self._due(key):
                self._begin(key, known, wanted)
        elif self._running[key][1].status.state == "ended" and self._due(key):
            at_ms = self._shell.clock.now_ms()
            self._propose(key, c.DeleteParameter(at_ms=at_ms, vhost=key[0], component=COMPONENT, name=key[1]))

    def _due(self, key: Key) -> bool:
        return self._tries.setdefault(key, Backoff()).due(self._shell.loop.time())

    def _begin(self, key: Key, known: Known, wanted: Bridge) -> None:
        from clusterbroker.broker.bridges.standing import Standing  # a node without bridges does not pay for it

        content_max = self._shell.options.node.message_bytes_max
        standing = Standing(wanted, self._here, lambda state, status: self._told(key, state, status), content_max)
        task = self._shell.loop.create_task(standing.run())
        self._running[key] = known, standing, task
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        """A bridge that ended by an error is shown as such, and begins again; one that is over stays as it is."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if key in self._running and self._running[key][2] is task:
            del self._running[key]
            self._failed[key] = f"an error ended it, report it: {type(error).__name__}"
            self._due(key)  # not at once
            self._shell.log.emit("error", "bridge.failed", vhost=key[0], bridge=key[1], why=self._failed[key])

    def _end(self, key: Key) -> None:
        _, _, task = self._running.pop(key)
        task.cancel()
        if key not in self._known or self._known[key].wanted is not None:
            self._shell.node.alerts.clear(ALERT, _named(key))

    def _told(self, key: Key, state: str, status: Status) -> None:
        level = "info" if state in ("running", "ended") else "warning"
        self._shell.log.emit(level, f"bridge.{state}", vhost=key[0], bridge=key[1], why=status.why)
        if state == "refused":
            self._alert(key, status.why)
        elif state == "running":
            self._failed.pop(key, None)
            self._tries.pop(key, None)
            self._shell.node.alerts.clear(ALERT, _named(key))

    def _alert(self, key: Key, why: str) -> None:
        text = f"bridge '{key[1]}' of vhost '{key[0]}' does not run: {why}; put its parameter anew when this is mended"
        self._shell.node.alerts.set(ALERT, _named(key), text)

    # -- the wiring -------------------------------------------------------------------------------------------

    def _queue(self, key: Key) -> Queue | None:
        return self._shell.storage.wiring.map.queue(key[0], QUEUE + key[1])

    @property
    def _leads(self) -> bool:
        return self._shell.cluster is None or self._shell.cluster.raft.is_leader

    def _propose(self, key: Key, command: c.DeclareQueue | c.DeleteQueue | c.DeleteParameter) -> None:
        def done(applied: Applied) -> None:
            if applied.error is None:
                self._tries.pop(key, None)
                self._failed.pop(key, None)
            elif not isinstance(applied.error, Unavailable) and key in self._known:
                what = (
                    "parameter cannot be deleted"
                    if isinstance(command, c.DeleteParameter)
                    else "queue cannot be declared"
                )
                why, known = f"its {what}: {applied.error}"[:WHY_MAX], self._failed.get(key)
                self._failed[key] = why
                if why == known:
                    return
                self._shell.log.emit("warning", "bridge.waiting", vhost=key[0], bridge=key[1], why=why)

        self._shell.storage.wiring.propose(command, done)

    def _here(self, where: Place) -> Place:
        if where.host:
            return where
        for listener in self._shell.listeners:
            if listener.protocol == "amqp":
                address = listener.addresses[0]
                host = "127.0.0.1" if address.host in ("", "0.0.0.0") else address.host  # noqa: S104 - a comparison
                return where._replace(host=host, port=address.port)
        return where._replace(host="127.0.0.1")  # the refusal tells


def _named(key: Key) -> str:
    return f"{key[0]}/{key[1]}"
