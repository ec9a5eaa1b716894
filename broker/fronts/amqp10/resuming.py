"""What becomes of deliveries in doubt when a link is resumed (specification 2.6.13): values in, values out.

Both peers keep a map of what is unsettled on a link, tag to state, and their attaches exchange them. The client's map
and the node's decide, delivery by delivery. Null in place of a map: the client resumes nothing.

A sender link (the client sends), by the client's state of a tag:

    null or received    the node has stored it      accepted       the client settles it
                        the node has a part of it   received       the rest comes, resumed
                        neither                     absent         it comes again, and is stored
                        nobody was asked            absent         it comes again; each queue of its route judges
                        and the map is incomplete   null           it comes resumed, before the rest of the maps
    an outcome          any                         the same       the client settles it; forgotten here

A receiver link (the client receives), by the client's state of a tag that the link holds here:

    null or received    sent again, resumed, from that place on
    an outcome          carried out, and settled by a resumed transfer without a payload
    absent              sent first, as a new delivery, in the order in which it was handed out

What the link held for too long while it was suspended has returned to its queue: whatever the client says of it, the
answer is *modified*, and so is the resumed transfer that settles it. The answering map is incomplete then.

What else the client alone has was settled before. A map that is incomplete says nothing of what is absent from it:
only what both have is decided, the rest with a later attach (2.6.13). A map of the node's that does not fit the peer's
frames is incomplete too; it has what the client asked for first. To a receiver whose map is complete, what the node
alone has are new deliveries, as if they had never been sent: they are in the node's map if they fit, and make it
incomplete never.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, RESOURCE_DELETED, RESOURCE_LIMIT, LinkError
from clusterbroker.broker.wire.amqp10.performatives import (
    OUTCOMES,
    Accepted,
    Attach,
    Composite,
    Modified,
    Received,
    TransactionalState,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import DecodeError

RECOVERY: Final = "clusterbroker:link-recovery"
"""Capability: links that survive connection and node. A client desires it, an attach that is answered offers it."""
State = Composite | None
"""Of a delivery as a peer knows it; None: it has none yet."""
TAGS_MAX: Final = 65_536
"""Deliveries of an unsettled map."""
TAG_BYTES_MAX: Final = 32
TAG_HEAD_BYTES: Final = 2
"""Constructor and length of a tag."""


class Told(NamedTuple):
    """The unsettled map of a client's attach."""

    states: dict[bytes, State]
    incomplete: bool


def told(attach: Attach) -> Told | None:
    """The client's map; None: it resumes nothing. Raises LinkError for one that is malformed or too large."""
    if attach.unsettled is None:
        if attach.incomplete_unsettled:
            raise LinkError(INVALID_FIELD, "an incomplete unsettled map is null")
        return None
    if len(attach.unsettled) > TAGS_MAX:
        raise LinkError(RESOURCE_LIMIT, f"an unsettled map has at most {TAGS_MAX} deliveries")
    states: dict[bytes, State] = {}
    for tag, value in attach.unsettled.items():
        if type(tag) is not bytes or len(tag) > TAG_BYTES_MAX:
            raise LinkError(INVALID_FIELD, f"a key of an unsettled map is no delivery-tag of {TAG_BYTES_MAX} bytes")
        states[tag] = _state(value)
    return Told(states, bool(attach.incomplete_unsettled))


def _state(value: Any) -> State:
    try:
        state = composed(value)
    except DecodeError as error:
        raise LinkError(INVALID_FIELD, f"a state of an unsettled map: {error}") from None
    if state is not None and not isinstance(state, (*OUTCOMES, Received, TransactionalState)):
        raise LinkError(INVALID_FIELD, "a value of an unsettled map is no delivery state")
    return state


def is_terminal(state: State) -> bool:
    """Whether the delivery has an outcome (3.4)."""
    return isinstance(state, OUTCOMES)


def check_known(client: Told | None, known: bool) -> None:
    """Refuses a map for a link that is not known here, or not any more: only the client can say what its deliveries
    without an answer are worth. Raises LinkError."""
    if client is not None and client.states and not known:
        raise LinkError(RESOURCE_DELETED, "no link of this name is suspended: its unsettled deliveries are not known")


# -- the answering map


class Map(NamedTuple):
    """The unsettled map of an answering attach."""

    states: dict[bytes, State]
    incomplete: bool


def fitting(states: Iterable[tuple[bytes, State]], size_max: int) -> Map:
    """As many of these entries, in their order, as an attach has room for."""
    found: dict[bytes, State] = {}
    for tag, state in states:
        size_max -= TAG_HEAD_BYTES + len(tag) + (1 if state is None else len(state.encoded()))
        if size_max < 0:
            return Map(found, True)
        found[tag] = state
    return Map(found, False)


def room_for_map(attach: Attach, frame_max: int) -> int:
    """Bytes that the entries of a map may have in an answering attach that has none yet."""
    return frame_max - FRAME_BYTES - len(attach.encoded())


FRAME_BYTES: Final = 32
"""A frame's head, and what a map adds to its attach besides its entries."""


# -- a sender link


class SenderResumption(NamedTuple):
    """What a sender link goes on with."""

    map: Map
    again: frozenset[bytes]
    """Tags that may come again: of the client's map, without an outcome, and not stored."""
    forgotten: frozenset[bytes]
    """Tags whose deliveries are over."""
    is_partial: bool
    """One of the maps is incomplete: a new delivery is refused until the client has attached with the rest."""


def resume_sender(
    client: Told, stored: Collection[bytes], parts: Mapping[bytes, Received], size_max: int, *, asked: bool = True
) -> SenderResumption:
    """`stored`: what the node knows of this link, at least of the client's tags, if anybody was `asked`. `parts`:
    deliveries of which it has the beginning."""
    answers: dict[bytes, State] = {}
    again, over = set(), set()
    for tag, state in client.states.items():
        if is_terminal(state):
            answers[tag] = state
            over.add(tag)
        elif tag in stored:
            answers[tag] = Accepted()
        else:
            again.add(tag)
            if tag in parts:
                answers[tag] = parts[tag]
            elif client.incomplete and not asked:
                answers[tag] = None  # absent would say that it never came, and a later map need not name it then
    if client.incomplete:
        others = {tag: Accepted() for tag in stored if tag not in client.states}
        answers.update(others)
    else:
        over.update(tag for tag in stored if tag not in client.states)
    answering = fitting(answers.items(), size_max)
    return SenderResumption(answering, frozenset(again), frozenset(over), answering.incomplete or client.incomplete)


# -- a receiver link


class ReceiverResumption(NamedTuple):
    """What a receiver link goes on with."""

    map: Map
    first: tuple[bytes, ...]
    """Sent as new deliveries, in this order, before anything else."""
    resumed: tuple[tuple[bytes, Received | None], ...]
    """Sent again, from that place on."""
    outcomes: tuple[tuple[bytes, Composite], ...]
    """Carried out, and settled."""
    is_partial: bool
    """One of the maps is incomplete: nothing new is sent until the client has attached with the rest."""
    withdrawn: tuple[bytes, ...] = ()
    """Settled with the outcome WITHDRAWN."""


WITHDRAWN: Final = Modified(delivery_failed=True)
"""Outcome of what a suspended link held for too long."""


def resume_receiver(
    client: Told, held: Iterable[bytes], size_max: int, withdrawn: Collection[bytes] = ()
) -> ReceiverResumption:
    """`held`: what the link holds, in the order in which it was handed out. `withdrawn`: what it held for too long."""
    tags = tuple(held)
    both = [tag for tag in tags if tag in client.states]
    ours = tuple(tag for tag in tags if tag not in client.states)
    past = [tag for tag in withdrawn if tag in client.states]
    states: list[tuple[bytes, State]] = [(tag, WITHDRAWN) for tag in past]
    asked = (*states, *((tag, None) for tag in both))
    answering = fitting((*asked, *((tag, None) for tag in ours)), size_max)
    if answering.incomplete and not client.incomplete:
        answering = fitting(asked, size_max)
    if past:
        answering = answering._replace(incomplete=True)  # the client's next map proves that it has heard so
    resumed: list[tuple[bytes, Received | None]] = []
    outcomes = []
    for tag in both:
        if tag not in answering.states:
            continue  # with a later attach
        state = client.states[tag]
        if is_terminal(state):
            assert state is not None, "an outcome is no null"
            outcomes.append((tag, state))
        else:
            resumed.append((tag, state if isinstance(state, Received) else None))
    is_partial = answering.incomplete or client.incomplete
    over = tuple(tag for tag in past if tag in answering.states)
    return ReceiverResumption(answering, () if is_partial else ours, tuple(resumed), tuple(outcomes), is_partial, over)
