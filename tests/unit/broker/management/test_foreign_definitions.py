"""Definitions of RabbitMQ: what has no meaning here is translated, left out with a warning, or told with all other
obstacles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.management import definitions
from clusterbroker.broker.management.foreign_definitions import NAMES_TOLD, NO_EFFECT, adapted
from clusterbroker.cluster.passwords import MD5
from tests.unit.broker.management.set_up import Place

WHEN_MS = 5


def policy(name: str, priority: int = 0, **definition: Any) -> dict[str, Any]:
    settings = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"vhost": "app", "name": name, "pattern": "", "priority": priority, "definition": settings}


OLD: dict[str, Any] = {
    "rabbit_version": "3.8.9",
    "vhosts": [{"name": "app"}, {"name": "logs", "default_queue_type": "stream"}],
    "users": [{"name": "old", "password_hash": "aGFzaA==", "hashing_algorithm": MD5, "tags": "management"}],
    "permissions": [{"vhost": "app", "user": "old", "configure": ".*", "write": ".*", "read": ".*"}],
    "parameters": [
        {"component": "shovel", "vhost": "app", "name": "to-b", "value": {}},
        {
            "component": "operator_policy", "vhost": "app", "name": "two",
            "value": {"pattern": "", "definition": {"ha-mode": "exactly", "ha-params": 2}},
        },
    ],
    "policies": [
        policy("ha-all", ha_mode="all", ha_sync_mode="automatic", max_length=7),
        policy("ha-two", 1, ha_mode="exactly", ha_params=2),
        policy("fed", 2, federation_upstream_set="all"),
        policy("shards", 3, shards_per_node=2, expires=1000),
    ],
    "exchanges": [
        {"vhost": "app", "name": "random", "type": "x-none-such", "arguments": {}},
        {"vhost": "app", "name": "x", "type": "topic"},
    ],
    "queues": [
        {"vhost": "app", "name": "q", "arguments": {"x-queue-mode": "lazy", "x-queue-version": 2}},
        {"vhost": "app", "name": "jms", "arguments": {"x-queue-type": "jms"}},
    ],
    "bindings": [
        {"vhost": "app", "source": "random", "destination": "q", "destination_type": "queue"},
        {"vhost": "app", "source": "x", "destination": "jms", "destination_type": "queue"},
        {"vhost": "app", "source": "x", "destination": "q", "destination_type": "queue", "routing_key": "#"},
    ],
}  # fmt: skip


def test_all_obstacles_are_told_at_once() -> None:
    before = copy.deepcopy(OLD)
    found = adapted(OLD)
    assert before == OLD, "a document is not changed"
    assert found.obstacles == [
        "vhost 'logs': no default queue type 'stream' here",
        "user 'old': an MD5 hash of a password is not taken",
        "policy 'shards' in vhost 'app': no setting 'shards-per-node' of policies here",
        "queue 'jms' in vhost 'app': no queue type 'jms' here",
        "exchange 'random' in vhost 'app': no exchange type 'x-none-such' here",
    ]
    draft = definitions.drafted(OLD | {"queues": [*OLD["queues"], 5]}, WHEN_MS)
    assert draft.unsupported == found.obstacles
    assert draft.mistakes == ["queues[1]: not an object"], "nothing is told of what hangs on an obstacle"
    trial = definitions.trial(Place().replica.map, definitions.drafted(OLD, WHEN_MS))
    assert (trial["unsupported"], trial["obstacles"]) == (found.obstacles, [])


def test_without_what_is_unsupported_the_rest_is_imported() -> None:
    draft = definitions.drafted(OLD, WHEN_MS, skip=True).ready()
    place = Place()
    place.must(*draft.commands)
    told = definitions.exported(place.reading("old"))
    assert [queue["name"] for queue in told["queues"]] == ["q"]
    assert [exchange["name"] for exchange in told["exchanges"]] == ["x"]
    assert [(one["source"], one["destination"]) for one in told["bindings"]] == [("x", "q")]
    assert {one["name"]: one["definition"] for one in told["policies"]} == {
        "ha-all": {"max-length": 7}, "ha-two": {"replicas": 2}, "fed": NO_EFFECT, "shards": {"expires": 1000},
    }  # fmt: skip
    assert [one["value"]["definition"] for one in told["parameters"] if one["component"] == "operator_policy"] == [
        {"replicas": 2}
    ]
    assert [user["password_hash"] for user in told["users"]] == [""], "nobody signs in with it"
    assert [vhost.get("default_queue_type") for vhost in told["vhosts"] if vhost["name"] == "logs"] == [None]
    assert draft.warnings == [
        "vhost 'logs': no default queue type 'stream' here: left out",
        "user 'old': an MD5 hash of a password is not taken: imported without a password, to be set anew",
        "shovel 'to-b' in vhost 'app': kept, and does nothing: say src-queue or src-exchange, one of them",
        "operator policy 'two' in vhost 'app', policy 'ha-two' in vhost 'app': 'ha-mode' 'exactly' is replaced by"
        " 'replicas' 2",
        "policy 'ha-all' in vhost 'app': 'ha-mode' 'all' is left out, as all queues are replicated",
        "policy 'fed' in vhost 'app': 'federation-upstream-set' is left out: there is no federation here",
        "policy 'fed' in vhost 'app': nothing of its definition is left; it stays, as it hides policies of lower"
        " priority",
        "policy 'shards' in vhost 'app': no setting 'shards-per-node' of policies here: left out",
        "queue 'jms' in vhost 'app': no queue type 'jms' here: left out",
        "exchange 'random' in vhost 'app': no exchange type 'x-none-such' here: left out",
        "bindings of exchange 'random' in vhost 'app', bindings of queue 'jms' in vhost 'app': left out with it",
    ]


@pytest.mark.parametrize(
    ("definition", "left"),
    [
        ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, {"replicas": 2}),
        ({"ha-mode": "exactly", "ha-params": 1000}, {"replicas": 255}),
        ({"ha-mode": "exactly", "ha-params": 2, "replicas": 3}, {"replicas": 3}),
        ({"ha-mode": "exactly", "ha-params": "2"}, NO_EFFECT),
        ({"target-group-size": 5}, {"replicas": 5}),
        ({"queue-master-locator": "min-masters"}, {"queue-master-locator": "min-masters"}),
    ],
)
def test_mirrors_are_replicas(definition: dict[str, Any], left: dict[str, Any]) -> None:
    found = adapted({"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": definition}]})
    assert found.document["policies"][0]["definition"] == left
    assert not found.obstacles


def test_many_of_a_kind_are_one_line() -> None:
    count = NAMES_TOLD + 5
    queues = [{"vhost": "/", "name": str(number), "arguments": {"x-queue-type": "jms"}} for number in range(count)]
    [line] = adapted({"queues": queues}).obstacles
    assert line.endswith("'19' in vhost '/' and 5 more: no queue type 'jms' here")


def test_contradictions_are_told_together() -> None:
    place = Place()
    place.must(*definitions.drafted({"vhosts": [{"name": "app"}], "queues": OLD["queues"][:1]}, WHEN_MS).commands)
    document = {
        "exchanges": [{"vhost": "app", "name": "x", "type": "fanout", "arguments": {"alternate-exchange": 5}}],
        "queues": [{"vhost": "app", "name": "q", "durable": False}, {"vhost": "none", "name": "q"}],
        "bindings": [
            {"vhost": "app", "source": "x", "destination": "q"}, {"vhost": "app", "source": "y", "destination": "q"},
            {"vhost": "app", "source": "amq.topic", "destination": "gone"},
        ],
    }  # fmt: skip
    map_ = place.replica.map
    trial = definitions.trial(map_, definitions.drafted(document, WHEN_MS))
    assert len(trial["obstacles"]) == 4, trial
    for said, line in zip(("'durable'", "none", "alternate-exchange", "gone"), trial["obstacles"], strict=True):
        assert said in line
    assert set(trial) == {"warnings", "unsupported", "obstacles"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["ha-mode", "exactly", "q", "queue", "jms", MD5]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ("name", "vhost", "type", "definition", "arguments", "x-queue-type", "ha-mode", "ha-params", "component",
             "value", "metadata", "default_queue_type", "hashing_algorithm", "source", "destination", "federation-x")
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from([*definitions.SECTIONS]), st.lists(json_values, max_size=3) | json_values),
    st.booleans(),
)
def test_any_document_is_adapted(document: dict[str, Any], skip: bool) -> None:
    found = adapted(document, skip)
    assert not (skip and found.obstacles)
    again = adapted(found.document, skip)
    if skip:
        assert again.document == found.document, "what was adapted needs it no more"


def test_names_that_a_broker_gave_and_types_to_be_delayed_can_be_skipped() -> None:
    document = {
        "queues": [{"vhost": "/", "name": "amq.gen-abc", "durable": False, "auto_delete": True, "arguments": {}}],
        "exchanges": [
            {"vhost": "/", "name": "later", "type": "x-delayed-message", "arguments": {"x-delayed-type": "x-none"}}
        ],
        "bindings": [
            {"vhost": "/", "source": "amq.topic", "destination": "amq.gen-abc", "destination_type": "queue"},
            {"vhost": "/", "source": "later", "destination": "q", "destination_type": "queue"},
        ],
    }
    found = adapted(document)
    assert [line.partition(": ")[0] for line in found.obstacles] == [
        "queue 'amq.gen-abc' in vhost '/'", "exchange 'later' in vhost '/'",
    ]  # fmt: skip
    assert not found.warnings, "what hangs on an obstacle is not told beside it"
    skipped = adapted(document, skip=True)
    assert not skipped.obstacles
    assert skipped.document == {"queues": [], "exchanges": [], "bindings": []}
    assert definitions.drafted(document, WHEN_MS, skip=True).ready().commands == []


def test_exchanges_of_rabbitmq_itself_are_left_out() -> None:
    found = adapted({"exchanges": [{"vhost": "/", "name": "amq.rabbitmq.log", "type": "topic"}]})
    assert found.warnings == ["exchange 'amq.rabbitmq.log' in vhost '/': left out: RabbitMQ's own"]
    assert (found.document["exchanges"], found.obstacles) == ([], [])


def test_bindings_of_exclusive_queues_are_left_out() -> None:
    """RabbitMQ exports them, and not the queues: each Celery worker that runs has two."""
    binding = {"vhost": "/", "source": "celeryev", "destination": "celeryev.5b1f", "destination_type": "queue"}
    document = {
        "rabbit_version": "4.3.6",
        "queues": [{"vhost": "/", "name": "celery"}],
        "bindings": [binding, {**binding, "destination": "celery"}, {**binding, "destination_type": "exchange"}],
    }
    found = adapted(document)
    assert found.document["bindings"] == document["bindings"][1:]
    assert found.warnings == [
        "bindings of queue 'celeryev.5b1f' in vhost '/': left out: the queue is exclusive to its connection"
    ]
    assert not found.obstacles
    for other in ({"product_name": "clusterbroker"}, {"rabbit_version": None}):
        file = {name: value for name, value in (document | other).items() if value is not None}
        assert adapted(file).document["bindings"] == document["bindings"], "that file contradicts itself"
