"""Bridges that this node runs: those whose own small queue it owns (waits).

    parameter put or changed       the bridge begins (anew)
    parameter deleted              it ends, and its queue is deleted with what it knew
    its queue is not there         any node declares it; a second declaration changes nothing
    its queue has another owner    it ends here, and begins there
    this node may not speak        it ends: its lease is over

The small queue is durable and replicated as any, so the ownership token says which node runs a bridge. Two that run for
a moment do no harm: the lock at the source and at the ledger lets one of them in.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.bridges.shovel import COMPONENT, QUEUE, BadBridge, Bridge, bridge
from clusterbroker.cluster.ids import LOCAL_NODE
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Parameter, Queue

if TYPE_CHECKING:
    from clusterbroker.broker.bridges.places import Place
    from clusterbroker.broker.bridges.standing import Standing, Status
    from clusterbroker.broker.server.ports import ServerPort

EVERY_S: Final = 1.0
ALERT: Final = "bridge.refused"
Key = tuple[str, str]


class Bridges:
    """Looks at parameters and owners every EVERY_S. Without a bridge a look costs a walk over the parameters."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._running: dict[Key, tuple[Parameter, Standing, asyncio.Task[None]]] = {}
        self._bad: dict[Key, str] = {}
        self._look()

    def stop(self) -> None:
        """Ends all; what is on its way comes again."""
        for key in list(self._running):
            self._end(key)

    def rows(self) -> list[dict[str, Any]]:
        """All bridges of the cluster: those that run here with what they do, of others the node."""
        answer = []
        for parameter in self._wanted().values():
            key = parameter.vhost, parameter.name
            row: dict[str, Any] = {"vhost": key[0], "name": key[1], "node": "", "state": "elsewhere", "why": ""}
            try:
                wanted = bridge(*key, parameter.value)
            except BadBridge as bad:
                answer.append(row | {"state": "refused", "why": str(bad)})
                continue
            row["source"] = f"{wanted.sources[0]} queue {wanted.queue}"
            target = f"exchange {wanted.exchange}" if wanted.exchange else f"queue {wanted.key}"
            row["destination"] = f"{wanted.destinations[0]} {target}"
            queue = self._queue(wanted)
            if queue is not None and queue.owner is not None:
                row["node"] = self._shell.options.node.name if queue.owner == LOCAL_NODE else queue.owner
            if key in self._running:
                row |= asdict(self._running[key][1].status)
            answer.append(row)
        return answer

    # -- looking ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        shell = self._shell
        if shell.ended.done():
            return
        shell.loop.call_later(EVERY_S, self._look)
        if not shell.accepting:
            return
        wanted = self._wanted()
        for key in [key for key in self._running if wanted.get(key) != self._running[key][0]]:
            self._end(key)
            if key not in wanted and self._leads:
                self._forget(key)
        for key, parameter in wanted.items():
            self._review(key, parameter)

    def _forget(self, key: Key) -> None:
        queue = self._shell.storage.wiring.map.queue(key[0], QUEUE + key[1])
        if queue is not None:
            at_ms = self._shell.clock.now_ms()
            self._propose(c.DeleteQueue(at_ms=at_ms, vhost=queue.vhost, name=queue.name, queue_id=queue.queue_id))

    def _review(self, key: Key, parameter: Parameter) -> None:
        try:
            wanted = bridge(*key, parameter.value)
        except BadBridge as bad:
            self._refused(key, str(bad))
            return
        queue = self._queue(wanted)
        if queue is None:
            if self._leads:
                at_ms = self._shell.clock.now_ms()
                self._propose(c.DeclareQueue(at_ms=at_ms, vhost=key[0], name=wanted.own_queue, durable=True))
            return
        own = queue.owner in (LOCAL_NODE, self._shell.options.node.name) and self._shell.may_speak
        if own and key not in self._running:
            self._begin(key, parameter, wanted)
        elif not own and key in self._running:
            self._end(key)

    def _begin(self, key: Key, parameter: Parameter, wanted: Bridge) -> None:
        from clusterbroker.broker.bridges.standing import Standing  # a node without bridges does not pay for it

        standing = Standing(wanted, self._here, lambda state, status: self._told(key, state, status))
        self._running[key] = parameter, standing, self._shell.loop.create_task(standing.run())

    def _end(self, key: Key) -> None:
        _, _, task = self._running.pop(key)
        task.cancel()
        self._shell.node.alerts.clear(ALERT, _named(key))

    def _told(self, key: Key, state: str, status: Status) -> None:
        level = "info" if state in ("running", "ended") else "warning"
        self._shell.log.emit(level, f"bridge.{state}", vhost=key[0], bridge=key[1], why=status.why)
        if state == "refused":
            self._alert(key, status.why)

    def _refused(self, key: Key, why: str) -> None:
        if self._bad.get(key) != why:
            self._bad[key] = why
            self._alert(key, why)

    def _alert(self, key: Key, why: str) -> None:
        text = f"bridge '{key[1]}' of vhost '{key[0]}' does not run: {why}; put its parameter anew when this is mended"
        self._shell.node.alerts.set(ALERT, _named(key), text)

    # -- the wiring -------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[Key, Parameter]:
        found = self._shell.storage.wiring.map.parameters()
        return {(one.vhost, one.name): one for one in found if one.component == COMPONENT and one.vhost}

    def _queue(self, wanted: Bridge) -> Queue | None:
        return self._shell.storage.wiring.map.queue(wanted.vhost, wanted.own_queue)

    @property
    def _leads(self) -> bool:
        return self._shell.cluster is None or self._shell.cluster.raft.is_leader

    def _propose(self, command: c.AnyCommand) -> None:
        self._shell.storage.wiring.propose(command)

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
