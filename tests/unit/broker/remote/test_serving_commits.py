"""A transaction's part at the queue's owner: all of it in one group, once, or nothing."""

from __future__ import annotations

import pytest

from clusterbroker.broker.remote.messages import SETTLE_ACK, SETTLE_REJECT, Attached, Commit, Detach, Published
from tests.unit.broker.remote.owner_support import QUEUE_ID, Stage, head, records

Settles = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


def holding(**settings: object) -> Stage:
    """Node "b" holds messages 1 to 3."""
    stage = Stage(**settings)  # type: ignore[arg-type]
    stage.attach("b")
    stage.consume("b", head(1, upto=3))
    stage.publish("b", 1, b"1", b"2", b"3")
    stage.commit()
    assert stage.bodies_at("b") == [b"1", b"2", b"3"]
    stage.said("b")
    return stage


def commit(stage: Stage, first: int, *bodies: bytes, settles: Settles = (), named: tuple = ()) -> None:  # type: ignore[type-arg]
    gen = stage.gens["b"]
    stage.receive("b", Commit(QUEUE_ID, stage.epoch, gen, first, len(bodies), settles, named), records(first, bodies))


def test_messages_and_settlements_stand_in_one_group() -> None:
    stage = holding()
    commit(stage, 4, b"x", b"y", settles=((SETTLE_ACK, ((1, 1),)), (SETTLE_REJECT, ((3, 3),))))
    stage.write_group()
    assert stage.said("b", Published) == []
    stage.group_durable()
    assert stage.said("b", Published)[-1].upto == 5
    assert not stage.ring.needs_write, "one group held all of it"
    assert (stage.ring.unacked, stage.ring.ready) == (1, 2)


@pytest.mark.parametrize("owner", ["lives", "dies"])
def test_what_was_refused_with_it_of_a_client_that_numbers_is_no_repeat_later(owner: str) -> None:
    stage = Stage(max_length=1, overflow="reject-publish")
    stage.attach("b")
    commit(stage, 1, b"x:5", b"x:6", named=((1, b"x", 5), (2, b"x", 6)))
    assert stage.said("b", Published) == []
    stage.commit()
    assert [said.refused for said in stage.said("b", Published)] == [((1, 2),)]
    if owner == "dies":
        stage.fail_over({"b": 1})
    stage.attach("b", next_number=3)
    for number, sequence in ((3, 7), (4, 5)):
        commit(stage, number, b"x:%d" % sequence, named=((number, b"x", sequence),))
        stage.commit()
        assert stage.said("b", Published)[-1].upto == number
        assert stage.ring.ready == 1
        stage.ring.purge()
        stage.commit()


def test_it_is_taken_once() -> None:
    stage = holding()
    settles: Settles = ((SETTLE_ACK, ((1, 1),)),)
    commit(stage, 4, b"x", settles=settles)
    stage.attach("b", outstanding=((1, 3),), next_number=5)
    assert stage.said("b", Attached)[-1].accepted == 4
    commit(stage, 4, b"x", settles=settles)
    stage.commit()
    assert stage.said("b", Published)[-1].upto == 4
    assert (stage.ring.ready, stage.ring.unacked) == (1, 2)


@pytest.mark.parametrize("written", [False, True])
def test_after_a_failover_it_is_whole_or_not_there(written: bool) -> None:
    stage = holding()
    commit(stage, 4, b"x", settles=((SETTLE_ACK, ((1, 1),)),))
    if written:
        stage.commit()
    stage.fail_over({"b": 1})
    stage.attach("b", outstanding=((1, 3),), next_number=5)
    (attached,) = stage.said("b", Attached)
    assert attached.accepted == (4 if written else 3)
    assert stage.ring.unacked == (2 if written else 3)
    assert stage.ring.ready == written
    commit(stage, 4, b"x", settles=((SETTLE_ACK, ((1, 1),)),))
    stage.commit()
    assert (stage.ring.unacked, stage.ring.ready) == (2, 1)


def test_a_queue_without_room_for_all_takes_nothing_and_settles_nothing() -> None:
    stage = holding(max_length=1, overflow="reject-publish")
    gen = stage.gens["b"]
    commit(stage, 4, b"x", b"y", settles=((SETTLE_ACK, ((1, 3),)),))
    stage.turn()
    assert stage.said("b") == [Published(QUEUE_ID, gen, 5, ((4, 5),)), Detach(QUEUE_ID, 1, gen, "refused")]
    assert (stage.ring.ready, stage.ring.unacked) == (0, 3)
    stage.attach("b", outstanding=((1, 3),), next_number=6)
    commit(stage, 4, b"x", settles=((SETTLE_REJECT, ((2, 2),)),))
    stage.commit()
    assert (stage.ring.ready, stage.ring.unacked) == (1, 2)


def test_a_numbered_message_that_is_here_is_not_stored_again() -> None:
    stage = holding()
    commit(stage, 4, b"x", b"y", named=((5, b"press", 1),))
    commit(stage, 6, b"z", b"y again", named=((7, b"press", 1),), settles=((SETTLE_ACK, ((1, 1),)),))
    stage.commit()
    assert stage.said("b", Published)[-1].upto == 7
    assert (stage.ring.ready, stage.ring.unacked) == (3, 2)


def test_what_was_refused_before_a_death_is_refused_again() -> None:
    """Nothing behind it may be accepted in its place: the numbers up to a death are answered."""
    stage = Stage(max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="")
    stage.attach("b")
    stage.publish("b", 1, b"1")
    commit(stage, 2, b"x", b"y")
    stage.publish("b", 4, b"z")
    stage.commit()
    assert stage.said("b", Published)[-1].refused == ((2, 4),)
    stage.unlink("b")
    stage.ring.purge()
    gen = stage.attach("b", next_number=5)
    commit(stage, 2, b"x", b"y")
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 3, ((2, 3),))
    gen = stage.attach("b", next_number=5)
    stage.publish("b", 4, b"z")
    stage.commit()
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 4, ((4, 4),))
    assert [entry[2] for entry in stage.buried] == [b"z"], "a transaction that is refused does not die"
