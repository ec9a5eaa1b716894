"""Definitions that a process brings along, and its node into the wiring before it lets clients in (waits).

The file is read and checked before the process does anything else (`BootDefinitions.read`), so an unusable one keeps
the node from starting. Its definitions are imported when the node is a member with a lease, all or none, as over
HTTP. Every member may have the same file: existing objects are not ordered again, and a member that meets another
one's import waits for it. The import comes before the first user, which is created only when there never was one.

Worker pools follow the import, those that are not there: one that is there keeps the settings that an operator gave it,
and the log says how it differs. Sections `[pools.NAME]` of the config file declare pools in the same way.

A contradiction to the cluster is reported in the log, and the node goes on. It may hold the only copy of a message,
and a queue that was declared again with other arguments must not keep that from coming back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterbroker.broker.server.clock import Clock
from clusterbroker.broker.server.endings import come
from clusterbroker.cluster.errors import Unavailable, WiringError
from clusterbroker.cluster.passwords import SCRYPT, hashed, verified
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import DEFAULT_VHOST, ClusterMap
from clusterbroker.cluster.wiring.pool_entities import NOOP
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.foreman.templates import Template
    from clusterbroker.broker.management.definitions import Draft
    from clusterbroker.broker.management.pool_definitions import PoolDraft
    from clusterbroker.broker.server.ports import ServerPort

FILE_BYTES_MAX: Final = 64 << 20
LOOKED_AT: Final = 100
"""So many definitions are compared with what is there before the loop has its turn."""
AGAIN_S: Final = 0.5
PROGRESS_S: Final = 0.02
TELL_S: Final = 5.0


class BadDefinitions(ValueError):
    """The file cannot be used: one line for the operator."""


class BootDefinitions:
    """Definitions that a process brings along, once: not when its node begins again in its cluster."""

    def __init__(self, source: str, draft: Draft) -> None:
        """`draft`: without obstacles."""
        self.source = source
        self.plan = tuple(draft.commands)
        self.pools = draft.pools
        self.done = False
        self._passwords = tuple(draft.passwords)
        self._warnings = tuple(draft.warnings)

    @classmethod
    def read(cls, file: Path, *, skip_unsupported: bool = False) -> BootDefinitions:
        """Blocks on the disk. Raises BadDefinitions."""
        try:
            with file.open("rb") as opened:
                raw = opened.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise BadDefinitions(f"{file}: {error.strerror}: name a file that the node can read") from None
        if len(raw) > FILE_BYTES_MAX:
            raise BadDefinitions(f"{file}: more than {FILE_BYTES_MAX >> 20} MiB: divide it")
        try:
            document = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadDefinitions(f"{file} is not JSON: {error}") from None
        return cls.of(document, str(file), skip_unsupported=skip_unsupported)

    @classmethod
    def of(cls, document: Any, source: str, *, skip_unsupported: bool = False) -> BootDefinitions:
        """What `clusterbroker definitions export` writes, and RabbitMQ. Raises BadDefinitions."""
        # a node without definitions does not pay for it
        from clusterbroker.broker.management.definitions import drafted
        from clusterbroker.broker.management.errors import Refused

        if not isinstance(document, dict):
            raise BadDefinitions(f"{source} is no JSON object: definitions are what 'definitions export' writes")
        try:
            draft = drafted(document, Clock().now_ms(), skip=skip_unsupported).ready()
            for _, password in draft.passwords:
                hashed(password, cost=1)  # too long ones are refused now
        except Refused as refused:
            raise BadDefinitions(f"{source}: {refused.reason}") from None
        except ValueError as error:
            raise BadDefinitions(f"{source}: users: {error}") from None
        return cls(source, draft)

    @classmethod
    def of_sections(cls, sections: Mapping[str, Template], source: str) -> BootDefinitions | None:
        """Pools that sections `[pools.NAME]` declare; None: there are none. Raises BadDefinitions."""
        declaring = {name: one for name, one in sections.items() if one.declare is not False}
        if not declaring:
            return None
        from clusterbroker.broker.management.definitions import Draft

        drafts = tuple(_of_section(name, one) for name, one in declaring.items())
        return cls(source, Draft([], [], [], [], [], drafts))

    async def bring_in(self, shell: ServerPort) -> None:
        """Returns when all of them are there, or are refused. Raises what ends the node meanwhile."""
        if self.done:
            return
        cluster = shell.cluster
        waited_for = cluster.waits if cluster is not None else ""
        if cluster is not None:
            cluster.waits = f"for a majority that takes the definitions of {self.source}"
        importing = shell.loop.create_task(self._imported(shell))
        try:
            await come(
                importing, shell.ended, lambda: shell.log.emit("info", "definitions.wait", file=self.source), TELL_S
            )
        finally:
            importing.cancel()
        if cluster is not None:
            cluster.waits = waited_for
        self.done = True

    async def _imported(self, shell: ServerPort) -> None:
        from clusterbroker.broker.http.importing import imported  # nor for these
        from clusterbroker.broker.management.pool_definitions import bindings_of, refusals
        from clusterbroker.broker.server.control.protocol import Ordered

        wiring = shell.storage.wiring
        for line in self._warnings:
            shell.log.emit("warning", "definitions.adapted", file=self.source, what=line)

        async def order(command: c.AnyCommand) -> Ordered:
            outcome = await shell.propose(command)
            error = outcome.error
            return Ordered(0, error.kind if error else "", error.text if error else "", outcome.index)

        count = len(self.plan) + len(self.pools)
        for differs in refusals(wiring.map, (pool for pool in self.pools if _known(wiring.map, pool))):
            shell.log.emit("info", "definitions.kept", file=self.source, why=differs)
        while True:
            plan: Sequence[c.Defining] = await self._with_hashes(wiring.map, shell.options.password_cost)
            if await _all_there(shell, plan):
                plan = ()
            missing = [pool for pool in self.pools if not _known(wiring.map, pool)]
            bindings = [one for one in bindings_of(self.pools) if wiring.map.find_binding(one) is None]
            if not (plan or missing or bindings):
                shell.log.emit("info", "definitions.known", file=self.source, count=count)
                return
            if (why := next(refusals(wiring.map, missing, plan), None)) is not None:
                shell.log.emit("error", "definitions.refused", file=self.source, why=why)
                return
            pools = [pool.declare for pool in missing]
            refused = await imported(wiring, order, lambda: asyncio.sleep(PROGRESS_S), plan, pools, bindings)
            if refused is None:
                shell.log.emit("info", "definitions.imported", file=self.source, count=count)
                return
            if refused.kind != Unavailable.kind:
                shell.log.emit("error", "definitions.refused", file=self.source, why=refused.text)
                return
            await asyncio.sleep(AGAIN_S)

    async def _with_hashes(self, view: Any, cost: int) -> list[c.Defining]:
        """The plan. Who has this very password keeps its hash: another one would change the user."""
        plan = list(self.plan)
        for place, password in self._passwords:
            command = plan[place]
            assert isinstance(command, c.PutUser), "a password belongs to a user"
            known = view.user(command.name)
            stored, algorithm = (known.password_hash, known.hash_algorithm) if known is not None else ("", SCRYPT)
            if known is None or not await asyncio.to_thread(verified, password, stored, algorithm):
                stored, algorithm = await asyncio.to_thread(hashed, password, cost=cost), SCRYPT
            plan[place] = msgspec.structs.replace(command, password_hash=stored, hash_algorithm=algorithm)
        return plan


def _known(view: ClusterView, pool: PoolDraft) -> bool:
    """Whether there is a pool of its name, whatever its settings."""
    return view.pools.find(pool.declare.vhost, pool.declare.name) is not None


def _of_section(section: str, template: Template) -> PoolDraft:
    """Raises BadDefinitions."""
    from clusterbroker.broker.management.errors import Refused
    from clusterbroker.broker.management.pool_definitions import drafted
    from clusterbroker.broker.management.pools import SETTINGS

    said = dict(template.declare) if isinstance(template.declare, dict) else {}
    vhost, name = said.pop("vhost", DEFAULT_VHOST), said.pop("name", section)
    where = f"pools.{section}.declare"
    if unknown := said.keys() - set(SETTINGS):
        raise BadDefinitions(f"{where}: no setting '{min(unknown)}': known are vhost, name, {', '.join(SETTINGS)}")
    if not isinstance(vhost, str) or not isinstance(name, str):
        raise BadDefinitions(f"{where}: vhost and name are texts")
    comes_by_itself = template.driver == NOOP
    try:
        draft = drafted({**said, "template": NOOP if comes_by_itself else section}, Clock().now_ms(), vhost, name)
        ClusterMap().tried_pool(msgspec.structs.replace(draft.declare, vhost=DEFAULT_VHOST))
    except (Refused, WiringError) as error:
        raise BadDefinitions(f"{where}: {error.reason if isinstance(error, Refused) else error.text}") from None
    return draft


class SeveralDefinitions:
    """One after the other."""

    def __init__(self, parts: Sequence[BootDefinitions]) -> None:
        self._parts = parts

    async def bring_in(self, shell: ServerPort) -> None:
        """Returns when all of them are there, or are refused. Raises what ends the node meanwhile."""
        for part in self._parts:
            await part.bring_in(shell)


async def _all_there(shell: ServerPort, plan: Sequence[c.Defining]) -> bool:
    """Whether an import would change nothing: what changes nothing piece by piece changes nothing as a whole."""
    for start in range(0, len(plan), LOOKED_AT):
        view = shell.storage.wiring.map
        assert isinstance(view, ClusterMap), "a node folds the wiring itself"
        if view.importing is not None or view.tried(plan[start : start + LOOKED_AT]) != ([], []):
            return False
        await asyncio.sleep(0)
    return True
