"""A polling controller of worker groups on RabbitMQ, as people write it: ours, for measuring beside pools.

    python -m bench.polling_controller AMQP_URL PROGRAM

It does what osrdyne does on the way of a first request (OpenRailAssociation/osrd, read in public; it is on no package
registry, so it could not be run itself), and nothing else of it:

    caller -> NAME-req-xchg (direct) --no binding--> NAME-orphan-xchg -> NAME-orphan -> this process
        at once            durable queue of the key, bound; the request published again, then acknowledged
        each LOOP_S        list the workers, start one for each key that has none

osrdyne's loop asks its driver for the list (Docker, Kubernetes, process-compose) and starts by it; the list here is of
child processes, so costs nothing, and a start is a fork. Its interval is osrdyne's default. It prints `ready`, and ends
its workers at SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Final

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

NAME: Final = "polled"
LOOP_S: Final = 0.5
PREFETCH: Final = 200


class Controller:
    """Keys that are wanted, and workers that run."""

    def __init__(self, address: str, program: str) -> None:
        self._address, self._program = address, program
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._wanted: dict[str, str] = {}
        """Queue by key."""

    async def serve(self, over: asyncio.Event) -> None:
        """Until it is over."""
        async with await aio_pika.connect(self._address) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            arguments = {"alternate-exchange": f"{NAME}-orphan-xchg"}
            requests = await channel.declare_exchange(f"{NAME}-req-xchg", "direct", arguments=arguments)
            orphans = await channel.declare_exchange(f"{NAME}-orphan-xchg", "fanout")
            queue = await channel.declare_queue(f"{NAME}-orphan", exclusive=True)
            await queue.bind(orphans)

            async def adopt(message: AbstractIncomingMessage) -> None:
                key = message.routing_key or ""
                if key not in self._wanted:
                    own = await channel.declare_queue(f"{NAME}-req-{key}", durable=True)
                    await own.bind(requests, key)
                    self._wanted[key] = own.name
                await requests.publish(message, key)
                await message.ack()

            await queue.consume(adopt)
            print("ready", flush=True)
            while not over.is_set():
                self._turn()
                try:
                    await asyncio.wait_for(over.wait(), LOOP_S)
                except TimeoutError:
                    pass

    def _turn(self) -> None:
        running = {key for key, worker in self._workers.items() if worker.poll() is None}
        for key in self._wanted.keys() - running:
            variables = {**os.environ, "WORKER_AMQP_URI": self._address, "WORKER_REQUESTS_QUEUE": self._wanted[key]}
            self._workers[key] = subprocess.Popen([self._program], env=variables, start_new_session=True)

    def end(self) -> None:
        """All workers."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.wait()


async def main(address: str, program: str) -> None:
    """Until SIGTERM."""
    controller, over = Controller(address, program), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    try:
        await controller.serve(over)
    finally:
        controller.end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
