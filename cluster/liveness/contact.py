"""Contact: words of voters for a node's heartbeats, which fence the early failure of a member (pure).

A member silent for G is declared dead, and its lease has ended before (`lease`). A killed process is known sooner:
its port refuses. But a port also refuses for a living process whose TCP carrier has ended (a sidecar, a proxy, a
firewall that answers with resets), and such a member hands out as long as its lease lasts. A member may therefore
hand out only with a lease *and* with contact, and contact ends before it can be declared dead early:

    member   beat sent at s, "I rely on your word for C" --> contact by this voter until s + C, once its word is here
    voter    beat heard at r >= s; its word, at once;  gives the member up when its port has refused twice, not before
             r + E(C), E(C) = C (1 + d) / (1 - d) + 0.03 s, and not before it was silent for 0.3 s; from then on no word
    leader   declares the member dead when a majority of the voters has given it up

    the member has contact while so many other voters' words are valid that those left are no majority

Proof. The voters that have given the member up are a majority, and none of them is the member. So one of them is
among those whose words the member needs. Let its last word be for a beat sent at s and heard at r. It gave the member
up at r + E(C) of its clock or later, and gives no word after that. A clock runs wrong by at most d: E(C) lasts at
least E(C) / (1 + d) of true time and the member's C at most C / (1 - d), which is 0.03 / (1 + d) s less; and s <= r.
So contact has ended before FailNode is proposed, whatever the delays. With C = 0.25 s and d = 0.02: contact ends 0.26
s after s, E = 0.29 s. Contact needs no leader, so no member is silent because of an election.

A voter's memory for that, and its consequences:

* A restarted voter does not know the words of its earlier process. It gives no word before it has caught up with the
  wiring log. Then every FailNode with its earlier process's consent is applied, since the leader forgets the words of
  an ended link. It gives up no member that it has not heard before G has gone by.
* A voter that gave up a living member takes that back: it reports that to the leader, and gives its word again after a
  command that it proposed after that has been applied, because then no FailNode can follow from its earlier word.
* Sets of voters change one by one, and of two neighbouring sets any two majorities have a member in common. Where the
  member may count by an older set still, no member is failed early (`SETTLED_S`).

A voter without a lease gives no word: it may have missed orders for long, such as the member's death. The argument
above does not need this. It covers a member whose machine stood still unknown to its clocks: its lease seems to last,
and only words of voters that follow the log end its hand-outs.

A member without clients hands out nothing: its beats ask for no word (C = 0), and none is given. Its first client asks
`may_speak`, finds no contact, and a beat with C leaves at once.

C follows the time of the way: 0.25 s where a word is back within 0.06 s, more where it takes longer, at most L. Two
voters alone cannot fail each other, so they need no contact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .lease import LeaseOptions

LEAST_S: Final = 0.25
SILENT_S: Final = 0.3
"""Three beats."""
MARGIN_S: Final = 0.03
SETTLED_S: Final = 4.0
"""More than two leases: a leased member has applied the change of voters that is as old as that."""
_FADES: Final = 0.99
"""Of the longest way, with each word: half of it after 7 s."""


def outlasts(relied_s: float, drift: float) -> float:
    """E(C): a wait for so long by one clock outlasts C by any other."""
    return relied_s * (1 + drift) / (1 - drift) + MARGIN_S


class Contact:
    """The member's side: until when the voters' words allow it to hand out."""

    __slots__ = ("_name", "_needed", "_options", "_sent", "_trusted", "_way_s", "rely_s", "until", "voters")

    def __init__(self, name: str, options: LeaseOptions) -> None:
        self._name = name
        self._options = options
        self._sent: deque[tuple[int, float, float]] = deque()
        self._trusted: dict[str, float] = {}  # voter -> its word lasts until
        self._needed = 0
        self._way_s = 0.0
        self.voters: frozenset[str] = frozenset()
        self.rely_s = LEAST_S
        """C of the next beat."""
        self.until = math.inf
        """It has contact before this moment; endless where no majority is without it."""

    def set_voters(self, voters: Iterable[str]) -> None:
        """The voters, as known here."""
        self.voters = frozenset(voters)
        others = len(self.voters - {self._name})
        self._needed = max(0, others - len(self.voters) // 2)
        self._reckon()

    def forget(self) -> None:
        """No word so far counts: a new incarnation, or time has gone by that no clock shows."""
        self._sent.clear()
        self._trusted.clear()
        self._reckon()

    def sent(self, seq: int, now: float) -> None:
        """A beat is about to leave, with `rely_s` in it."""
        self._sent.append((seq, now, self.rely_s))
        while self._sent[0][1] + self._options.lease_s <= now:
            self._sent.popleft()

    def confirmed(self, voter: str, seq: int, now: float) -> bool:
        """The voter's word for a beat. Returns whether contact lasts longer by it."""
        found = next(((at, rely_s) for number, at, rely_s in self._sent if number == seq), None)
        if found is None or voter not in self.voters or voter == self._name:
            return False
        at, rely_s = found
        self._trusted[voter] = max(self._trusted.get(voter, -math.inf), at + rely_s)
        before = self.until
        self._reckon()
        if self.until <= before:
            return False
        self._way_s = max(now - at, self._way_s * _FADES)
        self.rely_s = min(self._options.lease_s, max(LEAST_S, self._options.beat_s * 1.5 + self._way_s * 1.5))
        return True

    def _reckon(self) -> None:
        if not self._needed:
            self.until = math.inf
            return
        words = sorted((until for voter, until in self._trusted.items() if voter in self.voters), reverse=True)
        self.until = words[self._needed - 1] if len(words) >= self._needed else -math.inf


@dataclass(slots=True)
class _Heard:
    incarnation: int
    last: float = -math.inf
    relied_until: float = -math.inf
    given_up: bool = False
    beat_since: bool = False


class Hearing:
    """The voter's side: members that it confirms, and those that it has given up."""

    __slots__ = ("_heard", "_options", "_since", "confirms")

    def __init__(self, options: LeaseOptions, now: float) -> None:
        self._options = options
        self._since = now
        self._heard: dict[str, _Heard] = {}
        self.confirms = False
        """It has caught up with the wiring log since it began."""

    def heard(self, name: str, incarnation: int, rely_s: float, now: float, leased: bool = True) -> bool:
        """A beat of a living member came. `leased`: this voter is. Returns whether to give the word for it."""
        heard = self._heard.get(name)
        if heard is None or heard.incarnation < incarnation:
            heard = self._heard[name] = _Heard(incarnation)
        if heard.incarnation != incarnation:
            return False
        heard.last = max(heard.last, now)
        if heard.given_up:
            heard.beat_since = True
            return False
        confirms = self.confirms and leased
        if confirms:
            relied_s = min(rely_s, self._options.lease_s)
            heard.relied_until = max(heard.relied_until, now + outlasts(relied_s, self._options.drift))
        return confirms

    def silent(self, name: str, incarnation: int, now: float) -> bool:
        """Whether it was silent for so long that nothing that it relies on is left."""
        heard = self._heard.get(name)
        if heard is None or heard.incarnation != incarnation:
            return now >= self._since + self._options.grace_s
        return now >= max(heard.last + SILENT_S, heard.relied_until)

    def give_up(self, name: str, incarnation: int, now: float) -> bool:
        """No word for it any more. Returns False when it is not silent."""
        if not self.silent(name, incarnation, now):
            return False
        heard = self._heard.get(name)
        if heard is None or heard.incarnation != incarnation:
            heard = self._heard[name] = _Heard(incarnation)
        heard.given_up, heard.beat_since = True, False
        return True

    def spoke_since(self, name: str) -> bool:
        """Whether a member that was given up has beaten since."""
        heard = self._heard.get(name)
        return heard is not None and heard.given_up and heard.beat_since

    def take_back(self, name: str, incarnation: int) -> None:
        """Nothing can follow any more from its having been given up."""
        heard = self._heard.get(name)
        if heard is not None and heard.incarnation == incarnation:
            heard.given_up = heard.beat_since = False

    def keep(self, names: Iterable[str]) -> None:
        """Forget all but these."""
        kept = set(names)
        self._heard = {name: heard for name, heard in self._heard.items() if name in kept}


class Verdicts:
    """The leader's side: members that voters have given up."""

    __slots__ = ("_by",)

    def __init__(self) -> None:
        self._by: dict[tuple[str, int], set[str]] = {}

    def given_up(self, voter: str, name: str, incarnation: int) -> None:
        """A voter's report, over the link that stands."""
        self._by.setdefault((name, incarnation), set()).add(voter)

    def taken_back(self, voter: str, name: str, incarnation: int) -> None:
        """The voter heard it again."""
        self._by.get((name, incarnation), set()).discard(voter)

    def lost(self, voter: str) -> None:
        """The link with the voter has ended: it may be another process from now on."""
        for voters in self._by.values():
            voters.discard(voter)

    def clear(self) -> None:
        """Another term: reports to its leader come again."""
        self._by.clear()

    def agreed(self, name: str, incarnation: int, voters: Iterable[str]) -> bool:
        """Whether a majority has given it up."""
        everybody = set(voters)
        given_up = self._by.get((name, incarnation), set()) & (everybody - {name})
        return len(given_up) * 2 > len(everybody)
