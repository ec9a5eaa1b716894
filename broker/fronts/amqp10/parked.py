"""An attach whose node is being made: it has its handle, and goes on when the node is there.

Other links of the session go on. What the client says of the link meanwhile is its credit; the last flow counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.fronts.amqp10.conditions import Refused, link_error
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT
from clusterbroker.broker.fronts.amqp10.ports import Detached, LinkState, SessionCore
from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Flow

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization


def guarded(session: SessionCore, attach: Attach, step: Callable[[], None]) -> None:
    """Calls a step of an attach, which is refused for what the step raises."""
    try:
        step()
    except LinkError as error:
        session.refuse(attach, error)
    except Refusal as refusal:
        session.refuse(attach, link_error(refusal))


class ParkedLink:
    """The link that it will be (`broker.access.questions.Client`)."""

    terms = NOTHING_KEPT
    is_lasting = False

    __slots__ = ("_attach", "_flow", "handle", "identity", "name", "role", "session")

    def __init__(self, session: SessionCore, attach: Attach) -> None:
        self.session = session
        self.name = attach.name
        self.handle = int(attach.handle)
        self.role = attach.role
        self.identity = session.identity(attach.name, attach.role)
        self._attach = attach
        self._flow: Flow | None = None
        session.table.add(self)

    @property
    def is_wanted(self) -> bool:
        """The client has not given it up."""
        return self.session.links.get(self.handle) is self

    def go_on(self, step: Callable[[], None]) -> None:
        """The node is there: `step` attaches the link, if it is wanted still."""
        session = self.session
        if not self.is_wanted:
            return
        session.links.pop(self.handle)
        session.access.node.links.leave(self)
        guarded(session, self._attach, step)
        link = session.links.get(self.handle)
        if link is not None and self._flow is not None:
            link.flow(self._flow)
        session.want_send()

    @property
    def state(self) -> LinkState:
        return LinkState(None)

    def flow(self, flow: Flow) -> None:
        self._flow = flow

    def interrupted(self) -> None:
        """The client gave it up: what is being made hears of it by `is_wanted`."""

    def detached(self, _: bool, then: Detached) -> None:
        then(None)

    # -- as the questions of its attach see it

    @property
    def access(self) -> Authorization:
        return self.session.access

    @property
    def deadlines(self) -> list[Callable[[int], bool]]:
        return self.session.deadlines

    @property
    def ending(self) -> str | None:
        """What was ordered for it is seen to its end, or nobody would delete what came of it."""
        return self.session.connection.ending

    def refuse(self, error: Refused) -> None:
        if self.is_wanted:
            self.session.refuse(self._attach, link_error(error))
            self.session.want_send()

    def crashed(self, error: Exception) -> None:
        self.session.connection.crashed(error)
