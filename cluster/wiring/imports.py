"""An import of definitions in progress: many commands as one, all or nothing.

    ImportDefinitions 0, 1, ...   each part is folded into a scratch map of what it names; nobody sees an effect
    ImportDefinitions (last)      the whole is accepted, or refused and forgotten
    ApplyImport(start, count)     the next commands are carried out: the leader proposes it until all are
    DropImport                    nobody goes on with the parts that were staged

        nothing ---> staged ---------------> accepted ---> nothing
                       |  refused, dropped,     done, slice by slice, whoever leads
                       |  or contended
                       '-----> nothing

10,000 queues in one command would hold every node's loop for seconds, so both the check and the carrying out come in
pieces; what makes the pieces one is a matter of who may change what meanwhile.

While it is *staged* others go first. The import remembers all that its outcome depends on (`read`); whoever changes
some of that makes it void, and its proposer begins anew. So the scratch map is at every time what the map would be if
the parts had been carried out now: a node that comes from a snapshot makes it again from the commands.

At acceptance it is decided, and others must see a cluster in which it has happened. What it shall still make or change
is refused to them for the moment (`Contended`, importing.py says which commands); so no command of it can fail
later for what others do. One thing nobody can be refused is that something ends: a connection with its queues, a node
with what is transient. An ended thing ends after the import: what would have hung on it is passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import Incarnation, NodeId

from . import changes as events
from . import commands as c
from .changes import Change
from .commands import Defining
from .entities import Binding, Exchange, Queue
from .exchange_rules import EXCHANGE_DECLARATIONS
from .parts import MapParts
from .topology import EXPECTED, Expected

PART_COMMANDS_MAX: Final = 500
PARTS_MAX: Final = 512

Key = tuple[str, ...]
"""One thing of the wiring: its kind, and its name in the map; of bindings all that have the same ends."""


@dataclass(slots=True, eq=False)
class Import:
    """What the map has of an import.

    Invariants: (1) nothing of it is done before acceptance, then `commands[done:]` is what is still to be done; (2)
    while it is staged there is a scratch map, and what that was made of has not been changed since; (3) all fields
    follow from the commands, `parts`, `accepted`, `done` and the map, so a snapshot has no others.
    """

    import_id: str
    scratch: MapParts | None
    """An empty map at first; None: the import is accepted."""
    parts: int = 0
    commands: list[Defining] = field(default_factory=list)
    """Staged: all of them. Accepted: those that change something."""
    changing: list[Defining] = field(default_factory=list)
    """Staged: those that will change something."""
    accepted: bool = False
    done: int = 0
    read: dict[Key, None] = field(default_factory=dict)
    """Staged: what the outcome depends on."""
    locks: dict[Key, None] = field(default_factory=dict)
    """What the changing commands make, change or need: accepted, others may not."""
    room: dict[str, int] = field(default_factory=dict)
    """Staged: so many queues a vhost may have now, or its limit is in the way."""
    homes: dict[tuple[NodeId, Incarnation], str] = field(default_factory=dict)
    """Staged: incarnations of nodes that shall have transient queues, and the first of these."""
    expected: defaultdict[str, Expected] = field(default_factory=lambda: defaultdict(Expected))
    """By vhost: what is new and not there yet."""

    def will_change(self, command: Defining, keys: Iterable[Key]) -> None:
        """Of a command in its turn: it is to be carried out."""
        self.changing.append(command)
        self.locks.update(dict.fromkeys(keys))
        self.expect(command)
        if isinstance(command, c.DeclareQueue) and not command.durable:
            self.homes.setdefault((command.owner, command.incarnation), named(command))

    def expect(self, command: Defining) -> None:
        """It is still to be carried out."""
        if isinstance(command, EXPECTED):
            self.expected[command.vhost].add(command, 1)

    def take_turn(self, turn: bool) -> None:
        """Whether what is carried out now is of the import itself."""
        for expected in self.expected.values():
            expected.in_turn = turn

    def accept(self) -> None:
        """It is decided."""
        self.accepted = True
        self.commands, self.changing = self.changing, []
        self.scratch = None
        self.read, self.room, self.homes = {}, {}, {}


_OF_VHOST, _OF_USER, _PERMISSION, _NAMED = ("vhost",), ("user",), ("user", "vhost"), ("vhost", "name")
_PARAMETER, _BINDING = ("vhost", "component", "name"), ("vhost", "source", "destination_kind", "destination")
_ABOUT: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    **dict.fromkeys((c.AddVhost, c.DeleteVhost), ("vhost", ("name",))),
    **dict.fromkeys((c.SetVhostLimits, c.ClearVhostLimits), ("vhost", _OF_VHOST)),
    **dict.fromkeys((events.VhostAdded, events.VhostChanged, events.VhostDeleted), ("vhost", _OF_VHOST)),
    **dict.fromkeys((c.PutUser, c.SetUserLimits, c.DeleteUser), ("user", ("name",))),
    events.UserChanged: ("user", _OF_USER),
    **dict.fromkeys((c.SetPermission, c.ClearPermission), ("permission", _PERMISSION)),
    **dict.fromkeys((c.SetTopicPermission, c.ClearTopicPermission), ("permission", _PERMISSION)),
    events.PermissionChanged: ("permission", _PERMISSION),
    **dict.fromkeys((c.PutPolicy, c.DeletePolicy, events.PolicyChanged), ("policy", _NAMED)),
    **dict.fromkeys((c.PutOperatorPolicy, c.DeleteOperatorPolicy), ("operator policy", _NAMED)),
    **dict.fromkeys((c.PutParameter, c.DeleteParameter, events.ParameterChanged), ("parameter", _PARAMETER)),
    **dict.fromkeys((c.DeclareQueue, c.PauseQueue, Queue), ("queue", _NAMED)),
    **dict.fromkeys((*EXCHANGE_DECLARATIONS, c.DeleteExchange, Exchange), ("exchange", _NAMED)),
    **dict.fromkeys((c.Bind, c.Unbind, Binding), ("binding", _BINDING)),
}
"""The kind of the thing that a command, a change or an entity is about, and the fields that name it."""
_TEXTS: Final[dict[type, str]] = {
    c.AddVhost: "vhost '{0.name}'",
    c.SetVhostLimits: "limits of vhost '{0.vhost}'",
    c.PutUser: "user '{0.name}'",
    **dict.fromkeys((c.SetPermission, c.SetTopicPermission), "permission of user '{0.user}' in vhost '{0.vhost}'"),
    **dict.fromkeys((c.PutPolicy, c.PutOperatorPolicy), "policy '{0.name}' in vhost '{0.vhost}'"),
    c.PutParameter: "parameter '{0.name}' of component '{0.component}'",
    c.DeclareQueue: "queue '{0.name}' in vhost '{0.vhost}'",
    **dict.fromkeys(EXCHANGE_DECLARATIONS, "exchange '{0.name}' in vhost '{0.vhost}'"),
    c.Bind: "binding from exchange '{0.source}' to {0.destination_kind} '{0.destination}' in vhost '{0.vhost}'",
}


def key_of(about: c.AnyCommand | Change | Queue | Exchange | Binding) -> Key | None:
    """The thing that a command or a change is about, if what an import does can depend on it."""
    match about:
        case events.QueueDeclared(queue=entity) | events.QueueDeleted(queue=entity):
            return key_of(entity)
        case events.ExchangeDeclared(exchange=entity) | events.ExchangeDeleted(exchange=entity):
            return key_of(entity)
        case events.Bound(binding=entity) | events.Unbound(binding=entity):
            return key_of(entity)
    found = _ABOUT.get(type(about))
    if found is None:
        return None
    kind, fields = found
    if isinstance(about, events.PolicyChanged) and about.operator:
        kind = "operator policy"
    return kind, *(getattr(about, field) for field in fields)


def keys_of(command: Defining) -> tuple[Key, ...]:
    """What a command makes, changes or needs; a vhost before what is in it, a user before its permission."""
    key = key_of(command)
    assert key is not None, "a definition is about something"
    match command:
        case c.AddVhost() | c.SetVhostLimits() | c.PutUser():
            return (key,)
        case c.SetPermission() | c.SetTopicPermission():
            return ("vhost", command.vhost), ("user", command.user), key
        case c.Bind():
            destination = (command.destination_kind, command.vhost, command.destination)
            return ("vhost", command.vhost), ("exchange", command.vhost, command.source), destination, key
        case _:
            return ("vhost", command.vhost), key


def named(command: Defining) -> str:
    """A command as its author knows it."""
    return _TEXTS[type(command)].format(command)


def blamed(command: Defining, error: WiringError) -> WiringError:
    """The error of one command of many, with its name in front where the text lacks it."""
    what = named(command)
    return error if what in error.text else type(error)(f"{what}: {error.text}")


def parted(commands: Sequence[Defining], sizes: Sequence[int], part_bytes_max: int) -> list[Sequence[Defining]]:
    """The parts in which an import is staged; `sizes`: of each command, in bytes."""
    parts: list[Sequence[Defining]] = []
    start = size = 0
    for at, more in enumerate(sizes):
        if at > start and (size + more > part_bytes_max or at - start == PART_COMMANDS_MAX):
            parts.append(commands[start:at])
            start, size = at, 0
        size += more
    return [*parts, commands[start:]]
