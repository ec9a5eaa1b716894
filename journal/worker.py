"""A thread that carries out one call after the other (waits): the reader, and the checkpoint thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from clusterbroker.journal.disk_state import DiskState


class Worker:
    def __init__(self, name: str, state: DiskState) -> None:
        self._state = state
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, call: Callable[[], object]) -> None:
        """An exception that `call` lets out is a failure of the disk."""
        self._calls.put(call)

    def close(self) -> None:
        """Waits until everything put before is done."""
        self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self._state.fail(f"{self._thread.name}: {type(error).__name__}: {error}")
