"""What clients with recoverable links wrote down, and whether each message came exactly once (pure).

Each client has a log of its own, a line for each thing:

    began                         a life of the program; what it held before and gave no outcome comes again
    sent LINK NUMBER TAG          about to be given to the link
    outcome LINK NUMBER NAME      answered, before it is settled
    took LINK SENDER NUMBER TAG   handed to the program
    settled LINK SENDER NUMBER    accepted, and the broker has settled it: it never comes again
    paused ROUND                  nothing more is sent in this round
    rest 0|1                      whether nothing is unsettled on its links
    error TEXT                    a link or connection ended for a reason that does not pass

A number is lost when it was accepted and a queue of its route gave it to nobody; doubled when a queue gave it under two
tags, or to one life of a program twice; taken away when another link got it; disordered when a link got first
deliveries of a sender in another order than they were sent in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from clusterbroker.broker.trial.judge import Verdict

ACCEPTED: Final = "accepted"


class Sent(NamedTuple):
    """A message in a queue."""

    queue: str
    sender: str
    number: int

    def __str__(self) -> str:
        return f"message {self.number} of {self.sender} in {self.queue}"


class Taken(NamedTuple):
    """To which life of which client it was handed last."""

    link: str
    tag: str
    life: int


class RecoverableJudge:
    """Takes lines as they are written. `routes`: each sender's queues; `sources`: each receiver's queue."""

    def __init__(self, routes: Mapping[str, Sequence[str]], sources: Mapping[str, str]) -> None:
        self._routes = routes
        self._sources = sources
        self._lives: dict[str, int] = defaultdict(int)
        self._sent: dict[str, int] = defaultdict(int)
        self._judged: dict[str, int] = defaultdict(int)
        """Numbers below it were judged in an earlier round."""
        self._outcomes: dict[tuple[str, int], str] = {}
        self._taken: dict[Sent, Taken] = {}
        self._settled: set[Sent] = set()
        self._highest: dict[tuple[str, str], int] = {}
        self._paused: dict[str, int] = {}
        self._rests: dict[str, bool] = {}
        self._verdict = Verdict()

    def take(self, client: str, line: str) -> None:
        """One line of a client's log."""
        word, _, rest = line.partition(" ")
        fields = rest.split(" ")
        if word == "began":
            self._lives[client] += 1
            self._rests[client] = False
        elif word == "sent":
            self._sent[fields[0]] = int(fields[1]) + 1
        elif word == "outcome":
            self._decided(fields[0], int(fields[1]), fields[2])
        elif word == "took":
            self._took(client, fields[0], fields[1], int(fields[2]), fields[3])
        elif word == "settled":
            self._settled.add(Sent(self._sources[fields[0]], fields[1], int(fields[2])))
        elif word == "paused":
            self._paused[client] = int(fields[0])
        elif word == "rest":
            self._rests[client] = fields[0] == "1"
        elif word == "error":
            self._verdict.found("unexpected", f"{client}: {rest}")

    def _decided(self, sender: str, number: int, outcome: str) -> None:
        before = self._outcomes.setdefault((sender, number), outcome)
        if before != outcome or outcome != ACCEPTED:
            self._verdict.found("unexpected", f"message {number} of {sender} was answered {before}, {outcome}")
        self._verdict.confirmed += 1

    def _took(self, client: str, link: str, sender: str, number: int, tag: str) -> None:
        verdict, life = self._verdict, self._lives[client]
        message = Sent(self._sources[link], sender, number)
        known = self._taken.get(message)
        self._taken[message] = Taken(link, tag, life)
        verdict.delivered += 1
        if known is None:
            if number < self._highest.get((link, sender), 0):
                verdict.found("disordered", f"{message} after {self._highest[link, sender]} at {link}")
            self._highest[link, sender] = number
        elif message in self._settled:
            verdict.found("unexpected", f"{message} came back to {link} after it was settled")
        elif known.link != link:
            verdict.found("taken away", f"{message} from {known.link} to {link}")
        elif known.tag != tag or known.life == life:
            verdict.found("doubled", f"{message} at {link}, by the tags {known.tag} and {tag}")
        else:
            verdict.redelivered += 1

    def missing(self, round_: int, clients: Sequence[str]) -> str:
        """What has to come yet in this round, "" for nothing."""
        waiting = [client for client in clients if self._paused.get(client, 0) < round_]
        if waiting:
            return f"{', '.join(waiting)} did not pause"
        undecided = sum(1 for sender, number in self._fresh() if (sender, number) not in self._outcomes)
        untaken = sum(1 for message in self._due() if message not in self._taken)
        busy = [client for client in clients if not self._rests.get(client, False)]
        if undecided or untaken or busy:
            unsettled = f", deliveries of {', '.join(busy)} not settled" if busy else ""
            return f"{undecided:,} messages over links not answered, {untaken:,} not delivered{unsettled}"
        return ""

    def _fresh(self) -> list[tuple[str, int]]:
        return [(sender, number) for sender, end in self._sent.items() for number in range(self._judged[sender], end)]

    def _due(self) -> list[Sent]:
        fresh = [one for one in self._fresh() if self._outcomes.get(one) == ACCEPTED]
        return [Sent(queue, sender, number) for sender, number in fresh for queue in self._routes[sender]]

    def verdict(self) -> Verdict:
        """Of what was sent since the last one: the queues were emptied, so what did not come never will."""
        found, self._verdict = self._verdict, Verdict()
        for sender, number in self._fresh():
            if (sender, number) not in self._outcomes:
                found.found("unanswered", f"message {number} of {sender}")
        for message in self._due():
            if message not in self._taken:
                found.found("lost", f"{message} was accepted")
        for message in self._taken:
            if message.number >= self._sent[message.sender] and self._judged[message.sender] <= message.number:
                found.found("unexpected", f"{message} was never sent")
        found.published = len(self._fresh())
        self._judged.update(self._sent)
        return found
