"""Single messages of a queue, looked at and taken out by an operator: in memory and on disk, of all kinds of queues,
and with nothing lost whatever fails."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.inspecting import GONE, UNSAFE, Inspection
from clusterbroker.broker.stats import inspection as i
from clusterbroker.broker.stats.message_filter import STEP_BYTES, BadFilter
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.node.places import away, confirming, count, declared, hand_over, owner_of, three


def inspection(site: Any, what: i.What = "browse", queue: str = "q", **asked: Any) -> Inspection:
    staged = {entity.name: entity for entity in site.node.map.staging_queues("/")}
    entity = site.node.map.queue("/", queue) or staged[queue]
    asked.setdefault("count", 10_000 if what != "browse" else 500)
    request = i.decode_request(i.encode(i.Request(what=what, queue_id=entity.queue_id, **asked)))
    return Inspection(site.node, site.node.queues[entity.queue_id], request, site.now_ms + i.LOOKED_MS_MAX)


def run(site: Any, what: i.What = "browse", queue: str = "q", **asked: Any) -> i.Result:
    """As the shell does it, with the node's turns between the steps."""
    one = inspection(site, what, queue, **asked)
    ended(site, one)
    assert one.error == ""
    return i.decode_result(i.encode(one.result))


def ended(site: Any, one: Inspection, steps: int = 1000) -> None:
    for _ in range(steps):
        if one.over:
            return
        if not one.step(site.now_ms):
            site.turn()


def owner(cluster: Cluster, queue: str = "q") -> Site:
    return cluster[owner_of(cluster, queue)]


def payloads(result: i.Result) -> list[bytes]:
    return [shown.payload for shown in result.shown]


def numbered(first: int, many: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + many)]


def paged_out(site: Any, queue: str = "q") -> Any:
    """All of the queue is on disk only, as far as it may."""
    ring = site.node.queues[site.node.map.queue("/", queue).queue_id].ring
    ring.resident_bytes_max = 0
    return ring


KINDS: dict[str, dict[str, Any]] = {
    "durable": {}, "quorum": {"x-queue-type": "quorum"}, "priorities": {"x-max-priority": 3},
    "memory": {"x-durability": "memory"},
}  # fmt: skip


@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_look_shows_all_and_changes_nothing(arguments: dict[str, Any], on_disk: bool) -> None:
    cluster = three()
    declared(cluster, "q", **arguments)
    site = owner(cluster)
    ring = paged_out(site) if on_disk else site.node.queues[cluster.queue("q").queue_id].ring
    writer = confirming(cluster, away(cluster, "q")[0])
    writer.publish("", "q", *numbered(0, 5), headers={"a": 1}, message_id="m")
    if on_disk and "x-durability" not in arguments:
        assert ring.message(5) is None
    facts = ("ready", "unacked", "resident_bytes", "next_seq", "redelivered", "handed", "disk_reads", "marked")
    before = [getattr(ring, name) for name in facts]
    found = run(site)
    assert payloads(found) == numbered(0, 5)
    assert [(s.seq, s.state, s.node, s.redelivered, s.delivery_count) for s in found.shown] == [
        (seq, "ready", "", False, 0) for seq in range(1, 6)
    ]
    shown = codec.decode(found.shown[0].header)
    assert (shown.headers, shown.message_id, found.shown[0].routing_key) == ({"a": 1}, "m", b"q")
    assert (found.next, found.last, found.looked_at) == (0, 5, 5)
    assert [getattr(ring, name) for name in facts] == before
    reader = cluster[away(cluster, "q")[1]].client()
    heard = [each for each in reader.consume("q") if isinstance(each, Content)]
    assert bodies(heard) == numbered(0, 5)
    assert not any(each.method.redelivered for each in heard)
    assert {(s.state, s.node) for s in run(site).shown} == {("unacknowledged", reader.world.name)}  # type: ignore[attr-defined]


def test_what_is_ahead_of_a_message_is_what_is_ready_before_it() -> None:
    world = World()
    client, reader = world.client(), world.client()
    client.declare("q")
    client.publish("", "q", *numbered(0, 10))
    reader.say(m.BasicQos(prefetch_count=3))
    heard = [each for each in reader.consume("q") if isinstance(each, Content)]
    reader.say(m.BasicAck(heard[1].method.delivery_tag))
    found = run(world)
    assert [(shown.seq, shown.state, shown.ahead) for shown in found.shown] == [
        (1, "unacknowledged", 0), (3, "unacknowledged", 0), (4, "unacknowledged", 0),
        *((seq, "ready", seq - 5) for seq in range(5, 11)),
    ]  # fmt: skip
    assert [shown.ahead for shown in run(world, filter="seq>=8").shown] == [3, 4, 5]
    page = run(world, filter="seq>=8", count=2)
    assert (page.next, page.passed) == (10, 5)
    assert [shown.ahead for shown in run(world, first=page.next, passed=page.passed).shown] == [5]
    assert [shown.ahead for shown in run(world, first=9, passed=-1).shown] == [-1, -1]


def test_a_lone_node_too_and_its_transient_messages() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", b"kept")
    client.publish("", "q", b"fleeting", transient=True)
    assert payloads(run(world)) == [b"kept", b"fleeting"]
    client.consume("q")
    assert {(s.state, s.node) for s in run(world).shown} == {("unacknowledged", world.node.options.name)}


def test_pages_filters_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.client()
    client.declare("q")
    for n in range(30):
        client.publish("", "q", b"%d" % n, headers={"n": n % 3})
    first = run(world, count=10)
    assert (payloads(first), first.next, first.looked_at) == (numbered(0, 10), 11, 10)
    assert payloads(run(world, first=first.next, last=14)) == numbered(10, 4)
    assert payloads(run(world, filter="header.n=2 AND seq<10")) == [b"2", b"5", b"8"]
    third = run(world, filter="header.n=0", count=2)
    assert (payloads(third), third.next) == ([b"0", b"3"], 5)
    monkeypatch.setattr("clusterbroker.broker.node.inspecting.LOOKED_MAX", 12)
    little = run(world, filter="header.n=9")
    assert (payloads(little), little.next, little.looked_at) == ([], 13, 12)
    monkeypatch.setattr("clusterbroker.broker.node.inspecting.SHOWN_BYTES_MAX", 400)
    few = run(world)
    assert (payloads(few), few.next, few.looked_at) == (numbered(0, 3), 4, 3)
    cut = run(world, truncate=1, first=12, count=1).shown[0]
    assert (cut.payload, cut.payload_bytes) == (b"1", 2)
    with pytest.raises(BadFilter):
        run(world, filter="nonsense")


def test_a_long_walk_goes_in_slices_and_ends_in_time() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", *(b"x" for _ in range(2000)))
    one = inspection(world, filter="payload=y")
    steps = 1
    while one.step(world.now_ms) or not one.over:
        steps += 1
    assert (steps >= 8, one.result.looked_at, one.result.next) == (True, 2000, 0)
    one = inspection(world, filter="payload=y")
    assert one.step(world.now_ms)
    assert one.step(world.now_ms)
    world.now_ms += i.LOOKED_MS_MAX
    one.step(world.now_ms)
    assert one.over
    assert 0 < one.result.next < 2000


def long_ones(world: World, *tails: bytes) -> Client:
    client = world.client()
    client.declare("q")
    client.publish("", "q", *(b"x" * (2 << 20) + tail for tail in tails), app_id="mine")
    return client


def test_a_long_payload_is_searched_in_steps() -> None:
    world = World()
    long_ones(world, b"first", b"other", b"first")
    one = inspection(world, filter="payload~first AND payload=x* AND app_id=mine", truncate=10)
    steps = 1
    while one.step(world.now_ms) or not one.over:
        steps += 1
    assert steps > 3 * (2 << 20) // STEP_BYTES, "a slice looks at no more than it may"
    assert ([shown.seq for shown in one.result.shown], one.result.looked_at, one.result.next) == ([1, 3], 3, 0)
    others = inspection(world, filter="payload~first AND app_id=another")
    steps = 1
    while others.step(world.now_ms) or not others.over:
        steps += 1
    assert (steps < 6, others.result.looked_at) == (True, 3), "whoever is none by its properties is not searched"


def test_a_long_search_ends_in_time_and_is_gone_on_with() -> None:
    world = World()
    long_ones(world, b"first", b"other", b"first")
    one = inspection(world, filter="payload~first", truncate=0)
    assert one.step(world.now_ms)
    assert one.step(world.now_ms)
    world.now_ms += i.LOOKED_MS_MAX
    while not one.over:
        one.step(world.now_ms)
    assert (one.result.looked_at, one.result.next) == (1, 2), "one is looked at whatever it takes"
    rest = run(world, filter="payload~first", first=one.result.next, truncate=0)
    assert [shown.seq for shown in (*one.result.shown, *rest.shown)] == [1, 3]


def test_a_message_that_is_taken_while_it_is_searched_is_not_touched() -> None:
    world = World()
    client = long_ones(world, b"first", b"first")
    one = inspection(world, "delete", filter="payload~first AND state=ready")
    assert one.step(world.now_ms)
    assert len(bodies(client.consume("q"))) == 2
    ended(world, one)
    assert (one.result.done, one.result.looked_at) == (0, 2)
    assert world.node.queues[one.queue.entity.queue_id].ring.unacked == 2


def test_what_others_may_not_read_is_not_shown() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("", "q", b"x", headers={"BCC": ["secret"], "a": 1})
    assert codec.decode(run(world).shown[0].header).headers == {"a": 1}


def test_what_is_not_committed_is_not_there() -> None:
    cluster = three()
    declared(cluster, "q")
    site = owner(cluster)
    confirming(cluster, site.name).publish("", "q", b"1")
    site.disk_waits = True
    for name in away(cluster, "q"):
        cluster[name].disk_waits = True
    cluster[site.name].client().publish("", "q", b"2")
    assert payloads(run(site)) == [b"1"]
    one = inspection(site, "delete", seqs=(1, 2))
    one.step(site.now_ms)
    assert (one.result.done, one.result.skipped) == (1, {"not_ready": [2]})


# -- delete -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_deleted_is_what_was_meant_and_stays_deleted(on_disk: bool) -> None:
    cluster = three()
    declared(cluster, "q")
    site = owner(cluster)
    if on_disk:
        paged_out(site)
    confirming(cluster, away(cluster, "q")[0]).publish("", "q", *numbered(0, 10))
    assert run(site, "delete", seqs=(2, 5, 5, 77)).done == 2
    some = run(site, "delete", filter="payload=7")
    assert (some.done, some.skipped) == (1, {})
    assert run(site, "delete", seqs=(2, 3)).skipped == {"not_ready": [2]}
    cluster.kill(site.name)
    cluster.wait(500)
    left = [b"0", b"3", b"5", b"6", b"8", b"9"]
    assert payloads(run(owner(cluster))) == left
    assert bodies(cluster[away(cluster, "q")[0]].client().consume("q")) == left


def test_what_a_consumer_holds_is_its_own() -> None:
    cluster = three()
    declared(cluster, "q")
    confirming(cluster, "a").publish("", "q", *numbered(0, 4))
    reader = cluster[away(cluster, "q")[0]].client()
    reader.ask(m.BasicQos(prefetch_count=2))
    assert bodies(reader.consume("q")) == numbered(0, 2)
    gone = run(owner(cluster), "delete", seqs=(1, 2, 3, 4))
    assert (gone.done, gone.skipped) == (2, {"not_ready": [1, 2]})
    assert run(owner(cluster), "move", filter="", exchange="", routing_key="q").done == 0
    assert reader.say(m.BasicAck(0, multiple=True)) == []
    assert count(cluster, "q") == 0


# -- move and replay --------------------------------------------------------------------------------------------


def target(cluster: Cluster, **arguments: Any) -> None:
    """Owned by another node than "q"."""
    elsewhere = away(cluster, "q")[0]
    declared(cluster, "target", elsewhere, **arguments)


@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_moved_messages_are_in_the_other_queue_in_order_and_as_they_were(
    arguments: dict[str, Any], on_disk: bool
) -> None:
    cluster = three()
    declared(cluster, "q", **arguments)
    target(cluster, **arguments)
    site = owner(cluster)
    if on_disk:
        paged_out(site)
    confirming(cluster, "a").publish("", "q", *numbered(0, 600), headers={"a": 1})
    moved = run(site, "move", filter="seq>100", exchange="", routing_key="target")
    assert (moved.done, moved.skipped, moved.next) == (500, {}, 0)
    assert payloads(run(site)) == numbered(0, 100)
    assert payloads(run(owner(cluster, "target"), queue="target")) == numbered(100, 500)
    cluster.kill(site.name)
    cluster.wait(500)
    reader = cluster.running[0].client()
    heard = [each for each in reader.consume("target") if isinstance(each, Content)]
    assert bodies(heard) == numbered(100, 500)
    assert {tuple((each.properties.headers or {}).items()) for each in heard} == {(("a", 1),)}
    assert bodies(reader.consume("q", tag="other")) == numbered(0, 100)


def test_a_replay_leaves_the_original() -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    confirming(cluster, "a").publish("", "q", *numbered(0, 3))
    assert run(owner(cluster), "replay", seqs=(2,), exchange="", routing_key="target").done == 1
    assert payloads(run(owner(cluster))) == numbered(0, 3)
    assert payloads(run(owner(cluster, "target"), queue="target")) == [b"1"]
    assert run(owner(cluster), "replay", filter="", exchange="", routing_key="q").done == 3, "and not for ever"


def test_what_finds_no_queue_or_no_room_stays_as_it_was() -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    site = owner(cluster)
    confirming(cluster, "a").publish("", "q", *numbered(0, 5))
    lost = run(site, "move", filter="", exchange="", routing_key="none")
    assert (lost.done, lost.skipped) == (0, {"unroutable": [1, 2, 3, 4, 5]})
    full = run(site, "move", filter="", exchange="", routing_key="target")
    assert (full.done, full.skipped) == (2, {"refused": [3, 4, 5]})
    left = run(site).shown
    assert [(s.seq, s.redelivered) for s in left] == [(3, False), (4, False), (5, False)]
    heard = [each for each in cluster["a"].client().consume("q") if isinstance(each, Content)]
    assert bodies(heard) == numbered(2, 3)
    assert not any(each.method.redelivered for each in heard)


def test_a_message_leaves_only_when_its_destination_has_confirmed_it() -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site, other = owner(cluster), owner(cluster, "target")
    confirming(cluster, "a").publish("", "q", *numbered(0, 3))
    for each in cluster.running:
        each.disk_waits = True
    one = inspection(site, "move", seqs=(1, 2), exchange="", routing_key="target")
    ended(site, one, 20)
    assert not one.over
    assert count(cluster, "q", site.name) == 1, "nobody else gets them meanwhile"
    cluster.wait(i.CONFIRM_MS_MAX)
    ended(site, one)
    assert (one.result.done, one.result.skipped) == (0, {"unconfirmed": [1, 2]})
    assert payloads(run(site)) == numbered(0, 3), "they are back"
    for each in cluster.running:
        each.disk_waits = False
    cluster.wait(1000)
    assert payloads(run(other, queue="target")) == numbered(0, 2)
    assert payloads(run(site)) == [b"2"], "the confirm came late, and nobody had taken them meanwhile"


def under_way() -> tuple[Cluster, Site, Inspection]:
    """Three messages, of which a move has set two aside. No disk says that it has them."""
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site = owner(cluster)
    confirming(cluster, "a").publish("", "q", *numbered(0, 3))
    for each in cluster.running:
        each.disk_waits = True
    one = inspection(site, "move", seqs=(1, 2), exchange="", routing_key="target")
    ended(site, one, 20)
    return cluster, site, one


def test_who_leaves_before_the_end_keeps_nothing_aside() -> None:
    cluster, site, one = under_way()
    queue = site.node.queues[cluster.queue("q").queue_id]
    assert (queue.aside, queue.ready) == (2, 1)
    one.leave()
    assert (queue.aside, queue.ready) == (0, 3)
    for each in cluster.running:
        each.disk_waits = False
    cluster.wait(1000)
    assert payloads(run(site)) == [b"2"], "they were confirmed later"


def test_a_queue_is_not_empty_while_messages_of_it_are_on_their_way() -> None:
    cluster, site, one = under_way()
    site.node.queues[cluster.queue("q").queue_id].purge(lambda count: None)
    client = cluster["b"].client()
    (refused,) = client.say(m.QueueDelete(queue="q", if_empty=True))
    assert isinstance(refused, m.ChannelClose)
    assert refused.reply_code == 406
    assert not one.over


@pytest.mark.parametrize("what", ["move", "delete"])
def test_an_answer_comes_though_no_copy_confirms_what_was_done(what: i.What) -> None:
    cluster = three()
    declared(cluster, "q")
    cluster["a"].client().ask(m.QueueDeclare(queue="target", exclusive=True))
    if owner_of(cluster, "q") != "a":
        hand_over(cluster, "q", "a")
    confirming(cluster, "a").publish("", "q", *numbered(0, 3))
    for each in cluster.running:
        each.disk_waits = True
    site = owner(cluster)
    where = {"exchange": "", "routing_key": "target"} if what == "move" else {}
    one = inspection(site, what, filter="", **where)
    ended(site, one, 50)
    assert (one.over, one.result.done) == (False, 3)
    cluster.wait(i.CONFIRM_MS_MAX)
    ended(site, one, 50)
    assert (one.over, one.error) == (True, UNSAFE)


def test_copies_under_way_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.node.inspecting.WINDOW_BYTES", 5000)
    monkeypatch.setattr("clusterbroker.broker.node.inspecting.SLICE_BYTES", 1000)
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site = owner(cluster)
    confirming(cluster, "a").publish("", "q", *(b"x" * 1000 for _ in range(20)))
    for each in cluster.running:
        each.disk_waits = True
    one = inspection(site, "move", filter="", exchange="", routing_key="target")
    ended(site, one, 50)
    assert site.node.queues[cluster.queue("q").queue_id].aside == 5
    for each in cluster.running:
        each.disk_waits = False
    ended(site, one)
    assert (one.error, one.result.done) == ("", 20)


@pytest.mark.parametrize("dies", ["source", "destination"])
def test_nothing_is_lost_when_an_owner_dies_in_the_middle(dies: str) -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site, other = owner(cluster), owner(cluster, "target")
    confirming(cluster, "a").publish("", "q", *numbered(0, 50))
    for each in cluster.running:
        each.disk_waits = True
    one = inspection(site, "move", filter="", exchange="", routing_key="target")
    one.step(site.now_ms)
    cluster.turn()
    for each in cluster.running:
        each.disk_waits = False
    cluster.kill(site.name if dies == "source" else other.name)
    cluster.wait(1000)
    if dies == "destination":
        ended(site, one)
        assert one.result.done == 50
    else:
        one.step(site.now_ms)
    left, there = payloads(run(owner(cluster))), payloads(run(owner(cluster, "target"), queue="target"))
    assert sorted({*left, *there}) == sorted(numbered(0, 50))
    assert there == [body for body in numbered(0, 50) if body in there], "in order, each once"
    if dies == "destination":
        assert left == []


def test_a_queue_that_is_deleted_on_the_way_has_confirmed_nothing() -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site = owner(cluster)
    confirming(cluster, "a").publish("", "q", b"1")
    for each in cluster.running:
        each.disk_waits = True
    one = inspection(site, "move", filter="", exchange="", routing_key="target")
    one.step(site.now_ms)
    entity = cluster.queue("target")
    cluster.order(c.DeleteQueue(vhost="/", name="target", queue_id=entity.queue_id))
    cluster.turn()
    for each in cluster.running:
        each.disk_waits = False
    ended(site, one)
    assert (one.result.done, one.result.skipped) == (0, {"refused": [1]})
    assert payloads(run(site)) == [b"1"]


def test_a_hand_over_waits_for_what_is_on_its_way() -> None:
    cluster = three()
    declared(cluster, "q")
    target(cluster)
    site = owner(cluster)
    confirming(cluster, "a").publish("", "q", *numbered(0, 400))
    one = inspection(site, "move", filter="", exchange="", routing_key="target")
    one.step(site.now_ms)
    role = site.node.role
    assert role is not None
    assert not role.hand_over(cluster.queue("q").queue_id, away(cluster, "q")[1])
    cluster.turn()
    hand_over(cluster, "q", away(cluster, "q")[1])
    left, there = payloads(run(owner(cluster))), payloads(run(owner(cluster, "target"), queue="target"))
    assert (left, there) == (numbered(250, 150), numbered(0, 250)), "each is in one of the two"
    one.step(site.now_ms)
    assert (one.over, one.error) == (True, GONE)


def dead_letters(cluster: Cluster) -> Client:
    """What "work" has rejected stands in "q"."""
    declared(cluster, "q")
    declared(cluster, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    confirming(cluster, "a").publish("", "work", b"1", b"2", headers={"mine": 1})
    worker = cluster["b"].client()
    worker.consume("work")
    worker.say(m.BasicReject(1, requeue=False), m.BasicReject(2, requeue=False), m.BasicCancel("ctag"))
    cluster.wait(100)
    assert count(cluster, "q") == 2
    return worker


@pytest.mark.parametrize("what", ["move", "replay"])
def test_dead_letters_go_back_to_where_they_died_as_if_they_had_not(what: i.What) -> None:
    cluster = three()
    worker = dead_letters(cluster)
    confirming(cluster, "a").publish("", "q", b"never dead")
    back = run(owner(cluster), what, seqs=(1, 2, 3))
    assert (back.done, back.skipped) == (2, {"no_origin": [3]})
    heard = [each for each in worker.consume("work", tag="again") if isinstance(each, Content)]
    assert bodies(heard) == [b"1", b"2"]
    assert [each.properties.headers for each in heard] == [{"mine": 1}] * 2
    assert count(cluster, "q") == (1 if what == "move" else 3)


@pytest.mark.parametrize("what", ["move", "replay"])
def test_a_queue_whose_dead_letters_go_elsewhere_is_no_origin(what: i.What) -> None:
    """The header is a publisher's: it must not choose into which queue an operator publishes."""
    cluster = three()
    dead_letters(cluster)
    declared(cluster, "private")
    declared(cluster, "elsewhere", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "private"})
    for named in ("private", "elsewhere", "q"):
        confirming(cluster, "a").publish("", "q", b"forged", headers={"x-first-death-queue": named})
    told = run(owner(cluster), what, filter="")
    assert (told.done, told.skipped) == (2, {"no_origin": [3, 4, 5]})
    assert count(cluster, "private") == count(cluster, "elsewhere") == 0


def test_dead_letters_of_dead_letters_go_back_to_where_they_died_first() -> None:
    cluster = three()
    declared(cluster, "q")
    cluster["a"].client().say(m.ExchangeDeclare(exchange="dead", type="topic", durable=True))
    declared(cluster, "later", **{"x-dead-letter-exchange": "dead", "x-message-ttl": 1})
    declared(cluster, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"})
    cluster["a"].client().say(m.QueueBind(queue="q", exchange="dead", routing_key="lat*r"))
    cluster["a"].client().say(m.QueueBind(queue="q", exchange="dead", routing_key="later"))
    confirming(cluster, "a").publish("", "work", b"1")
    worker = cluster["b"].client()
    worker.consume("work")
    worker.say(m.BasicReject(1, requeue=False), m.BasicCancel("ctag"))
    cluster.wait(500)
    assert count(cluster, "q") == 1
    assert run(owner(cluster), "move", filter="").done == 1
    assert count(cluster, "work") == 1


@pytest.mark.parametrize("what", ["move", "replay"])
def test_who_else_got_a_copy_stays_hidden(what: i.What) -> None:
    cluster = three()
    for name in ("q", "target", "hidden"):
        declared(cluster, name)
    confirming(cluster, "a").publish("", "q", b"1", headers={"BCC": ["hidden"], "mine": 1})
    assert run(owner(cluster), what, filter="", exchange="", routing_key="target").done == 1
    (got,) = [each for each in cluster["b"].client().consume("target") if isinstance(each, Content)]
    assert got.properties.headers == {"mine": 1}
    assert count(cluster, "hidden") == 1


def test_without_the_queue_of_origin_they_stay() -> None:
    cluster = three()
    dead_letters(cluster)
    cluster["a"].client().ask(m.QueueDelete(queue="work"))
    assert run(owner(cluster), "move", filter="").skipped == {"no_origin": [1, 2]}
    assert count(cluster, "q") == 2


@pytest.mark.parametrize("what", ["browse", "delete", "replay"])
def test_what_takes_long_to_look_at_is_looked_at_in_smaller_slices(what: i.What) -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("target")
    client.publish("", "q", *[b"1"] * 12, headers={"a": [None] * 5000})
    target = {"exchange": "", "routing_key": "target"} if what == "replay" else {}
    one = inspection(world, what, filter=" AND ".join(["header.a!=x"] * 32), **target)
    assert one.step(world.now_ms)
    assert one.result.looked_at == 1
    ended(world, one)
    assert one.result.looked_at == 12
    few = inspection(world, "replay", exchange="", routing_key="target")
    few.step(world.now_ms)
    assert few.result.looked_at <= 10, "headers are decoded for each copy"
