"""What an import keeps and nobody reads is told (operator a8)."""

from __future__ import annotations

from clusterbroker.broker.cli.definitions import _idle


def test_shovels_and_federation_are_told_to_do_nothing() -> None:
    document = {
        "parameters": [
            {"component": "shovel", "vhost": "/", "name": "s", "value": {}},
            {"component": "shovel", "vhost": "/", "name": "t", "value": {}},
            {"component": "federation-upstream", "vhost": "/", "name": "f", "value": {}},
            {"component": "mine", "vhost": "/", "name": "m", "value": {}},
            5,
        ]
    }
    assert _idle(document) == [
        "shovel 's', 't': kept, and does nothing: there is no shovel here",
        "federation-upstream 'f': kept, and does nothing: there is no federation here",
    ]
    assert _idle({"parameters": 5}) == _idle({}) == []
