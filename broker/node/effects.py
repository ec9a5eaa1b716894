"""Effects of a node on the world around it: see `broker.node.core`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from clusterbroker.broker.queues.host import Loaded
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.cluster.wiring.entities import User
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.journal.stream_catalogue import Moved, StreamFile, Taken, Wish

if TYPE_CHECKING:
    from clusterbroker.broker.oauth2.verifier import Token


class Load(NamedTuple):
    """Messages that a queue wants back from the journal; `then` gets them, without it the queue does."""

    queue_id: int
    name: str
    locations: Sequence[Location]
    then: Callable[[Sequence[Message]], None]
    wanted: Callable[[], bool]
    """Whether the queue still lives here: damage that nobody reads does not matter."""
    unread: Callable[[Sequence[Message | None]], None] = lambda _messages: None
    """In the place of `then` when some of them cannot be read (None): those are held back by then."""


class StreamLoad(NamedTuple):
    """Records that a stream wants of its files, or of what is on its way there."""

    queue_id: int
    name: str
    part: Callable[[], StreamFile | Moved | None]
    """Where it is now: a checkpoint that ends before the read is asked for moves it, and removes what was there."""
    wish: Wish
    then: Callable[[Taken], None]
    wanted: Callable[[], bool]
    """Whether the queue still lives here."""


class Group(NamedTuple):
    """A group commit under way: what `group_committed` needs to know of it."""

    number: int
    queues: list[tuple[LocalQueue, int]]
    """(queue, watermark it reaches) of queues that need no other copy."""
    replicated: list[int]
    """Queue ids whose commit waits for other copies as well."""
    sync: bool
    """Whether somebody waits for the disk, not only for the write."""


class Verdict(NamedTuple):
    """What came of a Check."""

    refusal: str = ""
    """Why it is refused, for the log; empty: it is good."""
    token: Token | None = None
    """What was good is a token, whose user and rights are its own; None: the user's password."""
    until_ms: int = 0
    """When the token is over, wall clock ms since 1970; 0: it is none."""


GOOD: Final = Verdict()
WRONG: Final = Verdict("invalid credentials")


class Check(NamedTuple):
    """A password or token to verify, in the same time whether the user exists or not: `then(verdict)` on the loop."""

    name: str
    """As whom the client wants to sign in; a token says that itself."""
    user: User | None
    secret: bytes
    address: str
    """Where it comes from; empty: by a way that only the node's owner has."""
    then: Callable[[Verdict], None]
    wanted: Callable[[], bool]
    """Whether somebody still waits for it."""


# -- what queues want of the journal


class LoadingNode(Protocol):
    """The node."""

    loads: list[Load | StreamLoad]
    queues: dict[int, LocalQueue]


def _here(node: LoadingNode, queue: LocalQueue) -> Callable[[], bool]:
    return lambda: node.queues.get(queue.entity.queue_id) is queue


def load(node: LoadingNode, queue: LocalQueue, locations: list[Location], loaded: Loaded) -> None:
    """Messages for the queue itself."""

    def read(messages: Sequence[Message]) -> None:
        loaded(locations, messages, locations)

    def unread(messages: Sequence[Message | None]) -> None:
        sound = [(where, message) for where, message in zip(locations, messages, strict=True) if message is not None]
        loaded([where for where, _ in sound], [message for _, message in sound], locations)

    node.loads.append(Load(queue.entity.queue_id, queue.name, locations, read, lambda: not queue.deleted, unread))


def fetch(
    node: LoadingNode, queue: LocalQueue, locations: Sequence[Location],
    then: Callable[[Sequence[Message]], None], otherwise: Callable[[], None],
) -> None:  # fmt: skip
    """Messages for somebody else: `then` gets them, unless the queue goes away; `otherwise` is called in its place when
    some of them are damaged, and held back from then on."""
    here = _here(node, queue)
    node.loads.append(
        Load(
            queue.entity.queue_id, queue.name, locations, lambda messages: then(messages) if here() else None, here,
            lambda _: otherwise() if here() else None,
        )
    )  # fmt: skip


def read_stream(node: LoadingNode, queue: LocalQueue, wish: Wish, then: Callable[[Taken], None]) -> None:
    """Records of a stream that are not in its ring; `then` is not called when the queue goes away."""
    past, here = queue.ring.past, _here(node, queue)
    node.loads.append(
        StreamLoad(
            queue.entity.queue_id, queue.name, lambda: past.part_at(wish.seq), wish,
            lambda taken: then(taken) if here() else None, here,
        )
    )  # fmt: skip
