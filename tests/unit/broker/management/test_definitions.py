"""Definitions: what is exported brings the same back, and a document with a mistake is refused at the first one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.management import definitions
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.forms import parsed
from clusterbroker.broker.management.pool_definitions import bindings_of
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import MoreSettings, PoolSettings
from tests.unit.broker.management.set_up import Place, everything, queue, recorded_place, user

WHEN_MS = 5


def deep(levels: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(levels):
        table = {"t": table}
    return table


def imported(document: Any, vhost: str | None = None) -> Place:
    place = Place()
    draft = definitions.drafted(document, WHEN_MS, vhost).ready()
    assert not draft.passwords
    place.must(*draft.commands)
    return place


def trial(place: Place, document: Any) -> dict[str, Any]:
    """The sections of one without obstacles."""
    told = definitions.trial(place.replica.map, definitions.drafted(document, WHEN_MS))
    assert not any(told.pop(notes) for notes in ("warnings", "unsupported", "obstacles"))
    return told


def test_an_export_brings_the_same_back() -> None:
    document = definitions.exported(recorded_place().reading())
    again = imported(parsed(json.dumps(document).encode()))
    assert definitions.exported(again.reading()) == document


def test_an_export_of_a_vhost_fits_another_one() -> None:
    place = recorded_place()
    document = definitions.exported_of(place.reading(), "/")
    assert "users" not in document
    assert '"vhost"' not in json.dumps(document)
    place.must(c.AddVhost(name="new"), everything("guest", "new"))
    place.must(*definitions.drafted(document, WHEN_MS, "new").ready().commands)
    assert definitions.exported_of(place.reading(), "new") == document


def test_nothing_that_vhosts_have_by_themselves_or_that_ends_is_exported() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    place.must(queue("mine", exclusive=True, connection="c1"), queue("kept"))
    for name in ("mine", "kept"):
        place.must(c.Bind(vhost="/", source="amq.direct", destination=name, connection="c1"))
    document = definitions.exported(place.reading())
    assert [entry["name"] for entry in document["queues"]] == ["kept"]
    assert document["exchanges"] == []
    assert [entry["destination"] for entry in document["bindings"]] == ["kept"]


def test_what_rabbitmq_exports_is_understood() -> None:
    from pathlib import Path

    recorded = json.loads((Path(__file__).parents[3] / "recorded" / "management.json").read_text(encoding="utf-8"))
    document = next(e["body"] for e in recorded if e["path"] == "/api/definitions" and e["verb"] == "GET")
    again = imported(document)
    ours = definitions.exported(again.reading())
    for section in ("users", "vhosts", "permissions", "topic_permissions", "policies", "queues", "exchanges"):
        names = sorted((entry.get("vhost", ""), entry.get("name", entry.get("user"))) for entry in document[section])
        assert [(e.get("vhost", ""), e.get("name", e.get("user"))) for e in ours[section]] == names
    assert len(ours["bindings"]) == len(document["bindings"])
    assert ours["parameters"] == sorted(document["parameters"], key=lambda e: (e["vhost"], e["component"]))


def test_passwords_are_left_to_be_hashed() -> None:
    draft = definitions.drafted(
        {
            "users": [
                {"name": "a", "password_hash": "", "tags": ""},
                {"name": "b", "password": "x", "tags": "monitoring"},
            ]
        },
        WHEN_MS,
    )
    assert draft.passwords == [(1, "x")]
    assert [type(command) for command in draft.commands] == [c.PutUser, c.PutUser]


def test_passwords_in_the_clear_are_few() -> None:
    users = [{"name": str(number), "password": "x", "tags": ""} for number in range(definitions.PASSWORDS_MAX + 1)]
    assert len(definitions.drafted({"users": users[:-1]}, WHEN_MS).passwords) == definitions.PASSWORDS_MAX
    with pytest.raises(Refused, match="more than 1000 passwords in the clear"):
        definitions.drafted({"users": users}, WHEN_MS)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "not_json"),
        ({"queues": {}}, "queues: not a list"),
        ({"queues": [{"vhost": "/", "name": "a"}, 5]}, "queues[1]: not an object"),
        (
            {"users": [{"name": "x"}], "queues": [5, {"vhost": "/", "name": ""}]},
            "users[0]: tags_not_present; queues[0]: not an object; queues[1]: the name is empty",
        ),
        ({"queues": [5] * 1000}, "queues[199]: not an object; and perhaps more"),
        ({"queues": [{"name": "x"}]}, "queues[0]: [{key_missing,vhost}]"),
        ({"queues": [{"vhost": "/", "name": 5}]}, "queues[0]: 'name' should be a text"),
        ({"queues": [{"vhost": "/", "name": "\ud800"}]}, "queues[0]: 'name' is not valid Unicode"),
        ({"users": [{"name": "x"}]}, "users[0]: tags_not_present"),
        ({"users": [{"name": "x", "tags": "", "password_hash": "$"}]}, "users[0]: password_hash is not base64"),
        ({"users": [{"name": "x", "tags": "", "password": "x" * 4097}]}, "users[0]: a password has 1 to 4096 bytes"),
        ({"queues": [{"vhost": "/", "name": ""}]}, "queues[0]: the name is empty"),
        ({"vhosts": [{"name": ""}]}, "vhosts[0]: the name is empty"),
        ({"vhosts": [{"name": "a\r\nb"}]}, "vhosts[0]: name 'a\\r\\nb' has a line break"),
        ({"queues": [{"vhost": "/", "name": "a\n"}]}, "queues[0]: name 'a\\n' has a line break"),
        ({"exchanges": [{"vhost": "/", "name": "\r", "type": "fanout"}]}, "exchanges[0]: name"),
        ({"users": [{"name": "\n", "tags": ""}]}, "users[0]: name '\\n' has a line break"),
        ({"policies": [{"vhost": "/", "name": "p" * 256, "pattern": "", "definition": {}}]}, "longer than 255 bytes"),
        ({"queues": [{"vhost": "/", "name": "é" * 128}]}, "longer than 255 bytes"),
        (
            {"queues": [{"vhost": "/", "name": "q", "arguments": {"x": 2**63}}]},
            "queues[0]: arguments: 9223372036854775808",
        ),
        (
            {"exchanges": [{"vhost": "/", "name": "x", "type": "fanout", "arguments": deep(64)}]},
            "nested deeper than 64",
        ),
        ({"bindings": [{"vhost": "/", "source": "a", "destination": "b", "arguments": {"k" * 256: 1}}]}, "256 bytes"),
        ({"queues": [{"vhost": "/", "name": "q", "arguments": {"x": [1] * 10_001}}]}, "queues[0]: arguments: "),
        ({"policies": [{"vhost": "/", "name": "", "pattern": "", "definition": {}}]}, "policies[0]: the name is empty"),
        ({"global_parameters": {"": 1}}, "global_parameters[0]: the name is empty"),
        ({"bindings": [{"vhost": "/", "source": "a", "destination": "b", "destination_type": "c"}]}, "neither"),
        ({"parameters": [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"x": 1}}]}, "limits"),
        (
            {"queues": [{"vhost": "/", "name": "q", "arguments": {"x-delivery-delay": 5}}]},
            "invalid arg 'x-delivery-delay' for queue 'q' in vhost '/': queues do not delay",
        ),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": ".*"}]}, "policies[0]: [{key_missing,definition}]"),
    ],
)
def test_mistakes_refuse_the_whole(document: Any, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        definitions.drafted(document, WHEN_MS).ready()
    assert refused.value.status == 400
    assert reason in str(refused.value.reason)


def test_what_amqp_can_just_say_is_taken() -> None:
    arguments = {"n": 2**63 - 1, "m": -(2**63), "k" * 255: "", **deep(63), "a": [1] * 9900}
    document = {"queues": [{"vhost": "/", "name": "q" * 255, "arguments": arguments}, {"vhost": "/", "name": "a\tb"}]}
    place = imported(document)
    assert place.replica.map.queue("/", "q" * 255).arguments == arguments


def test_a_trial_tells_what_would_be_new_or_changed() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"), queue("kept"))
    digest = place.replica.map.digest()
    document = {
        "vhosts": [{"name": "/"}, {"name": "v"}],
        "users": [{"name": "guest", "tags": "", "password_hash": ""}, {"name": "eve", "tags": "", "password_hash": ""}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [
            {"name": "kept", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}},
            {"name": "q", "vhost": "v"},
        ],
        "exchanges": [{"name": "x", "vhost": "v", "type": "topic"}],
        "bindings": [{"vhost": "v", "source": "x", "destination": "q", "destination_type": "queue"}],
    }
    told = trial(place, document)
    kinds = ("new", "changed", "same")
    assert {section: tuple(counts[kind] for kind in kinds) for section, counts in told.items()} == {
        "vhosts": (1, 0, 1), "users": (1, 1, 0), "permissions": (0, 0, 1), "queues": (1, 0, 1), "exchanges": (1, 0, 0),
        "bindings": (1, 0, 0),
    }  # fmt: skip
    assert {section: (counts["names"]["new"], counts["names"]["changed"]) for section, counts in told.items()} == {
        "vhosts": (["v"], []), "users": (["eve"], ["guest"]), "permissions": ([], []), "queues": (["q in v"], []),
        "exchanges": (["x in v"], []), "bindings": (["x to queue q by '' in v"], []),
    }  # fmt: skip
    document["queues"].append({"name": "kept", "vhost": "/", "durable": False})
    refused = definitions.trial(place.replica.map, definitions.drafted(document, WHEN_MS))
    assert list(refused) == ["warnings", "unsupported", "obstacles"]
    [line] = refused["obstacles"]
    assert line.startswith("inequivalent arg 'durable' for queue 'kept' in vhost '/'")
    assert place.replica.map.digest() == digest


def test_of_very_many_names_the_first_are_told() -> None:
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(30)]
    told = trial(Place(), {"queues": queues})["queues"]
    assert (told["new"], told["names"]["new"][-1], len(told["names"]["new"])) == (30, "q19 in /", definitions.NAMES_MAX)


def test_a_trial_of_what_was_exported_would_change_nothing() -> None:
    place = recorded_place()
    told = trial(place, definitions.exported(place.reading()))
    assert told["bindings"]["same"] == 3
    assert {counts["new"] + counts["changed"] for counts in told.values()} == {0}


# -- worker pools ---------------------------------------------------------------------------------------------


def declared(place: Place, document: Any, vhost: str | None = None) -> Place:
    """All of a document, in the order of an import."""
    draft = definitions.drafted(document, WHEN_MS, vhost).ready()
    place.must(*draft.commands, *(one.declare for one in draft.pools), *bindings_of(draft.pools))
    return place


def pool_place() -> Place:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"), queue("reports"))
    place.must(queue("mine", exclusive=True, connection="c1"))
    settings = PoolSettings(max=4, keys="[0-9]+")
    more = MoreSettings(tenant_separator="/", tenant_weights=(("acme", 3),))
    place.must(
        c.DeclarePool(
            vhost="/", name="core", template="core", settings=settings, spares=2, keys_per_worker=3, more=more
        ),
        c.DeclarePool(vhost="/", name="another one"),
        c.Bind(vhost="/", source="core-activity-xchg", destination="reports", routing_key="42"),
        c.Bind(vhost="/", source="core-activity-xchg", destination="amq.fanout", destination_kind="exchange"),
        c.Bind(vhost="/", source="core-activity-xchg", destination="mine", connection="c1"),
    )
    return place


def test_pools_come_back_with_what_is_bound_to_their_reports() -> None:
    place = pool_place()
    document = json.loads(json.dumps(definitions.exported(place.reading())))
    assert [entry["name"] for entry in document["pools"]] == ["another one", "core"]
    assert document["bindings"] == [], "RabbitMQ would refuse them"
    core = document["pools"][1]
    assert (core["template"], core["max"], core["spares"], core["tenant_weights"]) == ("core", 4, 2, {"acme": 3})
    assert [one["destination"] for one in core["activity_bindings"]] == ["reports", "amq.fanout"]
    again = declared(Place(), document)
    assert definitions.exported(again.reading()) == document
    assert trial(again, document)["pools"] == {"new": 0, "changed": 0, "same": 2, "names": {"new": [], "changed": []}}
    assert trial(again, document)["bindings"]["new"] == 0
    fresh = trial(Place(), document)
    assert fresh["pools"]["names"]["new"] == ["another one in /", "core in /"]
    assert fresh["bindings"]["new"] == 2


def test_pools_of_a_vhost_fit_another_one() -> None:
    place = pool_place()
    document = definitions.exported_of(place.reading(), "/")
    assert '"vhost"' not in json.dumps(document)
    place.must(c.AddVhost(name="new"))
    declared(place, document, "new")
    assert definitions.exported_of(place.reading(), "new") == document


def test_a_binding_of_reports_may_stand_among_all_others() -> None:
    binding = {"vhost": "/", "source": "core-activity-xchg", "destination": "q", "destination_type": "queue"}
    document = {
        "queues": [{"vhost": "/", "name": "q"}],
        "bindings": [binding],
        "pools": [{"vhost": "/", "name": "core"}],
    }
    place = declared(Place(), document)
    assert [one.source for one in place.replica.map.bindings_to("/", "queue", "q")] == ["core-activity-xchg"]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"pools": {}}, "pools: not a list"),
        ({"pools": [{"vhost": "/"}]}, r"pools\[0\]: \[\{key_missing,name\}\]"),
        ({"pools": [{"vhost": "/", "name": "core", "max": "many"}]}, r"pools\[0\]: max should be a number"),
        (
            {"pools": [{"vhost": "/", "name": "core", "activity_bindings": [{}]}]},
            r"pools\[0\]: \[\{key_missing,destination\}\]",
        ),
        ({"pools": [{"vhost": "/", "name": "core"}] * 2}, r"pools\[1\]: 'core' is named twice"),
        (
            {"pools": [{"vhost": "/", "name": "core"}], "queues": [{"vhost": "/", "name": "core-req-42"}]},
            "queue 'core-req-42' is defined, and a pool of the definitions would need its name",
        ),
        (
            {"pools": [{"vhost": "/", "name": "a"}], "exchanges": [{"vhost": "/", "name": "a", "type": "fanout"}]},
            "exchange 'a' is defined, and a pool of the definitions would need its name",
        ),
    ],
)
def test_mistakes_of_pools_refuse_the_whole(document: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        definitions.drafted(document, WHEN_MS).ready()


def test_a_trial_tells_which_pools_are_others() -> None:
    place = pool_place()
    document = definitions.exported(place.reading())
    document["pools"][1]["max"] = 5
    document["vhosts"].append({"name": "new"})
    document["pools"].append({"vhost": "new", "name": "core"})
    told = definitions.trial(place.replica.map, definitions.drafted(document, WHEN_MS))
    assert told["obstacles"] == ["pool 'core' in vhost '/' has max 4, and not 5: change it with set"]
