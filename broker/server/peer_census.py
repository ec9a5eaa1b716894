"""Rows of other members, and this one's for them: exchanged for the management processes of all (waits).

Every member answers, whether it has a management process or not. What a member is asked first makes its census: before
that it costs nothing. A member whose link is full does not answer: messages come first, and who asked does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.fronts.amqp10.ending import end_link
from clusterbroker.broker.server.inspections import Inspections
from clusterbroker.broker.stats.peer_messages import (
    CensusAnswer,
    CensusAsk,
    CloseConnection,
    EndLink,
    InspectAnswer,
    InspectAsk,
)

if TYPE_CHECKING:
    from clusterbroker.broker.node.member import MemberRole
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.broker.server.sampling import Sampling
    from clusterbroker.broker.stats.rows import Batch

Told = Callable[[bytes, bool], None]
"""(a part of a batch, whether others follow)"""


class PeerCensus:
    """One member's questions to the others, and its answers."""

    def __init__(self, shell: ServerPort, role: MemberRole) -> None:
        self._shell = shell
        self._part = role
        self._ask = 0
        self._asked: dict[int, tuple[str, Told]] = {}
        self._answering: dict[str, int] = {}
        self._sampling: Sampling | None = None
        self.inspections = Inspections(shell, role)
        role.hub.handlers.update(
            {
                CensusAsk: self._to_answer,
                CensusAnswer: self._answered,
                CloseConnection: self._to_close,
                EndLink: self._to_end,
                InspectAsk: lambda peer, asked, payload: self.inspections.inspector.asked(peer, asked, payload),
                InspectAnswer: lambda peer, answer, payload: self.inspections.inspector.answered(peer, answer, payload),
            }
        )

    @property
    def sampling(self) -> Sampling:
        """This node's own census."""
        if self._sampling is None:
            # a node that nobody asks need not know how to count
            from clusterbroker.broker.server.sampling import Sampling

            self._sampling = Sampling(self._shell)
        return self._sampling

    # -- asking -----------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[str]:
        """Who can be asked."""
        return [name for name in self._part.hub.linked if name != self._part.name]

    def ask(self, peer: str, life: int, number: int, max_age_ms: int, told: Told) -> int:
        """Asks a member for its rows; the number of the question, for `forget`."""
        self._ask += 1
        self._asked[self._ask] = peer, told
        self._part.send(peer, CensusAsk(self._ask, life, number, max_age_ms))
        self._shell.schedule()
        return self._ask

    def forget(self, ask: int) -> None:
        """What still comes is too late."""
        self._asked.pop(ask, None)

    def _answered(self, peer: str, answer: CensusAnswer, payload: memoryview) -> None:
        asked = self._asked.get(answer.ask)
        if asked is not None and asked[0] == peer:
            if not answer.more:
                del self._asked[answer.ask]
            asked[1](bytes(payload), answer.more)

    def close(self, peer: str, connection_id: str, reason: str) -> bool:
        """Ends a connection at another member; False: there is no link to it."""
        sent = self._part.send(peer, CloseConnection(connection_id, reason))
        self._shell.schedule()
        return sent

    def end_link(self, peer: str, asked: EndLink) -> bool:
        """Ends a link at another member; False: there is no link to it."""
        sent = self._part.send(peer, asked)
        self._shell.schedule()
        return sent

    # -- answering --------------------------------------------------------------------------------------------

    def _to_answer(self, peer: str, asked: CensusAsk, _payload: memoryview) -> None:
        self._answering[peer] = asked.ask
        self.sampling.ask(asked.life, asked.number, asked.max_age_ms, lambda batch: self._answer(peer, asked, batch))

    def _answer(self, peer: str, asked: CensusAsk, batch: Batch) -> None:
        from clusterbroker.broker.stats.batches import split

        self._tell(peer, asked.ask, split(batch))

    def _tell(self, peer: str, ask: int, parts: list[Any]) -> None:
        """One part each turn, as long as the link has room and nothing newer is asked."""
        from clusterbroker.broker.stats.rows import encode

        if self._answering.get(peer) != ask or self._shell.ended.done() or self._part.room(peer) <= 0:
            return
        role, *rest = parts
        if not self._part.send(peer, CensusAnswer(ask, bool(rest)), (encode(role),)):
            return
        self._shell.schedule()
        if rest:
            self._shell.loop.call_soon(self._tell, peer, ask, rest)

    def _to_close(self, _peer: str, asked: CloseConnection, _payload: memoryview) -> None:
        connection = self._part.node.clients.get(asked.connection_id)
        if connection is not None:
            connection.force_close(asked.reason)
            self._shell.schedule()

    def _to_end(self, _peer: str, asked: EndLink, _payload: memoryview) -> None:
        end_link(self._shell.node, asked)
        self._shell.schedule()
