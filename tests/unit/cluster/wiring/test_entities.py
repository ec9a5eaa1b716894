"""What the wiring is made of."""

from typing import Any, get_args

from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS, VhostLimit, VhostLimits
from clusterbroker.cluster.wiring.map import ClusterMap


def test_each_limit_of_a_vhost_has_a_name_and_a_command_sets_it() -> None:
    assert sorted(get_args(VhostLimit)) == sorted(VHOST_LIMITS)
    assert {"vhost", *VHOST_LIMITS.values()} == set(VhostLimits.__struct_fields__)
    map_ = ClusterMap()
    map_.apply(LogIndex(1), c.AddVhost(name="v"))
    chosen: dict[str, Any] = {field: 7 + number for number, field in enumerate(VHOST_LIMITS.values())}
    map_.apply(LogIndex(2), c.SetVhostLimits(vhost="v", **chosen))
    assert map_.vhost_limits("v") == VhostLimits("v", **chosen)
