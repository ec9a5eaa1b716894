"""Requests that wait for the answer of a queue's owner, and their time-outs (amqp-rules 5.1).

An owner that dies has a successor within seconds, which is asked again. A queue all of whose copies are away has no
owner, perhaps for hours: after OWNERLESS_MS, long enough for nodes that are restarted together, the refusal names them
(not_found, as of a RabbitMQ queue whose home node is down). A later answer goes back to the queue; a consumer that is
not wanted any more is withdrawn, or an auto-delete queue would end with it. Only a purge and a conditional deletion are
carried out anyway: they are refused at once, or not at all. internal_error means that the outcome is unknown: there was
an owner, and no answer; they are not asked again, for the queue may have new messages (`broker.remote.questions`).

An exclusive queue ends with its connection. A client of a lost node declares it again at another one, sooner than the
loss is known, and resource_locked would be wrong. So the queue's node is asked first, for LOCKED_MS at most: when it
answers, it lives, and the declaration is refused; when it is failed, the queue is gone, and is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.errors import Refusal, internal_error, not_found
from clusterbroker.broker.queues.handle import UNANSWERED_MS
from clusterbroker.broker.queues.subscription import Source
from clusterbroker.cluster.errors import Unavailable, WiringError

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

OWNERLESS_MS: Final = 10_000
LOCKED_MS: Final = 3000


class Asked(NamedTuple):
    """A request without an answer yet.

    request   the session's own
    lasting   the owner carries it out even when the session has ended
    withdraw  takes it back when the session ends
    instead   called when there is no answer after LOCKED_MS
    """

    queue: Source
    request: Any
    lasting: bool
    since_ms: int
    withdraw: Callable[[], None] | None
    instead: Callable[[], None] | None = None


class Waiting(Protocol):
    """A session."""

    @property
    def closing(self) -> bool: ...

    def resume(self) -> None:
        """It goes on without the answer."""

    def refuse(self, error: Refusal, request: Any) -> None:
        """The answer is an error."""


class Question(Protocol):
    """A request of a session that waits for answers, of the wiring or of a queue's owner."""

    def ask(
        self, queue: Source, withdraw: Callable[[], None] | None = None, instead: Callable[[], None] | None = None
    ) -> None:
        """The owner of a queue is asked, which may be another node, or none (`Asked`)."""

    def awaits(self) -> bool:
        """Whether the answer is still of use."""

    def refuse(self, error: Refusal | WiringError | Unavailable) -> None:
        """The answer is an error."""

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        """`then` for a later call: what it raises costs this client, not the caller."""


class Client(Protocol):
    """The core of a client (`broker.node.clients.ClientCore`) whose session goes on while it waits."""

    @property
    def access(self) -> Authorization: ...

    @property
    def deadlines(self) -> list[Callable[[int], bool]]:
        """Called about twice a second with the time; True: it is over."""

    @property
    def ending(self) -> str | None:
        """None: it lives."""

    def refuse(self, error: Refusal | WiringError | Unavailable) -> None:
        """The answer is an error."""

    def crashed(self, error: Exception) -> None:
        """The broker made a mistake: this client ends."""


class Pending:
    """A `Question` of a session that parks nothing and may have many of them open."""

    __slots__ = ("_asked", "_client", "_over")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: Asked | None = None
        self._over = False

    def ask(
        self, queue: Source, withdraw: Callable[[], None] | None = None, instead: Callable[[], None] | None = None
    ) -> None:
        self._asked = Asked(queue, None, False, self._client.access.node.now_ms, withdraw, instead)
        self._client.deadlines.append(self._overdue)

    def _overdue(self, now_ms: int) -> bool:
        asked = self._asked
        if asked is None:
            return True
        if self.closing:
            self.resume()
        else:
            self.answers(review)(self, asked, now_ms)
        if self._over and asked.withdraw is not None:
            asked.withdraw()
        return self._asked is None

    def awaits(self) -> bool:
        self._asked = None
        return not self._over and not self.closing

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        def guarded(*values: Any) -> None:
            try:
                then(*values)
            except Refusal as error:
                self.refuse(error)
            except Exception as error:
                self._client.crashed(error)

        return guarded

    # -- as `review` sees it

    @property
    def closing(self) -> bool:
        return self._client.ending is not None

    def resume(self) -> None:
        self._asked, self._over = None, True

    def refuse(self, error: Refusal | WiringError | Unavailable, request: None = None) -> None:
        assert request is None, "there is one request"
        self.resume()
        self._client.refuse(error)


def ownerless(queue: Source) -> Refusal | None:
    """The refusal for a queue that nobody owns now: all copies that might are away."""
    entity = queue.entity
    if entity.owner is not None or not entity.replicas:
        return None
    nodes = " or ".join(f"'{name}'" for name in (*entity.in_sync, *entity.eligible))
    return not_found(
        f"home node {nodes} of durable queue '{entity.name}' in vhost '{entity.vhost}' is down or inaccessible"
    )


def review(session: Waiting, asked: Asked, now_ms: int) -> None:
    """Refuses the request when the queue has no owner; a session that was closed meanwhile goes on, as its client waits
    too. Raises Refusal when the owner does not answer."""
    entity, waited_ms = asked.queue.entity, now_ms - asked.since_ms
    if asked.instead is not None and waited_ms >= LOCKED_MS:
        asked.instead()
    elif session.closing:
        if waited_ms >= UNANSWERED_MS or (waited_ms >= OWNERLESS_MS and ownerless(asked.queue)):
            session.resume()
    elif waited_ms >= OWNERLESS_MS and not asked.lasting and (error := ownerless(asked.queue)):
        session.refuse(error, asked.request)
    elif waited_ms >= UNANSWERED_MS:
        asked.queue.ring.mark()  # it is not asked any more
        what = f"timed out waiting for the owner of queue '{entity.name}' in vhost '{entity.vhost}'"
        raise internal_error(what)
