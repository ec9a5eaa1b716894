"""The page as a person uses it, in a real browser at a real node."""

from __future__ import annotations

import re
import time

import httpx
import pika
import pytest
from playwright.sync_api import Browser, Page, expect

from clusterbroker import Broker
from tests.browser.visit import Visit, visiting

FIRST_PAGE_S = 1.0
PLACES = (
    "overview",
    "queues",
    "queues/%2F/orders",
    "exchanges",
    "exchanges/%2F/shop",
    "channels",
    "cluster",
    "cluster/embedded",
    "vhosts",
    "policies",
    "parameters",
    "users",
    "definitions",
)


@pytest.fixture(scope="module", autouse=True)
def declared(api: httpx.Client) -> None:
    made = [
        api.put("queues/%2F/orders", json={}),
        api.put("exchanges/%2F/shop", json={"type": "topic"}),
        api.post("bindings/%2F/e/shop/q/orders", json={"routing_key": "order.*"}),
        api.put("users/mona", json={"password": "secret-pass", "tags": "monitoring"}),
        api.put("permissions/%2F/mona", json={"configure": "", "write": "", "read": ".*"}),
    ]
    assert [answer.status_code for answer in made] == [201] * 5


def publish(api: httpx.Client, queue: str, count: int) -> None:
    sent = {"properties": {}, "routing_key": queue, "payload": "hello", "payload_encoding": "string"}
    for _ in range(count):
        assert api.post("exchanges/%2F/amq.default/publish", json=sent).json() == {"routed": True}


@pytest.mark.smoke
def test_who_is_not_signed_in_sees_a_form_and_who_errs_is_told(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.url)
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("User or password is wrong")
    visit.sign_in()
    (cookie,) = visit.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_the_first_page_is_there_within_a_second(visit: Visit) -> None:
    visit.sign_in()
    best_s = 60.0
    for _ in range(5):  # a busy machine may take longer once
        visit.page.goto("about:blank")
        began = time.monotonic()
        visit.page.goto(visit.url)
        visit.page.get_by_text("Messages waiting").wait_for()
        best_s = min(best_s, time.monotonic() - began)
    visit.asked = [url for url in visit.asked if url != "about:blank"]
    assert best_s < FIRST_PAGE_S


def test_a_queue_is_seen_to_get_messages(visit: Visit, api: httpx.Client) -> None:
    api.put("queues/%2F/watched", json={})
    page = visit.sign_in(at="#/queues")
    row = visit.row("Queues", "watched")
    expect(row).to_be_visible()
    publish(api, "watched", 3)
    expect(row.get_by_role("cell", name="3", exact=True)).to_be_visible()
    row.get_by_role("link", name="watched").click()
    expect(page.get_by_role("heading", name="watched", level=1)).to_be_visible()
    expect(page.get_by_role("img", name="Messages waiting")).to_have_accessible_name(
        "Messages waiting, last 10 minutes. Now: ready 3, unacknowledged 0"
    )
    expect(page.locator(".chart canvas").first).to_be_visible()


@pytest.mark.smoke
def test_a_queue_is_declared_filled_read_purged_and_deleted_by_the_forms(visit: Visit, api: httpx.Client) -> None:
    page = visit.sign_in(at="#/queues")
    form = page.get_by_role("form", name="Declare a queue")
    form.get_by_label("Name").fill("a/b ü")
    form.get_by_label("Arguments").fill("{not json")
    form.get_by_role("button", name="Declare").click()
    expect(form.get_by_role("alert")).to_contain_text("Not JSON")
    form.get_by_label("Arguments").fill("")
    form.get_by_label("Max length", exact=True).fill("-1")
    form.get_by_role("button", name="Declare").click()
    # what the node refuses stands beside its field, and is of it
    field = form.get_by_label("Max length", exact=True)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(re.compile("x-max-length"))
    field.fill("100")
    form.get_by_label("Arguments").fill('{"x-consumer-timeout": 60000}')
    form.get_by_label("Type").select_option("quorum")
    form.get_by_role("button", name="Declare").click()
    visit.told("is declared")
    visit.row("Queues", "a/b ü").get_by_role("link").click()
    for argument in ("x-max-length", "x-consumer-timeout"):
        expect(page.get_by_text(argument, exact=True)).to_be_visible()
    arguments = api.get("queues/%2F/a%2Fb%20%C3%BC").json()["arguments"]
    assert arguments == {"x-max-length": 100, "x-consumer-timeout": 60000, "x-queue-type": "quorum"}

    form = page.get_by_role("form", name="Publish a message")
    form.get_by_label("Payload").fill("<b>first</b>")
    form.get_by_role("button", name="Publish").click()
    visit.told("Published and routed")
    form = page.get_by_role("form", name="Get messages")
    form.get_by_label("Then the messages").select_option("ack_requeue_true")
    form.get_by_role("button", name="Get").click()
    expect(page.get_by_role("article")).to_contain_text("<b>first</b>")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Purge").click()
    visit.told("is empty")
    form.get_by_role("button", name="Get").click()
    expect(page.get_by_text("The queue gave no message")).to_be_visible()

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert api.get("queues/%2F/a%2Fb%20%C3%BC").status_code == 200
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    visit.told("is deleted")
    assert api.get("queues/%2F/a%2Fb%20%C3%BC").status_code == 404


def test_an_exchange_is_drawn_with_its_bindings(visit: Visit) -> None:
    page = visit.sign_in(at="#/exchanges/%2F/shop")
    picture = page.get_by_role("group", name="shop with 0 sources and 1 destinations")
    expect(picture).to_contain_text("order.*")
    picture.get_by_role("link", name="queue orders").click()
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    expect(visit.row("Bindings", "shop")).to_be_visible()


def test_bindings_are_made_and_ended_at_both_ends(visit: Visit, api: httpx.Client) -> None:
    page = visit.sign_in(at="#/exchanges/%2F/shop")
    form = page.get_by_role("form", name="Bind")
    form.get_by_label("Name").fill("orders")
    form.get_by_label("Routing key").fill("return.*")
    form.get_by_label("Arguments").fill('{"x-why": "test"}')
    form.get_by_role("button", name="Bind").click()
    visit.told("Bound: orders.")
    expect(visit.row("Bindings from here", "return.*")).to_contain_text("x-why")
    visit.go("queues/%2F/orders")
    form = page.get_by_role("form", name="Bind")
    form.get_by_label("From exchange").select_option("amq.fanout")
    form.get_by_role("button", name="Bind").click()
    visit.told("Bound: amq.fanout.")
    visit.row("Bindings", "amq.fanout").get_by_role("button", name="Unbind").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    visit.told("The binding is gone.")
    expect(visit.row("Bindings", "amq.fanout")).to_have_count(0)
    visit.go("exchanges/%2F/shop")
    page.get_by_role("button", name="Unbind orders with return.*").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    # what was told of the binding before may still be there: the row says it
    expect(visit.row("Bindings from here", "return.*")).to_have_count(0)
    keys = [binding["routing_key"] for binding in api.get("bindings/%2F/e/shop/q/orders").json()]
    assert keys == ["order.*"]


def test_a_policy_is_made_and_deleted(visit: Visit, api: httpx.Client) -> None:
    page = visit.sign_in(at="#/policies")
    expect(page.get_by_text("No policies", exact=True)).to_be_visible()
    form = page.get_by_role("form", name="Set a policy")
    form.get_by_label("Name").fill("short")
    form.get_by_label("Pattern").fill("^orders")
    form.get_by_label("More keys").fill('{"max-length": "many"}')
    form.get_by_role("button", name="Set policy").click()
    expect(form.get_by_role("alert")).to_contain_text("max-length")
    form.get_by_label("More keys").fill('{"consumer-timeout": 60000}')
    form.get_by_label("Max length", exact=True).fill("1000")
    form.get_by_role("button", name="Set policy").click()
    visit.told("short is set")
    expect(visit.row("Policies", "short")).to_contain_text('"max-length":1000')
    assert api.get("policies/%2F/short").json()["definition"] == {"max-length": 1000, "consumer-timeout": 60000}

    page.get_by_role("button", name="Edit policy short").click()
    form = page.get_by_role("form", name="Edit policy short")
    expect(form.get_by_label("Pattern")).to_have_value("^orders")
    expect(form.get_by_label("Max length", exact=True)).to_have_value("1000")
    expect(form.get_by_label("More keys")).to_have_value('{"consumer-timeout":60000}')
    form.get_by_label("Max length", exact=True).fill("")
    form.get_by_label("Overflow").select_option("reject-publish")
    form.get_by_role("button", name="Save").click()
    expect(visit.row("Policies", "short")).to_contain_text("reject-publish")
    definition = {"overflow": "reject-publish", "consumer-timeout": 60000}
    assert api.get("policies/%2F/short").json()["definition"] == definition
    expect(page.get_by_role("form", name="Set a policy").get_by_label("Pattern")).to_have_value("")
    visit.row("Policies", "short").get_by_role("button", name="Delete policy short").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    visit.told("short is deleted")
    assert api.get("policies/%2F/short").status_code == 404


def test_a_user_is_made_and_let_in(visit: Visit, api: httpx.Client) -> None:
    page = visit.sign_in(at="#/users")
    form = page.get_by_role("form", name="Set a user")
    form.get_by_label("Name").fill("carl")
    form.get_by_label("Password").fill("secret-pass")
    form.get_by_label("Tag").select_option("management")
    form.get_by_role("button", name="Set user").click()
    expect(visit.row("Users", "carl")).to_contain_text("no vhost")
    form = page.get_by_role("form", name="Set a permission")
    form.get_by_label("User").select_option("carl")
    form.get_by_label("Write").fill("")
    form.get_by_role("button", name="Set permission").click()
    expect(visit.row("Permissions", "carl")).to_contain_text("none")
    assert api.get("permissions/%2F/carl").json()["write"] == ""

    page.get_by_role("button", name="Edit user carl").click()
    form = page.get_by_role("form", name="Edit user carl")
    expect(form.get_by_label("Tag")).to_have_value("management")
    form.get_by_label("Tag").select_option("monitoring")
    form.get_by_role("button", name="Save").click()
    expect(visit.row("Users", "carl")).to_contain_text("monitoring")
    login = {"username": "carl", "password": "secret-pass"}
    assert api.post("login", json=login, headers={"x-csrf": "1"}).status_code == 200, "the password is as it was"

    page.get_by_role("button", name="Edit carl in /").click()
    form = page.get_by_role("form", name="Edit carl in /")
    expect(form.get_by_label("Write")).to_have_value("")
    form.get_by_label("Write").fill("^carl")
    form.get_by_role("button", name="Save").click()
    expect(visit.row("Permissions", "carl")).to_contain_text("^carl")
    assert api.get("permissions/%2F/carl").json()["write"] == "^carl"


def test_lists_show_one_vhost_or_all(visit: Visit, api: httpx.Client) -> None:
    assert api.put("vhosts/east", json={}).status_code == 201
    assert api.put("queues/east/eastern", json={"arguments": {"x-queue-type": "quorum"}}).status_code == 201
    page = visit.sign_in(at="#/queues")
    expect(visit.row("Queues", "eastern")).to_contain_text("quorum")
    expect(visit.row("Queues", "orders")).to_be_visible()
    page.get_by_label("Vhost of the list").select_option("east")
    expect(visit.row("Queues", "orders")).to_have_count(0)
    expect(visit.row("Queues", "eastern")).to_be_visible()
    visit.go("exchanges")  # the choice goes along
    expect(page.get_by_label("Vhost of the list")).to_have_value("east")
    expect(visit.row("Exchanges", "shop")).to_have_count(0)
    page.get_by_label("Vhost of the list").select_option("")
    expect(visit.row("Exchanges", "shop")).to_be_visible()
    assert api.delete("vhosts/east").status_code == 204


def test_curves_reach_as_far_as_is_chosen(visit: Visit) -> None:
    page = visit.sign_in()
    waiting = page.get_by_role("img", name="Messages waiting")
    expect(waiting).to_have_accessible_name(re.compile("last 10 minutes"))
    page.get_by_label("Range of the charts").select_option("1 day")
    expect(waiting).to_have_accessible_name(re.compile("last 1 day"))
    assert any("lengths_age=86400" in url for url in visit.asked)
    visit.go("queues/%2F/orders")
    ranges = page.get_by_label("Range of the charts").get_by_role("option")
    expect(ranges).to_have_text(["1 minute", "10 minutes", "1 hour"])


def test_a_node_has_a_page(visit: Visit) -> None:
    page = visit.sign_in(at="#/cluster")
    page.get_by_role("link", name="embedded").click()
    expect(page.get_by_role("heading", name="embedded", level=1)).to_be_visible()
    expect(page.get_by_text("Data directory")).to_be_visible()
    expect(visit.row("Queues led here", "orders")).to_be_visible()
    visit.go("cluster/nobody")
    expect(page.get_by_text("There is no such node")).to_be_visible()


def test_channels_are_listed(visit: Visit, node: Broker) -> None:
    page = visit.sign_in(at="#/channels")
    expect(page.get_by_text("No channels", exact=True)).to_be_visible()
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_consume("orders", lambda *_: None)
        row = visit.row("Channels", "(1)")
        expect(row).to_contain_text("confirms")
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Channel 1", level=1)).to_be_visible()


def test_who_only_monitors_is_offered_no_deed(visit: Visit) -> None:
    page = visit.sign_in("mona", "secret-pass", at="#/queues/%2F/orders")
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    expect(page.get_by_role("table", name="Replicas")).to_be_visible()
    for deed in ("Delete", "Purge", "Unbind", "Bind"):
        expect(page.get_by_role("button", name=deed)).to_have_count(0)
    expect(page.get_by_role("link", name="Users")).to_have_count(0)
    for place in ("users", "parameters", "definitions"):
        visit.go("queues")
        visit.go(place)
        expect(page.get_by_text("No such page")).to_be_visible()
    visit.go("vhosts")
    expect(visit.row("Vhosts", "/")).to_be_visible()
    expect(page.get_by_role("form")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    visit.go("policies")
    expect(page.get_by_text("No policies", exact=True)).to_be_visible()
    expect(page.get_by_role("form")).to_have_count(0)


def test_who_may_configure_nothing_is_offered_no_declaration(visit: Visit, api: httpx.Client) -> None:
    api.put("users/nora", json={"password": "secret-pass", "tags": "management"})
    api.put("permissions/%2F/nora", json={"configure": "", "write": ".*", "read": ".*"})
    page = visit.sign_in("nora", "secret-pass", at="#/queues")
    expect(page.get_by_role("table", name="Queues")).to_be_visible()
    expect(page.get_by_role("form", name="Declare a queue")).to_have_count(0)
    api.put("permissions/%2F/nora", json={"configure": "^mine", "write": ".*", "read": ".*"})
    page.reload()
    expect(page.get_by_role("form", name="Declare a queue")).to_be_visible()
    assert api.delete("users/nora").status_code == 204


def test_what_permissions_would_refuse_is_greyed_out(visit: Visit, api: httpx.Client) -> None:
    api.put("users/rita", json={"password": "secret-pass", "tags": "management"})
    api.put("permissions/%2F/rita", json={"configure": "^mine", "write": "^mine", "read": "^orders$"})
    api.put("queues/%2F/mine", json={})
    page = visit.sign_in("rita", "secret-pass", at="#/queues/%2F/orders")
    for name, offered in (("Delete", False), ("Pause", False), ("Bind", False), ("Publish", False), ("Purge", True)):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_enabled() if offered else expect(button).to_be_disabled()
    expect(page.get_by_text("Your permissions do not let you write to orders.")).to_be_visible()
    expect(page.get_by_role("form", name="Browse messages")).to_be_visible()
    visit.go("queues/%2F/mine")
    expect(page.get_by_role("heading", name="mine", level=1)).to_be_visible()
    for name, offered in (("Delete", True), ("Purge", False), ("Get", False), ("Bind", True)):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_enabled() if offered else expect(button).to_be_disabled()
    expect(page.get_by_role("form", name="Browse messages")).to_have_count(0)
    visit.go("exchanges/%2F/shop")
    expect(page.get_by_role("button", name="Publish")).to_be_disabled()
    assert api.delete("users/rita").status_code == 204


def test_a_connection_is_closed(visit: Visit, node: Broker) -> None:
    import pika
    from pika.exceptions import ConnectionClosedByBroker

    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    page = visit.sign_in(at="#/connections")
    row = visit.row("Connections", "guest")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    visit.told("The connection is closed")
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(time_limit=10)
    expect(page.get_by_text("No connections")).to_be_visible()


def test_a_session_that_ended_leads_to_the_form(visit: Visit, api: httpx.Client) -> None:
    api.put("users/temp", json={"password": "secret-pass", "tags": "administrator"})
    page = visit.sign_in("temp", "secret-pass")
    assert api.delete("users/temp").status_code == 204
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.textContent.trim() || document.activeElement.name")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.url)
    expect(page.get_by_label("User")).to_be_focused()
    page.keyboard.type("guest")
    page.keyboard.press("Tab")
    page.keyboard.type("guest")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    seen = []
    for _ in range(15):
        page.keyboard.press("Tab")
        seen.append(focused(page))
    assert seen == [
        "clusterbroker", "Overview", "Queues", "Exchanges", "Delayed", "Pools", "Connections", "Channels", "Cluster",
        "Vhosts", "Policies", "Parameters", "Users", "Definitions", "Sign out",
    ]  # fmt: skip
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
    assert focused(page) == "Queues"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()
    expect(visit.row("Queues", "orders")).to_be_visible()
    for _ in range(30):
        if focused(page).startswith("Name"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    for _ in range(30):
        if focused(page) == "orders":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Purge").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Purge")).to_be_focused()


def test_every_control_has_a_name(visit: Visit) -> None:
    page = visit.sign_in()
    nameless = """() => [...document.querySelectorAll("input, select, textarea, button, a, table, nav")].filter((one) =>
        !(one.labels?.length || one.getAttribute("aria-label") || one.getAttribute("aria-labelledby")
          || one.textContent.trim())).map((one) => one.outerHTML)"""
    for place in PLACES:
        visit.go(place)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".panel").first).to_be_visible()
        assert page.evaluate(nameless) == [], place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_all_pages_without_scrolling_sideways(visit: Visit, scheme: str) -> None:
    page = visit.sign_in()
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 740})
    for place in PLACES:
        visit.go(place)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".panel").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        visit.fits()
        expect(page.get_by_role("navigation", name="Pages").locator("[aria-current]")).to_be_in_viewport(ratio=0.9)


def test_many_queues_come_in_pages_filtered_and_sorted_by_the_node(visit: Visit, api: httpx.Client) -> None:
    names = [f"many-{number:03}" for number in range(120)]
    definitions = {
        "queues": [
            {"vhost": "/", "name": name, "durable": False, "auto_delete": False, "arguments": {}} for name in names
        ]
    }
    assert api.post("definitions", json=definitions).status_code == 204
    publish(api, "many-117", 2)
    page = visit.sign_in(at="#/queues")
    page.get_by_role("searchbox", name="Filter by name").fill("many-")
    pages = page.get_by_role("navigation", name="Pages of queues")
    expect(pages).to_contain_text("120 of")
    expect(pages).to_contain_text("1 / 3")
    expect(page.get_by_role("table", name="Queues").get_by_role("row")).to_have_count(51)
    pages.get_by_role("button", name="Next").click()
    expect(visit.row("Queues", "many-050")).to_be_visible()
    page.get_by_role("columnheader", name="Ready").get_by_role("button").click()
    expect(page.get_by_role("table", name="Queues").get_by_role("row").nth(1)).to_contain_text("many-117")
    page.reload()
    expect(page.get_by_role("table", name="Queues").get_by_role("row").nth(1)).to_contain_text("many-117")
    page.get_by_role("searchbox").fill("no such queue")
    expect(page.get_by_text("No queue has “no such queue” in its name")).to_be_visible()


def test_a_script_from_elsewhere_does_not_run(node: Broker, browser: Browser) -> None:
    """The policy of the page holds in the browser: inline scripts and foreign images are refused."""
    with visiting(browser, node.http_url) as visit:
        page = visit.sign_in()
        page.evaluate(
            """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return new Promise((done) => document.body.append(
                Object.assign(new Image(), {onerror: done, src: "http://192.0.2.1/x.png"})));
        }"""
        )
        assert page.evaluate("window.ran") is None
        refused = [text for text in visit.complaints if "Content Security Policy" in text]
        assert len(refused) == 2, visit.complaints
