"""Keys of workers that serve several: assigned, retired, revoked (feature level 7).

    AssignWorkers --> assigned --RetireKeys--> retired --RevokeKeys--> none
                         +-------------------RevokeKeys----------------> none

A worker of such a pool is a launch without a key of its own for as long as it lives. Its keys end with it, and with
their groups.
"""

from __future__ import annotations

from msgspec.structs import replace

from .changes import AssignmentChanged, AssignmentEnded, Change
from .pool_entities import Assignment


class Assignments:
    """Of one pool."""

    __slots__ = ("_all", "_of_key", "_of_worker")

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Assignment] = {}
        """By worker and key, in the order in which they came."""
        self._of_worker: dict[str, dict[str, None]] = {}
        self._of_key: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> tuple[Assignment, ...]:
        """In the order in which they came."""
        return tuple(self._all.values())

    def get(self, launch_id: str, key: str) -> Assignment | None:
        """None: the key is not this worker's."""
        return self._all.get((launch_id, key))

    def of_worker(self, launch_id: str) -> tuple[Assignment, ...]:
        """In the order in which they came."""
        return tuple(self._all[launch_id, key] for key in self._of_worker.get(launch_id, ()))

    def of_key(self, key: str) -> tuple[Assignment, ...]:
        """In the order in which they came."""
        return tuple(self._all[launch_id, key] for launch_id in self._of_key.get(key, ()))

    def keep(self, one: Assignment) -> None:
        """It came, or changed."""
        self._all[one.launch_id, one.key] = one
        self._of_worker.setdefault(one.launch_id, {})[one.key] = None
        self._of_key.setdefault(one.key, {})[one.launch_id] = None

    def put(self, one: Assignment, changes: list[Change]) -> None:
        """`keep`, for the fold."""
        self.keep(one)
        changes.append(AssignmentChanged(one))

    def retire(self, one: Assignment, why: str, changes: list[Change]) -> bool:
        """Whether it was not retired before."""
        if one.retired:
            return False
        self.put(replace(one, retired=why or "retired"), changes)
        return True

    def end(self, one: Assignment, changes: list[Change]) -> None:
        """It is none any more."""
        del self._all[one.launch_id, one.key]
        for index, by, other in ((self._of_worker, one.launch_id, one.key), (self._of_key, one.key, one.launch_id)):
            del index[by][other]
            if not index[by]:
                del index[by]
        changes.append(AssignmentEnded(one))
