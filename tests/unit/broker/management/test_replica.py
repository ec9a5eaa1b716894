"""The replica: which row counts, what is gone, sums that are kept up to date, and how stale it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterbroker.broker.management import exchanges, nodes, queues, reads
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.paging import inner
from clusterbroker.broker.management.reading import Reading
from clusterbroker.broker.stats import rows
from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.snapshot import decode, encode
from tests.unit.broker.management.set_up import NODE, NOW_MS, Place, everything, queue, recorded_place, user


def founded() -> Place:
    """Three members, and a queue that n1 owns."""
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    for number in (1, 2, 3):
        name = NodeId(f"n{number}")
        place.must(c.AddMember(name=name, address=f"127.0.0.1:{number}"))
        place.must(
            c.RegisterNode(node=name, disk_id=f"d{number}", incarnation=Incarnation(1), address=f"127.0.0.1:{number}")
        )
    place.must(queue("orders", arguments={"x-queue-leader-locator": "client-local"}))
    return place


def orders(place: Place, ready: int, epoch: int = 1, owned: bool = True) -> rows.QueueRow:
    return rows.QueueRow(queue_id=place.queue_id("orders"), ready=ready, epoch=epoch, owned=owned)


def shown(place: Place) -> Any:
    return queues.full(place.reading(), "/", "orders")


def test_the_owners_row_counts_and_a_copys_only_without_one() -> None:
    place = founded()
    assert "messages" not in shown(place)
    place.tell(orders(place, 3, owned=False), node="n2")
    assert shown(place)["messages"] == 3
    place.tell(orders(place, 7), node="n1")
    assert (shown(place)["messages"], shown(place)["node"]) == (7, "n1")
    assert place.replica.sums.row.ready == 7


def test_a_queue_that_moves_never_seems_empty() -> None:
    place = founded()
    place.tell(orders(place, 7), node="n1")
    entity = place.replica.map.queue_by_id(QueueId(place.queue_id("orders")))
    assert entity is not None
    assert entity.owner == "n1"
    to = next(node for node in entity.in_sync if node != "n1")
    place.must(
        c.TransferOwner(
            node=NodeId("n1"),
            incarnation=Incarnation(1),
            queue_id=entity.queue_id,
            epoch=entity.epoch,
            version=entity.version,
            to=to,
        )
    )
    assert shown(place)["messages"] == 7
    place.tell(orders(place, 9, epoch=2), node=to)
    assert (shown(place)["messages"], shown(place)["leader"]) == (9, to)
    place.tell(gone=(("queue", entity.queue_id),), node="n1")
    assert shown(place)["messages"] == 9
    assert place.replica.sums.row.ready == 9


def test_a_queue_and_an_exchange_say_what_the_user_may_do_with_them() -> None:
    place = founded()
    assert shown(place)["may"] == ["configure", "write", "read"]
    place.must(user("man", "management"), c.SetPermission(user="man", vhost="/", configure="", write="^or", read="x$"))
    assert queues.full(place.reading("man"), "/", "orders")["may"] == ["write"]
    assert exchanges.full(place.reading("man"), "/", "amq.default")["may"] == []


def test_what_is_gone_is_gone_and_a_whole_batch_forgets_the_rest() -> None:
    place = recorded_place()
    place.tell(gone=(("channel", "c1", 2), ("consumer", "c1", 2, "greedy")), at_ms=NOW_MS + 5_000)
    assert list(place.replica.channels["c1"]) == [1]
    assert place.queue_id("plain/slash") not in place.replica.consumers
    place.tell(rows.NodeRow(name=NODE), whole=True, life=2, at_ms=NOW_MS + 10_000)
    replica = place.replica
    assert not any(
        (replica.connections, replica.connection_ids, replica.channels, replica.consumers, replica.consumers_of_channel,
         replica.exchanges, replica.flows_of_exchange, replica.flows_of_queue)
    )  # fmt: skip
    assert replica.sums.row.ready == 0


def test_the_past_of_what_did_not_change_for_a_minute_is_let_go() -> None:
    place = founded()
    place.tell(whole=True, node="n1")
    ended = rows.ConnectionRow(connection_id="c", user="guest", vhost="/", peer_host="h")
    for number in range(4):
        place.tell(ended, orders(place, number), node="n1", at_ms=NOW_MS + 5_000 * (1 + number))
        ended = replace(ended, received_bytes=number + 1)
    member = place.replica.members["n1"]
    queue_track, connection_track = (member.rows[key] for key in (("queue", place.queue_id("orders")), ended.key))
    assert list(member.moved) == [connection_track, queue_track]
    place.tell(gone=(ended.key,), node="n1", at_ms=NOW_MS + 25_000)
    assert list(member.moved) == [queue_track]
    told_ms = NOW_MS + 20_000
    place.tell(node="n1", at_ms=told_ms + 70_000)
    assert queue_track.before is not None
    assert queue_track.at(told_ms - 5_000, 60_000) is not None
    place.tell(node="n1", at_ms=told_ms + 70_001)
    assert not member.moved
    assert (queue_track.before, queue_track.at(told_ms - 5_000, 60_000)) == (None, None)
    assert queue_track.at(told_ms, 60_000) == orders(place, 3)
    assert queue_track.idle_since_ms == told_ms
    place.tell(orders(place, 13), node="n1", at_ms=told_ms + 80_001)
    assert queue_track.rate(lambda row: row.ready) == pytest.approx(1), "it all came with the last sample"


def test_a_new_life_makes_no_rate_out_of_two_lives() -> None:
    place = recorded_place()
    row = rows.ExchangeRow(vhost="/", name="events", publish_in=1_000)
    place.tell(row, whole=True, life=2, at_ms=NOW_MS + 5_000)
    track = place.replica.exchanges["/", "events"][NODE]
    assert track.rate(lambda row: row.publish_in) == 0
    place.tell(replace(row, publish_in=1_010), life=2, at_ms=NOW_MS + 10_000)
    assert track.rate(lambda row: row.publish_in) == 2


def test_the_totals_of_a_vhost_outlive_its_channels() -> None:
    place = recorded_place()
    before = place.replica.vhost_sums["/"].row
    assert (before.messages.publish, before.received_bytes, before.ready) == (15, 1555, 7)
    place.tell(gone=(("channel", "c1", 1), ("connection", "c1")), at_ms=NOW_MS + 5_000)
    assert place.replica.vhost_sums["/"].row.messages.publish == 15
    place.must(c.DeleteVhost(name="/"))
    place.tell(at_ms=NOW_MS + 10_000)
    assert "/" not in place.replica.vhost_sums


def test_the_next_question_begins_where_the_last_answer_ended() -> None:
    place = recorded_place()
    assert place.replica.since() == {NODE: (1, 2)}


def test_who_is_cut_off_says_for_how_long() -> None:
    place = recorded_place()
    assert place.replica.stale_s(NOW_MS) is None
    place.tell(leased=False, at_ms=NOW_MS + 1_000)
    place.tell(leased=False, at_ms=NOW_MS + 4_000)
    assert place.replica.stale_s(NOW_MS + 5_500) == 4
    place.replica.lease(True, NOW_MS + 6_000)
    assert place.replica.stale_s(NOW_MS + 6_000) is None


def test_a_member_that_says_nothing_or_failed_does_not_run() -> None:
    place = founded()
    place.tell(rows.NodeRow(name="n1"), node="n1")
    place.tell(rows.NodeRow(name="n2"), node="n2")
    assert [place.replica.running(f"n{number}", NOW_MS) for number in (1, 2, 3)] == [True, True, False]
    checks = [nodes.health(place.reading(), f"n{number}") for number in (1, 2, 3)]
    assert [check.ok for check in checks] == [True, True, False]
    assert checks[2].document == {"status": "failed", "reason": "node n3 does not run"}
    place.tell(rows.NodeRow(name="n2", alarms=("disk",)), node="n2")
    assert nodes.health(place.reading(), "n2").facts["reason"] == "There are alarms in effect on node n2"
    assert [nodes.health(place.reading(), name).ok for name in ("n1", "n2")] == [True, False]
    with pytest.raises(Refused):
        nodes.health(place.reading(), "none")
    assert not place.replica.running("n2", NOW_MS + 31_000)
    documents = nodes.all_nodes(place.reading(now_ms=NOW_MS + 31_000))
    assert [document["told_ms_ago"] for document in documents] == [31_000, 31_000, None]
    place.must(c.FailNode(node=NodeId("n2"), incarnation=Incarnation(1)))
    assert not place.replica.running("n2", NOW_MS)


def test_the_rows_of_a_forgotten_member_go_with_the_next_round() -> None:
    place = founded()
    place.tell(rows.NodeRow(name="n4"), rows.ExchangeRow(vhost="/", name=""), node="n4")
    assert "n4" not in place.replica.members
    assert not place.replica.exchanges


def test_a_restored_map_is_shown_with_the_rows_that_are_there() -> None:
    place = recorded_place()
    whole = [reads.run(read, place.reading(), {})[1] for read in reads.READS if "{" not in read.path]
    replica = place.replica
    replica.restored(decode(replica.map.applied, list(encode(replica.map.snapshot()))), NOW_MS)
    assert [reads.run(read, place.reading(), {})[1] for read in reads.READS if "{" not in read.path] == whole


STEPS = st.lists(
    st.tuples(st.sampled_from(("declare", "delete", "row", "gone")), st.sampled_from("abc"), st.integers(0, 9)),
    max_size=40,
)


@given(STEPS)
def test_names_and_depths_are_those_of_a_walk_over_all(steps: list[tuple[str, str, int]]) -> None:
    place = Place()
    ids: dict[str, int] = {}
    for at, (what, name, ready) in enumerate(steps):
        if what == "declare":
            (applied,) = place.apply(queue(name))
            ids[name] = applied.result.queue_id
        elif name not in ids:
            continue
        elif what == "delete":
            place.apply(c.DeleteQueue(vhost="/", name=name, queue_id=QueueId(ids[name])))
        elif what == "row":
            place.tell(rows.QueueRow(queue_id=ids[name], ready=ready), at_ms=NOW_MS + at * 5_000)
        else:
            place.tell(gone=(("queue", ids[name]),), at_ms=NOW_MS + at * 5_000)
    replica = place.replica
    replica.closed(NOW_MS + 10**6)
    assert replica.queue_names == sorted((entity.vhost, entity.name) for entity in replica.map.queues())
    told = [track.row.ready for entity in replica.map.queues() if (track := replica.queue_track(entity)) is not None]
    assert replica.sums.row.ready == sum(told)


def test_what_is_read_quickly_is_what_the_documents_say() -> None:
    place = recorded_place()
    place.must(queue("fresh"))
    paths = ("name", "vhost", "messages", "messages_ready_details.rate", "consumers", "memory", "message_stats.publish",
             "message_stats.deliver_get_details.rate", "message_bytes_paged_out", "consumer_capacity")  # fmt: skip
    listing = queues.listing(place.reading())
    for path in paths:
        value = listing.quick(path)
        assert value is not None, path
        for item in listing.items:
            assert value(item) == inner(listing.document(item), tuple(path.split("."))), (path, item)


def test_a_page_of_many_queues_makes_only_its_own_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    for number in range(1_000):
        place.apply(queue(f"q{number:05}"))
    ids = [entity.queue_id for entity in place.replica.map.queues()]
    place.tell(*(rows.QueueRow(queue_id=queue_id, ready=queue_id % 100) for queue_id in ids))
    made: list[str] = []
    document = queues.document

    def counted(reading: Reading, entity: Queue) -> dict[str, Any]:
        made.append(entity.name)
        return document(reading, entity)

    monkeypatch.setattr(queues, "document", counted)
    read = next(read for read in reads.READS if read.path == "/api/queues")
    for query in (
        {"page": "1"},
        {"page": "2", "sort": "messages_ready"},
        {"page": "1", "name": "9"},
        {"page": "1", "sort": "message_stats.publish_details.rate", "sort_reverse": "true"},
        {"cursor": "", "limit": "100"},
    ):
        made.clear()
        _, page = reads.run(read, place.reading(**query), {})
        assert isinstance(page, dict)
        assert [entry["name"] for entry in page["items"]] == made
        assert len(made) == 100
