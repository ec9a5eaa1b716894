"""Clients that talk while frames of their nodes are on the way: who publishes, who consumes, and who does both in
transactions. What they hear goes into the books in the moment in which it is heard, so the order among them is known.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.property.cluster_lives_books import Books, Broken, Sent
from tests.property.cluster_lives_world import Shaky
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.node_cluster import Site

QUEUE: Final = "q"
NOT_FOUND: Final = 404
"""Who consumes from a queue that has no owner is told so."""


def name_of(body: bytes) -> str:
    return body.partition(b"|")[0].decode()


class Talker(Client):
    """An open channel at one node. `there`: its connection lives."""

    def __init__(self, cluster: Shaky, site: Site, books: Books, label: str) -> None:
        self.listening = self.closed = False
        super().__init__(site)
        self.site = site
        self.books = books
        self.label = label
        with cluster.only(site):
            self.enter()
            self.ask(m.ChannelOpen())
        self.listening = True

    def __str__(self) -> str:
        return f"{self.label} at {self.site.name}"

    @property
    def there(self) -> bool:
        """Not when the broker has ended it, though that is still on its way: others may have what it held."""
        over = self.connection.state in (State.CLOSING, State.CLOSED)
        return self.ended is None and not self.closed and not over

    def flush(self) -> None:
        super().flush()
        if self.listening:
            for said in self.hear():
                self.heard(said)
            self.closed = self.closed or any(isinstance(said, m.ConnectionClose) for said in self.hear(0))

    def heard(self, said: Any) -> None:
        if isinstance(said, m.ChannelClose):
            self.closed = True
            if said.reply_code != NOT_FOUND:
                raise Broken(f"{self} did nothing wrong, and hears {said}")

    def unanswered(self) -> list[str]:
        return []


class Names:
    """Clients that number their messages, whoever speaks for them at a time, and whom a queue must still know.

    It remembers the `most` names that it heard last. What it hears when is not known exactly: `_since[name]` are others
    that it may have heard after the last number of `name` that is known to be stored. Nobody may be forgotten whose
    number is under way a second time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.next: dict[str, int] = {}
        self.speakers: dict[str, Publisher] = {}
        self.open: dict[str, list[int]] = defaultdict(list)
        """Numbers that were not answered, ascending."""
        self._since: dict[str, set[str]] = {}
        self._marks: dict[tuple[str, int], set[str]] = {}
        self._repeating: set[str] = set()

    def may(self, name: str, again: bool) -> bool:
        """Whether `name` may speak now, and nobody is forgotten who must not be."""
        if again and len(self._since.get(name, ())) >= self._most:
            return False
        others = (self._since[other] | {name} for other in sorted(self._repeating) if other != name)
        return all(len(since) < self._most for since in others)

    def says(self, name: str, number: int, again: bool) -> None:
        under_way = {other for other, numbers in self.open.items() if numbers and other != name}
        for known, since in [*self._since.items(), *((key[0], mark) for key, mark in self._marks.items())]:
            if known != name:
                since.add(name)
        self._since.setdefault(name, set(under_way))
        if again:
            self._repeating.add(name)
        else:
            self._marks[name, number] = set(under_way)
        if number not in self.open[name]:
            self.open[name].append(number)
            self.open[name].sort()

    def answered(self, name: str, number: int, confirmed: bool) -> None:
        if number in self.open[name]:
            self.open[name].remove(number)
        mark = self._marks.pop((name, number), None)
        if mark is not None and confirmed:
            self._since[name] = mark


class Publisher(Talker):
    """With confirms."""

    def __init__(self, cluster: Shaky, site: Site, books: Books, label: str, names: Names) -> None:
        super().__init__(cluster, site, books, label)
        self.names = names
        self._open: dict[int, str] = {}
        self._tag = 1
        self._numbers: dict[int, tuple[str, int]] = {}
        self.say(m.ConfirmSelect())

    def publish_one(self, number: int, size: int, **properties: Any) -> None:
        name = f"m{number}"
        self.books.publish(name, Sent(str(self), number, False))
        self._send(name, size, properties)

    def say_number(self, producer: str, number: int, again: bool, size: int) -> None:
        name = f"{producer}.{number}"
        self.books.publish(name, Sent(producer, number, True))
        self.names.says(producer, number, again)
        self._numbers[self._tag] = producer, number
        self._send(name, size, {"headers": {"x-producer": producer, "x-seq": number}})

    def _send(self, name: str, size: int, properties: dict[str, Any]) -> None:
        self._open[self._tag] = name
        self._tag += 1
        self.raw(self.content("", QUEUE, name.encode() + b"|" + bytes(size), **properties))

    def heard(self, said: Any) -> None:
        super().heard(said)
        if isinstance(said, m.BasicAck | m.BasicNack):
            last = said.delivery_tag
            for tag in [tag for tag in self._open if tag == last or (said.multiple and tag < last)]:
                confirmed = isinstance(said, m.BasicAck)
                self.books.answered(self._open.pop(tag), confirmed)
                if tag in self._numbers:
                    self.names.answered(*self._numbers.pop(tag), confirmed)

    def unanswered(self) -> list[str]:
        return list(self._open.values())


class Worker(Talker):
    """A consumer; `held` are the messages in its hands by delivery tag."""

    def __init__(self, cluster: Shaky, site: Site, books: Books, label: str, prefetch: int) -> None:
        super().__init__(cluster, site, books, label)
        self.held: dict[int, str] = {}
        self._begin(prefetch)

    def _begin(self, prefetch: int) -> None:
        if prefetch:
            self.say(m.BasicQos(prefetch_count=prefetch))
        self.say(m.BasicConsume(queue=QUEUE, consumer_tag="c"))

    def heard(self, said: Any) -> None:
        super().heard(said)
        if isinstance(said, Content):
            name = name_of(said.body)
            self.books.handed(self, name, said.method.redelivered)
            self.held[said.method.delivery_tag] = name

    def settle(self, tag: int, how: str, transaction: bool = False) -> str:
        name = self.held.pop(tag)
        if how == "requeue":
            self.books.returned(name)
            self.say(m.BasicNack(tag, False, True))
        else:
            self.books.settle(name, self.site.name, rejected=how == "reject", transaction=transaction)
            self.say(m.BasicReject(tag, False) if how == "reject" else m.BasicAck(tag))
        return name

    def reject_all(self) -> None:
        """But not what is on its way here."""
        last = max(self.held)
        for name in self.held.values():
            self.books.settle(name, self.site.name, rejected=True, transaction=False)
        self.held.clear()
        self.say(m.BasicNack(last, True, False))


class Teller(Worker):
    """Takes and publishes in one transaction at a time."""

    def _begin(self, prefetch: int) -> None:
        self._committing: tuple[list[str], list[str]] | None = None
        self.say(m.TxSelect())
        super()._begin(prefetch)

    @property
    def free(self) -> bool:
        return self._committing is None

    def commit(self, settlements: list[tuple[int, str]], numbers: list[int]) -> None:
        taken = [self.settle(tag, how, True) for tag, how in settlements]
        settled = [name for name, (_, how) in zip(taken, settlements, strict=True) if how == "ack"]
        for number in numbers:
            name = f"t{number}"
            self.books.publish(name, Sent(str(self), number, False))
            self.raw(self.content("", QUEUE, name.encode() + b"|" + bytes(100)))
        self._committing = [f"t{number}" for number in numbers], settled
        self.say(m.TxCommit())

    def heard(self, said: Any) -> None:
        super().heard(said)
        if isinstance(said, m.TxCommitOk):
            assert self._committing is not None, "a commit was sent"
            self.books.committed(*self._committing)
            self._committing = None

    def unanswered(self) -> list[str]:
        return [f"the commit of {self._committing}"] if self._committing else []
