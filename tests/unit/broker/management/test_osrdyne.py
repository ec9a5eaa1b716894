"""Which keys have a worker, as osrdyne's clients ask it."""

from __future__ import annotations

from clusterbroker.broker.management.osrdyne import status
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.management.set_up import Place, everything, user

READY = {"worker_metadata": None, "status": "Ready"}


def test_keys_of_a_pool_that_is_being_deleted_have_no_worker() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    place.must(c.DeclarePool(vhost="/", name="digits", settings=PoolSettings(keys="[0-9]+")))
    place.must(c.DeclarePool(vhost="/", name="all", settings=PoolSettings()))
    assert status(place.reading(), "keys=42,no") == {"workers": {"42": READY, "no": READY}}
    place.must(c.DeletePool(vhost="/", name="all", force=True))
    assert status(place.reading(), "keys=42,no") == {"workers": {"42": READY}}
