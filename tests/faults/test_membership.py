"""What an operator does with members, on real processes: look, move, drain, join, leave, replace, restart all."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.client import ClientLost
from clusterbroker.broker.trial.faults import fill, mount_small_disk, unmount
from clusterbroker.broker.trial.nodes import Node, free_port
from clusterbroker.broker.trial.relay import LOOPBACK
from clusterbroker.cluster.wiring.levels import LEVEL
from tests.faults.fleet import Fleet, until

BODIES = [b"message %d" % number for number in range(50)]


async def found(fleet: Fleet, *names: str) -> None:
    fleet.found(*names)
    await fleet.ready(*(name.partition("/")[0] for name in names))


async def test_members_queues_and_moves(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    for number in range(6):
        await fleet.publish("a", f"q{number}", BODIES[:3])
    code, out, err = await fleet.command("b", "members", "--json")
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)}
    assert sorted(rows) == ["a", "b", "c"]
    assert all(row["alive"] and row["voter"] for row in rows.values())
    assert sum(row["leader"] for row in rows.values()) == 1
    assert sum(row["owns"] for row in rows.values()) == 6
    assert all(row["feature_level"] == LEVEL for row in rows.values())
    assert (await fleet.ask("a", "status"))["feature_level"] == LEVEL, "a new cluster begins there"
    queue = await fleet.queue("c", "q0")
    assert queue["messages"] == 3
    assert queue["in_sync"] == ["a", "b", "c"]
    for to in ("a", "b", "c"):  # asked at a member that may be neither
        code, out, err = await fleet.command("b", "queues", "move", "q0", to)
        assert (code, out.startswith(f"'q0' is led by {to}, epoch ")) == (0, True), err
        assert (await fleet.queue("a", "q0"))["owner"] == to
    code, _, err = await fleet.command("b", "queues", "move", "q0", "d")
    assert (code, err) == (1, "clusterbroker: there is no member 'd': choose of a, b, c")
    for number in range(6):
        await fleet.ask("a", "queues.move", vhost="/", queue=f"q{number}", to="a")
    code, out, err = await fleet.command("c", "queues", "rebalance")
    assert (code, out) == (0, "moved 4 queues, 0 left"), err
    rows = await fleet.members("a")
    assert [rows[name]["owns"] for name in "abc"] == [2, 2, 2]
    maps = {(s["wiring_index"], s["wiring_digest"]) for s in [await fleet.ask(name, "status") for name in "abc"]}
    assert len(maps) == 1
    assert await fleet.consume("c", "q0", 3) == BODIES[:3]


async def test_a_newcomer_joins_gets_copies_votes_and_leaves(fleet: Fleet) -> None:
    await found(fleet, "a", "b")
    await fleet.publish("a", "q", BODIES)
    code, out, err = await fleet.join("c", "b")
    assert (code, err) == (0, ""), out
    assert out == f"c may join a, b: start it with --name c --cluster {fleet.at('c')}"
    fleet.launch("c", "--cluster", fleet.at("c"))
    await fleet.ready("c")
    await until(lambda: all_of(fleet, "a", "abc", "voter"), "c votes")
    await until(lambda: in_sync(fleet, "a", "q", "abc"), "c has a copy of q in sync")
    code, _, err = await fleet.join("c", "b")
    assert (code, "is in use by another process" in err) == (1, True), err
    # any member starts again without --peers: it knows the others
    for name in "abc":
        assert await fleet.stop(name) == 0
        code, _, err = await fleet.join(name, "b")
        assert (code, "is a member's already" in err) == (1, True), err
        fleet.launch(name, "--cluster", fleet.at(name))
        await fleet.ready(name)
    await fleet.ask("a", "queues.move", vhost="/", queue="q", to="c")
    leader = next(name for name, row in (await fleet.members("c")).items() if row["leader"])
    code, out, err = await fleet.command(leader, "leave")  # a leader cannot take its own vote away
    assert (code, out) == (0, "this node is a member no more"), err
    node = fleet.node(leader)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, 20) == 0
    left = [name for name in "abc" if name != leader]
    await until(lambda: all_of(fleet, left[0], left, "voter"), "two vote")
    fleet.launch(leader, "--cluster", fleet.at(leader))
    assert "to become one, clusterbroker join with an empty data directory" in await fleet.refused(leader)
    leader = next(name for name, row in (await fleet.members(left[0])).items() if row["leader"])
    code, out, err = await fleet.command(leader, "leave")  # the one who stays needs no other vote then
    assert (code, out) == (0, "this node is a member no more"), err
    last = next(name for name in left if name != leader)
    assert await fleet.consume(last, "q", len(BODIES)) == BODIES
    code, _, err = await fleet.command(last, "leave")
    assert (code, err) == (
        1,
        "clusterbroker: there is no other member that is alive and could take over: start or join one first",
    )


async def all_of(fleet: Fleet, at: str, names: Iterable[str], what: str) -> bool:
    rows = await fleet.members(at)
    return sorted(rows) == sorted(names) and all(row[what] for row in rows.values())


async def in_sync(fleet: Fleet, at: str, queue: str, names: Iterable[str]) -> bool:
    return (await fleet.queue(at, queue))["in_sync"] == sorted(names)


async def test_a_drained_node_sends_its_clients_elsewhere_and_takes_them_again(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    await fleet.publish("a", "q", BODIES)
    await fleet.publish("a", "single", BODIES, arguments={"x-replicas": 1})
    for queue in ("q", "single"):
        owner = (await fleet.queue("a", queue))["owner"]
        assert owner
    drained = (await fleet.queue("a", "single"))["owner"]
    client = await fleet.client(drained)
    code, out, err = await fleet.command(drained, "drain")
    assert (code, out.endswith(" queues, 0 left")) == (0, True), (out, err)
    await asyncio.wait_for(client.lost.wait(), 60)
    others = [name for name in "abc" if name != drained]
    urls = [f"amqp://127.0.0.1:{fleet.node(name).amqp_port}" for name in others]
    assert (
        client.why == f"closed by the broker: 320 CONNECTION_FORCED - node is drained, connect to {' or '.join(urls)}"
    )
    with pytest.raises(ClientLost, match="320 CONNECTION_FORCED - node is drained, connect to amqp"):
        await fleet.client(drained)
    other = await fleet.client(others[0])
    assert other.server_properties["members"] == urls
    assert other.server_properties["node"] == others[0]
    await other.close()
    rows = await fleet.members("a")
    assert (rows[drained]["draining"], rows[drained]["owns"]) == (True, 0)
    # it is not forgotten at a restart
    assert await fleet.stop(drained) == 0
    fleet.launch(drained, "--cluster", fleet.at(drained))
    await fleet.ready(drained)
    with pytest.raises(ClientLost, match="node is drained"):
        await fleet.client(drained)
    code, out, _ = await fleet.command(drained, "drain", "--undo")
    assert (code, out) == (0, "accepts queues again")
    assert await fleet.consume(drained, "single", len(BODIES)) == BODIES
    assert await fleet.consume(drained, "q", len(BODIES)) == BODIES


async def test_a_dead_node_is_replaced(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    await fleet.publish("a", "q", BODIES)
    # by itself, with an empty disk
    await fleet.kill("c")
    fleet.wipe("c")
    fleet.launch("c", "--peers", fleet.peers("a", "b", "c"))
    await fleet.ready("c")
    await until(lambda: in_sync(fleet, "a", "q", "abc"), "the empty c has a copy again")
    await until(lambda: all_of(fleet, "a", "abc", "voter"), "the empty c votes again")
    # by the same name, which joins
    await fleet.kill("b")
    fleet.wipe("b")
    await until(lambda: is_dead(fleet, "a", "b"), "b is known to be dead")
    code, _, err = await fleet.join("b", "a")
    assert code == 0, err
    fleet.launch("b", "--cluster", fleet.at("b"))
    await fleet.ready("b")
    await until(lambda: in_sync(fleet, "a", "q", "abc"), "the new b has a copy")
    # by another name
    await fleet.kill("a")
    await until(lambda: is_dead(fleet, "b", "a"), "a is known to be dead")
    code, _, err = await fleet.command("c", "leave", "a")
    assert code == 0, err
    code, _, err = await fleet.join("d", "c")
    assert code == 0, err
    fleet.launch("d", "--cluster", fleet.at("d"))
    await fleet.ready("d")
    await until(lambda: in_sync(fleet, "b", "q", "bcd"), "d has a copy")
    await until(lambda: all_of(fleet, "b", "bcd", "voter"), "d votes")
    # its old disk is of the past
    fleet.launch("a", "--cluster", fleet.at("a"))
    line = await fleet.refused("a")
    assert "'a' is no member" in line or "a is no member of this cluster" in line, line
    assert await fleet.consume("d", "q", len(BODIES)) == BODIES


async def is_dead(fleet: Fleet, at: str, name: str) -> bool:
    return not (await fleet.members(at))[name]["alive"]


async def lasting(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """The members, without what is measured anew with each beat."""
    return {name: {**row, "clock_ahead_ms": None} for name, row in (await fleet.members("a")).items()}


async def test_who_does_not_belong_is_refused_in_one_line(fleet: Fleet) -> None:
    await found(fleet, "a", "b")
    await fleet.publish("a", "q", BODIES)
    before = await lasting(fleet)

    # a name that is taken, by --peers and by join
    fleet.launch("b2", "--name", "b", "--peers", f"a@{fleet.at('a')},b@{fleet.at('b2')}")
    line = await fleet.refused("b2")
    assert "a at " in line, line
    assert "cluster" in line, line
    code, _, err = await fleet.command("b3", "join", fleet.at("a"), "--name", "b", "--cluster", fleet.at("b3"))
    assert code == 1
    assert "two nodes call themselves b" in err, err

    # another secret
    other = fleet.directory / "other secret"
    other.touch(mode=0o600)
    other.write_text("x" * 64)
    for name in ("A", "z"):  # one that dials and one that is dialled
        fleet.launch(name, "--peers", fleet.peers("a", "b", name), CLUSTERBROKER_SECRET_FILE=str(other))
        line = await fleet.refused(name)
        assert "give both nodes the same join secret" in line, line
    code, _, err = await fleet.join("y", "a", "--secret-file", str(other))
    assert code == 1
    assert "give both nodes the same join secret" in err, err

    # peers that disagree with a cluster that is there
    fleet.launch("d", "--peers", fleet.peers("a", "b", "d"))
    line = await fleet.refused("d")
    assert "give all founders the same --peers and secret, or let the newcomer join" in line, line

    # ports in use
    fleet.launch("e", "--cluster", fleet.at("a"), "--found")
    line = await fleet.refused("e")
    assert f"{fleet.node('a').cluster_port}" in line, line
    assert "in use" in line, line
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", fleet.node("f").cluster_port))
        fleet.launch("f", "--cluster", fleet.at("f"), "--found")
        line = await fleet.refused("f")
        assert f"{fleet.node('f').cluster_port}" in line, line
        assert "in use" in line, line
    code, _, err = await fleet.command("g", "join", fleet.at("a"), "--name", "g", "--cluster", fleet.at("b"))
    assert (code, err) == (
        1,
        f"clusterbroker: {fleet.at('a')}: member 'b' is at {fleet.at('b')}: give each member an address of its own",
    )
    code, _, err = await fleet.command("g", "join", "127.0.0.1:1", "--name", "g", "--cluster", fleet.at("g"))
    assert (code, err) == (
        1,
        "clusterbroker: no member listens at 127.0.0.1:1: give the cluster address of one that runs",
    ), err

    # nothing of that did any harm
    assert await lasting(fleet) == before
    assert await fleet.consume("b", "q", len(BODIES)) == BODIES


async def test_a_founder_that_cannot_start_is_waited_for(fleet: Fleet) -> None:
    fleet.launch("a", "--peers", fleet.peers("a", "b"))
    # its port for clients is taken: that ends it before anything is founded
    with socket.create_server((LOOPBACK, fleet.node("b").amqp_port)):
        fleet.launch("b", "--peers", fleet.peers("a", "b"))
        assert "cannot listen on amqp" in await fleet.refused("b")
    await until(
        lambda: b"to be founded the cluster needs b" in fleet.node("a").log.read_bytes(), "a says for whom it waits"
    )
    assert b"cluster.unlinked" not in fleet.node("a").log.read_bytes()
    fleet.launch("b", "--peers", fleet.peers("a", "b"))
    await fleet.ready("a", "b")


async def test_a_disk_of_another_cluster_is_refused(fleet: Fleet) -> None:
    """An empty one as well: neither founds a broker of its own that clients would publish into (operator a7, b4)."""
    fleet.launch("x", "--cluster", fleet.at("x"))
    line = await fleet.refused("x")
    data = fleet.node("x").data_dir
    assert f"{data} is empty (is its disk mounted?): clusterbroker join (or --join) makes it" in line
    assert not data.exists(), "nothing was made"
    data.mkdir()
    fleet.launch("x", "--cluster", fleet.at("x"))
    await fleet.refused("x")
    assert not list(data.iterdir()), "nor anything in an empty directory"
    fleet.launch("x", "--cluster", fleet.at("x"), "--found")
    await fleet.ready("x")
    await found(fleet, "a", "b")
    assert await fleet.stop("x") == 0
    fleet.launch("x", "--peers", fleet.peers("a", "b", "x"))
    assert "belongs to a cluster of x, which never had a member a or b, as --peers says" in await fleet.refused("x")
    assert sorted(await fleet.members("a")) == ["a", "b"]
    fleet.launch("x", "--cluster", fleet.at("x"))
    await fleet.ready("x")
    assert await fleet.stop("x") == 0
    await fleet.stop("b")
    shutil.rmtree(fleet.node("b").data_dir)
    shutil.copytree(fleet.node("x").data_dir, fleet.node("b").data_dir)
    fleet.launch("b", "--peers", fleet.peers("a", "b"))
    assert "belongs to node 'x', not to 'b'" in await fleet.refused("b")


async def test_peers_that_disagree_are_told_and_found_nothing(fleet: Fleet) -> None:
    fleet.launch("a", "--peers", fleet.peers("a", "b", "c"))
    fleet.launch("b", "--peers", fleet.peers("a", "b", "c"))
    fleet.launch("c", "--peers", fleet.peers("a", "b", "c", "d"))
    line = await fleet.refused("c")
    assert "give all founders the same --peers and secret" in line, line
    status = await fleet.ask("a", "status")
    assert status["state"] == "waits"
    assert "to be founded the cluster needs c" in status["waits_for"][0]
    answer = await fleet.ask("a", "user.list")
    assert answer["error"].startswith("the node is starting: it waits to be founded the cluster needs c")
    code, _, said = await fleet.command("a", "connections", "list")
    assert code == 3, said
    assert "starts: it waits to be founded the cluster needs c" in said, said
    assert "until then it has no management API" in said, said
    fleet.wipe("c")
    fleet.launch("c", "--peers", fleet.peers("a", "b", "c"))
    await fleet.ready("a", "b", "c")


async def test_all_nodes_are_killed_and_nothing_confirmed_is_lost(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    for number in range(3):
        await fleet.publish("a", f"q{number}", BODIES)
    # b misses the last messages of q0, and comes back first
    await fleet.kill("b")
    await until(lambda: is_dead(fleet, "a", "b"), "b is known to be dead")
    more = [b"later %d" % number for number in range(20)]
    await fleet.publish("a", "q0", more)
    await fleet.kill("a", "c")
    fleet.launch("b", "--cluster", fleet.at("b"))
    await until(lambda: waits(fleet, "b"), "b says what it waits for")
    fleet.launch("c", "--cluster", fleet.at("c"))
    await fleet.ready("b", "c")
    await until(lambda: in_sync(fleet, "c", "q0", "bc"), "b has caught up")
    assert await fleet.consume("b", "q0", 70) == BODIES + more
    assert await fleet.consume("c", "q1", 50) == BODIES
    fleet.launch("a", "--cluster", fleet.at("a"))
    await fleet.ready("a")
    assert await fleet.consume("a", "q2", 50) == BODIES


async def waits(fleet: Fleet, name: str) -> bool:
    try:
        status = await fleet.ask(name, "status")
    except AssertionError:
        return False
    return status.get("state") == "waits" and "for a majority of the members" in status["waits_for"][0]


async def test_queues_without_an_owner_say_for_whom_they_wait(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    await fleet.publish("a", "q", BODIES, arguments={"x-replicas": 1})
    owner = (await fleet.queue("a", "q"))["owner"]
    others = [name for name in "abc" if name != owner]
    await fleet.kill(owner)
    await until(lambda: is_dead(fleet, others[0], owner), "it is known to be dead")
    assert (await fleet.ask(others[0], "status"))["waits_for"] == [f"{owner} (1 queues)"]
    assert (await fleet.queue(others[0], "q"))["waits_for"] == [owner]
    code, _, err = await fleet.command(others[0], "queues", "move", "q", others[1])
    assert (code, err) == (1, f"clusterbroker: queue 'q' has no leader: it waits for {owner}")
    code, _, err = await fleet.command(others[0], "leave", owner)
    assert (code, "may have the only copy of 1 queues" in err, "--accept-loss" in err) == (1, True, True), err
    code, _, err = await fleet.command(others[0], "leave", owner, "--accept-loss")
    assert code == 0, err
    assert (await fleet.queue(others[0], "q"))["owner"] in others


async def test_one_node_grows_and_keeps_its_messages(fleet: Fleet) -> None:
    fleet.launch("a")
    await fleet.ready("a")
    await fleet.publish("a", "q", BODIES)
    code, _, err = await fleet.command("a", "members")
    assert (code, err) == (
        1,
        "clusterbroker: this node is alone: start it with --cluster HOST:PORT, then others can join it",
    )
    assert await fleet.stop("a") == 0
    fleet.launch("a", "--cluster", fleet.at("a"))
    await fleet.ready("a")
    assert await fleet.stop("a") == 0
    code, _, err = await fleet.command("a", "user", "list")
    assert (code, "it is a cluster member's: start it, or ask another member" in err) == (3, True)
    fleet.launch("a")
    assert "is a cluster member's: start it with --cluster" in await fleet.refused("a")
    fleet.launch("a", "--cluster", fleet.at("a"))
    await fleet.ready("a")
    for name in "bc":
        code, _, err = await fleet.join(name, "a")
        assert code == 0, err
        fleet.launch(name, "--cluster", fleet.at(name))
        await fleet.ready(name)
    await until(lambda: in_sync(fleet, "c", "q", "abc"), "all have a copy")
    await until(lambda: all_of(fleet, "c", "abc", "voter"), "all vote")
    await fleet.kill("a")
    assert await fleet.consume("c", "q", len(BODIES)) == BODIES


async def test_two_nodes_and_a_witness_outlive_one(fleet: Fleet) -> None:
    names = ("a", "b", "w/witness")
    await found(fleet, *names)
    await fleet.publish("w", "q", BODIES)
    assert (await fleet.queue("a", "q"))["in_sync"] == ["a", "b"]
    rows = await fleet.members("a")
    assert (rows["w"]["witness"], rows["w"]["holds"]) == (True, 0)
    owner = (await fleet.queue("a", "q"))["owner"]
    other = "b" if owner == "a" else "a"
    await fleet.kill(owner)
    more = [b"later %d" % number for number in range(20)]
    await fleet.publish(other, "q", more)
    fleet.launch(owner, "--cluster", fleet.at(owner))
    await fleet.ready(owner)
    await until(lambda: in_sync(fleet, "w", "q", "ab"), "it is in sync again")
    await fleet.kill("w")
    assert await fleet.consume(owner, "q", 70) == BODIES + more


async def test_of_two_nodes_without_a_witness_none_goes_on_alone(fleet: Fleet) -> None:
    await found(fleet, "a", "b")
    await fleet.publish("a", "q", BODIES)
    await fleet.kill("b")
    await until(lambda: unleased(fleet, "a"), "a stops to speak")
    fleet.launch("b", "--cluster", fleet.at("b"))
    await fleet.ready("b")
    await until(lambda: all_of(fleet, "b", "ab", "alive"), "both are there")
    assert await fleet.consume("b", "q", len(BODIES)) == BODIES


async def unleased(fleet: Fleet, name: str) -> bool:
    return bool((await fleet.ask(name, "status")).get("lease") != "leased")


async def test_members_with_full_disks_welcome_a_newcomer(fleet: Fleet, tmp_path: Path) -> None:
    """Where members are is written down, as a hint. When the disks were full that ended all members of a cluster at the
    moment at which an operator added one."""
    disks = [fleet.node(name).data_dir for name in "ab"]
    for disk in disks:
        if refused := mount_small_disk(disk, 48):
            pytest.skip(refused)
    try:
        await found(fleet, "a", "b")
        for disk in disks:
            fill(disk)
        code, _, err = await fleet.join("c", "a")
        assert code == 0, err
        fleet.launch("c", "--cluster", fleet.at("c"))
        await fleet.ready("c")
        assert fleet.node("a").running, fleet.node("a").last_words()
        assert fleet.node("b").running, fleet.node("b").last_words()
        assert sorted(await fleet.members("c")) == ["a", "b", "c"]
    finally:
        await fleet.kill_all()
        for disk in disks:
            unmount(disk)


async def test_one_member_moves(fleet: Fleet) -> None:
    """It waited for an answer to its datagrams that the leader sent to where it had been."""
    await found(fleet, "a", "b", "c")
    leader = next(name for name, row in (await fleet.members("a")).items() if row["leader"])
    name = next(name for name in "cba" if name != leader)
    assert await fleet.stop(name) == 0
    old = fleet.nodes.pop(name)
    fleet.nodes[name] = Node(name, old.directory, free_port(), free_port())
    fleet.launch(name, "--cluster", fleet.at(name))
    await fleet.ready(name)
    assert (await fleet.members(leader))[name]["address"] == fleet.at(name)
