"""What an administrator sets by the forms: vhosts, limits, parameters, topic permissions, definitions. A real node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.visit import Visit


def sure(page: Page, button: str, deed: str) -> None:
    """Asks for what cannot be undone: first Cancel, which has the focus and does nothing, then the deed."""
    asking = page.get_by_role("button", name=button, exact=True)
    asking.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    asking.click()
    dialog.get_by_role("button", name=deed).click()


@pytest.mark.smoke
def test_a_vhost_is_made_limited_and_deleted(visit: Visit, api: httpx.Client) -> None:
    page = visit.sign_in(at="#/vhosts")
    form = page.get_by_role("form", name="Set a vhost")
    form.get_by_label("Name").fill("shop/eu")
    form.get_by_label("Description").fill("sold in Europe")
    form.get_by_label("Tags").fill("eu, sales")
    form.get_by_label("Type of its durable queues").select_option("quorum")
    form.get_by_role("button", name="Set vhost").click()
    visit.told("Vhost shop/eu is set")
    expect(visit.row("Vhosts", "shop/eu")).to_contain_text("sold in Europe")
    made = api.get("vhosts/shop%2Feu").json()
    assert (made["description"], made["tags"]) == ("sold in Europe", ["eu", "sales"])
    assert made["default_queue_type"] == "quorum"

    # who makes one may use it: there is a permission to change
    assert api.put("permissions/shop%2Feu/guest", json={"configure": "", "write": "", "read": ""}).status_code == 204
    form = page.get_by_role("form", name="Limit a vhost")
    form.get_by_label("Vhost").select_option("shop/eu")
    form.get_by_label("Limit").select_option("max-queues")
    form.get_by_label("At most").fill("12")
    form.get_by_role("button", name="Set limit").click()
    visit.told("max-queues of shop/eu is set")
    expect(visit.row("Limits", "shop/eu")).to_contain_text("12")
    assert api.get("vhost-limits/shop%2Feu").json() == [{"vhost": "shop/eu", "value": {"max-queues": 12}}]
    sure(page, "Take max-queues off shop/eu", "Take off")
    visit.told("The limit is taken off")
    assert api.get("vhost-limits/shop%2Feu").json() == []

    sure(page, "Delete vhost shop/eu", "Delete")
    visit.told("Vhost shop/eu is deleted")
    expect(visit.row("Vhosts", "shop/eu")).to_have_count(0)
    assert api.get("vhosts/shop%2Feu").status_code == 404


def test_a_user_is_limited(visit: Visit, api: httpx.Client) -> None:
    assert api.put("users/lima", json={"password": "secret-pass", "tags": ""}).status_code == 201
    page = visit.sign_in(at="#/users")
    form = page.get_by_role("form", name="Limit a user")
    form.get_by_label("User").select_option("lima")
    form.get_by_label("At most").fill("3")
    form.get_by_role("button", name="Set limit").click()
    visit.told("max-connections of lima is set")
    expect(visit.row("Limits", "lima")).to_contain_text("3")
    assert api.get("user-limits/lima").json() == [{"user": "lima", "value": {"max-connections": 3}}]
    sure(page, "Take max-connections off lima", "Take off")
    visit.told("The limit is taken off")
    assert api.get("user-limits/lima").json() == []


def test_a_topic_permission_is_set_and_cleared(visit: Visit, api: httpx.Client) -> None:
    assert api.put("users/tom", json={"password": "secret-pass", "tags": ""}).status_code == 201
    page = visit.sign_in(at="#/users")
    form = page.get_by_role("form", name="Set a topic permission")
    form.get_by_label("User").select_option("tom")
    form.get_by_label("Topic exchange").fill("amq.topic")
    form.get_by_label("Write").fill("^order\\.")
    form.get_by_label("Read").fill("(")
    form.get_by_role("button", name="Set topic permission").click()
    expect(form.get_by_role("alert")).to_contain_text("invalid topic read pattern")
    form.get_by_label("Read").fill("")
    form.get_by_role("button", name="Set topic permission").click()
    visit.told("What tom may use at amq.topic is set")
    expect(visit.row("Topic permissions", "tom")).to_contain_text("^order\\.")
    (held,) = api.get("topic-permissions/%2F/tom").json()
    assert (held["exchange"], held["write"], held["read"]) == ("amq.topic", "^order\\.", "")
    sure(page, "Clear tom at amq.topic in /", "Clear")
    visit.told("The topic permission is cleared")
    assert api.get("topic-permissions/%2F/tom").json() == []


def test_bridges_are_shown_with_their_state_and_deleted(visit: Visit, api: httpx.Client) -> None:
    value = {
        "src-uri": "amqp://guest:guest@",
        "dest-uri": "amqp://guest:guest@",
        "src-queue": "in",
        "dest-queue": "out",
    }
    assert api.put("parameters/shovel/%2F/east", json={"value": value}).status_code in (201, 204)
    assert api.put("parameters/shovel/%2F/bad", json={"value": {}}).status_code in (201, 204)
    page = visit.sign_in(at="#/parameters")
    row = visit.row("Bridges", "east")
    expect(row).to_contain_text("running", timeout=20_000)
    expect(visit.row("Bridges", "bad")).to_contain_text("refused")
    expect(visit.row("Bridges", "bad")).to_contain_text("say src-queue or src-exchange")
    for name in ("east", "bad"):
        sure(page, f"Delete bridge {name}", "Delete")
        visit.told(f"{name} is deleted")
    assert api.get("parameters/shovel").json() == []


def test_parameters_are_set_and_deleted(visit: Visit, api: httpx.Client) -> None:
    assert api.put("vhost-limits/%2F/max-queues", json={"value": 1000}).status_code in (201, 204)
    page = visit.sign_in(at="#/parameters")
    form = page.get_by_role("form", name="Set a parameter")
    form.get_by_label("Component").fill("bridge")
    form.get_by_label("Name").fill("east")
    form.get_by_label("Value").fill("{to: east}")
    form.get_by_role("button", name="Set parameter").click()
    expect(form.get_by_role("alert")).to_contain_text("Not JSON")
    form.get_by_label("Value").fill('{"to": "east"}')
    form.get_by_role("button", name="Set parameter").click()
    visit.told("east is set")
    expect(visit.row("Parameters", "bridge")).to_contain_text('{"to":"east"}')
    assert api.get("parameters/bridge/%2F/east").json()["value"] == {"to": "east"}
    limits = visit.row("Parameters", "vhost-limits")
    expect(limits.get_by_role("link", name="under vhosts")).to_be_visible()
    expect(limits.get_by_role("button")).to_have_count(0)
    sure(page, "Delete parameter east", "Delete")
    visit.told("east is deleted")
    assert api.get("parameters/bridge/%2F/east").status_code == 404

    form = page.get_by_role("form", name="Set a global parameter")
    form.get_by_label("Name").fill("answer")
    form.get_by_label("Value").fill("42")
    form.get_by_role("button", name="Set global parameter").click()
    visit.told("answer is set")
    expect(visit.row("Global parameters", "answer")).to_contain_text("42")
    assert api.get("global-parameters/answer").json()["value"] == 42
    sure(page, "Delete global parameter answer", "Delete")
    visit.told("answer is deleted")
    assert api.get("global-parameters/answer").status_code == 404


def test_who_makes_policies_sets_parameters_and_no_global_ones(visit: Visit, api: httpx.Client) -> None:
    api.put("users/polly", json={"password": "secret-pass", "tags": "policymaker"})
    api.put("permissions/%2F/polly", json={"configure": "", "write": "", "read": ""})
    page = visit.sign_in("polly", "secret-pass", at="#/parameters")
    expect(page.get_by_role("form", name="Set a parameter")).to_be_visible()
    expect(page.get_by_role("heading", name="Global parameters")).to_be_visible()
    expect(page.get_by_role("form", name="Set a global parameter")).to_have_count(0)
    visit.go("vhosts")
    expect(visit.row("Vhosts", "/")).to_be_visible()
    expect(page.get_by_role("form")).to_have_count(0)


def upload(page: Page, document: Any, into: str = "") -> None:
    form = page.get_by_role("form", name="Upload definitions")
    text = document if isinstance(document, str) else json.dumps(document)
    form.get_by_label("File").set_input_files({"name": "mine.json", "mimeType": "", "buffer": text.encode()})
    form.get_by_label("Into").select_option(into)
    form.get_by_role("button", name="Preview").click()


def queue(name: str, **arguments: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": arguments}


def test_definitions_are_downloaded(visit: Visit, api: httpx.Client) -> None:
    api.put("queues/%2F/kept", json={"arguments": {"x-max-length": 2**60 + 1}})
    page = visit.sign_in(at="#/definitions")
    form = page.get_by_role("form", name="Download definitions")
    with page.expect_download() as begun:
        form.get_by_role("button", name="Download").click()
    assert begun.value.suggested_filename == "definitions.json"
    assert json.loads(Path(begun.value.path()).read_text()) == api.get("definitions").json()
    form.get_by_label("Of").select_option("/")
    with page.expect_download() as begun:
        form.get_by_role("button", name="Download").click()
    assert json.loads(Path(begun.value.path()).read_text()) == api.get("definitions/%2F").json()


def test_definitions_are_previewed_and_then_imported(visit: Visit, api: httpx.Client) -> None:
    api.put("queues/%2F/old", json={"arguments": {"x-max-length": 5}})
    api.put("policies/%2F/short", json={"pattern": "^old", "definition": {"max-length": 5}})
    document = {
        "queues": [queue("old", **{"x-max-length": 5}), queue("big", **{"x-max-length": 2**60 + 1})],
        "policies": [{"vhost": "/", "name": "short", "pattern": "^old", "definition": {"max-length": 7}}],
        "exchanges": [{"vhost": "/", "name": name, "type": "topic"} for name in ("amq.topic", "x")],
        "bindings": [{"vhost": "/", "source": "x", "destination": "big", "routing_key": "big.*"}],
        "users": [{"name": "newcomer", "password": "secret-pass", "tags": ""}],
    }
    page = visit.sign_in(at="#/definitions")
    upload(page, "not json")
    visit.told("Not JSON")
    upload(page, document)
    cells = {
        "queues": ["1", "0", "1", "new: big in /"],
        "policies": ["0", "1", "0", "changed: short in /"],
        "exchanges": ["1", "0", "1", "new: x in /"],
        "bindings": ["1", "0", "0", "new: x to queue big by 'big.*' in /"],
        "users": ["1", "0", "0", "new: newcomer"],
    }
    for section, told in cells.items():
        expect(visit.row("What an import would do", section).get_by_role("cell")).to_have_text([section, *told])
    assert api.get("queues/%2F/big").status_code == 404  # a preview changes nothing
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("4 things would be new, 1 changed")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Import").click()
    expect(page.get_by_text("The node has taken all of it.")).to_be_visible()
    assert api.get("queues/%2F/big").json()["arguments"] == {"x-max-length": 2**60 + 1}
    assert api.get("policies/%2F/short").json()["definition"] == {"max-length": 7}

    # what was downloaded is found as it is
    upload(page, api.get("definitions").text)
    expect(visit.row("What an import would do", "queues").get_by_role("cell").nth(1)).to_have_text("0")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("dialog")).to_contain_text("0 things would be new, 0 changed")


def test_an_import_that_the_node_refuses_is_told(visit: Visit, api: httpx.Client) -> None:
    api.put("queues/%2F/firm", json={})
    page = visit.sign_in(at="#/definitions")
    upload(page, {"queues": [queue("firm", **{"x-max-length": 1}), queue("never")], "users": [{"name": "ann"}]}, "/")
    expect(page.get_by_text("The node would refuse it:")).to_contain_text("x-max-length")
    expect(page.get_by_role("button", name="Import")).to_have_count(0)
    upload(page, {"queues": [queue("firm")], "users": [{"name": "ann"}]}, "/")
    expect(page.get_by_text("Left out, for no single vhost has them: users.")).to_be_visible()
    assert api.get("queues/%2F/never").status_code == 404
