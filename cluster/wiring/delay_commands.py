"""Commands about delays in routing keys (delay_bits.py): what commands.py says holds for them as well."""

from __future__ import annotations

from clusterbroker.cluster.ids import LOCAL_NODE, Epoch, Incarnation, NodeId, QueueId

from .command import Command


class KeepDelays(Command, frozen=True, kw_only=True, tag="keep_delays"):
    """The exchange's policy wants a queue in which its messages wait: make it. Result: whether there was none."""

    vhost: str
    exchange: str
    owner: NodeId = LOCAL_NODE
    """Of a node that is alone; in a cluster the members' load says it."""
    incarnation: Incarnation = Incarnation(1)


class EndDelays(Command, frozen=True, kw_only=True, tag="end_delays"):
    """The owner of such a queue has found it empty, and takes nothing more, for no policy wants it. Result: whether it
    has ended: not if a policy wants it again, or its owner is another one."""

    queue_id: QueueId
    epoch: Epoch
