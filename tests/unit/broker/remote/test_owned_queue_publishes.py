"""A queue's owner and publishes of all nodes: who is told what, and when (replication.md 6 to 8)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.remote.messages import (
    ASK_COUNTS,
    Attached,
    Detach,
    NamedPublish,
    Published,
)
from clusterbroker.cluster.wiring.queue_settings import resolve
from clusterbroker.replication.errors import BadMessage
from tests.unit.broker.remote.owner_support import QUEUE_ID, Stage, head, records

# -- publishing


def test_a_publish_is_answered_when_it_is_committed() -> None:
    stage = Stage()
    gen = stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    assert stage.said("b") == [Attached(QUEUE_ID, 1, gen, 0)]
    stage.write_group()
    assert stage.said("b") == []
    stage.group_durable()
    assert stage.said("b") == [Published(QUEUE_ID, gen, 2)]


def test_a_gap_is_never_skipped_and_asks_for_a_new_attach() -> None:
    stage = Stage()
    gen = stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.publish("b", 3, b"3")
    stage.publish("b", 2, b"2")  # of a void attachment by now
    assert stage.said("b", Detach) == [Detach(QUEUE_ID, 1, gen, "gap")]
    assert stage.ring.ready == 1
    stage.attach("b", next_number=4)
    stage.publish("b", 2, b"2", b"3")
    stage.commit()
    assert stage.said("b", Published)[-1].upto == 3
    assert stage.ring.ready == 3


def test_duplicates_are_answered_and_not_stored() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.unlink("b")
    gen = stage.attach("b", next_number=3)
    assert stage.said("b", Attached) == [Attached(QUEUE_ID, 1, gen, 2)]
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    assert stage.said("b", Published) == [Published(QUEUE_ID, gen, 2)]
    assert stage.ring.ready == 2


def test_frames_of_an_older_gen_are_dropped() -> None:
    stage = Stage()
    gen = stage.attach("b")
    stage.attach("b")
    stage.publish("b", 1, b"old", gen=gen)
    assert stage.ring.ready == 0
    assert stage.said("b", Detach) == []


def test_who_never_attached_is_asked_to() -> None:
    stage = Stage()
    stage.publish("b", 1, b"1", gen=5)
    assert stage.said("b") == [Detach(QUEUE_ID, 1, 5, "unknown")]


def test_the_next_owner_knows_what_it_has() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.write_group()  # the copy has it, the proxy was not told
    stage.publish("b", 3, b"3")  # nobody has it but the owner, who dies
    stage.fail_over()
    gen = stage.attach("b", next_number=4)
    assert stage.said("b", Attached) == [Attached(QUEUE_ID, 2, gen, 2)]
    assert stage.said("b", Published) == []  # not committed under this owner yet
    stage.publish("b", 3, b"3")
    stage.nothing("a")
    stage.nothing("c")
    stage.commit()
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 3)
    assert stage.ring.ready == 3


def test_numbers_that_were_answered_before_may_be_missing_after_an_attach() -> None:
    stage = Stage()
    stage.attach("b", next_number=7)
    stage.publish("b", 4, b"4")  # 1 to 3 were refused by an owner that is dead
    stage.publish("b", 6, b"6")
    stage.publish("b", 7, b"7")
    assert stage.said("b", Detach) == []
    stage.publish("b", 9, b"9")
    assert [said.why for said in stage.said("b", Detach)] == ["gap"]


# -- refusals: a publisher never hears a wrong confirm


def full(**arguments: object) -> Stage:
    stage = Stage(
        max_length=1, overflow="reject-publish", **arguments
    )  # fmt: skip
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.said("b")
    return stage


def test_a_refusal_is_told_with_its_number_and_ends_the_gen() -> None:
    stage = full()
    stage.publish("b", 2, b"2", b"3")
    gen = stage.gens["b"]
    assert stage.said("b") == [Published(QUEUE_ID, gen, 3, ((2, 3),)), Detach(QUEUE_ID, 1, gen, "refused")]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_nothing_is_refused_before_everybody_has_said_what_he_holds(overflow: str) -> None:
    stage = Stage(max_length=1, overflow=overflow, dead_letter_exchange="ex")
    stage.attach("b", consumers=[head(upto=1)])
    stage.publish("b", 1, b"1")
    stage.commit()
    assert [body for _, _, body, _ in stage.delivered("b")] == [b"1"], "the queue is empty again"
    stage.fail_over()
    stage.attach("c")
    stage.publish("c", 1, b"2")
    stage.ask("c", 1, ASK_COUNTS)
    gen = stage.gens["c"]
    stage.nothing("a")
    assert stage.said("c", Published) == []
    stage.attach("b", consumers=[head(held=1)], outstanding=[(1, 1)], next_number=2)
    assert stage.said("c")[-1] == Detach(QUEUE_ID, 2, gen, "opened"), "nor is anything answered"
    gen = stage.attach("c", next_number=2)
    stage.publish("c", 1, b"2")
    stage.commit()
    assert stage.said("c", Published) == [Published(QUEUE_ID, gen, 1)]
    assert stage.buried == []


def test_what_came_too_early_is_not_skipped_when_the_queue_cannot_refuse_any_more() -> None:
    """A policy took its length away before it was open: the next publish was taken, and both were confirmed."""
    stage = Stage(max_length=1, overflow="reject-publish")
    stage.fail_over()
    stage.attach("b", next_number=3)
    stage.publish("b", 1, b"1")
    stage.queue.adopt(resolve({}, transient=False))
    stage.publish("b", 2, b"2")
    stage.nothing("a")
    stage.nothing("c")
    stage.said("b")
    stage.attach("b", next_number=3)
    assert stage.said("b", Attached)[-1].accepted == 0
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    assert stage.ring.ready == 2


def test_a_refusal_waits_for_what_was_published_before_it() -> None:
    stage = Stage(max_length=1, overflow="reject-publish")
    gen = stage.attach("b")
    stage.said("b")
    stage.publish("b", 1, b"1", b"2")
    assert stage.said("b") == []
    stage.commit()
    assert stage.said("b", Published) == [Published(QUEUE_ID, gen, 2, ((2, 2),))]


@pytest.mark.parametrize("limits", [{"max_length": 3}, {"max_length_bytes": 9}])
def test_a_frame_is_taken_whole_or_message_by_message(limits: dict[str, int]) -> None:
    """By bytes a frame may look too large, headers and all, of which each message finds room."""
    stage = Stage(overflow="reject-publish", **limits)
    gen = stage.attach("b")
    stage.said("b")
    stage.publish("b", 1, b"123", b"456", b"789")
    stage.commit()
    assert stage.said("b", Published) == [Published(QUEUE_ID, gen, 3)]
    stage.publish("b", 4, b"000")
    assert stage.said("b", Published) == [Published(QUEUE_ID, gen, 4, ((4, 4),))]


def test_a_queue_that_may_refuse_takes_no_turn_while_its_group_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other queue: the commit brings one."""
    stage, rested = Stage(max_length=9, overflow="reject-publish"), list[str]()
    monkeypatch.setattr(stage, "rest", lambda queue: rested.append(queue.name))
    stage.attach("b")
    stage.publish("b", 1, b"1")
    assert rested == ["q"]


def test_nothing_is_accepted_behind_a_refusal_before_the_proxy_has_heard() -> None:
    stage = Stage(max_length=1, overflow="reject-publish")
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.ring.purge()  # room again
    stage.publish("b", 3, b"3")
    stage.write_group()
    stage.fail_over()  # before anybody heard of the refusal
    stage.attach("b", next_number=4)
    assert stage.said("b", Attached)[0].accepted == 1, "2 was refused: the next owner must not call it accepted"


def test_a_proxy_that_did_not_hear_of_a_refusal_is_judged_anew() -> None:
    stage = full()
    stage.publish("b", 2, b"2")
    stage.unlink("b")  # what was told is lost
    stage.ring.purge()
    gen = stage.attach("b", next_number=3)
    assert stage.said("b", Attached)[0].accepted == 1
    stage.publish("b", 2, b"2")
    stage.commit()
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 2)


def test_a_proxy_that_has_heard_goes_on_behind_the_refusal() -> None:
    stage = full()
    stage.publish("b", 2, b"2")
    stage.ring.purge()
    stage.attach("b", next_number=4)
    stage.publish("b", 3, b"3")
    stage.commit()
    assert stage.said("b", Published)[-1].upto == 3
    assert stage.said("b", Detach)[1:] == []


def numbered(stage: Stage, number: int, sequence: int) -> None:
    """Node "b" publishes what its client "x" has numbered so."""
    named = NamedPublish(QUEUE_ID, stage.epoch, stage.gens["b"], number, b"x", sequence)
    stage.receive("b", named, records(number, [b"x:%d" % sequence]))


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("owner", ["lives", "dies"])
def test_what_was_refused_of_a_client_that_numbers_is_no_repeat_behind_later_ones(owner: str, overflow: str) -> None:
    stage = Stage(max_length=1, overflow=overflow, dead_letter_exchange="")
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.said("b")
    numbered(stage, 2, 5)
    assert stage.said("b") == [], "the next owner might take a later one, and then this one for a repeat"
    stage.commit()
    assert [said.refused for said in stage.said("b", Published)] == [((2, 2),)]
    stage.ring.purge()
    stage.commit()
    if owner == "dies":
        stage.fail_over({"b": 1})
    stage.attach("b", next_number=3)
    for number, sequence in ((3, 6), (4, 5), (5, 5)):
        numbered(stage, number, sequence)
        stage.commit()
        assert stage.said("b", Published)[-1].upto == number
        assert stage.ring.ready == (number < 5)
        stage.ring.purge()
        stage.commit()


def test_a_queue_without_a_log_says_at_once_what_it_refuses() -> None:
    stage = Stage(transient=True, max_length=1, overflow="reject-publish")
    stage.attach("b")
    stage.publish("b", 1, b"1")
    numbered(stage, 2, 5)
    assert [said.refused for said in stage.said("b", Published)][-1] == ((2, 2),)


def killing() -> Stage:
    """A full queue whose refused messages die; "b" has published number 1."""
    stage = Stage(max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="")
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.said("b")
    return stage


def test_a_refusal_is_told_when_the_death_is_committed() -> None:
    stage = killing()
    stage.publish("b", 2, b"2", b"3")
    assert (stage.ring.ready, stage.said("b"), stage.buried) == (1, [], [])
    stage.commit()
    gen = stage.gens["b"]
    assert stage.said("b") == [Published(QUEUE_ID, gen, 3, ((2, 3),)), Detach(QUEUE_ID, 1, gen, "refused")]
    assert [entry[:3] for entry in stage.buried] == [(1, "maxlen", b"2"), (2, "maxlen", b"3")]


@pytest.mark.parametrize("owner", ["lives", "dies"])
def test_what_was_refused_and_died_dies_once_however_often_it_is_sent(owner: str) -> None:
    stage = killing()
    stage.publish("b", 2, b"2", b"3")
    stage.commit()
    if owner == "dies":
        stage.fail_over()
        stage.nothing("a")
        stage.nothing("c")
        stage.buried.clear()  # the next owner tells its targets again what they know by name
    else:
        stage.unlink("b")
    gen = stage.attach("b", next_number=5)
    stage.ring.purge()
    stage.commit()
    stage.publish("b", 2, b"2", b"3", b"4")
    stage.commit()
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 3, ((2, 3),)), "though there is room for them now"
    stage.attach("b", next_number=5)
    stage.publish("b", 4, b"4")
    stage.commit()
    assert [stage.ring.ready, len(stage.ring.dead())] == [1, 2]
    assert [entry[:3] for entry in stage.buried] == [(1, "maxlen", b"2"), (2, "maxlen", b"3")]


def test_a_death_that_no_log_holds_was_none() -> None:
    stage = killing()
    stage.publish("b", 2, b"2")
    stage.fail_over()
    for node in ("a", "c"):
        stage.nothing(node)
    gen = stage.attach("b", next_number=3)
    stage.ring.purge()
    stage.publish("b", 2, b"2")
    stage.commit()
    assert stage.said("b", Published)[-1] == Published(QUEUE_ID, gen, 2)
    assert (stage.ring.ready, stage.ring.dead(), stage.buried) == (1, [], [])


def test_what_died_for_a_start_that_is_over_is_forgotten() -> None:
    stage = killing()
    stage.publish("b", 2, b"2")
    stage.commit()
    assert stage.ring.attributes[b"rb/1"] == 2
    stage.fail("b")
    assert b"rb/1" not in stage.ring.attributes


def test_a_dead_letter_that_dies_again_for_want_of_room_is_taken() -> None:
    """Were it refused, its queue would send it again, and each time it would die."""
    stage = killing()
    letter = NamedPublish(QUEUE_ID, 1, stage.gens["b"], 2, dead_letter_producer(99), 4)
    stage.receive("b", letter, records(2, [b"dead"]))
    stage.commit()
    assert stage.said("b") == [Published(QUEUE_ID, stage.gens["b"], 2)]
    assert [entry[:3] for entry in stage.buried] == [(1, "maxlen", b"dead")]
    stage.receive(
        "b", NamedPublish(QUEUE_ID, 1, stage.gens["b"], 3, dead_letter_producer(99), 4), records(3, [b"dead"])
    )
    stage.commit()
    assert stage.said("b", Published) == [Published(QUEUE_ID, stage.gens["b"], 3)]
    assert len(stage.buried) == 1


# -- runs of a producer's numbers


def run(stage: Stage, number: int, *sequences: int, producer: bytes = b"x") -> None:
    """Node "b" publishes these in one frame."""
    named = NamedPublish(QUEUE_ID, stage.epoch, stage.gens["b"], number, producer, sequences[0], sequences[1:])
    stage.receive("b", named, records(number, [b"x:%d" % sequence for sequence in sequences]))


def here(stage: Stage) -> list[bytes]:
    found = (stage.ring.message(row[0]) for row in stage.ring.living(1, stage.ring.next_seq, 100))
    return [one.body for one in found if one is not None]


def test_a_run_is_taken_but_for_what_is_here() -> None:
    stage = Stage()
    stage.attach("b")
    run(stage, 1, 2, 3, 5)
    stage.commit()
    run(stage, 4, 3, 5, 6, 7)
    run(stage, 8, 6, 7)
    assert stage.said("b", Published) == [Published(QUEUE_ID, stage.gens["b"], 3)], "nothing else is committed"
    stage.commit()
    assert stage.said("b", Published) == [Published(QUEUE_ID, stage.gens["b"], 9)]
    assert here(stage) == [b"x:2", b"x:3", b"x:5", b"x:6", b"x:7"]


@pytest.mark.parametrize("owner", ["lives", "dies"])
def test_a_run_that_was_refused_in_part_comes_again(owner: str) -> None:
    stage = Stage(max_length=2, overflow="reject-publish")
    stage.attach("b")
    run(stage, 1, 1, 2, 3, 4)
    stage.commit()
    assert [said.refused for said in stage.said("b", Published)] == [((3, 4),)]
    stage.ring.purge()
    stage.commit()
    if owner == "dies":
        stage.fail_over({"b": 2})
    stage.attach("b", next_number=5)
    run(stage, 5, 3, 4)
    run(stage, 7, 1, 2, 3, 4)
    stage.commit()
    assert here(stage) == [b"x:3", b"x:4"], "1 and 2 were here, and have left"


def test_letters_of_a_run_need_not_rise_and_numbers_of_a_client_must() -> None:
    stage = Stage()
    stage.attach("b")
    run(stage, 1, 9, 4, 9, producer=dead_letter_producer(99))
    stage.commit()
    assert here(stage) == [b"x:9", b"x:4"]
    with pytest.raises(BadMessage, match="do not rise"):
        run(stage, 4, 3, 3)
    named = NamedPublish(QUEUE_ID, 1, stage.gens["b"], 4, b"x", 3, (4, 5))
    with pytest.raises(BadMessage, match="3 numbered messages for queue 7 are 2 records"):
        stage.receive("b", named, records(4, [b"1", b"2"]))
