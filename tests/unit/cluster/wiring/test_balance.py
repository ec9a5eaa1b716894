"""What should move: replica sets after a policy, a newcomer, a loss; owners that are unevenly spread."""

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.balance import rebalance, reconfigurations
from tests.unit.cluster.cluster_world import ClusterWorld


def carry_out(world: ClusterWorld, rounds: int = 100, at_most: int = 64) -> int:
    """Do what is proposed, and let newcomers catch up, until nothing is proposed; how many moves it took."""
    moves = 0
    for _ in range(rounds):
        proposed = reconfigurations(world.map, at_most)
        if not proposed:
            return moves
        for command in proposed:
            before = world.queue_of(command.queue_id)
            world.do(command)
            after = world.queue_of(command.queue_id)
            assert len(after.in_sync) >= world.map.min_in_sync(after), "publishers never stop for it"
            assert len(after.in_sync) >= min(len(before.in_sync), world.map.wanted_replicas(after)), (
                "nor are copies lost"
            )
            moves += 1
        for queue in world.map.queues():
            alive = [node for node in queue.replicas if world.member(node).alive]
            if len(alive) > len(queue.in_sync):
                assert world.in_sync(queue.name, "".join(alive))
    raise AssertionError(f"still proposed after {rounds} rounds: {proposed}")


def test_nothing_to_do() -> None:
    assert reconfigurations(ClusterWorld("").map) == []
    assert rebalance(ClusterWorld("").map) == []
    world = ClusterWorld("abc")
    world.declare("q")
    assert reconfigurations(world.map) == []
    assert rebalance(world.map) == []


def test_a_policy_asks_for_more_and_for_less() -> None:
    world = ClusterWorld("abcde")
    for number in range(5):
        world.declare(f"q{number}")
    world.policy(replicas=5)
    assert [len(command.add) for command in reconfigurations(world.map)] == [1] * 5, "one at a time"
    assert carry_out(world) == 10
    assert all(len(queue.in_sync) == 5 for queue in world.map.queues())
    world.policy(replicas=1)
    assert carry_out(world) == 5
    assert all(queue.replicas == (queue.owner,) for queue in world.map.queues())


def test_a_node_that_becomes_three() -> None:
    world = ClusterWorld("a")
    for number in range(4):
        world.declare(f"q{number}")
    world.add("b")
    world.register("b")
    world.add("c")
    world.register("c")
    assert carry_out(world) == 8
    assert all(queue.in_sync == ("a", "b", "c") for queue in world.map.queues())


def test_a_newcomer_gets_its_share() -> None:
    world = ClusterWorld("abc")
    for number in range(12):
        world.declare(f"q{number}")
    world.add("d")
    world.register("d")
    carry_out(world, at_most=2)
    held = [world.map.held(NodeId(node)) for node in "abcd"]
    assert sum(held) == 36
    assert max(held) - min(held) <= 1, held


def test_as_many_at_once_as_are_allowed() -> None:
    world = ClusterWorld("abcd")
    for number in range(9):
        world.declare(f"q{number}")
    world.policy(replicas=4)
    assert len(reconfigurations(world.map, 4)) == 4
    for command in reconfigurations(world.map, 4):
        world.do(command)
    assert reconfigurations(world.map, 4) == [], "four are catching up"


def test_who_is_away_is_replaced_by_nobody_but_removed_first() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    world.fail("c")
    assert reconfigurations(world.map) == [], "it may return; who does not is forgotten"
    world.policy(replicas=2)
    (command,) = reconfigurations(world.map)
    assert command.remove == ("c",)


def test_nothing_is_removed_before_the_others_are_in_sync() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    world.move("q", add="d")
    assert reconfigurations(world.map) == []
    assert world.in_sync("q", "abcd")
    (command,) = reconfigurations(world.map)
    assert command.remove == ("b",), "not the owner, and of the others the one that holds most, by name"


def test_a_newcomer_is_not_sent_away_before_it_has_caught_up() -> None:
    world = ClusterWorld("abcd")
    world.declare("q")
    for number in range(3):
        world.declare(f"r{number}", at="d", x={"replicas": 1, "queue-leader-locator": "client-local"})
    world.move("q", add="d")
    assert reconfigurations(world.map) == [], "though it is the one that holds most"


def test_without_an_owner_nothing_moves() -> None:
    world = ClusterWorld("abc")
    world.declare("q")
    for name in "abc":
        world.fail(name)
    world.policy(replicas=1)
    assert reconfigurations(world.map) == []


def moved(world: ClusterWorld) -> int:
    moves = rebalance(world.map)
    for queue_id, to in moves:
        queue = world.queue_of(queue_id)
        world.transfer(queue.name, to)
    assert rebalance(world.map) == [], "once is enough"
    return len(moves)


def test_owners_are_spread_after_a_failure_with_fewest_moves() -> None:
    world = ClusterWorld("abc")
    for number in range(9):
        world.declare(f"q{number}")
    world.fail("a")
    world.register("a")
    for queue in world.map.queues():
        assert world.in_sync(queue.name, "abc")
    assert [world.map.owned(NodeId(node)) for node in "abc"] == [0, 5, 4]
    assert moved(world) == 3
    assert [world.map.owned(NodeId(node)) for node in "abc"] == [3, 3, 3]


def test_owners_move_along_a_chain_when_no_direct_way_is_there() -> None:
    world = ClusterWorld("abc")
    for number in range(4):
        world.declare(f"q{number}", x={"replicas": 3})
        world.in_sync(f"q{number}", "".join(sorted({world.queue(f"q{number}").owner or "", "a", "b"})))
        if world.queue(f"q{number}").owner != "a":
            world.transfer(f"q{number}", "a")
    world.declare("r0")
    world.declare("r1")
    for name in ("r0", "r1"):
        if world.queue(name).owner != "b":
            world.transfer(name, "b")
        world.in_sync(name, "bc")
    assert [world.map.owned(NodeId(node)) for node in "abc"] == [4, 2, 0]
    assert moved(world) == 4
    assert [world.map.owned(NodeId(node)) for node in "abc"] == [2, 2, 2]


def test_a_draining_member_gives_away_all_that_it_can() -> None:
    world = ClusterWorld("abc")
    for number in range(6):
        world.declare(f"q{number}")
    alone = world.declare("alone", at="a", x={"replicas": 1, "queue-leader-locator": "client-local"})
    world.drain("a")
    moved(world)
    assert [queue.name for queue in world.map.queues_of(NodeId("a"))] == [alone.name]
    assert [world.map.owned(NodeId(node)) for node in "bc"] == [3, 3]
