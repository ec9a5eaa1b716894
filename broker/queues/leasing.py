"""The lease on a queue that is taken from, at the queue's owner: one reader may ask for the same messages again.

Theory. Deliveries belong to a connection: who loses it loses them, and whoever asks next gets them in another grouping.
A reader that works in batches (Spark: a process that plans, others that fetch, a replay after any of them died) needs
the opposite. Its lease is a range of seqs with a name:

    acknowledged          end                     committed
    |  leased: UNACKED    |  ready: what the next |  not yet in the queue for anybody
    |  at holder LEASED   |  `take` may add       |

    take      settles what is below `from`, then adds the next ready messages until the range holds as much as it may:
              rows and bytes count for the whole range, so who asks again without settling gets the same range
    settle    what is below `upto` leaves the queue
    release   what is left returns, flagged as redelivered; so does a lease of which nothing was heard for `ttl_ms`
    read      any part of the range, any number of times, from anywhere; changes nothing

*Alone.* The first `take` needs a queue without consumers and unacknowledged messages, and from then on nobody else is
handed anything: so what is ready stands behind the range, and every live message below `end` is leased.

*In the log.* The attributes LEASE (its end), LEASE_ACKNOWLEDGED and LEASE_RUN (numbers of runs); an end of 0 ends the
lease, and its runs go with it. What is settled is a SET as ever, what was shown is covered by a
reservation. The next owner folds that and has the lease again, whole; it does not know when anything was heard last:
the time begins anew. An answer, a refusal too, waits until all that it says is committed.

*In slices.* A range may be long, and others have their turns: a request that walks more than SLICE_ROWS goes on a
millisecond later, and the requests behind it wait. After each slice the log has a lease again that is one: its range
has grown, has lost a part at its beginning (settled), or at its end (released), so an owner that dies in the middle
leaves a reader whose request was not answered, as ever.

*Runs.* A reader that starts again takes its lease over under another run; the one before is refused from then on, by
every owner. Runs are numbered in the order in which they took the lease: the highest has it, and REPLACED_MAX of those
before are remembered. A lease whose log names no run (a release before wrote it) belongs to the first run that speaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final

from clusterbroker.broker.queues.attributes import LEASE, LEASE_ACKNOWLEDGED, LEASE_RUN
from clusterbroker.broker.queues.lease import (
    GONE,
    READ_BYTES_MAX,
    TTL_MS_DEFAULT,
    Acquire,
    End,
    LeaseAnswer,
    LeaseRequest,
    Read,
    Release,
    Settle,
)
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.log import SAFE
from clusterbroker.broker.queues.states import LEASED
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.stats.inspection import life_of
from clusterbroker.journal.record import Message

REPLACED_MAX: Final = 16
ALL: Final = 2**62
WAITING_MAX: Final = 4096
"""Requests that wait for a commit, which may not come for long."""
PIECES_MAX: Final = 1024
"""Of a range; later ones are counted as one."""
SLICE_ROWS: Final = 16_384
"""Of a walk, before others have their turns: some milliseconds."""
SLICE_SEQS: Final = 16_384
SLICE_STEPS: Final = 256
"""So often it looks at so many seqs, of which few or none may live."""

Then = Callable[[LeaseAnswer, bytes], None]
Walk = Generator[None, None, LeaseAnswer]
"""A request that is carried out in slices."""


class Lease:
    """acknowledged   all of it below this seq has left
    end            all that lives below it is leased, and nothing from it on
    runs           run to its number, ascending: the last one has the lease, those before were replaced
    taken          (end, bytes) of each piece of the range, as it was added
    """

    __slots__ = ("acknowledged", "end", "heard_ms", "name", "runs", "taken", "ttl_ms")

    def __init__(self, name: str, acknowledged: int, end: int, now_ms: int) -> None:
        self.name = name
        self.acknowledged = acknowledged
        self.end = end
        self.runs: dict[str, int] = {}
        self.taken: deque[tuple[int, int]] = deque()
        self.heard_ms = now_ms
        self.ttl_ms = TTL_MS_DEFAULT

    @property
    def run(self) -> str:
        """Of the reader's present start; empty: a release before has written the lease, and nobody has spoken since."""
        return next(reversed(self.runs), "")

    def replaced(self, run: str) -> bool:
        return run in self.runs and run != self.run

    @property
    def taken_bytes(self) -> int:
        """Bytes of the pieces of which something is left."""
        return sum(size for _, size in self.taken)


class Leasing:
    """Of one queue. `lease`: None while there is none."""

    __slots__ = ("_behind", "_mark", "_queue", "_step_ms", "_waiting", "_walk", "ended", "lease")

    def __init__(self, queue: LocalQueue) -> None:
        self.lease: Lease | None = None
        self.ended = False  # another owner has the lease
        self._queue = queue
        self._mark = SAFE  # of the commit that the last change waits for
        self._waiting: deque[tuple[int, Callable[[], None], Then]] = deque()
        self._walk: tuple[Walk, Then] | None = None
        self._step_ms = 0  # not before then it goes on
        self._behind: deque[tuple[LeaseRequest, Then]] = deque()  # requests that wait for the end of the walk

    # -- requests ------------------------------------------------------------------------------------------------

    def hear(self, request: LeaseRequest, then: Then, now_ms: int) -> None:
        """Carries the request out; `then` hears of it when what it is told is committed. A take sees all that was
        published before it to a queue of this node."""
        queue, ring = self._queue, self._queue.ring
        if isinstance(request, Acquire) and ring.journaled and not ring.replicated and ring.advance() < ring.next_seq:
            ticket = Ticket(0, 0, lambda _: self._carry_out(request, then, now_ms))
            queue.log.promise(ticket)
            ticket.pass_()
        else:
            self._carry_out(request, then, now_ms)

    def _carry_out(self, request: LeaseRequest, then: Then, now_ms: int) -> None:
        queue = self._queue
        if queue.deleted:
            then(GONE, b"")
            return
        queue.last_used_ms = now_ms
        if self._walk is not None:
            if len(self._behind) < WAITING_MAX:
                self._behind.append((request, then))
            else:
                then(LeaseAnswer(503, f"unavailable, may be repeated: {self._place} is busy"), b"")
        elif isinstance(request, Read):
            self._when_safe(lambda: self._read(request, then, now_ms, {}), then)
        else:
            self._begin(self._judged(request, now_ms), then)

    def _begin(self, walk: Walk, then: Then) -> None:
        self._walk = walk, then
        self._step()

    def _step(self) -> None:
        """The next slice of a walk; at its end the requests behind it."""
        assert self._walk is not None, "a walk is under way"
        walk, then = self._walk
        try:
            next(walk)
        except StopIteration as end:
            answer: LeaseAnswer = end.value
            self._walk = None
            self._when_safe(lambda: then(answer, b""), then)
        self._step_ms = self._queue.host.now_ms + 1
        self._queue.ring.mark()

    def _judged(self, request: Acquire | Settle | Release | End, now_ms: int) -> Walk:
        if isinstance(request, End):
            return (yield from self._end_for_all(request))
        return self._judge(request) or (yield from self._obey(request, now_ms))

    def _when_safe(self, act: Callable[[], None], then: Then) -> None:
        if not self._waiting and self._queue.log.durable(self._mark):
            act()
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append((self._mark, act, then))
        else:
            then(LeaseAnswer(503, f"unavailable, may be repeated: {self._place} cannot commit"), b"")

    @property
    def waits(self) -> bool:
        """Whether somebody is answered by the next commit."""
        return bool(self._waiting)

    def turn(self, now_ms: int) -> None:
        """Answers what has become durable, and ends a lease of which nothing is heard any more."""
        while self._waiting and self._queue.log.durable(self._waiting[0][0]):
            self._waiting.popleft()[1]()
        if self._queue.paused:
            return
        if self._walk is not None and now_ms >= self._step_ms:
            self._step()
        while self._behind and self._walk is None:
            self._carry_out(*self._behind.popleft(), now_ms)
        lease = self.lease
        if lease is not None and self._walk is None and now_ms >= lease.heard_ms + lease.ttl_ms:
            self._begin(self._end(lease), _nobody)

    @property
    def due_ms(self) -> int:
        """When a walk goes on, or the lease ends if nothing is heard; 0: there is none."""
        if self._walk is not None:
            return self._step_ms
        return 0 if self.lease is None else self.lease.heard_ms + self.lease.ttl_ms

    @property
    def of_others(self) -> str:
        """Why nobody else is served: what a refusal says of the queue. Empty: there is no lease."""
        return "" if self.lease is None else f"is leased by '{self.lease.name}'"

    # -- what is refused --------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return self._queue.place

    @property
    def _moving(self) -> LeaseAnswer:
        return LeaseAnswer(503, f"unavailable, may be repeated: an operator moves messages of {self._place}")

    def _judge(self, request: Acquire | Settle | Release) -> LeaseAnswer | None:
        lease = self.lease
        if request.generation and request.generation != life_of(self._queue.entity):
            return LeaseAnswer(410, f"{self._place} is not the one that the offsets are of")
        if lease is None:
            return self._unfit() if isinstance(request, Acquire) else None
        if lease.name != request.name:
            return LeaseAnswer(403, f"{self._place} {self.of_others}")
        if lease.replaced(request.run) or (lease.run not in ("", request.run) and not isinstance(request, Acquire)):
            return LeaseAnswer(409, f"lease '{lease.name}' of {self._place} was taken over by run '{lease.run}'")
        return None

    def _unfit(self) -> LeaseAnswer | None:
        """Why the queue cannot be leased now."""
        queue = self._queue
        settings, why = queue.settings, ""
        if settings.max_priority:
            why = "has priorities, and a lease follows the order of the seqs"
        elif queue.subscriptions:
            why = f"has {len(queue.subscriptions)} consumers, and a lease needs it alone"
        elif queue.ring.unacked:
            why = f"has {queue.ring.unacked} unacknowledged messages, and a lease needs all of it"
        return LeaseAnswer(406, f"{self._place} {why}") if why else None

    # -- what is done -----------------------------------------------------------------------------------------

    def _obey(self, request: Acquire | Settle | Release, now_ms: int) -> Walk:
        lease = self.lease
        if lease is None and not isinstance(request, Acquire):
            if isinstance(request, Release):
                return self._answer(None)  # it is over, as was asked for
            return LeaseAnswer(404, f"{self._place} is not leased by '{request.name}'")
        if isinstance(request, Acquire):
            return (yield from self._take(lease, request, now_ms))
        assert lease is not None, "there is a lease"
        self._heard(lease, request.run, now_ms)
        if isinstance(request, Release):
            return (yield from self._end(lease))
        if request.upto > lease.end:
            return LeaseAnswer(406, f"{request.upto} is beyond the lease of {self._place}, which ends at {lease.end}")
        yield from self._settle(lease, request.upto)
        return self._answer(lease)

    def _take(self, lease: Lease | None, request: Acquire, now_ms: int) -> Walk:
        queue, ring = self._queue, self._queue.ring
        top = ring.advance()
        end = lease.end if lease is not None else 0
        if request.start > max(top, end):
            return LeaseAnswer(406, f"{request.start} is beyond {self._place}, which ends at {top}")
        if queue.aside and request.start > end:
            return self._moving
        if lease is None:
            first = min((seq for seq, *_ in ring.living(1, top - 1, 1)), default=top)
            lease = self.lease = Lease(request.name, first, first, now_ms)
            self._tell(lease)
        self._heard(lease, request.run, now_ms)
        lease.ttl_ms = request.ttl_ms
        if request.start > lease.end:
            yield from self._add(lease, request.start, ALL, ALL)
            if queue.aside:  # since the walk began: what is aside, and behind it, may return, and is not leased
                return self._moving
            lease.end = request.start
        yield from self._settle(lease, request.start)
        if not queue.halted:
            held, size = ring.held_by(LEASED), lease.taken_bytes
            if held < request.rows_max and size < request.bytes_max:
                yield from self._add(lease, top, request.rows_max - held, request.bytes_max - size, 0 if held else 1)
        return self._answer(lease)

    def _heard(self, lease: Lease, run: str, now_ms: int) -> None:
        lease.heard_ms = now_ms
        if lease.run == run:
            return
        assert run not in lease.runs, "a run that was replaced is refused"
        told = {run: lease.runs.get(lease.run, 0) + 1}
        lease.runs.update(told)
        while len(lease.runs) > REPLACED_MAX + 1:
            oldest = next(iter(lease.runs))
            del lease.runs[oldest]
            told[oldest] = 0
        self._log({LEASE_RUN.name((lease.name, run)): number for run, number in told.items()})

    def _add(
        self, lease: Lease, top: int, rows_max: int, bytes_max: int, least: int = 0
    ) -> Generator[None, None, None]:
        while True:
            wanted = min(rows_max, SLICE_ROWS)
            end, count, size = self._queue.ring.lease(lease.end, top, wanted, bytes_max, least)
            if count:
                lease.end = end
                lease.taken.append((end, size if len(lease.taken) < PIECES_MAX else size + lease.taken.pop()[1]))
                self._tell(lease)
            rows_max, bytes_max, least = rows_max - count, max(0, bytes_max - size), 0
            if count < wanted or not rows_max:
                return
            yield

    def _settle(self, lease: Lease, upto: int) -> Generator[None, None, None]:
        if upto <= lease.acknowledged:
            return
        ring = self._queue.ring
        at = min((seq for seq, *_ in ring.living(1, upto - 1, 1)), default=upto)
        while True:
            count = steps = 0
            while at < upto and count < SLICE_ROWS and steps < SLICE_STEPS:
                end = min(at + SLICE_SEQS, upto)
                count, steps = count + ring.settle_held(at, end - 1, LEASED), steps + 1
                at = end
            lease.acknowledged = max(lease.acknowledged, at)
            while lease.taken and lease.taken[0][0] <= at:
                lease.taken.popleft()
            self._tell(lease)
            if at >= upto:
                return
            yield

    def _end_for_all(self, request: End) -> Walk:
        lease = self.lease
        if lease is None:
            return self._answer(None)
        if request.name not in ("", lease.name):
            return LeaseAnswer(403, f"{self._place} {self.of_others}")
        return (yield from self._end(lease))

    def _end(self, lease: Lease) -> Walk:
        ring = self._queue.ring
        while ring.held_by(LEASED):
            assert lease.end > 1, "all that is leased stands below the lease's end"
            count = steps = 0
            while lease.end > 1 and count < SLICE_ROWS and steps < SLICE_STEPS:
                first = max(lease.end - SLICE_SEQS, 1)
                count, steps = count + ring.requeue_held(first, lease.end - 1, LEASED, False), steps + 1
                lease.end = first
            if ring.held_by(LEASED):
                lease.acknowledged = min(lease.acknowledged, lease.end)
                self._tell(lease)
                yield
        self.lease = None
        name, runs = lease.name, LEASE_RUN.names(ring.attributes)
        self._log(dict.fromkeys([LEASE.name(name), LEASE_ACKNOWLEDGED.name(name), *runs], 0))
        return self._answer(None)

    def _tell(self, lease: Lease) -> None:
        self._log({LEASE.name(lease.name): lease.end, LEASE_ACKNOWLEDGED.name(lease.name): lease.acknowledged})

    def _log(self, told: Mapping[bytes, int]) -> None:
        """The log has to know where the lease stands and whose it is, if the queue has one."""
        ring = self._queue.ring
        if ring.journaled or ring.replicated:
            for key, value in told.items():
                ring.set_attribute(key, value)
            self._mark = self._queue.log.commits
        ring.mark()

    def _answer(self, lease: Lease | None) -> LeaseAnswer:
        generation = life_of(self._queue.entity)
        if lease is None:
            return LeaseAnswer(generation=generation)
        ring = self._queue.ring
        return LeaseAnswer(0, "", generation, lease.acknowledged, lease.end, ring.held_by(LEASED), ring.committed)

    # -- reading ----------------------------------------------------------------------------------------------

    def _read(self, request: Read, then: Then, now_ms: int, found: Mapping[int, Message]) -> None:
        lease = self.lease
        if lease is None or lease.name != request.name:
            then(LeaseAnswer(404, f"{self._place} is not leased by '{request.name}'"), b"")
            return
        if request.first < lease.acknowledged:
            first = lease.acknowledged
            then(LeaseAnswer(410, f"{request.first} of {self._place} is gone, the lease begins at {first}"), b"")
            return
        if request.end > lease.end:
            end = lease.end
            then(LeaseAnswer(406, f"{request.end} is beyond the lease of {self._place}, which ends at {end}"), b"")
            return
        lease.heard_ms = max(lease.heard_ms, now_ms)
        ring = self._queue.ring
        data, end, absent = ring.read_leased(request.first, request.end, request.rows_max, READ_BYTES_MAX, dict(found))
        if not absent:
            then(LeaseAnswer(0, "", life_of(self._queue.entity), request.first, end), data)
            return

        def loaded(messages: Sequence[Message]) -> None:
            if not self.ended:
                self._read(request, then, now_ms, dict(zip([seq for seq, *_ in absent], messages, strict=True)))

        def unread() -> None:
            then(LeaseAnswer(503, f"some of {self._place} cannot be read from the disk: see message.damaged"), b"")

        self._queue.host.fetch(self._queue, absent, loaded, unread)

    # -- the queue's life -------------------------------------------------------------------------------------

    def drop(self) -> None:
        """The queue was deleted."""
        told = [then for _, _, then in self._waiting] + [then for _, then in self._behind]
        if self._walk is not None:
            told.insert(0, self._walk[1])
        self._waiting, self._behind, self._walk, self.lease = deque(), deque(), None, None
        for then in told:
            then(GONE, b"")

    def resume(self, name: str, acknowledged: int, end: int, runs: Mapping[str, int], now_ms: int) -> None:
        """The log knows of a lease: this owner has it, whatever it was told of messages that are gone since."""
        self.lease = lease = Lease(name, acknowledged, end, now_ms)
        lease.runs.update(sorted(runs.items(), key=lambda run: run[1]))
        _, _, size = self._queue.ring.lease(1, end, ALL, ALL)
        lease.taken.append((end, size))


def _nobody(_: LeaseAnswer, __: bytes) -> None:
    """A lease that ends by itself is told to nobody."""


def resumed(queue: LocalQueue, now_ms: int) -> Leasing | None:
    """What the log knows of a lease, for an owner that begins."""
    ring = queue.ring
    leases = LEASE.of(ring.attributes)
    if not leases:
        return None
    *forgotten, (name, end) = leases
    for other, _ in forgotten:  # a release before has not known a lease of a queue that never had a message
        ring.set_attribute(LEASE.name(other), 0)
        ring.set_attribute(LEASE_ACKNOWLEDGED.name(other), 0)
    leasing = Leasing(queue)
    before = LEASE_RUN.name((name, ""))
    runs = {key[len(before) :].decode(): value for key, value in ring.attributes.items() if key.startswith(before)}
    leasing.resume(name, ring.attributes.get(LEASE_ACKNOWLEDGED.name(name), 1), end, runs, now_ms)
    return leasing
