"""A queue's owner and questions, hand-overs, numbered messages and transient queues (replication.md 6 to 8)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.remote.messages import (
    ASK_COUNTS,
    ASK_DELETE,
    ASK_GET,
    ASK_PURGE,
    ASK_TOUCH,
    SETTLE_ACK,
    Answer,
    Attach,
    Attached,
    Consuming,
    Detach,
    NamedPublish,
    Published,
    Settled,
    Settlement,
)
from clusterbroker.journal.record import read_records
from tests.unit.broker.remote.owner_support import QUEUE_ID, Stage, handed_out, head, records

# -- questions


def test_counts_see_what_was_published_before_once_it_is_committed() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.ask("b", 9, ASK_COUNTS)
    assert stage.said("b", Answer) == []
    stage.commit()
    assert stage.said("b", Answer) == [Answer(QUEUE_ID, 1, 9, 1, 0)]


def test_counts_of_a_queue_that_cannot_commit_are_answered_all_the_same() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.ask("b", 9, ASK_TOUCH)
    stage.turn(1000)
    assert stage.said("b", Answer) == [Answer(QUEUE_ID, 1, 9, 0, 0)]


def test_a_get_takes_the_head_for_its_node() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    stage.ask("b", 9, ASK_GET)
    stage.commit()
    ((_, answer, payload),) = [entry for entry in stage.sent if isinstance(entry[1], Answer)]
    ((seq, got, _, redelivered),) = read_records(payload)
    assert (answer.request, answer.count, seq, got.body, redelivered) == (9, 1, 1, b"1", False)
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    assert stage.ring.unacked == 0


def test_a_get_from_an_empty_queue() -> None:
    stage = Stage()
    stage.attach("b")
    stage.ask("b", 9, ASK_GET)
    assert [payload for _, said, payload in stage.sent if isinstance(said, Answer)] == [b""]


def test_a_get_whose_answer_is_lost_gives_the_message_back() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.ask("b", 9, ASK_GET)
    stage.commit()
    stage.unlink("b")
    stage.attach("b")
    assert (stage.ring.ready, stage.ring.unacked) == (1, 0)


@pytest.mark.parametrize("listed", [True, False])
def test_a_get_that_waits_for_the_head_takes_nothing_after_another_attach(listed: bool) -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.ask("b", 9, ASK_GET)  # the head is not committed yet
    if listed:
        stage.attach("b")
    else:
        stage.nothing("b")
    stage.commit()
    stage.commit()
    assert (stage.ring.ready, stage.ring.unacked) == (1, 0)


def test_a_purge_is_answered_when_it_is_committed_and_leaves_what_is_held() -> None:
    stage = handed_out(1)
    stage.cancel("b", 1)
    stage.cancel("c", 1)
    stage.publish("b", 2, b"2", b"3")
    stage.commit()
    stage.ask("b", 9, ASK_PURGE)
    assert stage.said("b", Answer) == []
    stage.commit()
    assert [said.count for said in stage.said("b", Answer)] == [2]
    assert (stage.ring.ready, stage.ring.unacked) == (0, 1)


@pytest.mark.parametrize(("flags", "refused"), [({"if_unused": True}, "in use"), ({"if_empty": True}, "not empty")])
def test_a_deletion_may_be_refused(flags: dict[str, bool], refused: str) -> None:
    stage = Stage()
    stage.attach("b", consumers=[head(upto=0)])
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.ask("b", 9, ASK_DELETE, **flags)
    assert [said.refused for said in stage.said("b", Answer)] == [refused]
    assert stage.owned.open


def test_a_queue_that_may_be_deleted_takes_nothing_until_it_is_and_its_owner_sees_to_that() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.ask("b", 9, ASK_DELETE)
    stage.publish("b", 1, b"1")
    assert stage.ring.ready == 0
    stage.turn(2999)
    assert stage.ended == []
    stage.turn(1)
    assert stage.ended == [stage.queue]
    stage.turn(19_000)
    stage.attach("c", next_number=2)
    stage.publish("c", 1, b"1")
    assert (stage.said("b", Detach), stage.ring.ready, stage.ended) == ([], 0, [stage.queue])
    stage.turn(1000)  # the wiring log has given it up by now
    assert stage.ended == [stage.queue, stage.queue]


def test_a_queue_that_may_be_deleted_may_move_and_its_next_owner_takes_everything() -> None:
    stage = Stage()
    stage.attach("b")
    stage.ask("b", 9, ASK_DELETE)
    stage.owned_queues.freeze(QUEUE_ID, stage.now_ms + 3000)
    stage.owned_queues.thaw(QUEUE_ID)
    stage.attach("b", next_number=2)
    stage.publish("b", 1, b"1")
    assert stage.ring.ready == 0, "a hand-over that failed changes nothing"
    stage.fail_over()
    for node in ("a", "b", "c"):
        stage.attach(node, next_number=2)
    stage.publish("b", 1, b"1")
    stage.commit()
    assert stage.ring.ready == 1


# -- hand-over


def test_a_hand_over_drains_and_a_failed_one_loses_nothing() -> None:
    stage = handed_out(2)
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    stage.owned_queues.freeze(QUEUE_ID, stage.now_ms + 3000)
    assert not stage.owned.drained
    stage.settle("b", 2, SETTLE_ACK, (2, 2))  # not looked at
    stage.publish("b", 3, b"3")
    stage.commit()
    assert stage.owned.drained
    assert stage.ring.unacked == 1
    stage.owned_queues.thaw(QUEUE_ID)
    stage.attach("b", settlements=[Settlement(2, SETTLE_ACK, ((2, 2),))], next_number=4)
    stage.publish("b", 3, b"3")
    stage.commit()
    assert (stage.ring.ready, stage.ring.unacked) == (1, 0)
    assert [said.why for said in stage.said("c", Detach)] == ["moving"]


# -- producers that number their messages


def test_a_named_message_is_stored_once_by_whichever_proxy_it_comes() -> None:
    stage = Stage()
    for node in "bc":
        gen = stage.attach(node)
        stage.receive(node, NamedPublish(QUEUE_ID, 1, gen, 1, b"outbox", 5), records(1, [b"5"]))
    stage.commit()
    assert [stage.said(node, Published)[-1].upto for node in "bc"] == [1, 1]
    assert stage.ring.ready == 1


def test_a_named_message_is_known_to_the_next_owner() -> None:
    stage = Stage()
    gen = stage.attach("b")
    stage.receive("b", NamedPublish(QUEUE_ID, 1, gen, 1, b"outbox", 5), records(1, [b"5"]))
    stage.commit()
    stage.fail_over(alive={})
    gen = stage.attach("c")
    stage.receive("c", NamedPublish(QUEUE_ID, 2, gen, 1, b"outbox", 5), records(1, [b"5"]))
    assert stage.ring.ready == 1


# -- transient queues


def test_a_transient_queue_serves_other_nodes_without_epochs() -> None:
    stage = Stage(transient=True)
    gen = stage.attach("b", consumers=[head(upto=1)])
    stage.publish("b", 1, b"1", b"2")
    assert stage.said("b", Published) == [Published(QUEUE_ID, gen, 2)]
    assert stage.bodies_at("b") == [b"1"]
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    assert [said.id for said in stage.said("b", Settled)] == [1]
    stage.fail("b")
    assert stage.ring.ready == 1


def test_a_purge_whose_answer_was_lost_is_not_carried_out_again() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    stage.ask("b", 1, ASK_PURGE)
    stage.commit()
    assert stage.said("b", Answer)[-1].count == 2
    stage.attach("b", next_number=3)
    stage.publish("b", 3, b"3")
    stage.commit()
    stage.ask("b", 1, ASK_PURGE)
    stage.commit()
    assert stage.said("b", Answer)[-1].count == 2
    assert stage.ring.ready == 1
    stage.ask("b", 2, ASK_PURGE)
    stage.commit()
    assert stage.said("b", Answer)[-1].count == 1


def test_a_consumer_whose_answer_was_lost_keeps_an_auto_delete_queue() -> None:
    stage = Stage(auto_delete=True)
    stage.attach("b")
    stage.consume("b", head(1))
    stage.commit()
    gen = stage.attach("b", asking=(head(1),))
    stage.commit()
    assert stage.said("b", Consuming)[-1] == Consuming(QUEUE_ID, gen, 1)
    assert (stage.ended, len(stage.queue.subscriptions)) == ([], 1)
    stage.fail_over({"a": 1, "b": 1})
    stage.attach("b", asking=(head(1),))
    assert stage.said("b", Consuming) == []
    stage.nothing("a")
    assert stage.said("b", Consuming)[-1].refused == ""
    stage.commit()
    assert (stage.ended, len(stage.queue.subscriptions)) == ([], 1)


def test_of_two_exclusive_consumers_that_ask_a_new_owner_one_is_taken() -> None:
    stage = Stage(attached=False)
    stage.attach("b", asking=(head(1, exclusive=True),))
    stage.attach("c", asking=(head(1, exclusive=True),))
    stage.nothing("a")
    assert [stage.said(node, Consuming)[-1].refused == "" for node in "bc"] == [True, False]


def test_an_attach_in_several_frames_is_a_complete_one() -> None:
    stage = Stage()
    stage.attach("b")
    stage.consume("b", head(1, upto=1))
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.attach("b", consumers=(head(1, upto=1),), outstanding=((1, 1),), next_number=2, partial=True)
    stage.receive("b", Attach(1, stage.index, (), before=(QUEUE_ID,)))
    assert (stage.ring.unacked, len(stage.queue.subscriptions)) == (1, 1)
    stage.receive("b", Attach(1, stage.index, ()))
    assert (stage.ring.unacked, len(stage.queue.subscriptions)) == (0, 0)


def test_a_node_that_names_a_queue_as_silent_has_attached_and_holds_nothing() -> None:
    stage = Stage(attached=False)
    stage.attach("b", partial=True)
    for node in "ac":
        assert not stage.queue.paused or stage.owned.missing
        stage.receive(node, Attach(1, stage.index - 1, (), partial=True, silent=(QUEUE_ID,)))
        assert node in stage.owned.missing, "it spoke of an earlier epoch"
        stage.receive(node, Attach(1, stage.index, (), partial=True, silent=(QUEUE_ID + 1,)))
        assert node in stage.owned.missing, "it spoke of another queue"
        stage.receive(node, Attach(1, stage.index, (), partial=True, silent=(QUEUE_ID,)))
        assert stage.said(node, Attached) == [], "nobody waits for an answer"
    assert stage.owned.attached
    stage.consume("b", head(1, upto=1))
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.receive("b", Attach(1, stage.index, (), partial=True, silent=(QUEUE_ID,)))
    assert (stage.ring.unacked, len(stage.queue.subscriptions)) == (0, 0)


def test_the_active_consumer_stays_active_when_its_answer_is_lost() -> None:
    stage = Stage(single_active_consumer=True)
    for node in "bc":
        stage.attach(node)
        stage.consume(node, head(1, upto=1))
    stage.attach("b", asking=(head(1, upto=1),))
    stage.publish("c", 1, b"1")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([b"1"], [])
