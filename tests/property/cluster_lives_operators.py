"""Operators who pause the queue of a life, look into it, and delete, move and replay single messages of it, while the
rest happens. What is promised of that, besides what `cluster_lives_books` has:

    untouched   what a client holds, or has acknowledged, is neither deleted nor moved nor replayed
    moved       what an answer calls moved is in the other queue, and never again in this one; what it calls deleted is
                nowhere. Of a move in doubt the message is in one of the two, or in both, and here at its old place
    as often    the other queue has no more of a message than were sent there
    paused      the owner of a paused queue hands nothing out, and its clients' nodes deliver nothing
    counted     an owner's ring counts what it has
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from clusterbroker.broker.node import inspecting
from clusterbroker.broker.node.inspecting import Inspection, Place, Transfer
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import READY, UNACKED
from clusterbroker.broker.stats import inspection as i
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import Message
from tests.property.cluster_lives_books import Books, Broken
from tests.property.cluster_lives_clients import QUEUE, name_of
from tests.property.cluster_lives_world import Shaky, journal_of
from tests.unit.broker.node.node_cluster import Site

SHELF: Final = "shelf"
"""Where messages are moved to."""
AT_ONCE: Final = 3


class Sizes(NamedTuple):
    """Of the steps of an inspection, and how long a confirm is waited for."""

    piece: int
    batch: int
    window: int
    confirm_ms: int


SIZES: Final = (
    Sizes(inspecting.SLICE, inspecting.BATCH, inspecting.WINDOW, i.CONFIRM_MS_MAX),
    Sizes(3, 7, 4, 300),
    Sizes(5, 5, 16, 1500),
)


@contextmanager
def sized(sizes: Sizes) -> Iterator[None]:
    names = "SLICE", "BATCH", "WINDOW", "CONFIRM_MS_MAX"
    before = [getattr(inspecting, name) for name in names]
    for name, value in zip(names, sizes, strict=True):
        setattr(inspecting, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(inspecting, name, value)


def message_at(site: Site, queue: LocalQueue, seq: int) -> Message:
    """What stands there, in memory or not."""
    message: Message | None = queue.ring.message(seq)
    if message is None:
        (message,) = journal_of(site).read(queue.entity.queue_id, [queue.ring.location(seq)])
    return message


class Told(Inspection):
    """One that tells the operators' book what it does to which message."""

    def __init__(self, book: Operators, site: Site, queue: LocalQueue, request: i.Request) -> None:
        super().__init__(site.node, queue, request, site.now_ms + i.LOOKED_MS_MAX)
        self.book = book
        self.site = site
        self.incarnation = site.incarnation
        self.names: dict[int, str] = {}
        self.accepted: set[str] = set()
        """Names that were deleted, or that the other queue has."""

    @property
    def what(self) -> i.What:
        return self._request.what

    def _treat(self, place: Place, content: Message | None, now_ms: int) -> int:
        if self.what != "browse" and place.state == READY:
            message = message_at(self.site, self.queue, place.seq)
            name = self.names[place.seq] = name_of(message.body)
            self.book.treated(self, name, place.seq)
            if message.ttl_ms >= 0:
                self.book.mortal.add(name)
            if self.what == "delete":
                self.accepted.add(name)
        return super()._treat(place, content, now_ms)

    def answered(self, transfer: Transfer) -> None:
        super().answered(transfer)
        if transfer.accepted:
            self.accepted.add(self.names[transfer.seq])


class Operators:
    """All of them."""

    def __init__(self, cluster: Shaky, books: Books) -> None:
        self.cluster = cluster
        self.books = books
        self.touched: dict[str, int] = {}
        """Names that were to be moved, and where they stood."""
        self.sent: Counter[str] = Counter()
        """How often each may be in the other queue."""
        self.replayed: set[str] = set()
        """Names that an answer called so."""
        self.deleted: set[str] = set()
        self.mortal: set[str] = set()
        """They may expire in the other queue too."""
        self.moved: set[str] = set()
        self._underway: list[Told] = []
        self._halted: dict[LocalQueue, int] = {}
        self._quiet: set[str] = set()
        """Nodes whose clients get nothing, for these know of the pause."""

    # -- deeds

    def pause(self) -> str:
        return self._order(True)

    def resume(self) -> str:
        return self._order(False)

    def _order(self, paused: bool) -> str:
        if self.cluster.truth(QUEUE).paused is paused:
            return ""
        self.cluster.order(c.PauseQueue(vhost="/", name=QUEUE, paused=paused))
        return f"the queue is {'paused' if paused else 'resumed'}"

    def operate(self) -> str:
        """Some messages are looked at, deleted, moved or replayed: listed ones, or the first from somewhere on."""
        cluster, rng = self.cluster, self.cluster.rng
        entity = cluster.truth(QUEUE)
        site = None if entity.owner is None else cluster[entity.owner]
        queue = None if site is None or not site.alive else site.node.queues.get(entity.queue_id)
        if site is None or queue is None or queue.paused or len(self._underway) >= AT_ONCE:
            return ""
        if rng.random() < 0.3:
            queue.ring.resident_bytes_max = rng.choice((0, 400, 8 << 20))
        what: i.What = rng.choice(("browse", "delete", "move", "move", "move", "replay"))
        last = max(1, queue.ring.next_seq - 1)
        asked: dict[str, Any] = {"count": rng.choice((1, 3, 10, 40))}
        if rng.random() < 0.4:
            living = [seq for seq, *_ in queue.ring.living(1, last, 200)]
            asked["seqs"] = tuple(rng.sample([*living, last + 1], rng.randint(1, min(len(living) + 1, 12))))
        else:
            asked |= {"first": rng.choice((1, 1, rng.randint(1, last))), "filter": rng.choice(("", "size>99"))}
        if what in ("move", "replay"):
            asked |= {"exchange": "", "routing_key": SHELF}
        request = i.decode_request(i.encode(i.Request(what=what, queue_id=entity.queue_id, **asked)))
        self._underway.append(Told(self, site, queue, request))
        return f"an operator at {site.name}: {what} {asked}"

    # -- what happens

    def treated(self, one: Told, name: str, seq: int) -> None:
        """A ready message is about to leave, or to be copied."""
        books = self.books
        known = name not in books.before_gap
        if known and (name in books.gone or name in books.sure):
            raise Broken(f"untouched: {one.what} of {name}, which was acknowledged or rejected")
        holder = books.holder(name)
        if holder is not None and holder.there and name not in books.may_repeat:
            raise Broken(f"untouched: {one.what} of {name} while {holder} holds it")
        if one.what == "delete":
            self.deleted.add(name)
            return
        self.sent[name] += 1
        if one.what == "move":
            self.touched[name] = seq
            books.out_of_order.add(name)

    def worked(self, site: Site) -> None:
        """A node had a turn, and clients heard what it had to say."""
        entity = site.map.queue("/", QUEUE)
        if entity is not None and entity.paused:
            self._quiet.add(site.name)
        else:
            self._quiet.discard(site.name)
        for one in [one for one in self._underway if one.site is site]:
            self._go_on(one)
        queue = None if entity is None else site.node.queues.get(entity.queue_id)
        if queue is None:
            return
        if site.name not in self._quiet:
            self._halted.pop(queue, None)
        elif self._halted.setdefault(queue, queue.ring.handed) != queue.ring.handed:
            raise Broken(f"paused: {site.name} hands out messages of a paused queue")

    def heard(self, site: Site, name: str) -> None:
        """A client there gets a message."""
        if site.name in self._quiet and site.map.queue("/", QUEUE).paused:  # type: ignore[union-attr]
            raise Broken(f"paused: a client at {site.name} gets {name} of a paused queue")

    def ended(self, name: str) -> None:
        """The process of a node."""
        self._quiet.discard(name)
        self._underway = [one for one in self._underway if one.site.name != name]
        self._halted.clear()

    def _go_on(self, one: Told) -> None:
        one.step(one.site.now_ms)
        if not one.over:
            return
        self._underway.remove(one)
        if one.error:
            return
        if one.what in ("move", "delete"):
            self.books.gone.update(one.accepted)
            if one.what == "move":
                self.moved.update(one.accepted)
        elif one.what == "replay":
            self.replayed.update(one.accepted)
        for shown in one.result.shown:
            if name_of(shown.payload) not in self.books.sent:
                raise Broken(f"nobody published {shown}")

    def finish(self) -> None:
        """All is well, and what is under way comes to its end."""
        for _ in range(i.CONFIRM_MS_MAX // 50):
            for site in self.cluster.running:
                self.worked(site)
            if not self._underway:
                return
            self.cluster.wait(50)
        raise Broken(f"answered: {[one.what for one in self._underway]} of operators do not end")

    def count(self, site: Site) -> None:
        """What the ring of an owner says of itself is so."""
        for queue in site.node.queues.values():
            if queue.ring.replicated:
                counted(queue, site.name)

    # -- the end

    def taken(self, shelf: list[str]) -> set[str]:
        """What need not be in the queue, for an operator dealt with it."""
        return {*shelf, *self.deleted, *(self.mortal & set(self.sent))}

    def close(self, left: list[str], dead: list[str], shelf: list[str]) -> None:
        """`left` in the queue, `dead` in the target of its dead letters, `shelf` in the other one."""
        books = self.books
        for name, count in Counter(shelf).items():
            if count > self.sent[name]:
                raise Broken(
                    f"as often: {name} is {count} times in the other queue, and was sent there {self.sent[name]}"
                )
        if lost := (self.moved | self.replayed) - set(shelf) - self.mortal:
            raise Broken(f"moved: {sorted(lost)[:8]} were confirmed, and are not in the other queue")
        promised = set(books.sent) - books.before_gap - books.may_repeat
        again = {name for name, sent in books.sent.items() if sent.named}
        if back := (self.moved & promised - again) & {*left, *dead}:
            raise Broken(f"moved: {sorted(back)[:8]} are still there")
        if books.ordered:
            places = [self.touched[name] for name in left if name in self.touched and name in promised - again]
            if places != sorted(places):
                raise Broken(f"moved: what came back stands in another order: {left}")


def counted(queue: LocalQueue, where: str) -> None:
    """Raises Broken when the counters of an owner's ring are not those of its messages."""
    ring = queue.ring
    living = ring.living(1, ring.next_seq, 1 << 20)
    ready = [seq for seq, state, *_ in living if state == READY]
    here = [message for seq, *_ in living if (message := ring.message(seq)) is not None]
    holders = Counter(holder for _, state, _, _, holder in living if state == UNACKED)
    found = {
        "ready": len(ready),
        "unacked": holders.total(),
        "resident": len(here),
        "resident_bytes": sum(len(message.payload) for message in here),
        "fleeting": 0,
    }
    said = {name: getattr(ring, name) for name in found}
    if all(ring.message(seq) is not None for seq in ready):
        found["ready_bytes"] = sum(ring.message(seq).body_length for seq in ready)
        said["ready_bytes"] = ring.ready_bytes
    for holder in holders:
        if holder:
            found[f"held by {holder}"], said[f"held by {holder}"] = holders[holder], ring.held_by(holder)
    if queue.aside > holders[0]:
        raise Broken(f"counted: {queue} at {where} has {queue.aside} aside, and {holders[0]} that nobody holds")
    if found != said:
        raise Broken(f"counted: the ring of {queue.name} at {where} says {said}, and has {found}")
