"""However often a worker reports, few reports are sent, and the last one is among them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from clusterbroker_workers.progress import EVERY_S, Progress


async def test_many_reports_of_threads_are_few_and_the_last_one_is_sent() -> None:
    loop = asyncio.get_running_loop()
    sent: list[tuple[float, float]] = []
    last = asyncio.Event()

    async def send(part: float) -> None:
        sent.append((loop.time(), part))
        if part == 1.0:
            last.set()

    progress = Progress(loop, send)

    def work() -> None:
        for step in range(10_000):
            progress(step / 10_000)
        progress(1.0)

    with ThreadPoolExecutor(1) as threads:
        await loop.run_in_executor(threads, work)
        async with asyncio.timeout(10):
            await last.wait()
            last.clear()
            progress(0.5)
            progress(1.0)
            await last.wait()
    times = [at for at, _ in sent]
    assert all(later - earlier >= 0.9 * EVERY_S for earlier, later in pairwise(times))
    assert len(sent) < 100
    assert sent[-1][1] == 1.0
