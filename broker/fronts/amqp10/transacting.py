"""Transactions of one session, and the link to their coordinator (specification, part 4).

    declare        -> declared(txn-id)                   the session has one more
    discharge      -> accepted                           all of it is committed, or (fail) forgotten
                      rejected(amqp:transaction:...)     unknown-id; rollback: a queue refused a part; timeout
    posting        a transfer with the id as its state: staged; its outcome stands inside the id's state
    retirement     a disposition with the id: the delivery leaves the session with the commit

A rollback forgets the staged messages. Deliveries that their client has not settled are held as before; those that it
has settled return to their queues, counted as failed. What was modified returns with the commit, and is answered with
it. So does what an ended session had retired; but what a suspended
link was handed stays with that (`suspended.left`). A transaction is open for TIMEOUT_MS; then it is rolled back, and
its discharge refused. What is atomic where is `access.transaction`'s; a link that goes on elsewhere, or has ended, has
no more part in a transaction, which is rolled back then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.publisher import Named
from clusterbroker.broker.access.receiver import give_back
from clusterbroker.broker.access.together import Numbers, Together, refuse_numbers
from clusterbroker.broker.access.transaction import Transaction
from clusterbroker.broker.fronts.amqp10.changing import error_of, return_together
from clusterbroker.broker.fronts.amqp10.conditions import described, link_error
from clusterbroker.broker.fronts.amqp10.outcomes import Unsettled
from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
from clusterbroker.broker.fronts.amqp10.sending_order import SendingOrder
from clusterbroker.broker.fronts.amqp10.suspended import left
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp10.codec import Transferred
from clusterbroker.broker.wire.amqp10.errors import (
    DECODE_ERROR,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    ROLLBACK,
    TIMEOUT,
    UNKNOWN_ID,
    LinkError,
    SessionError,
)
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Composite,
    Declare,
    Declared,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import DecodeError, Described, decode_all
from clusterbroker.journal.record import Message

OPEN_MAX: Final = 16
"""Transactions of a session."""
TIMEOUT_MS: Final = 60_000
FETCHED_MS: Final = 20_000
"""So long the bodies of what it rejects may take to be read."""
COORDINATOR: Final = "coordinator of transactions"
NUMBERS_MAX: Final = 65_536
"""Numbered messages that come to a transaction which can only be rolled back: its queues have to hear of each."""
CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn")
VALUE: Final = (0x77, "amqp:amqp-value:*")
_STAGED: Final = {Accepted: "ack", Rejected: "reject", Released: "requeue"}


@dataclass(slots=True, eq=False)
class Open:
    """One transaction. `retired`: deliveries, and whether their client has settled them."""

    since_ms: int
    staged: Transaction = field(default_factory=Transaction)
    retired: list[tuple[list[Any], bool]] = field(default_factory=list)
    modified: list[tuple[list[Any], Modified]] = field(default_factory=list)
    """Of these, what returns otherwise than as it was."""
    failed: Error | None = None
    """Why it can only be rolled back."""
    numbers: Numbers = field(default_factory=dict)
    """Of messages that its queues do not get."""
    lost: int = 0
    """How many of these came behind its failure."""


_NONE: Final[dict[bytes, Open]] = {}
"""Of a session without transactions. It stays empty."""


class Transactions:
    """Of one session."""

    __slots__ = ("_judged", "_next", "_session", "_waiting", "open", "order")

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._next = 0
        self.open: dict[bytes, Open] = _NONE
        self._judged: dict[Together, Open] | None = None
        """Those that have not handed out all their parts; perhaps also some that have."""
        self._waiting: dict[Open, None] | None = None
        """Those that are discharged, and wait for what was sent before, or for bodies that are on the disk."""
        self.order = SendingOrder(session)

    def declare(self) -> bytes:
        """The id of a new one. Raises LinkError."""
        if len(self.open) >= OPEN_MAX:
            raise LinkError(RESOURCE_LIMIT, f"a session has at most {OPEN_MAX} open transactions")
        if not self.open:
            self.open = {}
            self._session.deadlines.append(self._overdue)
        self._next += 1
        txn_id = self._next.to_bytes(8, "big")
        self.open[txn_id] = Open(self._session.access.node.now_ms)
        return txn_id

    def find(self, txn_id: bytes) -> Open:
        """Raises LinkError."""
        known = self.open.get(txn_id)
        if known is None:
            raise LinkError(UNKNOWN_ID, f"no transaction {txn_id.hex()} in this session")
        return known

    def post(self, txn_id: bytes, route: Route[QueueHandle], message: Message, named: Named | None) -> None:
        """A message to these queues, with the commit. Raises LinkError, and Refusal for what is too much; SessionError
        for more than a transaction that has failed may bring."""
        known = self.find(txn_id)
        try:
            if known.failed is not None:
                raise LinkError(known.failed.condition, known.failed.description or "")
            known.staged.publish(route, (message,), False, named)
        except Refusal as refusal:
            known.failed = described(link_error(refusal))
            raise
        finally:
            if known.failed is not None and named is not None:
                for queue in route.targets:
                    known.numbers.setdefault(queue, []).append(named)
                known.lost += 1
                if known.lost > NUMBERS_MAX:
                    text = f"more than {NUMBERS_MAX} numbered messages to a transaction that has failed"
                    raise SessionError(RESOURCE_LIMIT, text)

    def retire(self, txn_id: bytes, entries: list[Any], outcome: Composite, settled: bool) -> None:
        """These deliveries have this outcome when the transaction is committed. Raises LinkError."""
        known = self.find(txn_id)
        known.retired.append((entries, settled))
        if isinstance(outcome, Modified):
            known.modified.append((entries, outcome))
            return
        try:
            known.staged.settle(entries, _STAGED.get(type(outcome), "requeue"), error_of(outcome))
        except Refusal as refusal:
            known.failed = described(link_error(refusal))

    def _overdue(self, now_ms: int) -> bool:
        for known in self.open.values():
            if known.failed is None and now_ms - known.since_ms >= TIMEOUT_MS:
                self._undo(known)
                text = f"the transaction was open for {TIMEOUT_MS // 1000} s"
                known.failed = Error(condition=TIMEOUT, description=text)
        return not self.open

    def discharge(self, txn_id: bytes, fail: bool, then: Callable[[Composite], None]) -> None:
        """Commits or rolls back; `then(outcome)`, perhaps later."""
        try:
            known = self.find(txn_id)
        except LinkError as error:
            then(Rejected(error=described(error)))
            return
        del self.open[txn_id]
        if fail or known.failed is not None:
            self._undo(known, lambda: then(Accepted() if fail else Rejected(error=known.failed)))
            return
        self._waiting = self._waiting or {}
        self._waiting[known] = None
        self.order.enter(lambda: self._begin(known, then))

    def _begin(self, known: Open, then: Callable[[Composite], None]) -> None:
        """It is its turn. Nothing that is sent later goes on before all queues have their parts."""
        if self._is_waiting(known):
            self.order.hold()
            self._fetch(known, lambda: self._commit(known, then))
            if self._is_waiting(known):
                due_ms = self._session.access.node.now_ms + FETCHED_MS
                self._session.deadlines.append(lambda now_ms: self._late(known, then, now_ms >= due_ms))

    def _late(self, known: Open, then: Callable[[Composite], None], is_late: bool) -> bool:
        """Bodies are not brought in time; whether nobody waits for them any more."""
        if is_late and self._is_waiting(known) and self._waiting is not None:
            del self._waiting[known]
            late = Error(condition=ROLLBACK, description="a rejected message is not read in time")
            self._undo(known, lambda: then(Rejected(error=late)))
            self.order.release()
            return True
        return not self._is_waiting(known)

    def _is_waiting(self, known: Open) -> bool:
        """False: the session has ended meanwhile."""
        return self._waiting is not None and known in self._waiting

    def _fetch(self, known: Open, then: Callable[[], None]) -> None:
        """Bodies of those that will be dead letters may be on disk only: a commit is one turn."""
        rejected = known.staged.rejected()
        waits = len(rejected)
        if not waits:
            then()
            return

        def brought() -> None:
            nonlocal waits
            waits -= 1
            if not waits:
                then()

        for queue, seqs in rejected.items():
            queue.preload(seqs, brought)

    def _commit(self, known: Open, then: Callable[[Composite], None]) -> None:
        def done(ticket: Ticket, begun: bool) -> None:
            if self._judged is not None:
                self._judged.pop(together, None)
            if not ticket.rejected:
                self._return(known, then)
                return
            if not begun:
                known.staged = Transaction()  # its queues have heard of its numbers
                self._undo(known)
            else:
                self._give_back(entries for entries, _ in known.modified)
            why = ticket.refused
            reason = "" if why is None else why.reason if not why.queue else f"queue '{why.queue}': {why.reason}"
            text = "a queue refused its part" + (f": {reason}" if reason else "")
            then(Rejected(error=Error(condition=ROLLBACK, description=text)))

        if not self._is_waiting(known):
            return
        assert self._waiting is not None, "asked just now"
        del self._waiting[known]
        if why := self._is_void(known):
            void = Error(condition=ROLLBACK, description=why)
            self._undo(known, lambda: then(Rejected(error=void)))
            self.order.release()
            return
        try:
            for queue, seqs in known.staged.rejected().items():
                known.staged.letters(queue, seqs)
        except Refusal as refusal:
            refused = described(link_error(refusal))
            self._undo(known, lambda: then(Rejected(error=refused)))
            self.order.release()
            return
        together = known.staged.commit_together(
            self._session.publisher, lambda: self._is_void(known), done, self.order.release
        )
        together.begin()
        if not together.is_handed:
            self._judged = self._judged or {}
            self._judged[together] = known
            self._session.deadlines.append(together.overdue)

    def _return(self, known: Open, then: Callable[[Composite], None]) -> None:
        """All of it is committed, but for what returns changed; that is answered with the rest."""
        waits = 1 + sum(len(entries) for entries, _ in known.modified)

        def returned(some: Sequence[Any]) -> None:
            nonlocal waits
            waits -= len(some)
            if not waits:
                then(Accepted())

        for entries, modified in known.modified:
            return_together(self._session.access.node, entries, modified, returned, may_come_again=True)
        returned((None,))

    def _give_back(self, retired: Iterable[list[Any]], counted: bool = True) -> None:
        for entries in retired:
            give_back(self._session.access.node, left(entries), requeue=True, counted=counted)

    def _is_void(self, known: Open) -> str:
        """Why it can only be rolled back; or ""."""
        if any(self._is_over(entry[1].owner) for entries, _ in known.retired for entry in entries):
            return "a link of a retired delivery goes on elsewhere, or has ended"
        return ""

    def _is_over(self, link: ReceiverLink) -> bool:
        """A recoverable link whose deliveries are not this session's any more."""
        wiring = self._session.access.node.map
        return bool(link.attach.link) and not wiring.link_since(*link.attach)

    def _undo(self, known: Open, then: Callable[[], None] = lambda: None) -> None:
        """Rolls back; `then()` when its queues know that its numbered messages do not come."""
        session, node = self._session, self._session.access.node
        self._lose_numbers(known, then)
        retired, known.retired = known.retired, []
        known.staged, known.modified = Transaction(), []
        for entries, settled in retired:
            lives = [
                entry
                for entry in entries
                if not settled and entry[1].owner.attached and entry[1].ledger is session.ledger
            ]
            session.ledger.restore(lives, node.now_ms)
            returning = left([entry for entry in entries if entry not in lives])
            give_back(node, returning, requeue=True, counted=True)

    def _lose_numbers(self, known: Open, then: Callable[[], None] = lambda: None) -> None:
        for queue, named in known.staged.numbers().items():
            known.numbers.setdefault(queue, []).extend(named)
        refuse_numbers(self._session.access.node, known.numbers, then)

    def abandon(self, counted: bool) -> None:
        """The session ends, and its links before it: what was retired in vain goes back to its queues, or its links."""
        judged, self._judged = self._judged or {}, None
        waiting, self._waiting = self._waiting or {}, None
        given_up = [known for together, known in judged.items() if not together.begun]
        for known in (*self.open.values(), *waiting):
            self._lose_numbers(known)
        for known in (*self.open.values(), *waiting, *given_up):
            self._give_back((entries for entries, _ in known.retired), counted)
        self.open.clear()
        for together in judged:
            together.give_up()
        if self.order.is_held and all(together.is_handed for together in judged):
            self.order.release()  # bodies were waited for; what was sent, and is no transaction, goes on


class CoordinatorLink(SenderLink):
    """A link to the coordinator: declares and discharges."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """It has none: a name in the place of one."""
        return COORDINATOR

    def withhold(self) -> None:
        """No alarm keeps a client from ending its transactions."""

    def _publish(self, batch: Transferred, ticket: Unsettled | None, txn_id: bytes = b"") -> None:
        if ticket is None or txn_id:
            raise LinkError(NOT_IMPLEMENTED, "a coordinator answers unsettled messages, outside of transactions")
        for message, own in zip(batch.messages, self.session.outcomes.apart(ticket), strict=True):
            try:
                self._carry_out(_asked(message), own)
            except LinkError as error:
                self._answer(own, Rejected(error=described(error)))

    def _carry_out(self, asked: Composite, ticket: Unsettled) -> None:
        transactions: Transactions = self.session.transactions
        if isinstance(asked, Declare):
            if asked.global_id is not None:
                raise LinkError(NOT_IMPLEMENTED, "distributed transactions")
            self._answer(ticket, Declared(txn_id=transactions.declare()))
        elif isinstance(asked, Discharge):
            transactions.discharge(asked.txn_id, asked.fail, lambda state: self._answer(ticket, state))
        else:
            raise LinkError(DECODE_ERROR, f"{asked.NAME} is no request to a coordinator")

    def _answer(self, ticket: Unsettled, state: Composite) -> None:
        ticket.state = state
        ticket.pass_()


def _asked(message: Message) -> Composite:
    """The request in a message's body. Raises LinkError."""
    try:
        section = decode_all(message.body)
        if isinstance(section, Described) and section.descriptor in VALUE:
            found = composed(section.value)
            if isinstance(found, Composite):
                return found
    except DecodeError as error:
        raise LinkError(DECODE_ERROR, str(error)) from None
    raise LinkError(DECODE_ERROR, "a coordinator takes declare and discharge")
