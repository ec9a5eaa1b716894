"""Workers that the tests start as processes. What they do is noted in files of WORKER_NOTES."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from clusterbroker_workers import Busy, Fail, Request, Retry, Worker

NOTES = Path(os.environ.get("WORKER_NOTES", "."))


def note(name: str) -> None:
    with open(NOTES / name, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


class Sample(Worker):
    """Does what the path says."""

    def load(self, key: str) -> None:
        self.key = key
        note("loaded")

    def handle(self, request: Request) -> bytes | str | None:
        match request.path:
            case "echo" | None:
                return request.body
            case "describe":
                timed = request.remaining_s is not None
                return f"{request.key} {self.key} {request.attempt} {timed} {request.traceparent}"
            case "fail":
                raise Fail("no such train")
            case "own-status":
                raise Fail("not here", status="core_error")
            case "bug":
                raise ZeroDivisionError("of mine")
            case "number":
                return 5  # type: ignore[return-value]
            case "busy":
                note("busy")
                raise Busy(after_s=0.05)
            case "retry":
                if request.attempt < 2:
                    raise Retry(after_s=0.3)
                return str(request.attempt)
            case "later":
                raise Retry(after_s=600)
            case "long":
                note("began")
                request.progress(0.5)
                time.sleep(float(request.body))
                note("ended")
                return b"done"
            case "once":
                note("began")
                if len((NOTES / "began").read_text().split()) == 1:
                    time.sleep(600)
                return b"second"
        raise Fail(f"unknown path {request.path}")


class Async(Worker):
    """The same in coroutines, several at once."""

    async def load(self, key: str) -> None:
        await asyncio.sleep(0)
        self.key = key

    async def handle(self, request: Request) -> str:
        note("began")
        await asyncio.sleep(float(request.body or b"0"))
        return self.key


class Slow(Worker):
    """Is loading for ever."""

    def load(self, key: str) -> None:
        note("loading")
        time.sleep(600)


class Unloadable(Worker):
    def load(self, key: str) -> None:
        raise FileNotFoundError(f"infrastructure {key}")
