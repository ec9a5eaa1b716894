"""The part of the fold that imports definitions: `imports.py` has the theory, this module the commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from clusterbroker.cluster.errors import Contended, LimitReached, PreconditionFailed, WiringError

from . import changes as events
from . import commands as c
from .changes import Change
from .commands import Defining
from .exchange_rules import STAGING
from .imports import PART_COMMANDS_MAX, PARTS_MAX, Import, Key, blamed, key_of, keys_of
from .parts import MapParts
from .pool_names import PoolNames
from .pool_rules import EVENTS
from .snapshot import Snapshot, StagedImport
from .topology import EXPECTED

AGAIN: Final = "try again in a moment"
SLICE_WEIGHT: Final = 100
"""What a proposer lets nodes carry out at once. The fold does not know it: `ApplyImport` says a number."""
QUEUES_OF_A_WEIGHT: Final = 50
"""A policy makes every node look at all queues of its vhost: so many weigh as much as one that is declared."""


class Imports:
    """The commands of an import, and what an import means for all other commands."""

    __slots__ = ("_parts", "current")

    def __init__(self, parts: MapParts) -> None:
        """No import is under way. `parts`: read while an import is staged, and later folds its commands."""
        self._parts = parts
        self.current: Import | None = None
        """The import that is under way."""

    # ---- staging ----

    def tried(self, commands: Iterable[Defining], most: int = 1) -> tuple[list[Defining], list[WiringError]]:
        """If the commands were imported now: those that would change something, and why they would be refused. Nothing
        happens. The reasons are the first `most`, without those that follow from another of them.

        It is a staged import of which nobody knows. It goes on after a refusal: the fold of a command that is refused
        changes nothing."""
        trial, refused = Import("", MapParts()), list[WiringError]()
        missing: set[Key | None] = set()
        for command in commands:
            if missing and not missing.isdisjoint(keys_of(command)):
                continue
            try:
                self._stage(trial, (command,))
            except WiringError as error:
                refused.append(error)
                if len(refused) == most:
                    break
                missing.add(key_of(command))
        if not refused:
            try:
                self._check_acceptance(trial)
            except WiringError as error:
                refused.append(error)
        return trial.changing, refused

    def import_definitions(self, command: c.ImportDefinitions, changes: list[Change]) -> bool:
        """Fold ImportDefinitions: whether all of it is done."""
        held = self._begun(command)
        try:
            if len(command.commands) > PART_COMMANDS_MAX or command.number >= PARTS_MAX:
                raise LimitReached(f"an import has {PARTS_MAX} parts of {PART_COMMANDS_MAX} commands at most")
            self._stage(held, command.commands)
            if command.last:
                self._check_acceptance(held)
        except WiringError:
            if held is self.current:  # refused whole: the parts that were staged before go too
                self._end(held, changes)
            raise
        held.parts += 1
        self.current = held
        if command.last:
            held.accept()
            self._expect(held)
            self._carry_on(held, command.apply, changes)
        if command.number or self.current is not None:
            changes.append(events.ImportChanged(held.import_id))
        return self.current is None

    def _begun(self, command: c.ImportDefinitions) -> Import:
        """The import that a part belongs to."""
        held = self.current
        if command.number == 0:
            if held is not None:
                raise Contended(f"definitions are being imported: {AGAIN}")
            return Import(command.import_id, MapParts())
        if held is None or held.import_id != command.import_id or held.parts != command.number or held.accepted:
            raise Contended(f"what the definitions name was changed while they were read: {AGAIN}")
        return held

    def _stage(self, held: Import, commands: Iterable[Defining]) -> None:
        """Fold the commands into the scratch map."""
        scratch = held.scratch
        assert scratch is not None, "a staged import has a scratch map"
        for command in commands:
            keys = keys_of(command)
            for key in keys:
                if key not in held.read:
                    held.read[key] = None
                    self._copy(key, scratch)
            changes: list[Change] = []
            try:
                if isinstance(command, c.DeclareQueue) and command.exclusive:
                    raise PreconditionFailed("an exclusive queue belongs to a connection")
                if isinstance(command, c.DeclareExchange) and command.type == STAGING:
                    raise PreconditionFailed("a staging exchange belongs to a transaction")
                self._parts.pools.table.refuse(command)  # the scratch map has no pools
                scratch.fold(command, changes)
            except WiringError as error:
                raise blamed(command, error) from None
            held.commands.append(command)
            if not changes:
                continue
            # bindings are not in the scratch map: only a binding itself depends on whether it is there
            if (
                isinstance(command, c.Bind)
                and self._parts.vhosts.look(command.vhost).bindings.find(command) is not None
            ):
                continue
            held.will_change(command, keys)
            match changes[0]:
                case events.VhostAdded(vhost=vhost):
                    if self._parts.members:
                        scratch.vhosts.by_name[vhost].predeclare_failover([])
                case events.QueueDeclared(queue=queue):
                    limits = scratch.vhosts.by_name[queue.vhost].limits
                    most = limits.queues_max if limits is not None else None
                    if most is not None and most >= 0:
                        room = most - held.expected[queue.vhost].queues
                        held.room[queue.vhost] = min(room, held.room.get(queue.vhost, room))

    def _copy(self, key: Key, scratch: MapParts) -> None:
        """Bring one thing that a command names into the scratch map, with nothing of what hangs on it."""
        parts = self._parts
        match key:
            case "vhost", name:
                parts.vhosts.copy_vhost(name, scratch.vhosts)
            case "queue", vhost, name:
                queue = parts.vhosts.look(vhost).queues.get(name)
                if queue is not None:
                    # its place does not matter to a declaration, and the scratch map has no members
                    alone = replace(queue, owner=None, replicas=(), in_sync=(), eligible=())
                    scratch.vhosts.by_name[vhost].adopt_queue(alone)
            case "exchange", vhost, name:
                exchange = parts.vhosts.look(vhost).exchanges.get(name)
                if exchange is not None:
                    scratch.vhosts.by_name[vhost].exchanges[name] = exchange
            case "user", name:
                parts.accounts.copy_user(name, scratch.accounts)
            case "permission", name, vhost:
                parts.accounts.copy_permissions(name, vhost, scratch.accounts)
            case ("policy" | "operator policy") as kind, vhost, name:
                policy = parts.vhosts.look(vhost).policies.get(name, operator=kind == "operator policy")
                if policy is not None:
                    scratch.vhosts.by_name[vhost].policies.put(policy)
            case "parameter", vhost, component, name:
                parts.parameters.copy_parameter(vhost, component, name, scratch.parameters)

    def _check_acceptance(self, held: Import) -> None:
        """Check what the scratch map cannot know: how many queues others have, and where the new ones can live."""
        for vhost, room in held.room.items():
            topology = self._parts.vhosts.by_name.get(vhost)
            if topology is not None and len(topology.queues) > room:
                raise LimitReached(f"the queues of the definitions are more than the limit of vhost '{vhost}' allows")
        replicas = self._parts.replicas
        if any(expected.queues for expected in held.expected.values()):
            replicas.check_places()
        if self._parts.members:
            for (node, incarnation), queue in held.homes.items():
                replicas.check_home(node, incarnation, queue)

    def drop(self, command: c.DropImport, changes: list[Change]) -> bool:
        """Fold DropImport."""
        held = self.current
        if held is None or held.import_id != command.import_id or held.accepted:
            return False
        self._end(held, changes)
        return True

    def _end(self, held: Import, changes: list[Change]) -> None:
        assert held is self.current, "an import that ends is under way"
        self.current = None
        changes.append(events.ImportChanged(held.import_id))

    # ---- carrying out ----

    def apply(self, command: c.ApplyImport, changes: list[Change]) -> bool:
        """Fold ApplyImport: whether anything was carried out, because the turn of just these had come."""
        held = self.current
        if held is None or not held.accepted or held.import_id != command.import_id or held.done != command.start:
            return False
        self._carry_on(held, min(command.count, PART_COMMANDS_MAX), changes)
        if held.done == command.start:
            return False
        changes.append(events.ImportChanged(held.import_id))
        return True

    def _carry_on(self, held: Import, count: int, changes: list[Change]) -> None:
        """Carry out the next commands. One whose end is gone is passed over; while no member can hold a queue, it waits
        with all that come after it."""
        parts, start = self._parts, held.done
        vhosts = parts.vhosts.by_name
        held.take_turn(True)
        for command in held.commands[start : start + count]:
            if isinstance(command, c.DeclareQueue):
                try:
                    parts.replicas.check_places()
                except PreconditionFailed:
                    break
            parts.clock.nth = held.done - start
            held.done += 1
            if isinstance(command, EXPECTED):
                held.expected[command.vhost].add(command, -1)
            try:
                parts.fold(command, changes)
            except WiringError:
                if isinstance(command, c.Bind) and command.vhost in vhosts:
                    vhosts[command.vhost].miss_binding(command.source, changes)
            if isinstance(command, c.AddVhost):
                vhosts[command.name].expected = held.expected[command.name]
        parts.clock.nth = 0
        held.take_turn(False)
        if held.done == len(held.commands):
            self.current = None

    def _expect(self, held: Import) -> None:
        """The import is decided: what is still to come counts from now on."""
        vhosts = self._parts.vhosts.by_name
        for vhost, expected in held.expected.items():
            if vhost in vhosts:
                vhosts[vhost].expected = expected

    def next_slice(self, commands: Sequence[Defining], start: int) -> int:
        """How many of the commands from `start` on may be carried out at once: at least one."""
        weight = 0
        for at in range(start, len(commands)):
            command = commands[at]
            weight += 1
            if isinstance(command, (c.PutPolicy, c.PutOperatorPolicy)):
                weight += len(self._parts.vhosts.look(command.vhost).queues) // QUEUES_OF_A_WEIGHT
            if weight > SLICE_WEIGHT:
                return max(1, at - start)
        return len(commands) - start

    # ---- other commands ----

    def end_if_contended(self, changes: list[Change]) -> None:
        """Others changed what a staged import was folded on: it ends, and its proposer begins anew."""
        held = self.current
        if held is None or held.accepted:
            return
        pools = [change.pool for change in changes if isinstance(change, events.PoolChanged)]
        table = self._parts.pools.table
        closes = any(
            True for pool in pools for _ in _closed_by(pool.vhost, pool.name, held.read, table.has_events(pool.pool_id))
        )
        if closes or any(key_of(change) in held.read for change in changes):
            self._end(held, changes)

    def refuse_contended(self, command: c.AnyCommand) -> None:
        """Raise Contended for a command that must come before an import that is decided, or after all of it."""
        held = self.current
        if held is None or not held.accepted:
            return
        for key in self._must_wait(command):
            if key in held.locks:
                raise Contended(f"{key[0]} '{key[-1]}' is being imported with other definitions: {AGAIN}")

    def _must_wait(self, command: c.AnyCommand) -> Iterable[Key]:
        """The things that the command makes, changes or misses: an import of one of them refuses it.

        A queue or an exchange that is there already may be declared again (that changes nothing) and bound, and a queue
        may be deleted, for then it has been there.
        """
        if isinstance(command, c.Loosen):
            command = command.ending
        if isinstance(command, c.DeclarePool) or (isinstance(command, c.SetPool) and EVENTS in command.only):
            yield from self._missing_vhost(command.vhost)
            yield from self._of_pool(command)
            return
        key = key_of(command)
        if key is None:
            return
        if key[0] not in ("vhost", "user"):
            yield from self._missing_vhost(command.vhost)  # type: ignore[union-attr]
        match command:
            case c.DeclareQueue() | c.PauseQueue() | c.ExchangeDeclaration():
                yield from self._missing(*key)
                topology = self._parts.vhosts.look(command.vhost)
                full = isinstance(command, c.DeclareQueue) and topology.expected.limits
                if full and command.name not in topology.queues:
                    yield "vhost", command.vhost
            case c.Bind():
                yield from self._missing("exchange", command.vhost, command.source)
                yield from self._missing(command.destination_kind, command.vhost, command.destination)
            case c.SetPermission() | c.ClearPermission() | c.SetTopicPermission() | c.ClearTopicPermission():
                yield "user", command.user
                yield key
            case _:
                yield key

    def _missing_vhost(self, vhost: str) -> Iterable[Key]:
        if vhost not in self._parts.vhosts.by_name:
            yield "vhost", vhost

    def _of_pool(self, command: c.DeclarePool | c.SetPool) -> Iterable[Key]:
        """What an import has of the names that a pool would close."""
        assert self.current is not None, "an import is decided"
        for kind, vhost, name in _closed_by(command.vhost, command.name, self.current.locks, command.events):
            yield from self._missing(kind, vhost, name)

    def _missing(self, kind: str, vhost: str, name: str) -> Iterable[Key]:
        topology = self._parts.vhosts.look(vhost)
        if name not in (topology.queues if kind == "queue" else topology.exchanges):
            yield kind, vhost, name

    # ---- snapshots ----

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        held = self.current
        if held is not None:
            snapshot.imports = [StagedImport(held.import_id, held.parts, held.accepted, held.done)]
            snapshot.import_commands = list(held.commands)

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot; all other parts are there already."""
        commands = list(snapshot.import_commands)
        for header in snapshot.imports:
            held = Import(header.import_id, None if header.accepted else MapParts())
            held.parts = header.parts
            if header.accepted:
                held.commands, held.accepted, held.done = commands, True, header.done
                for place, command in enumerate(commands):
                    held.locks.update(dict.fromkeys(keys_of(command)))
                    if place >= header.done:
                        held.expect(command)
                self._expect(held)
            else:
                self._stage(held, commands)
            self.current = held


def _closed_by(vhost: str, pool: str, keys: Iterable[Key], tells: bool) -> Iterable[Key]:
    """Those of the queues and exchanges that are a pool's by their names."""
    try:
        names = PoolNames(pool)
    except UnicodeEncodeError:
        return  # no pool has such a name
    for key in keys:
        if (key[:2] == ("exchange", vhost) and key[2] in names.exchanges) or (
            key[:2] == ("queue", vhost) and names.has_queue(key[2], tells)
        ):
            yield key
