"""Producers of transactions, as the management API tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.management import definitions, producers
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.paging import Wish, answer
from clusterbroker.broker.stats import rows
from clusterbroker.cluster.wiring import commands as c
from tests.property.test_transaction_fold import staging
from tests.unit.broker.management.set_up import NODE, Place, everything, user


def documents(place: Place, vhost: str | None = None) -> Any:
    return answer(producers.listing(place.reading(), vhost), Wish())


def test_what_is_staged_and_on_its_way_is_told() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    place.must(staging("txn.a", epoch=1, at_ms=5), staging("txn.b", epoch=1))
    for queue in place.replica.map.staging_queues("/"):
        place.tell(rows.QueueRow(queue_id=queue.queue_id, owned=True, ready=3, ready_bytes=30), node=NODE)
    (told,) = documents(place)
    assert (told["producer"], told["vhost"], told["user"], told["epoch"], told["moving"]) == ("p", "/", "u", None, 0)
    assert [(one["transaction"], one["rows"], one["bytes"]) for one in told["open"]] == [
        ("txn.a", 3, 30), ("txn.b", 3, 30),
    ]  # fmt: skip
    place.must(
        c.CommitTransaction(
            at_ms=9, vhost="/", producer="p", epoch=1, run="r1", transactions=("txn.b",), rows=3, user="u", ttl_ms=9
        )
    )
    told = producers.named(place.reading(), "/", "p")
    assert (told["epoch"], told["rows"], told["moving"], told["open"], told["expires_at_ms"]) == (1, 3, 3, [], 18)
    assert place.replica.queue_names == [], "nobody is shown the queues of segments"
    with pytest.raises(Refused):
        producers.named(place.reading(), "/", "q")
    assert documents(place, "/") == [told]


def test_definitions_are_without_what_is_staged() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"), staging("txn.a"))
    exported = definitions.exported(place.reading())
    assert not [one for kind in ("exchanges", "queues") for one in exported[kind] if one["name"] == "txn.a"]
