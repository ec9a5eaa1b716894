"""Users and permissions in the fold."""

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.errors import (
    NotFound,
    PreconditionFailed,
)
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Deserted, User, UserLimits
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.snapshot import decode, encode
from tests.unit.cluster.wiring.map_world import World


def test_users_and_permissions(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("administrator",)))
    assert world.told == ["UserChanged"]
    with pytest.raises(NotFound, match="vhost 'v' not found"):
        world.do(c.SetPermission(user="u", vhost="v", configure="", write="", read=""))
    world.do(c.SetPermission(user="u", vhost="/", configure="", write=".*", read="^a"))
    assert world.told == ["PermissionChanged"]
    assert world.map.allowed("u", "/", "write", "q")
    assert not world.map.allowed("u", "/", "configure", "q")
    world.do(c.SetTopicPermission(user="u", vhost="/", exchange="x", write="^a", read=".*"))
    assert not world.map.topic_allowed("u", "/", "write", "x", "b")
    assert world.do(c.ClearTopicPermission(user="u", vhost="/", exchange="x")) is True
    assert world.do(c.DeleteUser(name="u")) is True
    assert world.told == ["PermissionChanged", "UserChanged"]
    assert world.do(c.DeleteUser(name="u")) is False
    assert world.do(c.ClearPermission(user="u", vhost="/")) is False
    with pytest.raises(PreconditionFailed):
        world.do(c.PutUser(name="", password_hash="h", hash_algorithm="scrypt"))


def test_a_hash_is_replaced_only_by_whoever_knows_it(world: World) -> None:
    made = c.PutUser(name="u", password_hash="old", hash_algorithm="sha256", tags=("monitoring",))
    better = c.PutUser(name="u", password_hash="new", hash_algorithm="scrypt", only_if_hash="old")
    with pytest.raises(PreconditionFailed, match="user 'u' was changed or deleted meanwhile"):
        world.do(better)
    assert world.map.user("u") is None, "a user that was deleted meanwhile does not come back"
    world.do(made)
    world.do(replace(made, tags=("administrator",), limits=UserLimits(3, 4)))
    world.do(better)
    assert world.told == ["UserChanged"]
    user = world.map.user("u")
    assert user == User("u", "new", "scrypt", ("administrator",), UserLimits(3, 4)), "tags and limits of now"
    with pytest.raises(PreconditionFailed, match="stays as it is"):
        world.do(better)
    assert world.map.user("u") == user
    world.do(replace(better, only_if_hash=None))
    assert world.map.user("u") == User("u", "new", "scrypt"), "without a condition it is what the command says"


def test_a_limit_of_a_user_is_set_and_nothing_else_of_it(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("t",), limits=UserLimits(1, 2)))
    world.do(c.SetUserLimits(name="u", limits=UserLimits(channels_max=9), only=("channels_max",)))
    assert world.told == ["UserChanged"]
    assert world.map.user("u") == User("u", "h", "scrypt", ("t",), UserLimits(1, 9))
    world.do(c.SetUserLimits(name="u", limits=UserLimits(channels_max=9), only=("channels_max",)))
    assert world.told == []
    world.do(c.SetUserLimits(name="u", limits=UserLimits(5)))
    assert world.map.user("u") == User("u", "h", "scrypt", ("t",), UserLimits(5))
    world.do(c.DeleteUser(name="u"))
    with pytest.raises(NotFound, match="user 'u' not found"):
        world.do(c.SetUserLimits(name="u", limits=UserLimits(5)))
    with pytest.raises(NotFound, match="user 'u' not found"):
        world.do(c.PutUser(name="u", tags=("t",), only=("tags",)))
    assert world.map.user("u") is None, "a part brings no user back"


def test_a_part_of_a_row_leaves_the_rest_as_it_is(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("t",), limits=UserLimits(1, 2)))
    world.do(c.PutUser(name="u", tags=("x",), only=("tags",)))
    assert world.map.user("u") == User("u", "h", "scrypt", ("x",), UserLimits(1, 2))
    world.do(c.PutUser(name="u", password_hash="i", hash_algorithm="s", only=("password_hash", "hash_algorithm")))
    assert world.map.user("u") == User("u", "i", "s", ("x",), UserLimits(1, 2))
    world.do(c.PutUser(name="u", password_hash="j", hash_algorithm="s", limits=None))
    assert world.map.user("u") == User("u", "j", "s", (), UserLimits(1, 2)), "limits as they were"
    world.do(c.PutUser(name="new", password_hash="j", hash_algorithm="s", limits=None))
    assert world.map.user("new") == User("new", "j", "s")
    world.do(c.AddVhost(name="v", description="words", tags=("a",), default_queue_type="quorum"))
    world.do(c.AddVhost(name="v", tracing=True, only=("tracing",)))
    vhost = world.map.vhost("v")
    assert vhost is not None
    assert (vhost.description, vhost.tags, vhost.default_queue_type, vhost.tracing) == ("words", ("a",), "quorum", True)
    world.do(c.SetVhostLimits(vhost="v", queues_max=1, connections_max=2))
    world.do(c.SetVhostLimits(vhost="v", queues_max=7, only=("queues_max",)))
    assert (world.map.vhost_limits("v").queues_max, world.map.vhost_limits("v").connections_max) == (7, 2)
    with pytest.raises(NotFound):
        world.do(c.AddVhost(name="gone", tracing=True, only=("tracing",)))
    with pytest.raises(PreconditionFailed, match="no such field: 'nonsense'"):
        world.do(c.PutUser(name="u", only=("nonsense",)))


def test_that_there_were_users_outlives_them(world: World) -> None:
    """Of a broker that never had one the first start makes somebody."""
    assert not world.map.had_users
    for _ in range(2):
        world.do(c.PutUser(name="guest", password_hash="", hash_algorithm=""))
        assert ClusterMap.restored(world.map.snapshot()).had_users
        world.do(c.DeleteUser(name="guest"))
        taken = world.map.snapshot()
        assert decode(taken.index, list(encode(taken))).deserted == [Deserted()]
        assert ClusterMap.restored(taken).had_users
    assert ClusterMap.restored(taken).digest() == world.map.digest()
