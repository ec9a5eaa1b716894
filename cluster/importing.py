"""The part of the fold that imports definitions: `imports.py` has the theory, this module the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from . import changes as told
from . import commands as c
from .changes import Change
from .commands import Defining
from .errors import Contended, LimitReached, PreconditionFailed, WiringError
from .exchange_rules import STAGING
from .imports import PART_COMMANDS_MAX, PARTS_MAX, Import, Key, binding_key, blamed, key_of, keys_of
from .snapshot import StagedImport
from .topology import EXPECTED, Topology
from .transactions import Transactions

if TYPE_CHECKING:
    from .state import ClusterMap

AGAIN = "try again in a moment"


class Importing(Transactions):
    """Handlers of the commands of an import, and what it means for those of others."""

    __slots__ = ("_nth",)

    def __init__(self) -> None:
        """No import is under way."""
        super().__init__()
        self._nth = 0
        """The command that is being carried out is so many behind the first of its log entry."""

    def _importing_handlers(self) -> dict[type, Callable[[Any, list[Change]], Any]]:
        return {
            c.ImportDefinitions: self._import_definitions,
            c.ApplyImport: self._apply_import,
            c.DropImport: self._drop_import,
        }

    def _carried_out(self, command: Any, log: list[Change]) -> Any:
        """One command of any kind."""
        raise NotImplementedError

    def _new(self) -> ClusterMap:
        """An empty map."""
        raise NotImplementedError

    # ---- staging ----

    def tried(self, commands: Iterable[Defining]) -> list[Defining]:
        """Those of the commands that would change something if they were imported now; nothing happens. Raises the
        WiringError with which they would be refused."""
        held = Import("", self._new())
        self._stage(held, commands)
        self._check_acceptance(held)
        return held.changing

    def _import_definitions(self, command: c.ImportDefinitions, log: list[Change]) -> bool:
        """Whether all of it is done."""
        held = self._begun(command)
        try:
            if len(command.commands) > PART_COMMANDS_MAX or command.number >= PARTS_MAX:
                raise LimitReached(f"an import has {PARTS_MAX} parts of {PART_COMMANDS_MAX} commands at most")
            self._stage(held, command.commands)
            if command.last:
                self._check_acceptance(held)
        except WiringError:
            if held is self._import:  # refused whole: what was staged before goes too
                self._end_import(log)
            raise
        held.parts += 1
        self._import = held
        if command.last:
            held.accept()
            self._expect(held)
            self._carry_on(held, command.apply, log)
        if command.number or self._import is not None:
            log.append(told.ImportChanged(held.import_id))
        return self._import is None

    def _begun(self, command: c.ImportDefinitions) -> Import:
        """The import that a part belongs to."""
        held = self._import
        if command.number == 0:
            if held is not None:
                raise Contended(f"definitions are being imported: {AGAIN}")
            return Import(command.import_id, self._new())
        if held is None or held.import_id != command.import_id or held.parts != command.number or held.accepted:
            raise Contended(f"what the definitions name was changed while they were read: {AGAIN}")
        return held

    def _stage(self, held: Import, commands: Iterable[Defining]) -> None:
        """Fold them into the scratch map."""
        scratch = held.scratch
        assert scratch is not None, "what is staged has a scratch map"
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
                scratch._carried_out(command, changes)
            except WiringError as error:
                raise blamed(command, error) from None
            held.commands.append(command)
            if not changes or (isinstance(command, c.Bind) and self._is_bound(command)):
                continue
            held.will_change(command, keys)
            match changes[0]:
                case told.VhostAdded(vhost=vhost):
                    if self._members:
                        scratch._vhosts[vhost].predeclare_failover([])
                case told.QueueDeclared(queue=queue):
                    limits = scratch._vhosts[queue.vhost].limits
                    most = limits.queues_max if limits is not None else None
                    if most is not None and most >= 0:
                        room = most - held.expected[queue.vhost].queues
                        held.room[queue.vhost] = min(room, held.room.get(queue.vhost, room))

    def _is_bound(self, command: c.Bind) -> bool:
        """Bindings are not in the scratch map: nothing but a binding itself depends on whether it is there."""
        topology = self._vhosts.get(command.vhost)
        return topology is not None and topology.is_bound(command)

    def _copy(self, key: Key, scratch: Importing) -> None:
        """Bring one thing that a command names into the scratch map, with nothing of what hangs on it."""
        match key:
            case "vhost", name:
                scratch._vhosts.pop(name, None)  # a new map has the default one
                if (topology := self._vhosts.get(name)) is not None:
                    scratch._vhosts[name] = copy = Topology(topology.vhost)
                    copy.limits = topology.limits
            case "queue", vhost, name:
                if (queue := self.queue(vhost, name)) is not None:
                    # where it is, is of no matter to a declaration, and the scratch map has no members
                    alone = replace(queue, owner=None, replicas=(), in_sync=(), eligible=())
                    scratch._vhosts[vhost].adopt_queue(alone)
            case "exchange", vhost, name:
                if (exchange := self.exchange(vhost, name)) is not None:
                    scratch._vhosts[vhost].exchanges[name] = exchange
            case "user", name:
                if (user := self.user(name)) is not None:
                    scratch._accounts.put_user(user)
            case "permission", name, vhost:
                self._accounts.copy_permissions(name, vhost, scratch._accounts)
            case "policy", vhost, name:
                for policy in self.policies(vhost):
                    if policy.name == name:
                        scratch._vhosts[vhost].policies.put(policy)
            case "operator policy", vhost, name:
                for operator_policy in self.operator_policies(vhost):
                    if operator_policy.name == name:
                        scratch._vhosts[vhost].policies.put_operator(operator_policy)
            case "parameter", vhost, component, name:
                if (parameter := self.parameter(vhost, component, name)) is not None:
                    scratch._parameters[(vhost, component, name)] = parameter

    def _check_acceptance(self, held: Import) -> None:
        """What the scratch map cannot know: how many queues others have, and who could hold the new ones."""
        for vhost, room in held.room.items():
            topology = self._vhosts.get(vhost)
            if topology is not None and len(topology.queues) > room:
                raise LimitReached(f"the queues of the definitions are more than the limit of vhost '{vhost}' allows")
        if any(expected.queues for expected in held.expected.values()):
            self._check_places()
        if self._members:
            for (node, incarnation), queue in held.homes.items():
                self._check_home(node, incarnation, queue)

    def _end_import(self, log: list[Change]) -> None:
        held = self._import
        assert held is not None, "an import that ends is under way"
        self._import = None
        log.append(told.ImportChanged(held.import_id))

    def _drop_import(self, command: c.DropImport, log: list[Change]) -> bool:
        held = self._import
        if held is None or held.import_id != command.import_id or held.accepted:
            return False
        self._end_import(log)
        return True

    def _taken_up(self, header: StagedImport, commands: list[Defining]) -> None:
        """An import that a snapshot was taken of."""
        held = Import(header.import_id, None if header.accepted else self._new())
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
        self._import = held

    # ---- carrying out ----

    def _apply_import(self, command: c.ApplyImport, log: list[Change]) -> bool:
        """Whether anything was carried out: it was the turn of just these."""
        held = self._import
        if held is None or not held.accepted or held.import_id != command.import_id or held.done != command.start:
            return False
        self._carry_on(held, min(command.count, PART_COMMANDS_MAX), log)
        if held.done == command.start:
            return False
        log.append(told.ImportChanged(held.import_id))
        return True

    def _carry_on(self, held: Import, count: int, log: list[Change]) -> None:
        """Carry out the next commands. One whose end is gone is passed over; while no member can hold a queue, it waits
        with all that come after it."""
        start = held.done
        held.take_turn(True)
        for command in held.commands[start : start + count]:
            if isinstance(command, c.DeclareQueue):
                try:
                    self._check_places()
                except PreconditionFailed:
                    break
            self._nth = held.done - start
            held.done += 1
            if isinstance(command, EXPECTED):
                held.expected[command.vhost].add(command, -1)
            try:
                self._carried_out(command, log)
            except WiringError:
                if isinstance(command, c.Bind) and command.vhost in self._vhosts:
                    self._vhosts[command.vhost].miss_binding(command.source, log)
            if isinstance(command, c.AddVhost):
                self._vhosts[command.name].expected = held.expected[command.name]
        self._nth = 0
        held.take_turn(False)
        if held.done == len(held.commands):
            self._import = None

    def _expect(self, held: Import) -> None:
        """It is decided: what is still to come counts from now on."""
        for vhost, expected in held.expected.items():
            if vhost in self._vhosts:
                self._vhosts[vhost].expected = expected

    # ---- others ----

    def _contended(self, changes: list[Change]) -> None:
        """Others changed what a staged import was folded on: its proposer begins anew."""
        held = self._import
        if held is not None and not held.accepted and any(key_of(change) in held.read for change in changes):
            self._end_import(changes)

    def _refuse_contended(self, command: c.AnyCommand) -> None:
        """Raise Contended for what must come before an import that is decided, or after all of it."""
        held = self._import
        if held is None or not held.accepted:
            return
        for key in self._must_wait(command):
            if key in held.locks:
                raise Contended(f"{key[0]} '{key[-1]}' is being imported with other definitions: {AGAIN}")

    def _must_wait(self, command: c.AnyCommand) -> Iterable[Key]:
        """Of each of these: what is being imported may not be made, changed or missed by others.

        A queue or an exchange that is there already may be declared again (that changes nothing) and bound, and a queue
        may be deleted, for then it has been there.
        """
        match command:
            case c.AddVhost() | c.DeleteVhost():
                yield "vhost", command.name
            case c.SetVhostLimits() | c.ClearVhostLimits():
                yield "vhost", command.vhost
            case c.PutUser() | c.SetUserLimits() | c.DeleteUser():
                yield "user", command.name
            case c.SetPermission() | c.ClearPermission() | c.SetTopicPermission() | c.ClearTopicPermission():
                yield from self._missing_vhost(command.vhost)
                yield "user", command.user
                yield "permission", command.user, command.vhost
            case c.PutPolicy() | c.DeletePolicy():
                yield from self._missing_vhost(command.vhost)
                yield "policy", command.vhost, command.name
            case c.PutOperatorPolicy() | c.DeleteOperatorPolicy():
                yield from self._missing_vhost(command.vhost)
                yield "operator policy", command.vhost, command.name
            case c.PutParameter() | c.DeleteParameter():
                yield from self._missing_vhost(command.vhost)
                yield "parameter", command.vhost, command.component, command.name
            case c.DeclareQueue():
                yield from self._missing_vhost(command.vhost)
                yield from self._missing("queue", command.vhost, command.name)
                topology = self._vhosts.get(command.vhost)
                if topology is not None and topology.expected.limits and command.name not in topology.queues:
                    yield "vhost", command.vhost
            case c.PauseQueue():
                yield from self._missing_vhost(command.vhost)
                yield from self._missing("queue", command.vhost, command.name)
            case c.DeclareExchange():
                yield from self._missing_vhost(command.vhost)
                yield from self._missing("exchange", command.vhost, command.name)
            case c.DeleteExchange():
                yield from self._missing_vhost(command.vhost)
                yield "exchange", command.vhost, command.name
            case c.Bind():
                yield from self._missing_vhost(command.vhost)
                yield from self._missing("exchange", command.vhost, command.source)
                yield from self._missing(command.destination_kind, command.vhost, command.destination)
            case c.Unbind():
                yield from self._missing_vhost(command.vhost)
                yield binding_key(command)
            case c.Loosen():
                yield from self._must_wait(command.ending)

    def _missing_vhost(self, vhost: str) -> Iterable[Key]:
        if vhost not in self._vhosts:
            yield "vhost", vhost

    def _missing(self, kind: str, vhost: str, name: str) -> Iterable[Key]:
        there = self.queue(vhost, name) if kind == "queue" else self.exchange(vhost, name)
        if there is None:
            yield kind, vhost, name
