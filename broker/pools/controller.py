"""A pool's controller: what becomes of requests whose key has no group. Pure: rows and answers in, effects out.

    came --key unfit, pool deleted--> leaves at once, with a word
    came --key open--> leaves at once, moved
    came --else--> waits --RequireGroups done--> key open: all that wait leave, moved
                         --no room--> all that wait leave, `no_capacity`
    key open --the last of it has left for good--> SettleGroups, key closed

A key is *open* from the answer to its RequireGroups until its SettleGroups is ordered: in that time the map keeps its
group, so whatever leaves in it finds its queue. What the owner before had sent on its way is not this controller's: it
settles nothing before all of that has left, and then also the groups that the owner before had open.

One command is under way at a time, so they are in the log in the order in which they were thought of.

Invariants: (1) a key is wanted exactly when something waits for it and the key is not in the command under way; (2) a
key with something on its way is open; (3) what was handed to `leaving` is not handed to it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Literal

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_rules import KEY_BYTES_MAX, key_matches

BATCH: Final = 100
"""Keys of one command."""

Order = tuple[Literal["require", "settle"], tuple[str, ...]]


def key_of(raw: bytes) -> str | None:
    """The key that a routing key is; None: it cannot be a key."""
    if b"\0" in raw or len(raw) > KEY_BYTES_MAX:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


class Controller:
    """Of one pool and epoch. `leaving`: (number in the orphan queue, reason), for the shell to take."""

    __slots__ = (
        "_before", "_found", "_keys", "_open", "_pool", "_settling", "_under_way", "_waiting", "_wanted", "leaving",
    )  # fmt: skip

    def __init__(self, pool: Pool, moving: Iterable[str], before: Iterable[int]) -> None:
        """`moving`: keys whose groups the map keeps for an owner of before; `before`: what that had sent on its way."""
        self._pool = pool
        self._before = set(before)
        self._found = dict.fromkeys(moving)
        self._waiting: dict[str, dict[int, None]] = {}
        self._wanted: dict[str, None] = {}
        self._open: dict[str, int] = {}  # key -> how many are on their way
        self._keys: dict[int, str] = {}  # of all that wait, or are on their way
        self._settling: dict[str, None] = {}
        self._under_way: Order | None = None
        self.leaving: deque[tuple[int, Reason]] = deque()

    # -- rows ---------------------------------------------------------------------------------------------------

    def came(self, seq: int, raw: bytes) -> None:
        """A request is in the orphan queue, with this routing key."""
        key = key_of(raw)
        if self._pool.deleting:
            self.leaving.append((seq, "pool_deleted"))
        elif key is None:
            self.leaving.append((seq, "invalid_key"))
        elif not key_matches(self._pool.settings, key):
            self.leaving.append((seq, "key_refused"))
        elif key in self._open:
            self._move(seq, key)
        else:
            self._waiting.setdefault(key, {})[seq] = None
            self._keys[seq] = key
            if self._under_way is None or self._under_way[0] == "settle" or key not in self._under_way[1]:
                self._wanted[key] = None

    def _move(self, seq: int, key: str) -> None:
        self._open[key] += 1
        self._settling.pop(key, None)
        self._keys[seq] = key
        self.leaving.append((seq, "moved"))

    def left(self, seq: int) -> None:
        """It has left for good, or never will: it expired, was removed, or its target has it for certain."""
        self._before.discard(seq)
        key = self._keys.pop(seq, None)
        if key is None:
            return
        if seq in self._waiting.get(key, ()):
            del self._waiting[key][seq]
            if not self._waiting[key]:
                del self._waiting[key]
                self._wanted.pop(key, None)
            return
        self._open[key] -= 1
        if not self._open[key]:
            self._settling[key] = None

    def required(self, key: str) -> None:
        """The map keeps a group that this controller may not have asked for: a consumer came before any request."""
        under_way = self._under_way is not None and self._under_way[0] == "require" and key in self._under_way[1]
        if not under_way and key not in self._open:
            self._found[key] = None

    # -- the pool -----------------------------------------------------------------------------------------------

    def pool_changed(self, pool: Pool) -> None:
        """It was set, paused, resumed or deleted."""
        self._pool = pool
        if pool.deleting:
            self._die("pool_deleted", tuple(self._waiting))

    def _die(self, word: Reason, keys: Iterable[str]) -> None:
        for key in keys:
            self._wanted.pop(key, None)
            for seq in self._waiting.pop(key, ()):
                del self._keys[seq]
                self.leaving.append((seq, word))

    # -- commands -----------------------------------------------------------------------------------------------

    def order(self) -> Order | None:
        """The next command, which is under way from now on; None: there is none, or one is under way."""
        if self._under_way is not None:
            return None
        if self._wanted and not (self._pool.paused or self._pool.deleting):
            keys = tuple(self._wanted)[:BATCH]
            for key in keys:
                del self._wanted[key]
            self._under_way = "require", keys
            return self._under_way
        if self._found and not self._before:
            self._settling.update((key, None) for key in self._found if key not in self._open)
            self._found.clear()
        keys = tuple(self._settling)[:BATCH]
        if not keys:
            return None
        for key in keys:
            del self._settling[key]
            assert not self._open.pop(key, 0), "a key with something on its way is open"
        self._under_way = "settle", keys
        return self._under_way

    def done(self, refused: Iterable[str] = ()) -> None:
        """The command under way is in the map; `refused`: keys for which there was no room."""
        assert self._under_way is not None, "a command that was ordered is under way"
        kind, keys = self._under_way
        self._under_way = None
        if kind == "settle":
            return
        self._die("no_capacity", refused)
        none = frozenset(refused)
        for key in keys:
            if key in none:
                continue
            self._found.pop(key, None)
            self._open.setdefault(key, 0)
            for seq in self._waiting.pop(key, ()):
                self._move(seq, key)
            if not self._open[key]:
                self._settling[key] = None

    def failed(self) -> None:
        """The command under way was not carried out, and may be ordered again."""
        assert self._under_way is not None, "a command that was ordered is under way"
        kind, keys = self._under_way
        self._under_way = None
        if kind == "settle":
            self._found.update(dict.fromkeys(keys))  # it may come true yet: who moves there requires it anew
        else:
            self._wanted.update((key, None) for key in keys if key in self._waiting)

    @property
    def busy(self) -> bool:
        """Something waits, or is on its way."""
        return bool(self._waiting or self._open or self._before or self._found or self.leaving or self._under_way)
