"""A member that leaves costs nobody a copy: on real processes, under load, and a disk is lost at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.fleet import Fleet, until
from tests.faults.test_membership import found, is_dead

BACKLOG = [b"%d " % number + bytes(4_000) for number in range(3_000)]


@asynccontextmanager
async def publishing(fleet: Fleet, at: str, queue: str) -> AsyncIterator[list[bytes]]:
    """A publisher at work; the bodies that were confirmed."""
    confirmed: list[bytes] = []
    open_: dict[int, bytes] = {}
    client = await fleet.client(at)
    await client.call(methods.ConfirmSelect())

    def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
        assert ack
        numbers = [number for number in open_ if number == tag or (multiple and number < tag)]
        confirmed.extend(open_.pop(number) for number in numbers)

    client.on_confirm = on_confirm

    async def publish() -> None:
        number = 0
        while True:
            number += 1
            body = b"load %d" % number
            open_[number] = body
            client.publish(queue, body)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(publish())
    try:
        yield confirmed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not open_, "all is confirmed")
        await client.close()


async def placed(fleet: Fleet, at: str, queue: str, to: str) -> None:
    if (await fleet.queue(at, queue))["owner"] != to:
        await fleet.ask(at, "queues.move", vhost="/", queue=queue, to=to)


async def test_copies_are_elsewhere_before_it_is_gone_and_a_lost_disk_costs_nothing(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c", "d")
    await fleet.publish("a", "pair", BACKLOG, arguments={"x-replicas": 2})
    await fleet.publish("a", "q", BACKLOG[:100])
    row = await fleet.queue("a", "pair")
    leaver, other = row["owner"], next(name for name in row["in_sync"] if name != row["owner"])
    here = next(name for name in "abcd" if name not in (leaver, other))
    await fleet.publish(leaver, "single", BACKLOG[:100], arguments={
        "x-replicas": 1, "x-queue-leader-locator": "client-local",
    })  # fmt: skip
    assert (await fleet.queue(here, "single"))["in_sync"] == [leaver]
    client = await fleet.client(leaver)
    await client.call(methods.QueueDeclare(queue="transient", durable=False))
    async with publishing(fleet, here, "pair") as confirmed:
        await until(lambda: len(confirmed) > 100, "the load is at work")
        asked = asyncio.create_task(fleet.command(leaver, "leave"))
        await until(lambda: is_gone(fleet, here, leaver), "it is a member no more")
        row = await fleet.queue(here, "pair")
        assert len(row["in_sync"]) == 2, row
        # what has one copy by wish may have it at the member whose disk is about to go
        assert await fleet.consume(here, "single", 100) == BACKLOG[:100]
        deleting = await fleet.client(here)
        await deleting.call(methods.QueueDelete(queue="single"))
        await deleting.close()
        # the other one of two copies dies at once, and its disk with it
        await fleet.kill(other)
        fleet.wipe(other)
        code, out, err = await asked
        assert (code, out) == (0, "this node is a member no more"), err
        assert "320 CONNECTION_FORCED" in client.why
        before = len(confirmed)
        await until(lambda: is_dead(fleet, here, other), "it is known to be dead")
        await until(lambda: len(confirmed) > before + 100, "the queue goes on")
    node = fleet.node(leaver)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, 20) == 0
    fleet.launch(other, "--peers", fleet.peers("a", "b", "c", "d"))
    await fleet.ready(other)
    assert sorted(await fleet.members(here)) == sorted({*"abcd"} - {leaver})
    expected = [*BACKLOG, *confirmed]
    got = await fleet.consume(here, "pair", len(expected))
    assert set(got) == set(expected)
    assert await fleet.consume(here, "q", 100) == BACKLOG[:100]


async def test_who_would_leave_too_few_copies_stays_and_says_which_or_is_forced(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c", "d")
    await fleet.publish("a", "q", BACKLOG[:50])
    row = await fleet.queue("a", "q")
    spare = next(name for name in "abcd" if name not in row["replicas"])
    leaver, one, two = [row["owner"], *(name for name in row["replicas"] if name != row["owner"])]
    await fleet.kill(spare)
    await until(lambda: is_dead(fleet, one, spare), "it is known to be dead")
    client = await fleet.client(leaver)
    code, _, err = await fleet.command(leaver, "leave")
    assert (code, err.splitlines()[-1]) == (
        1,
        f"clusterbroker: without '{leaver}' these queues had fewer copies in sync than they shall have: 'q' 2 of 3; "
        "no other member can hold a copy now: start or join one, or say --force",
    )
    rows = await fleet.members(one)
    assert (rows[leaver]["draining"], rows[leaver]["leaving"]) == (False, False)
    assert not client.lost.is_set(), "nobody was asked to go for it"
    await client.close()
    code, _, err = await fleet.command(leaver, "leave", "--timeout", "-1")
    assert code == 2, err
    code, out, err = await fleet.command(leaver, "leave", "--timeout", "0", "--force")
    assert (code, out) == (0, "this node is a member no more"), err
    assert (await fleet.queue(one, "q"))["in_sync"] == sorted((one, two))
    assert await fleet.consume(two, "q", 50) == BACKLOG[:50]


async def test_who_is_killed_while_it_leaves_leaves_still_and_may_stay_after_all(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c", "d")
    await fleet.publish("a", "q", BACKLOG)
    row = await fleet.queue("a", "q")
    leaver = row["owner"]
    here = next(name for name in row["replicas"] if name != leaver)
    spare = next(name for name in "abcd" if name not in row["replicas"])
    asked = asyncio.create_task(fleet.command(leaver, "leave"))
    await until(lambda: leaving(fleet, here, leaver), "it leaves")
    await fleet.kill(leaver)
    code, _, _ = await asked
    assert code == 1
    fleet.launch(leaver, "--cluster", fleet.at(leaver))
    await fleet.ready(leaver)
    assert await leaving(fleet, here, leaver)
    await until(lambda: holds(fleet, here, spare, leaver), "the copy has moved meanwhile")
    code, out, err = await fleet.command(leaver, "drain", "--undo")
    assert (code, out) == (0, "accepts queues again"), err
    assert not await leaving(fleet, here, leaver)
    assert await fleet.consume(leaver, "q", len(BACKLOG)) == BACKLOG


async def is_gone(fleet: Fleet, at: str, name: str) -> bool:
    return name not in await fleet.members(at)


async def leaving(fleet: Fleet, at: str, name: str) -> bool:
    return bool((await fleet.members(at))[name]["leaving"])


async def holds(fleet: Fleet, at: str, spare: str, leaver: str) -> bool:
    in_sync = (await fleet.queue(at, "q"))["in_sync"]
    return spare in in_sync and leaver not in in_sync
