"""What clients of a cluster said and heard of one queue, and what follows from it.

Every message has a name, its body's beginning. `Broken` says which promise was broken by what:

    kept        what was confirmed or handed out, and nobody settled, is in the queue at the end or died into its target
    once        a message is handed out unmarked once. Who gets it later is told that it may have been handed out
    alone       nobody gets a message while another client that is still there holds it
    settled     what was acknowledged or rejected through a node that lives never comes back, nor what a commit-ok says
    dead        a message that died is in the target, and once; whoever rejected it, or whatever rule took it
    ordered     one consumer gets what one publisher sent in its order, as far as it is handed out for the first time
    named       a number that is said again (x-producer, x-seq) is stored once
    answered    each publish and commit of a client that is still there is answered

After an accepted loss (a *gap*: an operator forced a copy that may lack something, or accepted that the last one is
gone, or the last copy in memory ended) two things only are promised of what was sent before all nodes had heard of it:
what was confirmed before comes again only marked, and nobody gets what another client holds. Names begin anew there as
well: a number that was said before the gap may be stored once more after it. All that was sent since is promised again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Broken(AssertionError):
    """A promise was not kept."""


class Sent(NamedTuple):
    """Who sent a message, and as which of its own; `named` if it may be sent again under the same number."""

    publisher: str
    number: int
    named: bool


class Settlement(NamedTuple):
    """Said by a client of `node`, which has not died since."""

    node: str
    rejected: bool


class Books:
    """`ordered`: the queue keeps its order. `dies_again`: who is refused is dead-lettered each time, and may be taken
    when it is said again (reject-publish-dlx)."""

    def __init__(self, *, ordered: bool, dies_again: bool) -> None:
        self.ordered = ordered
        self._dies_again = dies_again
        self.sent: dict[str, Sent] = {}
        self.confirmed: set[str] = set()
        self.settled: set[str] = set()
        """Somebody said so; it may have been lost with a node."""
        self.sure: dict[str, Settlement] = {}
        self.gone: set[str] = set()
        """Acknowledged in a transaction that was answered."""
        self.times: Counter[str] = Counter()
        """How often each was handed out."""
        self.before_gap: set[str] = set()
        self.may_repeat: set[str] = set()
        """Sent before a gap and not confirmed, or under a number."""
        self.out_of_order: set[str] = set()
        """They were kept from consumers for a while, though it was their turn."""
        self.listener: Callable[[Any, str], None] = lambda site, name: None
        """Told of each message that comes to a client: where, and which."""
        self._holders: dict[str, Any] = {}
        self._newest: dict[tuple[Any, str], int] = {}

    # -- what happens

    def publish(self, name: str, sent: Sent) -> None:
        self.sent.setdefault(name, sent)

    def answered(self, name: str, confirmed: bool) -> None:
        if confirmed:
            self.confirmed.add(name)

    def handed(self, client: Any, name: str, redelivered: bool) -> None:
        """`client` has `there`: its connection lives. Who hears of its end in the same moment holds nothing."""
        sent = self.sent.get(name)
        if sent is None:
            raise Broken(f"nobody published {name!r}, which {client} gets")
        if not client.there:
            self.times[name] += 1
            return
        self.listener(client.site, name)
        known = name not in self.before_gap
        if known and name in self.gone:
            raise Broken(f"settled: {name} comes to {client} after the commit-ok of its acknowledgement")
        if known and name in self.sure:
            raise Broken(f"settled: {name} comes to {client} after {self.sure[name]}")
        holder = self._holders.get(name)
        if holder is not None and holder.there and name not in self.may_repeat:
            raise Broken(f"alone: {name} comes to {client} while {holder} holds it")
        self._holders[name] = client
        self.times[name] += 1
        if redelivered:
            return
        if self.times[name] > 1 and name not in self.may_repeat:
            raise Broken(f"once: {name} comes to {client} unmarked, and was handed out before")
        if self.ordered:
            line = client, sent.publisher
            if sent.number < self._newest.get(line, -1) and known and name not in self.out_of_order:
                raise Broken(f"ordered: {name} comes to {client} after number {self._newest[line]} of {sent.publisher}")
            self._newest[line] = max(sent.number, self._newest.get(line, -1))

    def holder(self, name: str) -> Any:
        """The client that got the message last, and has not given it back; None: there is none."""
        return self._holders.get(name)

    def returned(self, name: str) -> None:
        """Its client gives it back."""
        self._holders.pop(name, None)

    def settle(self, name: str, node: str, *, rejected: bool, transaction: bool) -> None:
        self.returned(name)
        if not rejected:
            self.settled.add(name)
        if not transaction:
            self.sure[name] = Settlement(node, rejected)

    def committed(self, publishes: Iterable[str], settled: Iterable[str]) -> None:
        """A commit-ok was heard."""
        self.confirmed.update(publishes)
        self.gone.update(settled)

    def died(self, node: str, *, power: bool) -> None:
        """What was said there may have been lost; with `power` also what was on its disk and not flushed."""
        self.sure = {} if power else {name: said for name, said in self.sure.items() if said.node != node}

    def gap(self) -> None:
        """Of what was sent until now nothing is promised but that it comes again only marked."""
        self.before_gap.update(self.sent)
        self.may_repeat.update(name for name, sent in self.sent.items() if sent.named or name not in self.confirmed)

    # -- the end

    def close(self, left: list[str], dead: list[str], taken: set[str]) -> None:
        """`left` in the queue, and `dead` in the target, when nobody holds anything any more. `taken`: operators have
        deleted these, or they are where operators moved them."""
        promised = set(self.sent) - self.before_gap
        may_die = {name for name, sent in self.sent.items() if sent.named} if self._dies_again else set()
        counts = {"the queue": Counter(left), "the target": Counter(dead)}
        for place, names in counts.items():
            for name, count in names.items():
                again = place == "the target" and name in may_die
                if count > 1 and name in promised and not again:
                    raise Broken(f"once: {name} is {count} times in {place}")
        if both := (promised - may_die) & set(left) & set(dead):
            raise Broken(f"once: both in the queue and dead: {sorted(both)[:8]}")
        known = (self.confirmed | set(self.times)) & promised
        if lost := known - self.settled - set(left) - set(dead) - taken:
            raise Broken(f"kept: {len(lost)} are gone, of them {sorted(lost)[:8]}")
        if back := (self.gone | set(self.sure)) & promised & set(left):
            raise Broken(f"settled: {sorted(back)[:8]} are still in the queue")
        rejected = {name for name, said in self.sure.items() if said.rejected} & promised
        if lost := rejected - set(dead):
            raise Broken(f"dead: {sorted(lost)[:8]} were rejected and are not in the target")
        acknowledged = {name for name, said in self.sure.items() if not said.rejected} & promised
        if alive := (acknowledged - may_die) & set(dead):
            raise Broken(f"dead: {sorted(alive)[:8]} were acknowledged, and died")
