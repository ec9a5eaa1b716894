"""A wire between a publisher and its broker, which a test cuts, holds up, or lets pass."""

from __future__ import annotations

import contextlib
import socket
import threading


class Line:
    """Listens at `port`, and passes what comes on to another port of this machine, until it is told otherwise.

    cut_after       the connection ends when so many bytes went to the broker, which may have all, some or none of them
    cut_after_heard the same of bytes from the broker, once
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.connections = 0
        self.cut_after: int | None = None
        self.cut_after_heard: int | None = None
        self._deaf = threading.Event()
        self._mute = threading.Event()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow_answers(self) -> None:
        """The broker's words are lost from now on."""
        self._mute.set()

    def read_nothing(self) -> None:
        """The publisher's bytes stay where they are."""
        self._deaf.set()

    def cut(self) -> None:
        """All connections end; others may come."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it was closed before
            self._listening.shutdown(socket.SHUT_RDWR)  # or a thread in `accept` would keep it listening
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to_port))
            except OSError:
                return
            self.connections += 1
            self._ends += [near, far]
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while not (outward and self._deaf.is_set()) and (data := source.recv(1 << 16)):
                limit = self.cut_after if outward else self.cut_after_heard
                if limit is not None and passed + len(data) > limit:
                    sink.sendall(data[: max(limit - passed, 0)])
                    if outward:
                        self.cut_after = None
                    else:
                        self.cut_after_heard = None
                    break
                passed += len(data)
                if outward or not self._mute.is_set():
                    sink.sendall(data)
            else:
                if self._deaf.is_set():
                    return
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)
