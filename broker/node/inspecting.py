"""An operator's view of a queue, and operations on single messages: at the queue's owner, in slices.

Theory. An `Inspection` walks over a range of seqs, or a list of them, a slice at each `step`. Between two steps the
node does its other work, so no slice relies on the state of an earlier one. Messages on disk are read as a sync does
(`Node.fetch`), for nobody else: a look does not change the ring. Of a replicated queue only committed messages are
visible.

    delete    a ready message is settled where it stands, as a purge does
    move      it is set aside (unacknowledged, at no node), published to its targets, and settled when all of them have
              confirmed it; put back, as it was, when one of them did not
    replay    it is published, and stays
    delayed, send_now, reschedule
              of a delay queue: a look in the order of due times; and another due time, in the same group commit

A move in doubt ends with the message in both queues, never in neither: an owner that dies or steps down in between
has it ready again. While some are set aside the queue is not handed over (`LocalQueue.aside`). A message without a
confirm within CONFIRM_MS_MAX is put back, and settled if the confirm comes while it still stands there: a queue
without its majority must not keep messages from another queue's consumers. A client that goes away before the end says
so (`leave`): its messages on the way are put back at once.

The end comes with the requested count, the end of the range, LOOKED_MAX messages or `end_ms`. An operation also waits
until its settlements are durable and its publishes are answered, or ends with an error when that takes too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.node.dead_letters import origin_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import READY, UNACKED
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.stats.inspection import (
    CONFIRM_MS_MAX,
    LOOKED_MAX,
    LOOKS,
    SHOWN_BYTES_MAX,
    Request,
    Result,
    Shown,
    Skipped,
    life_of,
)
from clusterbroker.broker.stats.message_filter import (
    STATES,
    STEP_BYTES,
    WORK_BYTES,
    WORK_DECODED_BYTES,
    Filter,
    Search,
    Subject,
    parse,
)
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node

SLICE: Final = 250
"""Messages looked at in one step: 1 to 3 ms, with many conditions less of them."""
SLICE_BYTES: Final = 1 << 20
SLICE_WORK: Final = 5000
"""In pieces of 1 to 2 us (`broker.stats.message_filter`): a step holds the node's loop for some ms."""
LISTED: Final = 1000
"""Delayed messages that are looked for at once by due time: some 10 ms, however many wait."""
BATCH: Final = 1000
BATCH_BYTES: Final = 4 << 20
"""Read from the disk at once; one message may be longer."""
WINDOW: Final = 256
WINDOW_BYTES: Final = 16 << 20
"""Copies under way; one message may be longer."""
GONE: Final = "the queue has another leader now, or none: ask again"
UNSAFE: Final = "it has been carried out, but the queue's copies have not confirmed that yet: look at the queue"
BEGINS: Final = "the queue has a new leader, which reads what waits: ask again"
PLAIN: Final = ("browse", "delete", "move", "replay")
"""What any queue is asked."""
DEATHS: Final = ("x-death", "x-first-death-", "x-last-death-")


class Place(NamedTuple):
    """A message as the ring told of it."""

    seq: int
    state: int
    redelivered: bool
    delivery_count: int
    holder: int


class Inspection:
    """One request at one queue. Raises BadFilter.

    over    `result` is there
    error   why it could not go on; what it did before stays done
    """

    def __init__(self, node: Node, queue: LocalQueue, request: Request, end_ms: int) -> None:
        self.over = False
        self.error = ""
        self.queue = queue
        self._node = node
        self._request = request
        self._end_ms = end_ms
        self._filter = parse(request.filter if request.seqs is None else "")
        ring = queue.ring
        top = (ring.committed if ring.replicated else ring.next_seq) - 1
        self._last = min(request.last or top, top)
        self._at = max(1, request.first)
        self._listed = _listed(queue, request)
        self._more = request.what == "delayed" and self._listed is None
        """What is due later has not been looked for."""
        if self._more:
            self._listed = deque()
        self._due_ms = request.due_from_ms
        self._due_seqs: frozenset[int] = frozenset()
        """Those that were listed of this time."""
        if isinstance(queue, DelayQueue) and not queue.is_read:
            self.error, self.over = BEGINS, True
        self._ahead: deque[Place] = deque()
        self._content: dict[int, Message] = {}
        self._search = LongSearch(self._filter)
        self._loading = False
        self._looked_at = self._done = self._shown_bytes = 0
        self._full = False
        self._passed = request.passed
        self._shown: list[Shown] = []
        self._skipped: dict[Skipped, list[int]] = {}
        self._mark: int | None = None  # of the commit that the last settlement waits for
        self._safe_by_ms: int | None = None  # nothing is awaited any more but that commit, and so long
        self._underway: dict[int, Transfer] = {}
        self._underway_bytes = 0
        self._needs_content = request.what != "delete" or self._filter.needs_content

    @property
    def result(self) -> Result:
        """What came of it."""
        entity = self.queue.entity
        return Result(
            owner=self._node.options.name, queue_id=entity.queue_id, life=life_of(entity), looked_at=self._looked_at,
            next=0 if self._exhausted else self._next_seq, last=self._last, done=self._done, shown=tuple(self._shown),
            skipped={why: sorted(seqs) for why, seqs in self._skipped.items()}, passed=self._passed,
        )  # fmt: skip

    @property
    def _exhausted(self) -> bool:
        return not self._ahead and (
            self._at > self._last if self._listed is None else not self._listed and not self._more
        )

    @property
    def _next_seq(self) -> int:
        if self._ahead:
            return self._ahead[0].seq
        return self._listed[0] if self._listed else self._at

    # -- the walk ---------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """One slice. True: another one may follow at once; False: it is over, or waits for the disk or for confirms."""
        if self.over:
            return False
        if self._node.queues.get(self.queue.entity.queue_id) is not self.queue or self.queue.deleted:
            self.error, self.over = GONE, True
            return False
        if self._loading:
            return False
        if self._more and not self._ahead and not self._listed:
            self._list_more()
        if self._walked(now_ms):
            self._end(now_ms)
            return False
        if self._crowded or (self._request.what not in LOOKS and self._node.setting_aside.is_closed(self.queue)):
            return False  # a hand-over is under way: nothing new is begun
        if not self._ahead and not self._look_ahead():
            return not self._loading
        self._slice(now_ms)
        return True

    def _list_more(self) -> None:
        """The next ones by due time; of that of the last one some may be listed."""
        assert isinstance(self.queue, DelayQueue), "no other queue is asked"
        assert self._listed is not None, "they are listed"
        most = LISTED + len(self._due_seqs)
        rows = self.queue.waiting(self._due_ms, self._request.due_to_ms, most)
        self._more = len(rows) == most
        self._listed.extend(seq for _, seq in rows if seq not in self._due_seqs)
        if rows:
            last_ms = rows[-1][0]
            before = self._due_seqs if last_ms == self._due_ms else frozenset()
            self._due_ms, self._due_seqs = last_ms, before.union(seq for due_ms, seq in rows if due_ms == last_ms)

    def _walked(self, now_ms: int) -> bool:
        enough = self._full or self._taken >= self._request.count
        # who had to wait for its turn gets on all the same, but not while a queue is handed over
        late = now_ms >= self._end_ms and (self._looked_at > 0 or self._node.setting_aside.is_closed(self.queue))
        return enough or self._exhausted or self._looked_at >= LOOKED_MAX or late

    def leave(self) -> None:
        """Nobody waits for the end any more, and there will be no step."""
        for transfer in self._underway.values():
            if transfer.here:
                transfer.give_up()
        self._underway.clear()

    @property
    def _crowded(self) -> bool:
        return len(self._underway) >= WINDOW or self._underway_bytes >= WINDOW_BYTES

    @property
    def _taken(self) -> int:
        if self._request.seqs is not None:
            return -1
        return len(self._shown) if self._request.what in LOOKS else self._done + len(self._underway) + self._failed

    @property
    def _failed(self) -> int:
        return sum(map(len, self._skipped.values()))

    def _look_ahead(self) -> bool:
        """The next places. False: their content is on its way from the disk."""
        ring, absent, size = self.queue.ring, list[Location](), 0
        held_back = self._node.damages.held_back(self.queue.entity.queue_id)
        for place in self._places():
            if self._needs_content and place.seq in held_back:
                self._looked_at += 1
                self._skip("damaged", place.seq)
                continue
            if self._needs_content and ring.message(place.seq) is None:
                location = ring.location(place.seq)
                if absent and size + location[3] > BATCH_BYTES:
                    self._at = min(self._at, place.seq)
                    if self._listed is not None:
                        self._listed.appendleft(place.seq)
                    break
                absent.append(location)
                size += location[3]
            self._ahead.append(place)
        if absent:
            self._loading = True
            self._node.fetch(self.queue, absent, lambda messages: self._loaded(absent, messages), self._unread)
        return not absent

    def _places(self) -> Iterator[Place]:
        ring = self.queue.ring
        if self._listed is None:
            found = ring.living(self._at, self._last, BATCH)
            self._at = found[-1][0] + 1 if len(found) == BATCH else self._last + 1
            yield from (Place(*each) for each in found)
            return
        for _ in range(min(BATCH, len(self._listed))):
            seq = self._listed.popleft()
            there = ring.living(seq, seq, 1) if seq <= self._last else []
            if there:
                yield Place(*there[0])
            else:
                self._looked_at += 1
                self._skip("not_ready", seq)

    def _loaded(self, locations: list[Location], messages: Sequence[Message]) -> None:
        self._loading = False
        self._content = {seq: message for (seq, *_), message in zip(locations, messages, strict=True)}

    def _unread(self) -> None:
        """Some of them are damaged, and held back by now: the others are asked for anew."""
        self._loading = False
        self._at = min(self._at, self._ahead[0].seq)
        self._again()

    def _slice(self, now_ms: int) -> None:
        ring, size, work = self.queue.ring, 0, 0
        for _ in range(min(SLICE, len(self._ahead))):
            place = self._ahead.popleft()
            self._looked_at += 1
            there = ring.living(place.seq, place.seq, 1)
            content = self._content.pop(place.seq, None)
            if there:
                content = ring.message(place.seq) or content
            if there and content is None and self._needs_content:
                self._looked_at -= 1
                self._ahead.appendleft(place)  # it left memory since: once more from here
                self._at = min(self._at, place.seq)
                self._again()
                return
            if there:
                place = Place(*there[0])
                subject = Subject(*place[:4], content, now_ms)
                matches = self._search.matches(subject)
                if matches is None:  # goes on with the next slice
                    self._looked_at -= 1
                    self._ahead.appendleft(place)
                    if content is not None:
                        self._content[place.seq] = content
                    return
                work += subject.work
                if matches:
                    work += self._treat(place, content, now_ms)
                if place.state == READY and self._passed >= 0 and not self._full:
                    self._passed += 1
            elif self._request.seqs is not None:
                self._skip("not_ready", place.seq)
            size += len(content.payload) if content is not None else 0
            if size >= SLICE_BYTES or work >= SLICE_WORK or self._crowded or self._walked(now_ms):
                return

    def _again(self) -> None:
        """All that is ahead is looked for anew."""
        if self._listed is not None:
            self._listed.extendleft(place.seq for place in reversed(self._ahead))
        self._ahead.clear()
        self._content.clear()

    def _skip(self, why: Skipped, seq: int) -> None:
        self._skipped.setdefault(why, []).append(seq)

    # -- what is done to a message ----------------------------------------------------------------------------

    def _treat(self, place: Place, content: Message | None, now_ms: int) -> int:
        """What is asked for; how much work it was."""
        if self._request.what in LOOKS:
            assert content is not None, "what is shown has content"
            self._show(place, content)
        elif (place.state != READY or self.queue.entity.staging) and not self._may_delete_damaged(place.seq):
            self._skip_unready(place.seq)
        elif self._request.what == "delete":
            self.queue.remove(place.seq)
            self._node.damages.left(self.queue.entity.queue_id, place.seq)
            self._settled()
        elif self._request.what in ("send_now", "reschedule"):
            assert isinstance(self.queue, DelayQueue), "no other queue is asked"
            assert content is not None, "what waits anew has content"
            at_ms = now_ms if self._request.what == "send_now" else self._request.due_ms
            self.queue.reschedule(place.seq, content, at_ms)
            self._settled()
        else:
            assert content is not None, "what is copied has content"
            self._transfer(place.seq, content, now_ms)
            return content.header_length // WORK_DECODED_BYTES
        return 1

    def _may_delete_damaged(self, seq: int) -> bool:
        """What is held back goes if it is meant by its number; of staged rows nothing else does, unless they are set
        aside: one of them it stumbled over."""
        request, node, entity = self._request, self._node, self.queue.entity
        if request.what != "delete" or request.seqs is None:
            return False
        if entity.staging and self.queue.broken and not node.moving.holds(entity.queue_id):
            return True
        return seq in node.damages.held_back(entity.queue_id)

    def _skip_unready(self, seq: int) -> None:
        """By a filter only those are meant that are ready."""
        if self._request.seqs is not None:
            self._skip("not_ready", seq)

    def _show(self, place: Place, content: Message) -> None:
        body = content.body
        payload = body[: self._request.truncate]
        self._shown_bytes += len(payload) + content.header_length + 100
        if self._shown and self._shown_bytes > SHOWN_BYTES_MAX:
            self._full = True
            self._looked_at -= 1
            self._at = place.seq
            self._again()
            return
        self._shown.append(
            Shown(
                seq=place.seq,
                state=STATES[place.state],
                node=self._held_at(place),
                redelivered=place.redelivered,
                delivery_count=place.delivery_count,
                exchange=bytes(content.exchange),
                routing_key=bytes(content.routing_key),
                header=bytes(self.queue.shown(place.seq, content, False, 0).header),  # BCC is nobody's business
                payload=payload,
                payload_bytes=len(body),
                time_ms=content.time_ms,
                format=content.format,
                due_ms=content.ttl_ms if self.queue.entity.delays else 0,
                ahead=self._passed,
            )
        )

    def _held_at(self, place: Place) -> str:
        if place.state != UNACKED:
            return ""
        role = self._node.role
        owned = None if role is None else role.owned_queues.queues.get(self.queue.entity.queue_id)
        if owned is None or not self.queue.ring.replicated:
            return self._node.options.name
        return owned.holder(place.holder) if place.holder else ""

    def _settled(self) -> None:
        self._done += 1
        if self.queue.ring.needs_write:
            self._mark = self.queue.log.commits
        self.queue.ring.mark()

    def _transfer(self, seq: int, content: Message, now_ms: int) -> None:
        copy = self._copy(seq, content, now_ms)
        if copy is None:
            return
        message, targets = copy
        transfer = Transfer(self, seq, targets, message.size, moves=self._request.what == "move", since_ms=now_ms)
        self._underway[seq] = transfer
        self._underway_bytes += transfer.size
        transfer.begin(message)

    def _copy(self, seq: int, content: Message, now_ms: int) -> tuple[Message, tuple[QueueHandle, ...]] | None:
        """What is published, and to whom; None: it cannot be, and why is noted."""
        node, request = self._node, self._request
        vhost = node.vhosts[self.queue.entity.vhost]
        exchange, properties = request.exchange, properties_of(content)
        key = (
            content.routing_key.decode(errors="surrogateescape") if request.routing_key is None else request.routing_key
        )
        if exchange is None:
            origin = origin_of(vhost, properties, (key,), self.queue.name)
            if origin is None:
                self._skip("no_origin", seq)
                return None
            exchange, key, properties = "", origin, without_deaths(properties)
        route = vhost.router.reach(
            exchange, key, lambda: properties.headers, (), lambda name: getattr(properties, name, None)
        )
        if not route.targets:
            self._skip("unroutable", seq)
            return None
        changed = None if request.exchange is not None else properties
        if properties.headers and "BCC" in properties.headers:  # no consumer may see it, and the copy is routed without
            changed = replace(properties, headers={k: v for k, v in properties.headers.items() if k != "BCC"})
        return republished(content, exchange, key, changed, now_ms), route.targets

    # -- answers ----------------------------------------------------------------------------------------------

    def answered(self, transfer: Transfer) -> None:
        """All targets have answered, perhaps late."""
        on_time = self._ends(transfer)
        if not transfer.accepted:
            if on_time:
                self._skip("refused", transfer.seq)
        elif transfer.moves:
            self._settled()
        else:
            self._done += 1

    def _ends(self, transfer: Transfer) -> bool:
        """Whether it was under way until now."""
        if self._underway.pop(transfer.seq, None) is None:
            return False
        self._underway_bytes -= transfer.size
        return True

    def _end(self, now_ms: int) -> None:
        """Over, unless something has to be waited for."""
        for transfer in tuple(self._underway.values()):
            if now_ms - transfer.since_ms < CONFIRM_MS_MAX:
                return
            self._ends(transfer)
            transfer.give_up()
            self._skip("unconfirmed", transfer.seq)
        self.over = self._mark is None or self.queue.log.durable(self._mark)
        self._safe_by_ms = self._safe_by_ms or now_ms + CONFIRM_MS_MAX
        if not self.over and now_ms >= self._safe_by_ms:
            self.error, self.over = UNSAFE, True


def _listed(queue: LocalQueue, request: Request) -> deque[int] | None:
    """The seqs that are meant one by one, in the order in which they are looked at; None: it is a range, of seqs or of
    due times."""
    if request.seqs is not None:
        return deque(sorted(dict.fromkeys(request.seqs)))
    if not (isinstance(queue, DelayQueue) and queue.entity.delays):
        return deque() if request.what not in PLAIN or request.delay_key else None
    if request.delay_key:
        return deque(queue.under(request.delay_key))
    return None


class LongSearch:
    """What a filter says of messages of which one may be too long to be searched at once."""

    __slots__ = ("_filter", "_search", "_seq")

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._search: Search | None = None
        self._seq = 0

    def matches(self, subject: Subject) -> bool | None:
        """None: it is not known yet, ask again about the same message. What is not of its payload is looked at anew."""
        content = subject.content
        if not self._filter.asks_payload or content is None or content.body_length <= STEP_BYTES:
            return self._filter.matches(subject)
        if not self._filter.fits(subject):
            return False
        if self._search is None or self._seq != subject.seq:
            self._search, self._seq = self._filter.search(content.body), subject.seq
        subject.work += STEP_BYTES // WORK_BYTES
        try:
            next(self._search)
        except StopIteration as found:
            self._search = None
            return bool(found.value)
        return None


@dataclass(slots=True, eq=False)
class Transfer:
    """One message on its way to other queues."""

    inspection: Inspection
    seq: int
    targets: tuple[QueueHandle, ...]
    size: int
    moves: bool
    since_ms: int
    accepted: bool = False
    """Every target has it."""
    _aside: bool = False

    @property
    def here(self) -> bool:
        """Its queue is still this owner's."""
        inspection = self.inspection
        queue = inspection.queue
        return inspection._node.queues.get(queue.entity.queue_id) is queue and not queue.deleted

    def begin(self, message: Message) -> None:
        """Publishes it. The answer may come at once."""
        queue, node = self.inspection.queue, self.inspection._node
        if self.moves:
            self._aside = queue.ring.set_aside(self.seq)
            assert self._aside, "only what is ready is moved"
            queue.aside += 1
        ticket = Ticket(self.seq, self.seq, self._answered)
        for target in self.targets:
            if target.rejects and not target.accepts(message, node.now_ms):
                ticket.rejected = True
                continue
            target.publish((message,), ticket, node.now_ms)
            if target.ring.journaled:
                node.published(message.size)
        ticket.pass_()

    def give_up(self) -> None:
        """It goes back to its place; the answer may come later."""
        if self._aside:
            self._aside = False
            queue = self.inspection.queue
            queue.aside -= 1
            queue.put_back(self.seq)

    def _answered(self, ticket: Ticket) -> None:
        if not self.here:
            return  # its queue's next owner has it as it was
        # a queue that was deleted has answered all who waited, and kept nothing
        self.accepted = not ticket.rejected and not all(target.deleted for target in self.targets)
        queue = self.inspection.queue
        if self.moves and self.accepted:
            if not self._aside:  # it was given up
                if not queue.ring.set_aside(self.seq):
                    return  # a consumer has it
            else:
                queue.aside -= 1
            self._aside = False
            queue.ring.settle(self.seq)
        else:
            self.give_up()
        self.inspection.answered(self)


def without_deaths(properties: Properties) -> Properties:
    """As before the first death: its history would make the next one a circle."""
    headers = {name: value for name, value in (properties.headers or {}).items() if not name.startswith(DEATHS)}
    return replace(properties, headers=headers or None)
