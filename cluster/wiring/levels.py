"""Feature levels: what may be written so that every member can read it.

A release knows the levels up to LEVEL. The level of a cluster is in its map, begins with what all founders know, and
is raised by an operator (RaiseLevel) when every member runs a release that knows more. Until then a new release
writes nothing that an older one could not read, so members of both run side by side, in either direction. The level
never falls, and from then on an older release is refused: at the hello of a link, and at its registration.

What a release knows is told by its process, in its hello and when it registers. The map does not keep it: an older
release drops a field that it does not know, from its map and its snapshots, and after its upgrade that member's map
would be another one than the others'. So RaiseLevel itself names those that know the level, by incarnations, which
every release keeps.

A node that is alone writes for nobody else: it is at LEVEL without being asked.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clusterbroker.cluster.errors import LimitReached, NewerRelease, PreconditionFailed

from . import commands as c
from .changes import Change, LevelRaised
from .delay_bits import BITS_SETTINGS
from .exchange_rules import DELAY_RATE
from .members import Members
from .pool_entities import NO_KEY, NO_MORE, NOOP, MoreSettings
from .pool_rules import EVENTS, KEYS_PER_WORKER, SPARES
from .queue_settings import DEDUPLICATION, LINK_SETTINGS
from .snapshot import Snapshot

NEWER: Final = frozenset(MoreSettings.__struct_fields__)
"""Settings of pools that came with feature level 8."""


class Level(NamedTuple):
    """One feature level."""

    number: int
    brings: str
    commands: tuple[type[c.Command], ...] = ()
    """Commands that no release below it can read."""
    settings: tuple[str, ...] = ()
    """Keys of policies, and arguments of queues with x- before them, that no release below it judges alike."""


FIRST: Final = 1
"""Of the releases before there were levels."""
LINK_RECOVERY: Final = 3
LINK_POLICIES: Final = 4
SOLE_CONNECTIONS: Final = 4
DELAYED_MESSAGES: Final = 4
"""One level for the three: no release has had one of them without the others."""
CHOOSING_EXCHANGES: Final = 5
DELAY_RATES: Final = 5
WORKER_POOLS: Final = 5
RECENT_HISTORY: Final = 6
STARTED_WORKERS: Final = 6
SUSPECTS: Final = 6
ASKED_HOLDERS: Final = 6
NUMBERED_RUNS: Final = 6
ASKED_COMMITS: Final = 6
DEDUPLICATING: Final = 6
SPARE_WORKERS: Final = 7
DEDUPLICATING_EXCHANGES: Final = 7
DELAY_BITS: Final = 7
ASKED_BY_NUMBER: Final = 7
LOST_NUMBERS: Final = 7
TENANTS: Final = 8
LEARNT_COSTS: Final = 8
POOL_EVENTS: Final = 9
ANSWERED_DELAYS: Final = 10
CIRCLES: Final = 7
"""The end of an auto-delete exchange in a circle of bindings, in pieces: below it, the pieces take it with them."""
MEMBERS_MAX: Final = 253
"""From LINK_RECOVERY on: a message's holder is one byte, of which two values are no member's."""
LEVELS: Final = (
    Level(FIRST, "AMQP 0-9-1, streams, leases, transactions"),
    Level(2, "messages of AMQP 1.0"),
    Level(
        LINK_RECOVERY,
        "links of AMQP 1.0: filters, browsing, and state that outlives connections and nodes",
        (c.AttachLink, c.SuspendLink, c.ExpireLink, c.ForgetLink),
    ),
    Level(
        LINK_POLICIES,
        "delayed messages; AMQP 1.0: policies about links, consumer timeouts of suspended ones, sole connections",
        (c.DeclareDelayedExchange, c.HoldContainer, c.ReleaseContainer),
        settings=LINK_SETTINGS,
    ),
    Level(
        WORKER_POOLS,
        "worker pools; exchanges that choose a destination (x-random, x-local-random, x-modulus-hash); x-delay-rate",
        (
            c.DeclareChoosingExchange,
            c.DeclarePool,
            c.SetPool,
            c.PausePool,
            c.DeletePool,
            c.RequireGroups,
            c.UnbindGroup,
            c.BindGroup,
            c.DropGroup,
            c.SettleGroups,
            c.EndPoolQueue,
            c.LaunchWorkers,
            c.RevokeWorkers,
            c.WorkersGone,
        ),
    ),
    Level(
        STARTED_WORKERS,
        "workers that pools start, words about their keys, suspects; x-recent-history; frames with more than one "
        "numbered message; x-message-deduplication of queues; AMQP 1.0: transactions over several queues that are all "
        "or nothing",
        (c.RetireWorkers, c.DeclareHistoryExchange, c.DirectGroup),
        settings=(DEDUPLICATION,),
    ),
    Level(
        SPARE_WORKERS,
        "spare workers of pools, workers of several keys; exchanges that deduplicate (x-message-deduplication); delays "
        "in routing keys (policy keys delay-bits and delay-exchange); AMQP 1.0: transactions with numbered messages "
        "that are all or nothing over several queues",
        (c.AssignWorkers, c.RetireKeys, c.RevokeKeys, c.DeclareDeduplicatingExchange, c.KeepDelays, c.EndDelays),
        settings=BITS_SETTINGS,
    ),
    Level(
        TENANTS,
        "tenants of pools and their weights, settings of their scaling, workers that call their own pool, memory of a "
        "key's workers that a new controller knows",
    ),
    Level(POOL_EVENTS, "pools that tell what happens to their requests and workers, in a stream"),
    Level(
        ANSWERED_DELAYS,
        "answers to requests that wait for their time in a pool that is deleted, and their way when they are due",
    ),
)
LEVEL: Final = LEVELS[-1].number
"""The highest that this release knows."""
_NEEDED: Final[dict[type, int]] = {kind: level.number for level in LEVELS for kind in level.commands}
_KEYS: Final[dict[str, int]] = {key: level.number for level in LEVELS for key in level.settings}
_ARGUMENTS: Final = {"x-" + key: level for key, level in _KEYS.items()}


def check_ordered(command: c.AnyCommand, level: int) -> None:
    """Raise PreconditionFailed for a command that a cluster at this level must not have in its log: a member that
    cannot read it stops, so the fold's own answer would come too late."""
    lowest = _needed(command)
    if lowest > level:
        raise PreconditionFailed(
            f"this needs feature level {lowest}, and the cluster is at {level}: when all members run a release that "
            "knows it, raise the level (clusterbroker cluster raise-level)"
        )


def _needed(command: Any) -> int:
    match command:
        case c.ImportDefinitions(commands=parts):
            return max(map(_needed, parts), default=FIRST)
        case c.Loosen(ending=ending):
            return _needed(ending)
        case c.PutPolicy(definition=definition) | c.PutOperatorPolicy(definition=definition):
            return max((_KEYS.get(key, FIRST) for key in definition), default=FIRST)
        case c.DeclareDelayedExchange(arguments=arguments) if DELAY_RATE in arguments:
            return DELAY_RATES
        case c.DeletePool(delayed=True):
            return ANSWERED_DELAYS
        case c.DeclarePool(events=True):
            return POOL_EVENTS
        case c.SetPool(only=only) if EVENTS in only:
            return POOL_EVENTS
        case c.DeclarePool(more=more) if more != NO_MORE:
            return TENANTS
        case c.SetPool(only=only) if not NEWER.isdisjoint(only):
            return TENANTS
        case c.DeclarePool(spares=spares, keys_per_worker=keys) if spares or keys > 1:
            return SPARE_WORKERS
        case c.SetPool(only=only) if SPARES in only or KEYS_PER_WORKER in only:
            return SPARE_WORKERS
        case c.LaunchWorkers(workers=workers) if any(key == NO_KEY for key, *_ in workers):
            return SPARE_WORKERS
        case c.DeclarePool(template=template) if template not in ("", NOOP):
            return STARTED_WORKERS
        case c.SettleGroups(generations=generations) if generations:
            return STARTED_WORKERS
        case c.DeclareQueue(arguments=arguments):
            return max((_ARGUMENTS.get(name, FIRST) for name in arguments), default=FIRST)
        case _:
            return _NEEDED.get(type(command), FIRST)


class Levels:
    """The part of the map that is the cluster's level, with the commands about it."""

    __slots__ = ("_level", "_members")

    def __init__(self, members: Members) -> None:
        self._members = members
        self._level = FIRST

    @property
    def level(self) -> int:
        """What may be written; of a node that is alone all that its release knows."""
        return self._level if self._members else LEVEL

    def raise_level(self, command: c.RaiseLevel, changes: list[Change]) -> None:
        """Fold RaiseLevel. Raises NewerRelease: the others go on at a level that this release does not know."""
        if command.level <= self._level:
            raise PreconditionFailed(
                f"the cluster is at feature level {self._level}, which never falls: {command.level} is not above it"
            )
        known = set(command.members)
        for member in self._members.all():
            if member.disk_id and (member.name, member.incarnation) not in known:
                raise PreconditionFailed(
                    f"member '{member.name}' is not known to support feature level {command.level}, or has started "
                    "since its release was looked at: try again"
                )
        check_known(command.level)
        if command.level >= LINK_RECOVERY and len(self._members.all()) > MEMBERS_MAX:
            raise PreconditionFailed(
                f"from feature level {LINK_RECOVERY} on a cluster has at most {MEMBERS_MAX} members, and this one has "
                f"{len(self._members.all())}: forget some first"
            )
        self._level = command.level
        changes.append(LevelRaised(command.level))

    def check_room(self) -> None:
        """Raise LimitReached for one member more than there may be."""
        if self._level >= LINK_RECOVERY and len(self._members.all()) >= MEMBERS_MAX:
            raise LimitReached(
                f"a cluster has at most {MEMBERS_MAX} members from feature level {LINK_RECOVERY} on: forget one first"
            )

    def check_registration(self, command: c.RegisterNode) -> None:
        """Raise PreconditionFailed for a release that cannot read what the others may have written."""
        if command.level < self._level:
            raise PreconditionFailed(
                f"member '{command.node}' runs a release that knows feature level {command.level}, and the cluster is "
                f"at level {self._level}, which never falls: install the release of the other members there, or a "
                "newer one"
            )

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot: nothing at the first level, where older releases read it."""
        snapshot.levels = [self._level] if self._level > FIRST else []

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot. Raises NewerRelease."""
        for level in snapshot.levels:
            check_known(level)
            self._level = level


def check_known(level: int) -> None:
    """Raise NewerRelease for a level that this release does not know."""
    if level > LEVEL:
        raise NewerRelease(f"the cluster is at feature level {level}, this release knows levels up to {LEVEL}")
