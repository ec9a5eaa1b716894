"""What the disk can do for us right now, told to the node whenever it changes: ok, full, failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

Notify = Callable[[Callable[[], object]], object]
"""Runs a callable on the owner's loop; `loop.call_soon_threadsafe`."""
OnState = Callable[[str, str], object]
"""Called on the loop with the state, "ok", "full" or "failed", and a sentence that says why."""


class DiskState:
    """Shared by the threads. It is full as long as any of them says so; failed is for ever."""

    __slots__ = ("_lock", "_notify", "_on_state", "_said", "_wants_space", "failed")

    def __init__(self, notify: Notify, on_state: OnState) -> None:
        self._notify = notify
        self._on_state = on_state
        self._lock = threading.Lock()
        self._wants_space: dict[str, str] = {}
        self._said = "ok"
        self.failed = False

    @property
    def full(self) -> bool:
        return bool(self._wants_space)

    def no_space(self, who: str, detail: str) -> None:
        self._change(lambda: self._wants_space.__setitem__(who, detail))

    def has_space(self, who: str) -> None:
        if who in self._wants_space:
            self._change(lambda: self._wants_space.pop(who, None))

    def fail(self, detail: str) -> None:
        def failed() -> None:
            self.failed = True

        self._change(failed, detail)

    def _change(self, change: Callable[[], object], detail: str = "") -> None:
        with self._lock:
            change()
            state = "failed" if self.failed else "full" if self._wants_space else "ok"
            if state == self._said:
                return
            self._said = state
            if state == "full":
                detail = next(iter(self._wants_space.values()))
            self.tell(lambda: self._on_state(state, detail))

    def tell(self, call: Callable[[], object]) -> None:
        """Hands `call` to the loop; a loop that is closed hears nothing any more."""
        try:
            self._notify(call)
        except RuntimeError:
            pass
