"""Rules about nodes that are lost, frozen, drained or set up otherwise: each test starts nodes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.nodes import LOOPBACK, LocalCluster, free_port
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Close, Header, Modified, Open, Rejected, Released
from tests.faults.fleet import Fleet
from tests.support import processes, releases

from ..marks import rule
from ..wire import Connection, eventually
from .wire import Peer, Session, Silence

pytestmark = [
    pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it starts nodes of its own"),
]

DURABLE = Header(durable=True)


class Nodes(LocalCluster):
    """Some nodes, and clients at each of them. `settings`: of the environment, for all."""

    def __init__(self, directory: Path, count: int = 3, **settings: str) -> None:
        super().__init__(directory, count)
        self.settings = settings
        self.opened: list[Any] = []

    def _environment(self, name: str) -> dict[str, str]:
        return super()._environment(name) | self.settings

    def peer(self, name: str, **fields: Any) -> Peer:
        peer = Peer(f"amqp://guest:guest@{LOOPBACK}:{self.nodes[name].amqp_port}/", **fields)
        self.opened.append(peer)
        return peer

    def session(self, name: str) -> Session:
        return self.peer(name).session()

    def basic(self, name: str) -> Any:
        connection = Connection(f"amqp://guest:guest@{LOOPBACK}:{self.nodes[name].amqp_port}/")
        self.opened.append(connection)
        return connection.channel()

    def leases(self, name: str) -> int:
        """Words of the node's log about its lease."""
        return self.nodes[name].log.read_bytes().count(b'"cluster.lease"')

    def row(self, queue: str, by: str = "") -> dict[str, Any]:
        """What the owner of the queue counts."""
        name = by or next(name for name in self.names if self.pid(name))
        rows = (ask(self.data_dir(name), "queues") or {})["queues"]
        return dict(next(row for row in rows if row["name"] == queue))

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready and unacknowledged, as the owner counts; it has no other queue."""
        owner = self.row(queue)["owner"]
        status = (ask(self.data_dir(owner), "status") if owner and self.pid(owner) else None) or {}
        return status.get("messages_ready", -1), status.get("messages_unacknowledged", -1)

    def declared(self, queue: str, owner: str = "") -> bool:
        """A durable queue that has copies at all nodes."""
        self.basic("a").queue_declare(queue, durable=True)
        if owner:
            self.move(queue, owner)
        return True

    def move(self, queue: str, to: str) -> None:
        asked = {"vhost": "/", "queue": queue, "to": to}
        eventually(lambda: (ask(self.data_dir(to), "queues.move", asked) or {})["ok"], 30)
        assert self.row(queue, to)["owner"] == to

    def abandon(self) -> None:
        for each in self.opened:
            with suppress(OSError):
                each.abandon()


def started(directory: Path, count: int = 3, **settings: str) -> Iterator[Nodes]:
    nodes = Nodes(directory, count, **settings)
    try:
        asyncio.run(nodes.begin())
        yield nodes
    finally:
        nodes.abandon()
        asyncio.run(nodes.end())


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Nodes]:
    yield from started(tmp_path)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Nodes]:
    """One node that wants to hear of its clients each second."""
    yield from started(tmp_path, 1, CLUSTERBROKER_LIMITS__HEARTBEAT_S="1")


# -- one node


@rule("O36")
def test_silence_for_our_time_out_ends_the_connection(impatient: Nodes) -> None:
    talking, silent = impatient.peer("a"), impatient.peer("a")
    assert silent.opened.idle_time_out == 1000
    began = time.monotonic()
    with silent.closes("amqp:resource-limit-exceeded", "nothing came"):
        while not any(isinstance(known.body, Close) for known in silent.inbox):
            talking.raw(struct.pack(">IBBH", 8, 2, 0, 0))
            with suppress(Silence):
                silent._fill(time.monotonic() + 0.2)
    assert 1 < time.monotonic() - began < 10
    talking.session()


@rule("S28")
def test_loopback_users_from_afar_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the system says by which address it would be
        except OSError:
            pytest.skip("this machine has no address but loopback")
        here = probe.getsockname()[0]
    if here.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with alone(tmp_path, "0.0.0.0") as port:
        afar = Peer(f"amqp://guest:guest@{here}:{port}/", stop_before="init")
        assert afar.try_login() == 1
        afar.wait_end()
        Peer(f"amqp://guest:guest@{LOOPBACK}:{port}/").close()


@contextmanager
def alone(directory: Path, address: str) -> Iterator[int]:
    """A node that listens at `address`; its port."""
    port = free_port()
    words = [*processes.COMMAND, "start", "--name", "c1", "--data-dir", str(directory / "data")]
    with (directory / "node.out").open("wb") as output, (directory / "node.log").open("wb") as log:
        node = processes.popen(
            [*words, "--amqp", f"{address}:{port}"], stdout=output, stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        eventually(lambda: (directory / "node.out").read_text().endswith("ready\n"))
        yield port
    finally:
        node.kill()
        node.wait(10)


@rule("O40")
def test_a_node_that_drains_asks_its_clients_to_go(three: Nodes) -> None:
    session = three.session("b")
    sender = session.sender("/queues/q") if three.declared("q") else None
    assert sender is not None
    outcome = sender.post(b"kept", header=DURABLE)
    with session.peer.closes("amqp:connection:forced", "drained"):
        assert ask(three.data_dir("b"), "drain") is not None
        assert sender.outcome(outcome) == Accepted()
    assert three.session("a").receiver("/queues/q", credit=1).bodies(1) == [b"kept"]


# -- three nodes


def fill(session: Session, queue: str, count: int, first: int = 0) -> None:
    sender = session.sender(f"/queues/{queue}")
    numbers = [sender.post(b"%d" % number, header=DURABLE) for number in range(first, first + count)]
    assert all(sender.outcome(number) == Accepted() for number in numbers)
    sender.detach()


@rule("K177")
@pytest.mark.parametrize("node", ["a", "c"])
def test_links_at_one_node_and_their_queue_at_another(three: Nodes, node: str) -> None:
    three.declared("q", "b")
    session = three.session(node)
    fill(session, "q", 6)
    link = session.receiver("/queues/q")
    assert link.waiting() == 0, "no credit, no delivery"
    link.grant(4)
    one, two, three_, four = link.deliveries(4)
    assert [known.message.body for known in (one, two, three_, four)] == [b"0", b"1", b"2", b"3"]
    assert link.waiting() == 0, "as many as there is credit for"
    link.accept(one)
    link.dispose(two.id, state=Released())
    link.dispose(three_.id, state=Modified(delivery_failed=True))
    link.dispose(four.id, state=Rejected())
    eventually(lambda: three.counts("q")[1] == 0)
    link.grant(9, drain=True)
    again = link.deliveries(4)
    assert [known.message.body for known in again] == [b"1", b"2", b"4", b"5"]
    assert [known.message.header.delivery_count for known in again] == [0, 1, 0, 0]
    assert [known.message.header.first_acquirer for known in again] == [False, False, True, True]
    flow = link.flow()
    assert (flow.link_credit, flow.drain, flow.delivery_count) == (0, True, 13)
    link.accept(*again)
    eventually(lambda: three.counts("q") == (0, 0))


@rule("K178", "C78", "X95")
def test_the_owner_is_killed(three: Nodes) -> None:
    """What was accepted is there, no link is lost, what is unsettled is kept, and credit stands."""
    three.declared("q", "b")
    session = three.session("a")
    fill(session, "q", 3)
    sender, link = session.sender("/queues/q"), session.receiver("/queues/q", credit=5)
    held = link.deliveries(3)
    asyncio.run(three.kill("b"))
    posted = [sender.post(b"%d" % number, header=DURABLE) for number in range(3, 8)]
    assert [sender.outcome(number) for number in posted] == [Accepted()] * 5
    later = link.deliveries(2)
    assert [known.message.body for known in later] == [b"3", b"4"], "in order, by the credit that was left"
    assert link.waiting() == 0, "and no more than that"
    link.accept(*held, *later)
    eventually(lambda: three.counts("q")[1] == 0, 30)
    link.grant(9)
    assert link.bodies(3) == [b"5", b"6", b"7"]


@rule("X95")
def test_accepted_messages_survive_the_kill_of_any_node(three: Nodes) -> None:
    three.declared("q", "b")
    session = three.session("a")
    fill(session, "q", 50)
    asyncio.run(three.kill("a"))
    other = three.session("c")
    link = other.receiver("/queues/q", credit=50)
    found = link.deliveries(50)
    assert [known.message.body for known in found] == [b"%d" % number for number in range(50)]
    link.accept(*found)
    asyncio.run(three.start("a"))
    asyncio.run(three.kill("b"))
    eventually(lambda: three.counts("q") == (0, 0), 30)


@rule("K179")
def test_a_hand_over_under_load_leaves_no_gap(three: Nodes) -> None:
    three.declared("q", "a")
    sending, receiving = three.session("a"), three.session("c")
    sender, link = sending.sender("/queues/q"), receiving.receiver("/queues/q", credit=1000)
    posted: list[int] = []
    for to in ("b", "c", "a", "b"):
        posted += [sender.post(b"%d" % (len(posted) + place), header=DURABLE) for place in range(100)]
        three.move("q", to)
    assert all(sender.outcome(number) == Accepted() for number in posted)
    found = link.deliveries(400)
    assert [known.message.body for known in found] == [b"%d" % number for number in range(400)]
    link.accept(*found)
    eventually(lambda: three.counts("q") == (0, 0))


@rule("K180")
def test_a_node_without_a_lease_sends_nothing(three: Nodes) -> None:
    three.declared("q", "a")
    session = three.session("a")
    fill(session, "q", 2)
    link = session.receiver("/queues/q")
    leases = three.leases("a")
    for name in ("b", "c"):
        three.signal(name, signal.SIGSTOP)
    try:
        eventually(lambda: three.leases("a") > leases, 30)
        before = list(session.peer.inbox)
        session.say(session.flow(link.handle, delivery_count=0, link_credit=2, echo=True))
        with suppress(Silence):
            session.peer.find(lambda _: False, 2)
        assert session.peer.inbox == before, "the node says nothing"
    finally:
        for name in ("b", "c"):
            three.signal(name, signal.SIGCONT)
    assert link.bodies(2) == [b"0", b"1"], "with its lease it goes on"


@rule("K181")
def test_an_older_member_in_the_cluster(tmp_path: Path) -> None:
    """It could not read the messages: a client is told so, in words, and those of 0-9-1 go on."""
    try:
        before = releases.tree(releases.BEFORE_LEVELS)
    except releases.NoHistory as error:
        pytest.skip(str(error))
    fleet = Fleet(tmp_path)

    async def begun() -> None:
        for name in "ab":
            fleet.launch(name, "--peers", fleet.peers(*"abc"))
        fleet.launch("c", "--peers", fleet.peers(*"abc"), release=before)
        await fleet.ready(*"abc")

    try:
        asyncio.run(begun())
        url = f"amqp://guest:guest@{LOOPBACK}:{fleet.node('a').amqp_port}/"
        peer = Peer(url, stop_before="open")
        with peer.closes("amqp:not-allowed", "feature level 1, AMQP 1.0 needs 2"):
            peer.say(Open(container_id="early"))
        connection = Connection(url)
        connection.channel().queue_declare("q", durable=True)
        connection.abandon()
    finally:
        asyncio.run(fleet.kill_all())
