"""The order to raise the feature level: whom it names when it is refused, and what it proposes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.control.cluster_operations import CLUSTER
from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.link.hello import Hello
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from clusterbroker.cluster.wiring.map import Applied
from tests.unit.cluster.cluster_world import ClusterWorld


def hello(name: str, level: int, software: str = "0.0.9") -> Hello:
    return Hello(1, "c1", name, 1, "d", "p", "control", 1, software, level)


class Asked:
    """Member a of three, with links as a test says, and what it orders."""

    def __init__(self, **levels: int) -> None:
        self.world = ClusterWorld()
        links = {name: hello(name, level) for name, level in levels.items()}
        cluster = SimpleNamespace(name=NodeId("a"), mesh=SimpleNamespace(hello=links.get), ordered=self._ordered)
        self.shell: Any = SimpleNamespace(cluster=cluster, node=SimpleNamespace(map=self.world.map))

    async def _ordered(self, command: c.AnyCommand) -> Applied:
        self.world.do(command)
        assert self.world.last is not None
        return self.world.last

    async def raised(self, **asked: Any) -> Any:
        return await CLUSTER["level.raise"](self.shell, asked)


async def test_all_members_know_it() -> None:
    asked = Asked(b=LEVEL, c=LEVEL + 1)
    assert await asked.raised() == {"level": LEVEL, "before": FIRST}
    assert asked.world.map.level == LEVEL
    for again in ({}, {"level": LEVEL}):
        assert await asked.raised(**again) == {"level": LEVEL, "before": LEVEL}, "said twice is done once"
    with pytest.raises(PreconditionFailed, match="which never falls"):
        await asked.raised(level=FIRST)


async def test_each_member_that_is_in_the_way_is_named_with_its_release() -> None:
    asked = Asked(b=FIRST)
    with pytest.raises(Refused) as refused:
        await asked.raised()
    assert str(refused.value) == (
        f"feature level {LEVEL} needs all members: 'b' runs clusterbroker 0.0.9, which knows level 1: install the "
        f"release of 'a' (clusterbroker {VERSION}) or a newer one on it; 'c' is not linked with 'a', so its release is "
        "not known: start it, or remove it (clusterbroker leave c)"
    )
    assert asked.world.map.level == FIRST


async def test_one_that_was_added_and_never_started_is_asked_for_only_while_it_is_linked() -> None:
    asked = Asked(b=LEVEL, c=LEVEL, d=FIRST)
    asked.world.add("d")
    with pytest.raises(Refused, match="'d' runs clusterbroker"):
        await asked.raised()
    asked = Asked(b=LEVEL, c=LEVEL)
    asked.world.add("d")
    assert (await asked.raised())["level"] == LEVEL


@pytest.mark.parametrize("level", [-1, LEVEL + 1, "2", 1.5])
async def test_a_level_that_this_release_does_not_know(level: Any) -> None:
    with pytest.raises(Refused, match=f"knows feature levels 1 to {LEVEL}, not"):
        await Asked(b=LEVEL + 1, c=LEVEL + 1).raised(level=level)


async def test_a_node_that_is_alone_has_nothing_to_raise() -> None:
    with pytest.raises(Refused, match="this node is alone"):
        await CLUSTER["level.raise"](SimpleNamespace(cluster=None), {})  # type: ignore[arg-type]
