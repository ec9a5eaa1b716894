"""The OpenAPI document says of requests what is so: no more is asked for, and what it allows is not refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.management import amqp_operations, bodies, delayed, messages, operations, schemas, writes
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.json_schema import Schema
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.policies import POLICY_RULES
from clusterbroker.cluster.wiring.queue_settings import ARGUMENT_RULES
from tests.budget import examples
from tests.unit.broker.management.set_up import recorded_place

TABLES: dict[tuple[str, str], Any] = {
    (entry.method, entry.path): entry
    for entry in (
        *writes.WRITES,
        *amqp_operations.ACTS,
        *operations.OPERATIONS,
        *messages.QUESTIONS,
        *delayed.QUESTIONS,
    )
}
BODIES: dict[tuple[str, str], Schema] = {
    place: body
    for place, entry in TABLES.items()
    if (body := schemas.of_body(*place, getattr(entry, "form", None))) is not None
}
OTHERS_SAY = {"apply_to", "rabbit_version", "product_name"}
"""What clients also send, in the place of what the schemas name, and the words by which exports are known."""
NO_FORM = (
    "not_base64", "there is no", "no_such_user", "look again", "is no condition", "days from now at most",
    "is named twice", "would need its name",
)  # fmt: skip
"""Why else something is refused."""
TEXTS = st.text("ab0", max_size=6)
PLACE = recorded_place()
PLACE.must(
    c.DeclareDelayedExchange(vhost="/", name="later", type="x-delayed-message", arguments={"x-delayed-type": "fanout"})
)
PLACE.must(c.DeclarePool(vhost="/", name="busy"))


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """What a schema allows, as far as the schemas here go."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema and "type" not in schema:
        return st.one_of([values(each) for each in schema["anyOf"]])
    match schema.get("type"):
        case "string":
            least = schema.get("minLength", 0)
            return TEXTS.filter(lambda text: len(text) >= least)
        case "integer":
            return st.integers(schema.get("minimum", -9), schema.get("maximum", 9))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(values(schema["items"]), max_size=2)
        case "object":
            return objects(schema)
        case _:
            return st.none() | st.booleans() | TEXTS


@st.composite
def objects(draw: st.DrawFn, schema: Schema) -> dict[str, Any]:
    fields = {name: values(each) for name, each in schema.get("properties", {}).items()}
    chosen = set(schema.get("required", ()))
    choices = [schema, *schema.get("allOf", ())]
    alternatives = set[str]()
    for choice in (each.get("anyOf") or each.get("oneOf") for each in choices):
        if choice:
            alternatives |= {name for one in choice for name in one["required"]}
            one = draw(st.sampled_from(choice))
            chosen |= set(one["required"])
            fields |= {name: values(each) for name, each in one.get("properties", {}).items()}
    free = sorted(set(fields) - chosen - alternatives)
    chosen |= draw(st.sets(st.sampled_from(free), max_size=4)) if free else set()
    if not chosen and schema.get("minProperties"):
        chosen = {draw(st.sampled_from(sorted(fields)))}
    return {name: draw(fields[name]) for name in sorted(chosen)}


class Asked(dict[str, Any]):
    """A body that remembers what was asked for."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.names = set[str]()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def planned(place: tuple[str, str], fields: dict[str, Any]) -> None:
    entry = TABLES[place]
    path = {"vhost": "/", "name": "busy", "user": "mon", "source": "events", "destination": "busy", "component": "c",
            "node": "n1", "properties_key": "order.%23", "exchange": "events",
            "container": "busy", "key": "42", "id": "w1-0"}  # fmt: skip
    if "/delayed" in place[1]:
        path["name"] = "later"
    elif "limits" in place[1]:
        path["name"] = "max-connections"
    elif "/exchanges/" in place[1] or "/e/{destination}" in place[1]:
        path["name"] = path["destination"] = "events"
    elif "/nodes/" in place[1]:
        path["name"] = PLACE.replica.node
    path = {name: path[name] for name in schemas.of_path(place[1])}
    reading = PLACE.reading(dry_run="")
    if isinstance(entry, operations.Operation):
        operations.run(entry, reading, path, fields)
    elif isinstance(entry, messages.Question):
        (entry.asks or messages.run)(entry, reading, path, fields)
    elif isinstance(entry, amqp_operations.Act):
        amqp_operations.run(entry, reading, path, fields)
    else:
        writes.run(entry, reading, path, fields)


def refusal(place: tuple[str, str], fields: dict[str, Any]) -> Refused | None:
    try:
        planned(place, fields)
    except Refused as refused:
        return refused
    return None


def test_every_path_that_asks_for_something_has_a_schema() -> None:
    for place in set(TABLES) - set(BODIES):
        asked = Asked({})
        refusal(place, asked)
        assert not asked.names, f"{place} asks for {asked.names}: name its form in the table"


@pytest.mark.parametrize("place", sorted(BODIES), ids=" ".join)
def test_what_a_schema_allows_is_taken(place: tuple[str, str]) -> None:
    schema = BODIES[place]

    @settings(max_examples=examples(40))
    @given(values(schema))
    def check(fields: dict[str, Any]) -> None:
        asked = Asked(fields)
        refused = refusal(place, asked)
        other = refused is None or refused.status == 401 or any(why in str(refused.reason) for why in NO_FORM)
        assert other or (fields.get("staged") and refused is not None and refused.status == 404), refused
        assert asked.names <= set(schema["properties"]) | OTHERS_SAY, "it asks for what the schema does not name"

    check()


@pytest.mark.parametrize("place", sorted(BODIES), ids=" ".join)
def test_what_a_schema_requires_is_required(place: tuple[str, str]) -> None:
    required = BODIES[place].get("required", ())

    @settings(max_examples=20)
    @given(values(BODIES[place]))
    def check(fields: dict[str, Any]) -> None:
        for name in required:
            refused = refusal(place, {each: fields[each] for each in fields if each != name})
            assert refused is not None
            assert refused.status == 400

    check()


@pytest.mark.parametrize(("properties", "rules"), [
    (bodies.QUEUE_ARGUMENTS["properties"], ARGUMENT_RULES), (bodies.POLICY_DEFINITION["properties"], POLICY_RULES),
])  # fmt: skip
def test_arguments_have_the_bounds_that_the_wiring_knows(properties: dict[str, Schema], rules: dict[str, Any]) -> None:
    assert set(rules) <= set(properties)
    for name, rule in rules.items():
        schema = properties[name]
        match schema.get("type"):
            case None:
                continue
            case "integer":
                good, bad = {schema["minimum"], schema["maximum"]}, {schema["minimum"] - 1, schema["maximum"] + 1, "1"}
            case "boolean":
                good, bad = {True, False}, {"true"}
            case _:
                longest = "x" * schema.get("maxLength", 255)
                good, bad = set(schema.get("enum", schema.get("examples", ("a", longest)))), {7}
        assert [rule.check(value) for value in good] == [None] * len(good), name
        assert all(rule.check(value) is not None for value in bad), name
