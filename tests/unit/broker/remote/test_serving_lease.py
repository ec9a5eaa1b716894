"""An owner whose node has no lease yet."""

from __future__ import annotations

from clusterbroker.broker.remote.owned_queues import OwnedQueues
from tests.unit.broker.remote.owner_support import QUEUE_ID, Stage, head


def test_who_owns_a_queue_before_its_first_lease_hands_out_nothing() -> None:
    stage = Stage()
    stage.owned_queues.end(QUEUE_ID)
    stage.owned_queues = OwnedQueues(stage)  # the node begins again
    stage.owned_queues.members_changed(stage.incarnations)
    stage.owned = stage.owned_queues.begin(stage.queue, stage.epoch, stage.index, {})
    stage.attach("b", consumers=[head()])
    stage.publish("b", 1, b"1")
    stage.commit()
    assert (stage.owned.open, stage.bodies_at("b")) == (False, [])
    stage.owned_queues.lease(True)
    stage.commit()
    assert (stage.owned.open, stage.bodies_at("b")) == (True, [b"1"])
