"""The queues of `node_crash`, and what must hold of the messages in them.

Every message carries a token. `Books` writes down what clients said and heard, and what follows from it for each
copy (token, queue) of a message:

    (a) a confirmed persistent message is in its queue, or where its queue's rules took it, or was acknowledged
    (b) it is never handed out twice as if for the first time
    (c) a token taken from one queue and put into another in one transaction is in exactly one of them
    (d) first deliveries keep the order of their publisher, per consumer and priority
    (e) a message whose settlement became durable never comes back
    (f) each publish is confirmed once, and none is forgotten
    (g) what a queue counts is what it holds, and an empty node holds no bytes of any segment
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

Key = tuple[int, str]  # token, queue


class Kind(NamedTuple):
    """A queue of the simulation."""

    arguments: dict[str, Any]
    heir: str | None = None
    """Where its rules, or a transaction, may take a message."""
    drops: bool = False
    """Its rules may take a message away altogether."""
    priorities: int = 0


def _dying(heir: str, **arguments: Any) -> Kind:
    return Kind({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": heir, **_x(arguments)}, heir)


def _x(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


KINDS: dict[str, Kind] = {
    "plain": Kind({}),
    "wide": Kind({}),
    "prio": Kind(_x({"max_priority": 3}), priorities=3),
    "lax": Kind(_x({"durability": "disk"}), drops=True),
    "drop": Kind(_x({"max_length": 5}), drops=True),
    "refuse": Kind(_x({"max_length": 5, "overflow": "reject-publish"})),
    "refuse-dlx": _dying("refuse-dlx.dead", max_length=4, overflow="reject-publish-dlx"),
    "short": _dying("short.dead", max_length=5),
    "ttl": _dying("ttl.dead", message_ttl=60),
    "work": _dying("work.dead", delivery_limit=2),
    "quorum": Kind(_x({"queue_type": "quorum", "delivery_limit": -1}), priorities=31),
    "retry": Kind(
        _x({"queue_type": "quorum", "delivery_limit": -1, "delayed_retry_type": "all", "delayed_retry_min": 20}),
        priorities=31,
    ),
    "sac": Kind(_x({"single_active_consumer": True})),
    "take": Kind({}, heir="put"),
    "put": Kind({}),
    "short.dead": Kind({}),
    "ttl.dead": Kind({}),
    "work.dead": Kind({}),
    "refuse-dlx.dead": Kind({}),
}
HEIRS = {name: kind.heir for name, kind in KINDS.items() if kind.heir is not None}
SOURCES = {heir: name for name, heir in HEIRS.items()}
EXCHANGES = {"all": ("plain", "wide", "prio"), "mixed": ("refuse", "plain", "short"), "lazy": ("lax", "wide")}
ADDRESSES: dict[tuple[str, str], tuple[str, ...]] = {
    **{(name, ""): queues for name, queues in EXCHANGES.items()},
    **{("", name): (name,) for name in KINDS if name not in SOURCES},
}


class Published(NamedTuple):
    """What is known of a token."""

    publisher: str
    number: int
    queues: tuple[str, ...]
    priority: int
    persistent: bool


class Books:
    """What clients said and heard, and what follows from it."""

    def __init__(self) -> None:
        self.tokens: dict[int, Published] = {}
        self.safe: set[Key] = set()
        """Copies that must not be missing."""
        self.acked: set[Key] = set()
        self.durable: set[Key] = set()
        """Copies whose settlement is durable."""
        self.handed: set[Key] = set()
        self.moved: set[int] = set()
        """Tokens whose transaction was answered by commit-ok."""
        self.moving: set[int] = set()
        """Tokens in a tx.commit that was sent."""
        self.open: set[Key] = set()
        """Acknowledged after the last group began."""
        self.in_flight: set[Key] = set()
        self.first: dict[tuple[str, str, int], int] = {}
        self.counts: Counter[str] = Counter()

    # -- what happens

    def confirmed(self, token: int) -> None:
        published = self.tokens[token]
        self.counts["confirms"] += 1
        if published.persistent:
            self.safe |= {(token, queue) for queue in published.queues}

    def delivered(self, token: int, queue: str, redelivered: bool, consumer: str) -> None:
        key = token, queue
        self.counts["redeliveries" if redelivered else "deliveries"] += 1
        self._belongs(token, queue)
        assert key not in self.durable, f"(e) {key} was durably settled and is delivered again"
        if not redelivered:
            assert key not in self.handed, f"(b) {key} is handed out twice as if for the first time"
            if queue not in SOURCES:
                published = self.tokens[token]
                line = consumer, published.publisher, min(published.priority, KINDS[queue].priorities)
                assert self.first.get(line, -1) < published.number, f"(d) {key} overtook another in {line}"
                self.first[line] = published.number
        self.handed.add(key)

    def _belongs(self, token: int, queue: str) -> None:
        published = self.tokens.get(token)
        assert published is not None, f"nobody published {token}"
        source = SOURCES.get(queue)
        if source == "take":
            assert token in self.moving or token in self.moved, f"(c) {token} is in {queue} without a commit"
        elif source is not None:
            assert source in published.queues, f"{token} in {queue}, but it was published to {published.queues}"
        else:
            assert queue in published.queues, f"{token} in {queue}, but it was published to {published.queues}"

    def ack(self, key: Key) -> None:
        self.counts["acks"] += 1
        self.acked.add(key)
        self.open.add(key)

    def group_began(self, left: set[str]) -> None:
        """Without all that these queues had to write: it was full."""
        waits = {key for key in self.open if key[1] in left}
        self.in_flight, self.open = self.in_flight | self.open - waits, waits

    def group_durable(self) -> None:
        self.durable |= self.in_flight
        self.in_flight = set()

    def committed(self, tokens: list[int]) -> None:
        """tx.commit-ok: taken from "take" and put into "put"."""
        self.counts["transactions"] += 1
        for token in tokens:
            self.moved.add(token)
            self.durable.add((token, "take"))
            self.safe.discard((token, "take"))
            if self.tokens[token].persistent:
                self.safe.add((token, "put"))

    # -- what must hold

    def check(self, contents: dict[str, list[int]], crashed: bool) -> None:
        """`contents`: all that is in the queues while nobody holds anything."""
        present: set[Key] = set()
        for queue, tokens in contents.items():
            twice = [token for token, count in Counter(tokens).items() if count > 1]
            assert not twice, f"{twice} are twice in {queue}"
            for token in tokens:
                self._belongs(token, queue)
                present.add((token, queue))
        back = present & self.durable
        assert not back, f"(e) durably settled, and back: {sorted(back)}"
        for token, queue in present:
            heir = HEIRS.get(queue)
            if heir is None:
                continue
            assert (token, heir) not in present, f"(c) {token} is in {queue} and in {heir}"
            assert (token, heir) not in self.durable, f"(e) {token} was settled in {heir}, and is back in {queue}"
            if queue == "take":
                assert token not in self.moved, f"(c) {token} was moved by a committed transaction, and is back"
        missing = [key for key in sorted(self.safe) if not self._accounted(key, present)]
        assert not missing, f"(a) missing: {missing}"
        if crashed:
            self._after_crash(present)

    def _accounted(self, key: Key, present: set[Key]) -> bool:
        token, queue = key
        heir = HEIRS.get(queue)
        return (
            key in present
            or key in self.acked
            or KINDS[queue].drops
            or (heir is not None and ((token, heir) in present or (token, heir) in self.acked))
        )

    def _after_crash(self, present: set[Key]) -> None:
        """What came back was not acknowledged after all; what survived once is safe from now on."""
        for key in present:
            token, queue = key
            heir = HEIRS.get(queue)
            if heir is not None:  # a death, or a transaction, that a crash undid: the next one is another message
                self.handed.discard((token, heir))
                self.acked.discard((token, heir))
                self.safe.discard((token, heir))
        self.durable |= self.acked - present
        self.acked -= present
        self.safe = {key for key in present if self.tokens[key[0]].persistent}
        # transient copies, and those that were never confirmed, may be gone; a copy that had moved on may be new again
        self.handed = {
            key
            for key in self.handed
            if (key[1] not in SOURCES and key[1] != "lax")
            or (key in present and key[1] != "lax")
            or key in self.durable
        }
        self.open.clear()
        self.in_flight.clear()
        self.moved |= {token for token in self.moving if (token, "put") in present}
        self.moving.clear()
        self.first.clear()
