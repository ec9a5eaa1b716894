"""From a history to a verdict (pure). Each rule is a promise that the broker makes to the clients that wrote it.

    lost          a confirmed message was handed to nobody, although the queues were drained
    unexpected    what was delivered had never been published, or came back after it was settled in an earlier history
    doubled       delivered without the redelivered flag more often than it was published
    taken away    a consumer that lives to this day holds or has acknowledged the message, and another was handed it too
    disordered    a session saw first deliveries of one publisher in another order than they were published in
    unanswered    published, and never confirmed although the publisher went on trying
    double owner  two nodes (or two incarnations) began to own one queue in one epoch, by their own logs
    diverged      two nodes hold different maps at the same wiring index

What is published again because its confirm did not arrive may be delivered twice: nothing but the count of deliveries
is asked of it, unless its publisher is `numbered`. A session that ended for its client is no longer a living consumer:
the broker may know it earlier or later. Histories follow one another (`settled_below`): what an earlier one settled
must not come back.

Gaps are figures, no rule: how long a client went without progress while it was supposed to make some. A consumer that
polls finds the queue emptied by others as often as not: its sessions are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from clusterbroker.broker.trial.event_log import OWNER_BEGAN, Line
from clusterbroker.broker.trial.history import Event, What

EXAMPLES_MAX: Final = 5
Message = tuple[int, int]


@dataclass(slots=True)
class Finding:
    """A broken promise: which, how often, and a few examples."""

    rule: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.count:,} {self.rule}: {'; '.join(self.examples[:2])}"


@dataclass(slots=True)
class Verdict:
    """What a history says."""

    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    redelivered: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    publisher_gaps_s: list[float] = field(default_factory=list)
    """each client's longest one"""
    consumer_gaps_s: list[float] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.findings

    def count(self, rule: str) -> int:
        """How often a rule was broken."""
        found = self.findings.get(rule)
        return 0 if found is None else found.count

    def found(self, rule: str, example: str) -> None:
        """Notes that a rule was broken."""
        finding = self.findings.setdefault(rule, Finding(rule))
        finding.count += 1
        if len(finding.examples) < EXAMPLES_MAX:
            finding.examples.append(example)

    def add(self, other: Verdict) -> None:
        """Adds another history's verdict to this one."""
        self.published += other.published
        self.confirmed += other.confirmed
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.publisher_gaps_s += other.publisher_gaps_s
        self.consumer_gaps_s += other.consumer_gaps_s
        for rule, finding in other.findings.items():
            mine = self.findings.setdefault(rule, Finding(rule))
            mine.count += finding.count
            mine.examples = (mine.examples + finding.examples)[:EXAMPLES_MAX]

    def figures(self) -> str:
        """The verdict's figures in one line."""
        rules = ("lost", "unexpected", "doubled", "taken away", "disordered", "unanswered", "double owner", "diverged")
        broken = [f"{self.count(rule):,} {rule}" for rule in rules]
        worst = [f"{who} {max(gaps):.2f} s" for who, gaps in self._gaps() if gaps]
        return f"{self.confirmed:,} confirmed, {', '.join(broken)}, {self.redelivered:,} redelivered with the flag" + (
            f", longest gap: {', '.join(worst)}" if worst else ""
        )

    def _gaps(self) -> tuple[tuple[str, list[float]], ...]:
        return ("publishers", self.publisher_gaps_s), ("consumers", self.consumer_gaps_s)


def judge(
    events: Sequence[Event],
    settled_below: Mapping[int, int] | None = None,
    drained: bool = True,
    living: bool = True,
    numbered: Collection[int] = (),
) -> Verdict:
    """The verdict over one history.

    settled_below   per publisher, the first number of this history: earlier ones were settled in an earlier one
    drained         the queues were emptied in the end: what did not arrive by now never will
    living          the broker promises that living consumers keep what they hold (ours does, also through a failover)
    numbered        publishers that number their messages for the broker: each is in the queue once, however often it
                    was published
    """
    verdict = Verdict()
    first = settled_below or {}
    attempts: Counter[Message] = Counter()
    confirmed: set[Message] = set()
    deliveries: dict[Message, list[Event]] = defaultdict(list)
    ended: set[int] = set()
    sequence: dict[tuple[int, int], int] = {}  # (session, publisher) -> highest number that was new to it
    for event in events:
        message = (event.publisher, event.number)
        if event.what is What.PUBLISHED:
            attempts[message] += 1
        elif event.what is What.CONFIRMED:
            confirmed.add(message)
            if message not in attempts:
                verdict.found("unexpected", f"a confirm for {_name(message)}, which was not published")
        elif event.what is What.DELIVERED:
            verdict.delivered += 1
            verdict.redelivered += event.flagged
            deliveries[message].append(event)
            _check_delivery(verdict, event, message, attempts, first, sequence)
        elif event.what is What.LOST:
            ended.add(event.session)
    verdict.published, verdict.confirmed = len(attempts), len(confirmed)
    for message, given in deliveries.items():
        copies = min(attempts[message], 1) if message[0] in numbered else attempts[message]
        _check_copies(verdict, message, given, copies, ended if living else None)
    if drained:
        for message in attempts:
            if message not in confirmed:
                verdict.found("unanswered", f"{_name(message)}, published {attempts[message]} times")
            elif message not in deliveries:
                verdict.found("lost", f"{_name(message)} was confirmed")
    verdict.publisher_gaps_s = longest_gaps(events, What.CONFIRMED)
    verdict.consumer_gaps_s = longest_gaps(events, What.DELIVERED)
    return verdict


def _name(message: Message) -> str:
    return f"message {message[1]} of publisher {message[0]}"


def _check_delivery(
    verdict: Verdict,
    event: Event,
    message: Message,
    attempts: Mapping[Message, int],
    first: Mapping[int, int],
    sequence: dict[tuple[int, int], int],
) -> None:
    if event.number < first.get(event.publisher, 0):
        verdict.found("unexpected", f"{_name(message)} came back to {event.client} after it was settled")
        return
    if message not in attempts:
        verdict.found("unexpected", f"{_name(message)} at {event.client} was never published")
        return
    if event.flagged or attempts[message] > 1:
        return  # at its old place, or twice in the queue: says nothing of the order
    place = (event.session, event.publisher)
    if event.number < sequence.get(place, -1):
        verdict.found("disordered", f"{_name(message)} after {sequence[place]} at {event.client}")
    else:
        sequence[place] = event.number


def _check_copies(
    verdict: Verdict, message: Message, given: Sequence[Event], published: int, ended: set[int] | None
) -> None:
    unflagged = sum(not event.flagged for event in given)
    if published and unflagged > published:
        verdict.found("doubled", f"{_name(message)}, {unflagged} times, published {published} times")
    if published == 1 and ended is not None:
        for earlier, later in pairwise(given):
            if earlier.session not in ended:
                verdict.found("taken away", f"{_name(message)} from {earlier.client} to {later.client}")


def longest_gaps(events: Iterable[Event], what: What) -> list[float]:
    """Each client's longest time between two events of a kind, s; clients without two of them have none,
    and a session that polls ends what was waited for before it."""
    last: dict[str, float] = {}
    longest: dict[str, float] = {}
    for event in events:
        if event.polled:
            last.pop(event.client, None)
        elif event.what is what:
            if event.client in last:
                longest[event.client] = max(longest.get(event.client, 0.0), event.at_s - last[event.client])
            last[event.client] = event.at_s
    return list(longest.values())


def judge_owners(lines: Iterable[Line]) -> Verdict:
    """At most one (node, incarnation) owns a queue in an epoch, and a node's epochs of a queue only grow."""
    verdict = Verdict()
    owner: dict[tuple[str, int], tuple[str, int]] = {}
    latest: dict[tuple[str, tuple[str, int]], int] = {}
    for line in lines:
        if line.event != OWNER_BEGAN:
            continue
        queue, epoch = f"{line.facts.get('queue')} ({line.number('queue_id')})", line.number("epoch")
        who = (str(line.facts.get("node")), line.number("incarnation"))
        holder = owner.setdefault((queue, epoch), who)
        if holder != who:
            verdict.found("double owner", f"queue {queue} in epoch {epoch}: {_node(holder)} and {_node(who)}")
        if epoch < latest.get((queue, who), epoch):
            verdict.found("double owner", f"queue {queue}: {_node(who)} began epoch {epoch} after a later one")
        latest[queue, who] = epoch
    return verdict


def judge_maps(maps: Mapping[str, tuple[int, str]]) -> Verdict:
    """Nodes that have applied the same wiring index hold the same map; `maps` gives each node's index and digest."""
    verdict = Verdict()
    held: dict[int, tuple[str, str]] = {}
    for name, (index, digest) in sorted(maps.items()):
        other, expected = held.setdefault(index, (name, digest))
        if digest != expected:
            verdict.found("diverged", f"{other} and {name} at index {index}")
    return verdict


def _node(who: tuple[str, int]) -> str:
    return f"{who[0]} (incarnation {who[1]})"
