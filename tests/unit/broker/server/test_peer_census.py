"""Rows between members: answered to who asked, in parts, and not at all when the link is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.peer_census import PeerCensus
from clusterbroker.broker.stats.batches import joined
from clusterbroker.broker.stats.peer_messages import CensusAnswer, CensusAsk, CloseConnection
from clusterbroker.broker.stats.rows import Batch, QueueRow, decode


class Loop:
    """What is called soon, when `run` is."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, what: Any, *with_: Any) -> None:
        self.soon.append((what, with_))

    def run(self) -> None:
        while self.soon:
            what, with_ = self.soon.pop(0)
            what(*with_)


class Sampling:
    """A census of 4,500 queues, which answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, Any]] = []

    def ask(self, *asked: Any) -> None:
        self.asked.append(asked)

    def answer(self) -> None:
        for _, number, _, then in self.asked:
            rows = tuple(QueueRow(queue_id=queue_id) for queue_id in range(4500))
            then(Batch(node="b", life=1, number=number + 1, sampled_at_ms=5, whole=True, rows=rows))
        self.asked.clear()


class Member:
    """One end; `out` is what it sends."""

    def __init__(self, name: str) -> None:
        self.out: list[tuple[str, Any, bytes]] = []
        self.room = 1 << 20
        self.loop = Loop()
        self.clients: dict[str, Any] = {}
        self.handlers: dict[type, Any] = {}
        hub = SimpleNamespace(handlers=self.handlers, linked={"a": 1, "b": 1, "c": 1})
        part = SimpleNamespace(
            name=name,
            hub=hub,
            room=lambda _peer: self.room,
            send=self._send,
            node=SimpleNamespace(clients=self.clients),
        )
        ended = SimpleNamespace(done=lambda: False)
        shell = SimpleNamespace(loop=self.loop, schedule=lambda: None, ended=ended)
        self.census = PeerCensus(shell, part)  # type: ignore[arg-type]
        self.sampling = Sampling()
        self.census._sampling = self.sampling  # type: ignore[assignment]

    def _send(self, peer: str, head: Any, payload: Any = ()) -> bool:
        self.out.append((peer, head, b"".join(payload)))
        return True

    def hear(self, peer: str, head: Any, payload: bytes = b"") -> None:
        self.handlers[type(head)](peer, head, memoryview(payload))

    def taken(self) -> list[tuple[str, Any, bytes]]:
        out, self.out = self.out, []
        return out


def test_a_question_is_answered_in_parts_one_a_turn() -> None:
    a, b = Member("a"), Member("b")
    told: list[tuple[bytes, bool]] = []
    assert a.census.peers == ["b", "c"]
    a.census.ask("b", 1, 7, 100, lambda part, more: told.append((part, more)))
    ((to, question, _),) = a.taken()
    assert (to, question) == ("b", CensusAsk(1, 1, 7, 100))
    b.hear("a", question)
    assert b.sampling.asked[0][:3] == (1, 7, 100)
    b.sampling.answer()
    assert len(b.out) == 1, "the others follow in later turns"
    b.loop.run()
    for to, head, payload in b.taken():
        assert to == "a"
        a.hear("b", head, payload)
    assert [more for _, more in told] == [True, True, False]
    batch = joined([decode(part) for part, _ in told])
    assert (len(batch.rows), batch.number, batch.whole) == (4500, 8, True)


def test_a_newer_question_takes_the_place_of_an_older_one() -> None:
    b = Member("b")
    b.hear("a", CensusAsk(1, 0, 0, 0))
    b.hear("a", CensusAsk(2, 0, 0, 0))
    b.sampling.answer()
    b.loop.run()
    assert {head.ask for _, head, _ in b.taken()} == {2}


def test_a_full_link_is_left_to_messages() -> None:
    b = Member("b")
    b.hear("a", CensusAsk(1, 0, 0, 0))
    b.sampling.answer()
    b.room = 0
    b.loop.run()
    assert len(b.taken()) == 1, "what was sent before it was full"


@pytest.mark.parametrize("late", [False, True])
def test_answers_that_nobody_asked_for_are_dropped(late: bool) -> None:
    a = Member("a")
    told: list[Any] = []
    ask = a.census.ask("b", 1, 7, 100, lambda *said: told.append(said))
    if late:
        a.census.forget(ask)
        a.hear("b", CensusAnswer(ask, False), b"x")
    else:
        a.hear("c", CensusAnswer(ask, False), b"x")
        a.hear("b", CensusAnswer(ask + 1, False), b"x")
    assert told == []


def test_a_connection_of_another_member_is_closed() -> None:
    a, b = Member("a"), Member("b")
    reasons: list[str] = []
    b.clients["b.1.1"] = SimpleNamespace(force_close=reasons.append)
    assert a.census.close("b", "b.1.1", "enough")
    ((_, head, _),) = a.taken()
    assert head == CloseConnection("b.1.1", "enough")
    b.hear("a", head)
    b.hear("a", CloseConnection("b.1.2", "who is that?"))
    assert reasons == ["enough"]
