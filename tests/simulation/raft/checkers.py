"""The properties of Raft and of the wiring log, each checked while the world turns; a violation raises Violation."""

from __future__ import annotations

from typing import Any

from clusterbroker.cluster.raft.messages import Entry


class Violation(Exception):
    """A property does not hold."""


class Checkers:
    """What was seen in any node, at any time."""

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}
        self._entries: dict[tuple[int, int], bytes] = {}
        self._committed: dict[int, bytes] = {}
        self._committed_in: list[tuple[int, int]] = []
        """(term, last index committed in it), ascending: who applied an entry first was told so by a leader of that
        term, or was it."""
        self._digests: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self.succeeded: dict[str, int] = {}
        self.refused = 0
        self.unknown = 0

    def leads(self, node: str, term: int, journal: Any) -> None:
        """Election safety, and leader completeness when a leader is new: it has all that was committed in terms before
        its own (Raft, figure 3). Who wins a term late, when a higher one has committed already, need not have that."""
        if term in self._leaders:
            require(self._leaders[term] == node, f"election safety: {self._leaders[term]} and {node} lead in {term}")
            return
        self._leaders[term] = node
        index = max((last for before, last in self._committed_in if before < term), default=0)
        require(journal[-1][1] >= index, f"leader completeness: {node} ends at {journal[-1][1]}, {index} is committed")
        for command, at, _ in journal:
            same = at > index or self._committed.get(at, command) == command
            require(same, f"leader completeness: {node} has another entry at {at}")

    def added(self, node: str, entry: Entry) -> None:
        """Log matching: an index and a term have one command, everywhere."""
        command, index, term = entry
        seen = self._entries.setdefault((index, term), command)
        require(seen == command, f"log matching: {node} has another entry {index} of term {term}")

    def applied(self, node: str, term: int, index: int, entry: bytes) -> None:
        """State machine safety: the same entry is applied at an index, everywhere and for ever."""
        seen = self._committed.setdefault(index, entry)
        require(seen == entry, f"state machine safety: {node} applies another entry at {index}")
        if index > max((last for _, last in self._committed_in), default=0):
            self._committed_in.append((term, index))

    def told(self, node: str, name: str, index: int) -> None:
        """No duplicate: a proposal takes effect at one index."""
        seen = self._names.setdefault(name, index)
        require(seen == index, f"applied twice: {node} has {name} at {index}, it was at {seen}")

    def state(self, node: str, index: int, digest: str) -> None:
        """Equal logs, equal maps."""
        seen = self._digests.setdefault(index, digest)
        require(seen == digest, f"state machine equality: {node} differs at {index}")

    def success(self, node: str, name: str, index: int) -> None:
        """No false success: what was answered is what was applied."""
        require(
            self._names.get(name) == index, f"false success: {node} was told {index} of {name}, {self._names.get(name)}"
        )
        require(name not in self.succeeded, f"told twice: {name}")
        self.succeeded[name] = index


def require(holds: bool, text: str) -> None:
    """Raise when it does not hold."""
    if not holds:
        raise Violation(text)
