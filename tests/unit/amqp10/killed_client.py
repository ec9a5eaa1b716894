"""A program that sends numbers and is killed: `killed_client.py URL STORE PROGRESS COUNT`.

Its progress is a file with a line for each number whose outcome it has written down.
"""

from __future__ import annotations

import asyncio
import os
import sys

from clusterbroker.amqp10.client import Accepted, Backoff, FileStore, Message, connect

IN_FLIGHT = 20


async def main(url: str, store: str, progress: str, count: int) -> None:
    done = os.open(progress, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    written = {int(line) for line in os.pread(done, 1 << 24, 0).split()}
    async with await connect(
        url, container_id="killed", store=FileStore(store), backoff=Backoff(0.001, longest=0.02)
    ) as connection:
        sender = await connection.sender("/queues/q", name="out", recoverable="node", settle="manual")
        again = {int.from_bytes(tag, "big") for tag in sender.recovered}
        left = [number for number in range(count) if number in again or number not in written]
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int, future: asyncio.Future[object]) -> None:
            assert await future == Accepted()
            if number not in written:
                os.write(done, b"%d\n" % number)
            sender.settle(number.to_bytes(4, "big"))
            room.release()

        async with asyncio.TaskGroup() as tasks:
            for number in left:
                await room.acquire()
                body = Message(body=b"%06d" % number + bytes(2000))
                tasks.create_task(one(number, sender.submit(body, number.to_bytes(4, "big"))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
