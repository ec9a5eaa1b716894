"""A queue's owner and what nodes hold and consume: who is told what, and when (replication.md 6 to 8)."""

from __future__ import annotations

import pytest

from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Consuming,
    Deliver,
    Detach,
    Settled,
    Settlement,
)
from tests.unit.broker.remote.owner_support import QUEUE_ID, Stage, handed_out, head

# -- the attach barrier


def test_nothing_is_handed_out_before_everybody_has_attached() -> None:
    stage = Stage()
    stage.attach("b")
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.fail_over()
    stage.attach("b", consumers=[head()])
    stage.nothing("a")
    stage.commit()
    assert stage.said("b", Deliver) == []
    assert stage.owned.missing == ["c"]
    stage.nothing("c")
    stage.commit()
    assert [(consumer, body) for consumer, _, body, _ in stage.delivered("b")] == [(1, b"1")]


def test_a_member_that_fails_is_not_waited_for() -> None:
    stage = Stage(attached=False)
    stage.nothing("a")
    stage.nothing("b")
    assert not stage.owned.open
    stage.fail("c")
    assert stage.owned.open


def test_an_attach_that_does_not_know_the_epoch_says_nothing_about_it() -> None:
    stage = Stage(attached=False)
    for node in "abc":
        stage.nothing(node, index=stage.index - 1)
    assert stage.owned.missing == ["a", "b", "c"]


def test_an_attach_of_a_start_that_is_over_says_nothing() -> None:
    stage = Stage(attached=False)
    stage.incarnations["b"] = 7
    stage.nothing("b")
    assert "b" in stage.owned.missing


def test_nothing_is_handed_out_before_the_copies_are_in_sync_or_without_a_lease() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.owned_queues.lease(False)
    stage.publish("b", 1, b"1")
    stage.commit()
    assert stage.said("b", Deliver) == []
    stage.owned_queues.lease(True)
    stage.commit()
    assert stage.bodies_at("b") == [b"1"]


# -- what proxies hold


def test_what_is_listed_stays_and_what_is_not_is_ready_again_flagged() -> None:
    stage = handed_out()
    stage.fail_over()
    stage.nothing("a")
    stage.attach("c", consumers=[head()])
    stage.attach("b", outstanding=[(1, 1), (3, 3)])
    stage.commit()
    assert stage.delivered("c") == [(1, 2, b"2", True)]
    stage.settle("b", 1, SETTLE_ACK, (1, 1), (3, 3))
    stage.settle("c", 1, SETTLE_ACK, (2, 2))
    stage.commit()
    assert (stage.ring.ready, stage.ring.unacked) == (0, 0)
    assert [said.id for said in stage.said("b", Settled)] == [1]


def test_a_delivery_that_crosses_an_attach_is_given_to_one_only() -> None:
    stage = handed_out(1)
    stage.attach("b", consumers=[head(upto=0)])  # it did not get the message
    stage.commit()
    assert stage.delivered("c") == [(1, 1, b"1", True)]
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    assert stage.ring.unacked == 1, "a settle counts only while the message is held by that node"


def test_settlements_of_an_attach_come_before_what_it_lists() -> None:
    stage = handed_out()
    stage.fail_over()
    stage.nothing("a")
    stage.nothing("c")
    stage.attach("b", outstanding=[(3, 3)], settlements=[Settlement(4, SETTLE_ACK, ((1, 2),))])
    stage.commit()
    assert (stage.ring.ready, stage.ring.unacked) == (0, 1)
    assert [said.id for said in stage.said("b", Settled)] == [4]


def test_a_settlement_told_again_is_not_applied_again() -> None:
    stage = handed_out(1)
    stage.cancel("c", 1)
    stage.settle("b", 1, SETTLE_REQUEUE, (1, 1))
    stage.commit()
    assert stage.delivered("b") == [(1, 1, b"1", True)]
    stage.settle("b", 1, SETTLE_REQUEUE, (1, 1))
    stage.commit()
    assert stage.delivered("b") == [], "its client holds it"


def test_a_settlement_is_answered_when_its_record_is_committed() -> None:
    stage = handed_out()
    stage.publish("b", 4, b"4")
    stage.turn()
    stage.write_group()  # a group that was written before the acknowledgement
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    stage.group_durable()
    assert stage.said("b", Settled) == []
    stage.write_group()
    stage.group_durable()
    assert [said.id for said in stage.said("b", Settled)] == [1]


def test_a_failed_start_gives_back_and_its_late_settles_mean_nothing() -> None:
    stage = handed_out(1)
    stage.fail("b")
    stage.commit()
    assert stage.delivered("c") == [(1, 1, b"1", True)]
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    assert [said.why for said in stage.said("b", Detach)] == ["unknown"]
    stage.settle("c", 1, SETTLE_ACK, (1, 1))
    stage.commit()
    assert stage.ring.unacked == 0


def test_a_lost_link_keeps_what_is_held() -> None:
    stage = handed_out(1)
    stage.unlink("b")
    stage.commit()
    assert stage.delivered("c") == []
    stage.attach("b", consumers=[head()], outstanding=[(1, 1)])
    assert stage.ring.unacked == 1


def test_a_return_comes_back_in_its_old_place() -> None:
    stage = handed_out(3)
    stage.settle("b", 1, SETTLE_REQUEUE, (1, 2))
    stage.commit()
    got = stage.delivered("b") + stage.delivered("c")
    assert sorted(entry[1] for entry in got) == [1, 2]
    assert all(entry[3] for entry in got)


def test_a_reject_dies_and_a_counted_return_reaches_the_limit() -> None:
    stage = handed_out(2, dead_letter_exchange="", delivery_limit=0)
    stage.settle("b", 1, SETTLE_REJECT, (1, 1))
    stage.settle("b", 2, SETTLE_REQUEUE_COUNTED, (2, 2))
    stage.commit()
    assert [(number, reason) for number, reason, _, _ in stage.buried] == [(1, "rejected"), (2, "delivery_limit")]


@pytest.mark.parametrize("heard", [True, False], ids=["written", "not-written"])
def test_a_counted_return_that_is_told_again_counts_once(heard: bool) -> None:
    """The owner dies with its `Settled`, or with the return itself."""
    stage = handed_out(2)
    stage.settle("b", 1, SETTLE_REQUEUE_COUNTED, (1, 2))
    if heard:
        stage.write_group()
    stage.fail_over()
    stage.nothing("a")
    stage.nothing("c")
    stage.attach("b", settlements=[Settlement(1, SETTLE_REQUEUE_COUNTED, ((1, 2),), 0)])
    assert [stage.ring.delivery_count(seq) for seq in (1, 2)] == [1, 1]
    assert (stage.ring.ready, stage.ring.unacked) == (2, 0)
    stage.attach("b", consumers=[head()], settlements=[Settlement(1, SETTLE_REQUEUE_COUNTED, ((1, 2),), 0)])
    stage.commit()
    assert [seq for _, seq, _, _ in stage.delivered("b")] == [1, 2]
    stage.settle("b", 2, SETTLE_REQUEUE_COUNTED, (1, 2), count=1)
    assert [stage.ring.delivery_count(seq) for seq in (1, 2)] == [2, 2], "a client failed once more"


def test_nothing_expires_or_is_dropped_while_it_may_be_in_a_clients_hands() -> None:
    stage = handed_out(3, message_ttl=10, max_length=1)
    stage.fail_over()
    stage.nothing("a")
    stage.nothing("c")
    stage.turn(1000)
    assert stage.ring.ready == 3
    stage.attach("b", outstanding=[(1, 2)])
    assert (stage.ring.ready, stage.ring.unacked) == (0, 2)


# -- what expires while it waits for its commit


def test_ttl_0_is_for_consumers_who_wait_though_its_commit_takes_time() -> None:
    stage = Stage(message_ttl=0)
    stage.attach("b", consumers=[head(upto=2)])
    stage.publish("b", 1, b"1", b"2", b"3")
    stage.write_group()
    stage.turn(later_ms=40)
    assert stage.ring.ready == 3
    stage.group_durable()
    stage.commit()
    assert stage.bodies_at("b") == [b"1", b"2"]
    stage.turn(later_ms=1)
    assert (stage.ring.ready, stage.ring.unacked) == (0, 2), "for the third nobody waited"


def test_ttl_0_expires_at_once_when_nobody_waits() -> None:
    stage = Stage(message_ttl=0)
    stage.attach("b", consumers=[head(upto=0)])
    stage.publish("b", 1, b"1")
    stage.turn(later_ms=2)
    assert stage.ring.ready == 0


def test_who_waited_for_a_message_may_be_gone_when_it_is_committed() -> None:
    stage = Stage(message_ttl=5)
    stage.attach("b", consumers=[head()])
    stage.publish("b", 1, b"1")
    stage.write_group()
    stage.turn(later_ms=40)
    stage.unlink("b")
    assert stage.ring.ready == 1
    stage.group_durable()
    assert (stage.ring.ready, stage.ring.unacked) == (0, 0)


def test_what_has_expired_before_the_failover_is_nobodys() -> None:
    stage = Stage(message_ttl=100)
    stage.attach("b")
    stage.publish("b", 1, b"old")
    stage.commit()
    stage.turn(later_ms=90)
    stage.fail_over()
    stage.turn(later_ms=20)
    for node in ("a", "c"):
        stage.nothing(node)
    stage.attach("b", consumers=[head()], next_number=2)
    stage.publish("b", 2, b"new")
    stage.turn(later_ms=1)
    stage.commit()
    assert stage.bodies_at("b") == [b"new"]


# -- consumers


def test_consumers_of_all_nodes_take_turns_and_credit_is_respected() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head(upto=2)])
    stage.attach("c", consumers=[head(upto=1)])
    stage.publish("b", 1, b"1", b"2", b"3", b"4")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([b"1", b"3"], [b"2"])
    stage.credit("c", 1, 2)
    stage.commit()
    assert stage.bodies_at("c") == [b"4"]


def test_a_higher_priority_is_served_first_wherever_it_is() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.attach("c", consumers=[head(priority=5, upto=1)])
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    assert (stage.bodies_at("c"), stage.bodies_at("b")) == ([b"1"], [b"2"])


def test_exclusive_use_is_decided_over_all_nodes() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head(exclusive=True)])
    stage.attach("c")
    stage.consume("c", head(5))
    assert stage.said("c", Consuming) == [Consuming(QUEUE_ID, 1, 5, "in exclusive use")]
    stage.cancel("b", 1)
    stage.consume("c", head(6))
    assert stage.said("c", Consuming) == [Consuming(QUEUE_ID, 1, 6, "")]


def test_a_consume_waits_until_all_consumers_are_known() -> None:
    stage = Stage(attached=False)
    stage.nothing("a")
    stage.attach("c")
    stage.consume("c", head(5, exclusive=True))
    assert stage.said("c", Consuming) == []
    stage.attach("b", consumers=[head()])
    assert stage.said("c", Consuming)[0].refused == "in exclusive use"


def test_one_active_consumer_over_all_nodes_in_order_of_declaration() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("c", consumers=[head(order=20)])
    stage.attach("b", consumers=[head(order=10)])
    stage.publish("b", 1, b"1")
    stage.commit()
    assert (stage.bodies_at("c"), stage.bodies_at("b")) == ([b"1"], [])  # it was there before the other came
    stage.cancel("c", 1)
    stage.publish("b", 2, b"2")
    stage.commit()
    assert stage.bodies_at("b") == [b"2"]


def test_the_active_consumer_stays_so_with_the_next_owner() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("c", consumers=[head(order=20)])
    stage.publish("c", 1, b"1")
    stage.commit()
    assert stage.bodies_at("c") == [b"1"]
    stage.fail_over()
    stage.nothing("a")
    stage.attach("b", consumers=[head(order=10)])
    stage.attach("c", consumers=[head(order=20, held=1)], outstanding=[(1, 1)], next_number=2)
    stage.publish("c", 2, b"2")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([], [b"2"])


def test_what_a_consumer_that_is_gone_left_at_its_node_makes_nobody_there_active() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("b", consumers=[head(1, order=10)])
    stage.publish("b", 1, b"1")
    stage.commit()
    assert stage.bodies_at("b") == [b"1"]
    stage.attach("c", consumers=[head(1, order=20)])
    stage.cancel("b", 1)
    stage.consume("b", head(2, order=30))
    stage.publish("b", 2, b"2")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([], [b"2"])
    stage.settle("c", 1, SETTLE_ACK, (2, 2))
    stage.commit()
    stage.fail_over()
    stage.nothing("a")
    stage.attach("c", consumers=[head(1, order=20)])
    stage.attach("b", consumers=[head(2, order=30)], outstanding=[(1, 1)], next_number=3)
    stage.publish("b", 3, b"3")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([], [b"3"])


def test_the_active_consumer_hands_over_to_a_higher_priority_when_it_holds_nothing() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("b", consumers=[head()])
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.delivered("b")
    stage.attach("c", consumers=[head(priority=1)])
    stage.publish("b", 2, b"2")
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([], [])
    stage.settle("b", 1, SETTLE_ACK, (1, 1))
    stage.commit()
    assert (stage.bodies_at("b"), stage.bodies_at("c")) == ([], [b"2"])


def activity(stage: Stage, node: str) -> list[tuple[int, bool]]:
    """What a node has heard of its consumers: which one, and whether it is the single active one."""
    return [(one.consumer, one.active) for one in stage.said(node, Consuming) if one.active is not None]


def test_nodes_hear_which_consumer_is_active() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("b", consumers=[head(order=10)])
    stage.attach("c")
    stage.consume("c", head(5, order=20))
    stage.turn()
    assert (activity(stage, "b"), activity(stage, "c")) == ([(1, True)], [(5, False)])
    stage.attach("b", consumers=[head(order=10)])
    stage.turn()
    assert activity(stage, "b") == [(1, True)], "what was said in another gen was not heard, perhaps"
    stage.cancel("b", 1)
    stage.turn()
    assert activity(stage, "c") == [(5, True)]


def test_nodes_hear_from_the_next_owner_once_everybody_is_there() -> None:
    stage = Stage(single_active_consumer=True)
    stage.attach("b", consumers=[head(order=10)])
    stage.attach("c", consumers=[head(order=20)])
    stage.turn()
    activity(stage, "b"), activity(stage, "c")
    stage.fail_over()
    stage.nothing("a")
    stage.attach("c", consumers=[head(order=20)])
    stage.turn()
    assert activity(stage, "c") == [], "the first in the line may come yet"
    stage.attach("b", consumers=[head(order=10)])
    stage.turn()
    assert (activity(stage, "b"), activity(stage, "c")) == ([(1, True)], [(1, False)])


def test_of_other_queues_nobody_hears_which_consumer_is_active() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head(order=10)])
    stage.consume("c", head(5, order=20))
    stage.turn()
    assert (activity(stage, "b"), activity(stage, "c")) == ([], [])


def test_a_queue_with_auto_delete_ends_with_the_last_consumer_of_all_nodes() -> None:
    stage = Stage(auto_delete=True)
    stage.attach("b", consumers=[head()])
    stage.attach("c", consumers=[head()])
    stage.cancel("b", 1)
    assert stage.ended == []
    stage.fail("c")
    assert stage.ended == [stage.queue]


def test_that_a_queue_had_consumers_survives_its_owner() -> None:
    stage = Stage(auto_delete=True)
    stage.attach("b", consumers=[head()])
    stage.commit()
    stage.fail_over()
    stage.nothing("a")
    stage.nothing("b")
    assert stage.ended == [], "somebody may have a consumer yet"
    stage.nothing("c")
    assert stage.ended == [stage.queue]


def test_a_queue_with_auto_delete_does_not_end_while_a_node_attaches_again() -> None:
    stage = Stage(auto_delete=True)
    stage.attach("b", consumers=[head(1)])
    stage.attach("b", consumers=[head(2)])
    assert stage.ended == []


# -- deliveries in frames


def test_one_frame_per_turn_and_node_bounded_in_bytes() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head(1), head(2)])
    stage.publish("b", 1, b"1", b"2")
    stage.commit()
    (frame,) = stage.said("b", Deliver)
    assert [part[3] for part in frame.parts] == [1, 2]


def test_deliveries_wait_while_the_way_to_their_node_is_full() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.rooms["b"] = 0
    stage.publish("b", 1, b"1")
    stage.commit()
    assert stage.said("b", Deliver) == []
    stage.rooms["b"] = 1
    stage.owned_queues.drained()
    stage.turn()
    assert stage.bodies_at("b") == [b"1"]


def test_what_a_cancelled_consumer_was_not_sent_goes_to_the_next() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.rooms["b"] = 0
    stage.publish("b", 1, b"1")
    stage.commit()
    stage.cancel("b", 1)
    stage.attach("c", consumers=[head()])
    stage.commit()
    assert stage.bodies_at("c") == [b"1"]
