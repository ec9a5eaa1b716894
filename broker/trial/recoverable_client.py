"""A program with recoverable links of AMQP 1.0, which may be killed at any moment: of a trial (`recoverable_load`).

    python -m clusterbroker.broker.trial.recoverable_client PLAN      PLAN: JSON of `ClientPlan`

It writes what it does into its log (`recoverable_judge`), and takes its commands, a line each, from its standard input:
`go`, `pause ROUND`. Its unsettled deliveries are in a file; its next life begins where its log ends.

Tags come again after TAGS deliveries, so that a tag is no name for ever; but only in one life, and only those that the
node has forgotten (decision 060): what was settled on a connection that was lost may never be.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from clusterbroker.amqp10.client import Accepted, ClientConnection, ClientError, Delivery, FileStore, Sender, connect
from clusterbroker.amqp10.client import Message as Content
from clusterbroker.amqp10.client.links import ReceiverLink, SenderLink
from clusterbroker.broker.wire.amqp10.performatives import Composite

TAGS: Final = 200
_TAG: Final = struct.Struct(">IHH")
WINDOW: Final = 100
"""Messages of a sender without an outcome."""
CREDIT: Final = 50
TICK_S: Final = 0.02
IDLE_S: Final = 4.0
LONG_EVERY: Final = 97
BODY_BYTES, LONG_BYTES = 100, 20_000
FRAME_MAX: Final = 4096
"""Long messages are several frames."""


class LinkPlan(msgspec.Struct, frozen=True):
    """One link: a sender has a target's address, a receiver a source's."""

    name: str
    address: str
    sends: bool


class ClientPlan(msgspec.Struct, frozen=True):
    """One program."""

    name: str
    urls: tuple[str, ...]
    directory: str
    links: tuple[LinkPlan, ...]
    rate_per_s: float
    """of each sender"""
    hold_s: float
    """A delivery has its outcome after up to so long."""

    @property
    def log(self) -> Path:
        return Path(self.directory) / f"{self.name}.log"


class Tags:
    """Of one sender, in one life (from 1 on): in turns, TAGS at a time. One that is not free when its turn comes is
    replaced for good.

        | life u32 | which of the TAGS u16 | how often it was replaced u16 |
    """

    def __init__(self, life: int, is_free: Callable[[bytes], bool]) -> None:
        self._life, self._is_free = life, is_free
        self._replaced = [0] * TAGS
        self._turn = 0

    def next(self) -> bytes:
        which, self._turn = self._turn, (self._turn + 1) % TAGS
        while not self._is_free(tag := _TAG.pack(self._life, which, self._replaced[which])):
            self._replaced[which] += 1
        return tag


class Program:
    """One life."""

    def __init__(self, plan: ClientPlan) -> None:
        self.plan = plan
        self._life = 1
        self.going = False
        self.over = asyncio.Event()
        self._sent: dict[str, int] = {}
        self._undecided: dict[str, dict[int, bytes]] = {}
        """By the sender's name: numbers, and their tags"""
        self._remember()
        self._log = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._rests: bool | None = None
        self._links: list[SenderLink | ReceiverLink] = []
        self._connection: ClientConnection

    def _remember(self) -> None:
        """What earlier lives have sent, and which outcomes they knew."""
        lines = self.plan.log.read_text().splitlines() if self.plan.log.exists() else []
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "began":
                self._life += 1
            elif word == "sent":
                link, number, tag = rest.split(" ")
                self._sent[link] = int(number) + 1
                self._undecided.setdefault(link, {})[int(number)] = bytes.fromhex(tag)
            elif word == "outcome":
                link, number, _ = rest.split(" ")
                self._undecided[link].pop(int(number), None)

    def note(self, line: str) -> None:
        """In one write: a kill leaves whole lines."""
        os.write(self._log, f"{line}\n".encode())

    async def run(self) -> None:
        """Until the trial is over."""
        plan = self.plan
        self.note("began")
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._describe)
        commands = asyncio.create_task(self._commands())
        async with await connect(
            plan.urls, container_id=plan.name, store=FileStore(Path(plan.directory) / f"{plan.name}.unsettled"),
            idle_time_out=IDLE_S, frame_max=FRAME_MAX, timeout=3600,
        ) as connection:  # fmt: skip
            self._connection = connection
            work = [self._send(link) if link.sends else self._receive(link) for link in plan.links]
            ended = asyncio.create_task(self.over.wait())
            tasks = [ended, commands, *map(asyncio.create_task, work)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and task is not ended:
                    task.result()
                task.cancel()

    async def _commands(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            word, _, round_ = line.decode().strip().partition(" ")
            self.going = word == "go"
            if word == "pause":
                self.note(f"paused {round_}")
        self.over.set()

    def _describe(self) -> None:
        """Where it stands, on stderr: for whoever looks into a round that did not settle."""
        connection = self._connection
        session = connection.session
        print(f"at {connection.address}, session {session is not None and session.begun}", file=sys.stderr)
        for link in self._links:
            state = f"attached {link.attached}, credit {link.credit}, {len(link.unsettled)} unsettled"
            line = f", {len(link.queue)} and {len(link.resuming)} to send" if isinstance(link, SenderLink) else ""
            print(f"  {link.terms.name}: {state}{line}, partial {link.series.waits}", file=sys.stderr, flush=True)

    def _failed(self, error: BaseException) -> None:
        self.note(f"error {error}".replace("\n", " "))
        self.over.set()

    def _review(self) -> None:
        """Whether all of this program is settled."""
        rests = not self.going and self._at_rest()
        if rests is not self._rests:
            self._rests = rests
            self.note(f"rest {int(rests)}")

    # -- a sender

    async def _send(self, link: LinkPlan) -> None:
        sender = await self._connection.sender(link.address, name=link.name, recoverable=True, settle="manual")
        undecided = self._undecided.setdefault(link.name, {})
        self._links.append(sender.link)
        recovered = dict(sender.recovered)
        for number, tag in tuple(undecided.items()):
            # what is in no file was never sent
            future = recovered.pop(tag, None) or sender.submit(_content(link.name, number), tag)
            self._watch(sender, link.name, number, tag, future)
        for tag, future in recovered.items():  # outcomes that are in the log
            future.add_done_callback(partial(_settle, sender, tag))
        number, tags = self._sent.get(link.name, 0), Tags(self._life, sender.is_free)
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            now_s = loop.time()
            due_s = max(due_s, now_s - 1)  # what was missed in a gap is not made up for
            while due_s <= now_s and self.going and len(undecided) < WINDOW:
                tag = tags.next()
                self.note(f"sent {link.name} {number} {tag.hex()}")
                undecided[number] = tag
                self._watch(sender, link.name, number, tag, sender.submit(_content(link.name, number), tag))
                number += 1
                due_s += 1 / self.plan.rate_per_s
            self._review()
            await asyncio.sleep(TICK_S)

    def _at_rest(self) -> bool:
        return len(self._links) == len(self.plan.links) and not any(link.unsettled for link in self._links)

    def _watch(self, sender: Sender, link: str, number: int, tag: bytes, future: asyncio.Future[Composite]) -> None:
        def answered(future: asyncio.Future[Composite]) -> None:
            if future.cancelled() or self.over.is_set():
                return
            error = future.exception()
            if error is not None:
                self._failed(error)
                return
            self.note(f"outcome {link} {number} {future.result().NAME}")
            self._undecided[link].pop(number, None)
            sender.settle(tag)

        future.add_done_callback(answered)

    # -- a receiver

    async def _receive(self, link: LinkPlan) -> None:
        receiver = await self._connection.receiver(link.address, name=link.name, credit=CREDIT, recoverable=True)
        self._links.append(receiver.link)
        loop = asyncio.get_running_loop()
        async for delivery in receiver:
            sender, number, _ = delivery.body.split(b" ", 2)
            which = f"{link.name} {sender.decode()} {int(number)}"
            self.note(f"took {which} {delivery.tag.hex()}")
            loop.call_later(random.random() * self.plan.hold_s, self._accept, delivery, which)  # noqa: S311 - a pause

    def _accept(self, delivery: Delivery, which: str) -> None:
        def settled(future: asyncio.Future[None]) -> None:
            if future.cancelled() or self.over.is_set():
                return
            error = future.exception()
            if error is None:
                self.note(f"settled {which}")
            else:
                self._failed(error)

        try:
            delivery.dispose(Accepted()).add_done_callback(settled)
        except ClientError as error:
            self._failed(error)


def _settle(sender: Sender, tag: bytes, _: asyncio.Future[Composite]) -> None:
    sender.settle(tag)


def _content(link: str, number: int) -> Content:
    size = BODY_BYTES if number % LONG_EVERY else LONG_BYTES
    return Content(body=f"{link} {number} ".encode().ljust(size, b"x"))


async def main(plan: ClientPlan) -> None:
    """Writes down what ends it."""
    program = Program(plan)
    try:
        await program.run()
    except ClientError as error:
        program.note(f"error {error}".replace("\n", " "))


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=ClientPlan)))
