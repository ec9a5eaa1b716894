"""A start that joins, as a pod does whose set was scaled up: real processes (operator b3)."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.faults.fleet import Fleet, until

BODIES = [b"%d" % number + bytes(40_000) for number in range(50)]
"""More than is asked for at once."""


async def test_scaled_up_joins_and_scaled_down_leaves(fleet: Fleet) -> None:
    """Every pod has the same file: its peers are the founders, `join` is set. Who is there before them waits."""
    peers = fleet.peers("a")
    words = ("--peers", peers, "--join", "--cluster", fleet.at("d"))
    fleet.launch("d", *words)
    await until(lambda: fleet.node("d").data_dir.joinpath("control.sock").exists(), "d says for whom it waits")
    waits = (await fleet.ask("d", "status"))["waits_for"]
    assert waits == ["for its links"] or waits[0].startswith("for a member that lets it join (no member listens at")
    fleet.launch("a", "--peers", peers, "--join")
    await fleet.ready("a", "d")
    code, out, err = await fleet.command("d", "health", "--ready", "--wait", "30")
    assert (code, out) == (0, "serves clients"), err
    await fleet.publish("a", "q", BODIES, arguments={"x-replicas": 2})
    assert sorted(await fleet.members("a")) == ["a", "d"]

    code, out, err = await fleet.command("d", "leave")
    assert (code, out) == (0, "this node is a member no more"), err
    process = fleet.node("d").process
    assert process is not None
    assert await asyncio.to_thread(process.wait, 20) == 0
    # the container is started once more before the set is smaller: it must not come back with what it held
    fleet.launch("d", *words)
    assert "'d' is no member of this cluster" in await fleet.refused("d")
    assert sorted(await fleet.members("a")) == ["a"]
    # its volume was deleted, and the set is scaled up again; an operator lets copies come slowly (operator b7)
    shutil.rmtree(fleet.node("d").data_dir)
    fleet.launch("d", *words, CLUSTERBROKER_LIMITS__COPY_RATE_BYTES="1")
    await fleet.ready("d")
    assert sorted(await fleet.members("a")) == ["a", "d"]
    await until(lambda: asked_for(fleet, "d"), "d asks for what its copy lacks")
    code, out, err = await fleet.command("d", "health", "--ready")
    assert (code, "1 replica here has not been in sync since it began" in err) == (1, True), (out, err)
    for command in (("pause",), ("rate", "0"), ("resume",)):
        assert (await fleet.queue("a", "q"))["in_sync"] == ["a"], command
        code, out, err = await fleet.command("d", "copying", *command)
        assert (code, out, err) == (0, "", "")
        held = [alert["kind"] for alert in (await fleet.ask("d", "status"))["alerts"]]
        assert ("copying.paused" in held) == (command != ("resume",))
    await until(lambda: in_sync(fleet, "q", ["a", "d"]), "d's copy is in sync")
    assert await fleet.consume("d", "q", len(BODIES)) == BODIES


async def asked_for(fleet: Fleet, name: str) -> bool:
    told = await fleet.ask(name, "copying")
    return bool(told["copies_syncing"] == 1 and 0 < told["copying_bytes"] < sum(map(len, BODIES)))


async def in_sync(fleet: Fleet, queue: str, names: list[str]) -> bool:
    return bool((await fleet.queue("a", queue))["in_sync"] == names)


@pytest.mark.matrix
async def test_a_founder_that_has_left_comes_back_with_an_empty_volume(fleet: Fleet) -> None:
    """Its volume was spoilt by a start that founded, and was refused: it is asked first whether the cluster stands."""
    words = ("--peers", fleet.peers("a", "b"), "--join")
    for name in "ab":
        fleet.launch(name, *words)
    await fleet.ready("a", "b")
    code, out, err = await fleet.command("b", "leave")
    assert (code, out) == (0, "this node is a member no more"), err
    process = fleet.node("b").process
    assert process is not None
    assert await asyncio.to_thread(process.wait, 20) == 0
    shutil.rmtree(fleet.node("b").data_dir)
    fleet.launch("b", *words)
    await fleet.ready("b")
    assert sorted(await fleet.members("a")) == ["a", "b"]


@pytest.mark.matrix
async def test_who_is_not_wanted_says_so_and_ends(fleet: Fleet) -> None:
    fleet.launch("a", "--peers", fleet.peers("a"))
    await fleet.ready("a")
    fleet.launch("d", "--peers", fleet.peers("a"), "--cluster", fleet.at("d"))
    line = await fleet.refused("d")
    assert "is empty (is its disk mounted?): clusterbroker join (or --join) makes it" in line, line
    fleet.secret.write_text("f" * 64)
    fleet.launch("d", "--peers", fleet.peers("a"), "--join", "--cluster", fleet.at("d"))
    line = await fleet.refused("d")
    assert "to join was refused: " in line, line
    assert "secret" in line, line
