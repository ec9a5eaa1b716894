"""A queue's owner and the proxies of all nodes: who is told what, and when. Each trap of replication.md 6 to 8."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.remote.messages import (
    ASK_COUNTS,
    ASK_DELETE,
    ASK_GET,
    ASK_PURGE,
    ASK_TOUCH,
    SETTLE_ACK,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Answer,
    Attach,
    Attached,
    Consuming,
    Deliver,
    Detach,
    NamedPublish,
    Published,
    Settled,
    Settlement,
)
from clusterbroker.cluster.wiring.queue_settings import resolve
from clusterbroker.journal.record import read_records
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
    assert stage.serving.missing == ["c"]
    stage.nothing("c")
    stage.commit()
    assert [(consumer, body) for consumer, _, body, _ in stage.delivered("b")] == [(1, b"1")]


def test_a_member_that_fails_is_not_waited_for() -> None:
    stage = Stage(attached=False)
    stage.nothing("a")
    stage.nothing("b")
    assert not stage.serving.open
    stage.fail("c")
    assert stage.serving.open


def test_an_attach_that_does_not_know_the_epoch_says_nothing_about_it() -> None:
    stage = Stage(attached=False)
    for node in "abc":
        stage.nothing(node, index=stage.index - 1)
    assert stage.serving.missing == ["a", "b", "c"]


def test_an_attach_of_a_start_that_is_over_says_nothing() -> None:
    stage = Stage(attached=False)
    stage.incarnations["b"] = 7
    stage.nothing("b")
    assert "b" in stage.serving.missing


def test_nothing_is_handed_out_before_the_copies_are_in_sync_or_without_a_lease() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.servings.lease(False)
    stage.publish("b", 1, b"1")
    stage.commit()
    assert stage.said("b", Deliver) == []
    stage.servings.lease(True)
    stage.commit()
    assert stage.bodies_at("b") == [b"1"]


# -- what proxies hold


def handed_out(count: int = 3, **arguments: object) -> Stage:
    """Messages 1 to count are at a consumer of "b"; "c" has a consumer that would take them."""
    stage = Stage(**arguments)
    stage.attach("b", consumers=[head()])
    stage.publish("b", 1, *(b"%d" % number for number in range(1, count + 1)))
    stage.commit()
    assert [entry[:2] + entry[3:] for entry in stage.delivered("b")] == [(1, n, False) for n in range(1, count + 1)]
    stage.attach("c", consumers=[head()])
    return stage


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
    stage.servings.drained()
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
    assert stage.serving.open


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
    stage.servings.freeze(QUEUE_ID, stage.now_ms + 3000)
    stage.servings.thaw(QUEUE_ID)
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
    stage.servings.freeze(QUEUE_ID, stage.now_ms + 3000)
    assert not stage.serving.drained
    stage.settle("b", 2, SETTLE_ACK, (2, 2))  # not looked at
    stage.publish("b", 3, b"3")
    stage.commit()
    assert stage.serving.drained
    assert stage.ring.unacked == 1
    stage.servings.thaw(QUEUE_ID)
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
        assert not stage.queue.paused or stage.serving.missing
        stage.receive(node, Attach(1, stage.index - 1, (), partial=True, silent=(QUEUE_ID,)))
        assert node in stage.serving.missing, "it spoke of an earlier epoch"
        stage.receive(node, Attach(1, stage.index, (), partial=True, silent=(QUEUE_ID + 1,)))
        assert node in stage.serving.missing, "it spoke of another queue"
        stage.receive(node, Attach(1, stage.index, (), partial=True, silent=(QUEUE_ID,)))
        assert stage.said(node, Attached) == [], "nobody waits for an answer"
    assert stage.serving.attached
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
