"""Asks addresses over HTTP at a steady rate, from a process of its own, and says how long each answer took.

    python -m bench.polling USER:PASSWORD EVERY_S URL...       until its input ends; then one JSON object

Each address has a connection that stays open, and a thread. A request is due every EVERY_S seconds; one whose
predecessor was answered after it was due counts from when it was due, so that a server which stalls is not asked less
often and does not look the better for it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from bench.machine import percentile

TIMEOUT_S = 30
END_S = TIMEOUT_S + 10


@dataclass(frozen=True, slots=True)
class Answer:
    """One request."""

    asked_ns: int
    """When it was due or sent, whichever was later to be blamed on the server: CLOCK_MONOTONIC."""
    taken_ms: float
    status: int
    """0: there was none"""
    size_bytes: int


@dataclass(slots=True)
class Polls:
    """What a poller heard; filled when its block ends."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """by address"""

    def between(self, url: str, from_ns: int, to_ns: int) -> list[Answer]:
        """The answers to what was asked within a time."""
        return [answer for answer in self.answers[url] if from_ns <= answer.asked_ns <= to_ns]


def faults_of(answers: Sequence[Answer], what: str) -> list[str]:
    """What makes a run with these answers a failed one, in words."""
    if not answers:
        return [f"{what} was never asked"]
    bad = [answer.status for answer in answers if answer.status != 200]
    return [f"{what}: {len(bad)} of {len(answers)} answers were not 200, the first {bad[0]}"] if bad else []


def spread_ms(answers: Sequence[Answer], prefix: str) -> dict[str, float]:
    """p50, p99 and the longest, in milliseconds, as figures."""
    taken = [answer.taken_ms for answer in answers]
    if not taken:
        return {}
    return {
        f"{prefix}_p50_ms": percentile(taken, 0.50),
        f"{prefix}_p99_ms": percentile(taken, 0.99),
        f"{prefix}_max_ms": max(taken),
    }


@contextlib.contextmanager
def polling(urls: Sequence[str], every_s: float, user: str = "guest:guest") -> Iterator[Polls]:
    """Polls beside the block; the answers are there behind it. Raises RuntimeError when the poller failed."""
    argv = [sys.executable, "-m", "bench.polling", user, str(every_s), *urls]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    polls = Polls()
    try:
        yield polls
        said, _ = process.communicate(timeout=END_S)
        if process.returncode:
            raise RuntimeError(f"the poller ended with {process.returncode}")
        polls.answers = {url: [Answer(*one) for one in told] for url, told in json.loads(said).items()}
    finally:
        process.kill()
        process.wait()


# -- the process ----------------------------------------------------------------------------------------------


class _Poller(threading.Thread):
    def __init__(self, url: str, every_s: float, user: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.answers: list[Answer] = []
        parts = urlsplit(url)
        self._every_s = every_s
        self._over = over
        self._target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        assert parts.hostname is not None, "an address names a host"
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._headers = {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}

    def run(self) -> None:
        due = time.monotonic_ns()
        while not self._over.wait(max(0.0, (due - time.monotonic_ns()) / 1e9)):
            late = self.answers and due < self.answers[-1].asked_ns + self.answers[-1].taken_ms * 1e6
            began = due if late else time.monotonic_ns()
            status, size = self._ask()
            self.answers.append(Answer(began, (time.monotonic_ns() - began) / 1e6, status, size))
            due += int(self._every_s * 1e9)

    def _ask(self) -> tuple[int, int]:
        try:
            self._connection.request("GET", self._target, headers=self._headers)
            answer = self._connection.getresponse()
            return answer.status, len(answer.read())
        except (OSError, HTTPException):
            self._connection.close()  # the next request opens another one
            return 0, 0


def main(user: str, every_s: float, urls: Sequence[str]) -> dict[str, Any]:
    """Polls until the input ends."""
    over = threading.Event()
    pollers = {url: _Poller(url, every_s, user, over) for url in urls}
    for poller in pollers.values():
        poller.start()
    sys.stdin.read()
    over.set()
    for poller in pollers.values():
        poller.join(TIMEOUT_S)
    return {
        url: [(one.asked_ns, one.taken_ms, one.status, one.size_bytes) for one in poller.answers]
        for url, poller in pollers.items()
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])))
