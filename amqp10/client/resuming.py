"""What a client does with deliveries in doubt when its link is attached again (2.6.13): maps in, plan out.

Both attaches carry the maps of what their sides have not settled, tag to state. A side that has an incomplete map says
nothing of what is absent from it: these tags are decided by a later attach, and no new delivery may come before.

A sender link (this client sends), by our state of a tag and the peer's:

    null       an outcome        the outcome holds; settled by a resumed transfer without a payload
    null       received          sent on from that place, resumed
    null       null              sent again from the start, resumed
    null       absent            never arrived: sent again, as a new delivery, in the old order
    outcome    any state         settled by a resumed transfer without a payload
    outcome    absent            forgotten: the peer has settled it

A receiver link (this client receives):

    any        another outcome   lost: the peer has decided it without us
    any        any other state   the peer resumes it: nothing to do but wait for its transfer
    outcome    absent            the peer has carried it out and settled
    null       absent            lost: the peer has given it to somebody else, or deleted it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from clusterbroker.amqp10.client.errors import ProtocolError
from clusterbroker.broker.wire.amqp10.performatives import (
    OUTCOMES,
    Composite,
    Declared,
    Modified,
    Received,
    TransactionalState,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import DecodeError

State = Composite | None
"""Of a delivery; None: nothing is known of it but its tag."""
Outcome = Composite
ENTRY_BYTES: Final = 8
"""Of a map's entry on the wire, besides tag and state."""


def is_outcome(state: State) -> bool:
    """Whether a delivery is decided by this state (3.4, 4.5.5)."""
    return isinstance(state, (*OUTCOMES, Declared))


class PeerMap(NamedTuple):
    """What the peer's attach says of unsettled deliveries."""

    states: Mapping[bytes, State]
    incomplete: bool


def peer_map(unsettled: Mapping[Any, Any] | None, incomplete: bool) -> PeerMap:
    """Raises ProtocolError for what is no map of tags to states."""
    states: dict[bytes, State] = {}
    for tag, value in (unsettled or {}).items():
        try:
            state = composed(value)
        except DecodeError as error:
            raise ProtocolError(f"a state of an unsettled map: {error}") from None
        if type(tag) is not bytes or not (
            state is None or isinstance(state, (*OUTCOMES, Received, TransactionalState, Declared))
        ):
            raise ProtocolError("an unsettled map has a key that is no tag, or a value that is no delivery state")
        states[tag] = state
    return PeerMap(states, incomplete)


class OwnMap(NamedTuple):
    """The map of our attach."""

    states: dict[bytes, State]
    incomplete: bool


def own_map(states: Iterable[tuple[bytes, State]], size_max: int) -> OwnMap:
    """As many entries, in their order, as have room in an attach."""
    found: dict[bytes, State] = {}
    for tag, state in states:
        size_max -= ENTRY_BYTES + len(tag) + (1 if state is None else len(state.encoded()))
        if size_max < 0:
            return OwnMap(found, True)
        found[tag] = state
    return OwnMap(found, False)


class Series:
    """The maps of a link by which deliveries in doubt are decided: one pair, or several of which a map is incomplete.

    attach --`name`--> `own` is said --`took`--> `waits` for what this pair decides --all of it is--> the next attach
                                     --both complete--> over

    A connection that is lost meanwhile changes no series: what it has decided is decided, and what was named in vain
    comes last in the next map.
    """

    def __init__(self) -> None:
        self.own = OwnMap({}, False)
        """The map of the present attach."""
        self.waits: set[bytes] | None = None
        """Deliveries to be settled before the link is attached again, for the rest; None: nothing is missing."""
        self._named: set[bytes] = set()
        self._absent: set[bytes] = set()

    @property
    def is_over(self) -> bool:
        """What the present pair of maps names may be followed by another pair."""
        return self.waits is not None and not self.waits

    def name(self, states: list[tuple[bytes, State]], size_max: int) -> OwnMap:
        """The map of the next attach: as many of these as have room; those that were named in vain come last."""
        if self._named:
            states = sorted(states, key=lambda one: one[0] in self._named)
        self.own = own_map(states, size_max)
        return self.own

    def took(self, waits: Collection[bytes], progress: bool) -> None:
        """One of both maps is incomplete. `waits`: what the peer's decides; `progress`: it has decided something else.
        Raises ProtocolError when nothing ever will be."""
        self.waits = set(waits)
        if waits or progress:
            self._named.clear()
            return
        if not self.own.incomplete or self.own.states.keys() <= self._named:
            raise ProtocolError("the peer's incomplete unsettled map has none of the deliveries in doubt")
        self._named.update(self.own.states)

    def never_arrived(self, tags: Collection[bytes]) -> None:
        """Decided: they are sent as new deliveries when the series is over, and no map of it names them again."""
        self._absent.update(tags)

    def has_decided(self, tag: bytes) -> bool:
        """Whether the peer said in this series that it never had the delivery."""
        return tag in self._absent

    def settled(self, tag: bytes) -> None:
        if self.waits is not None:
            self.waits.discard(tag)

    def detached(self) -> None:
        """The attach is over."""
        self.waits = None

    def completed(self) -> None:
        """Both maps are complete."""
        self._named.clear()
        self._absent.clear()


class SenderPlan(NamedTuple):
    outcomes: dict[bytes, Outcome]
    """Decided by the peer's map; to be settled by resumed transfers."""
    settle: tuple[bytes, ...]
    """Decided before; to be settled by resumed transfers."""
    forget: tuple[bytes, ...]
    """Decided before, and settled by the peer."""
    resume: tuple[tuple[bytes, Received | None], ...]
    """To be sent on, resumed, from that place."""
    again: tuple[bytes, ...]
    """To be sent as new deliveries."""
    is_partial: bool
    """Not everything is decided: no new delivery, but another attach when the rest of this plan is done."""


def plan_sender(own: OwnMap, peer: PeerMap) -> SenderPlan:
    outcomes: dict[bytes, Outcome] = {}
    settle: list[bytes] = []
    forget: list[bytes] = []
    again: list[bytes] = []
    resume: list[tuple[bytes, Received | None]] = []
    for tag, mine in own.states.items():
        if tag not in peer.states:
            if peer.incomplete:
                continue
            (forget if is_outcome(mine) else again).append(tag)
            continue
        theirs = peer.states[tag]
        if is_outcome(mine):
            settle.append(tag)
        elif theirs is not None and is_outcome(theirs):
            outcomes[tag] = theirs
        else:
            resume.append((tag, theirs if isinstance(theirs, Received) else None))
    partial = own.incomplete or peer.incomplete
    return SenderPlan(outcomes, tuple(settle), tuple(forget), tuple(resume), tuple(again), partial)


class ReceiverPlan(NamedTuple):
    awaited: frozenset[bytes]
    """The peer resumes these."""
    settled: tuple[bytes, ...]
    """Our outcome is carried out."""
    lost: tuple[bytes, ...]
    """The peer holds them no more, and our outcome, if there is one, was not carried out."""
    is_partial: bool


def _says(theirs: State, mine: State) -> bool:
    """Whether the peer has carried our outcome out. Of *modified* all of it counts: a peer that has taken the delivery
    back answers so without our annotations, and may hand it to this link again."""
    if isinstance(theirs, Modified) and isinstance(mine, Modified):
        return theirs.encoded() == mine.encoded()
    return type(theirs) is type(mine)


def plan_receiver(own: OwnMap, peer: PeerMap) -> ReceiverPlan:
    awaited: set[bytes] = set()
    settled: list[bytes] = []
    lost: list[bytes] = []
    for tag, mine in own.states.items():
        if tag in peer.states:
            theirs = peer.states[tag]
            if is_outcome(theirs) and not _says(theirs, mine):
                lost.append(tag)
            else:
                awaited.add(tag)
        elif not peer.incomplete:
            (settled if is_outcome(mine) else lost).append(tag)
    return ReceiverPlan(frozenset(awaited), tuple(settled), tuple(lost), own.incomplete or peer.incomplete)
