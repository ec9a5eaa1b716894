"""What a member that hears no majority answers to orders about the members (operator b15)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.control.cluster_operations import CLUSTER
from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.cluster.ids import NodeId
from tests.unit.cluster.cluster_world import ClusterWorld


@pytest.mark.parametrize("leased", [False, True])
async def test_a_dead_member_is_not_said_to_live_by_a_map_that_is_old(leased: bool) -> None:
    world = ClusterWorld("abc")
    cluster = SimpleNamespace(name=NodeId("a"), heart=SimpleNamespace(leased=lambda: leased))
    shell: Any = SimpleNamespace(cluster=cluster, node=SimpleNamespace(map=world.map))
    with pytest.raises(Refused) as refused:
        await CLUSTER["leave"](shell, {"member": "b"})
    assert ("is alive" in str(refused.value)) == leased
    assert ("no contact with a majority" in str(refused.value)) != leased
