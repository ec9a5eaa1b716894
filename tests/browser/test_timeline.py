"""The time line of a real cluster: a member that dies and comes back, and a queue that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from tests.browser.visit import Visit, visiting
from tests.faults.fleet import Fleet

pytestmark = [pytest.mark.processes]
NAMES = ("a", "b", "c")


class Cluster(NamedTuple):
    """Three nodes; `a` is the one that is looked at."""

    fleet: Fleet
    url: str
    api: httpx.Client

    def launch(self, name: str, http: str) -> None:
        self.fleet.launch(name, "--peers", self.fleet.peers(*NAMES), "--http", http)

    def moves(self, at: str = "moves") -> list[dict[str, Any]]:
        return self.api.get(at).json()  # type: ignore[no-any-return]


def waited(doing: Coroutine[Any, Any, object]) -> None:
    """In a thread of its own: the browser's driver has the loop of this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, doing).result()


@pytest.fixture(scope="module")
def cluster(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    url = f"http://{LOOPBACK}:{free_port()}"
    with httpx.Client(base_url=f"{url}/api/", auth=("guest", "guest"), timeout=20, verify=False) as api:
        made = Cluster(Fleet(directory), url, api)
        try:
            for name in NAMES:
                made.launch(name, url.removeprefix("http://") if name == "a" else f"{LOOPBACK}:{free_port()}")
            waited(made.fleet.ready(*NAMES))
            for number in range(9):
                assert api.put(f"queues/%2F/q{number}", json={}).status_code == 201
            yield made
        finally:
            waited(made.fleet.kill_all())


@pytest.fixture
def visit(cluster: Cluster, browser: Browser) -> Iterator[Visit]:
    with visiting(browser, cluster.url) as visit:
        yield visit
        visit.assert_quiet()


def line(page: Page) -> Locator:
    return page.get_by_role("group", name="Time line of")


def said(page: Page) -> Locator:
    return page.locator(".said")


def owner(cluster: Cluster, queue: str) -> str:
    return str(cluster.api.get(f"queues/%2F/{queue}").json()["owner"])


@pytest.mark.smoke
def test_a_queue_shows_which_ways_it_went(cluster: Cluster, visit: Visit) -> None:
    first = owner(cluster, "q1")
    second = next(name for name in NAMES if name != first)
    page = visit.sign_in(at="#/queues/%2F/q1")
    expect(page.get_by_text("Nothing has moved in this time.")).to_be_visible()
    expect(page.get_by_text("This node's record begins at")).to_be_visible()
    moved = cluster.api.post("queues/%2F/q1/move", json={"to": second})
    assert moved.json()["owner"] == second
    expect(line(page).locator("circle")).to_have_count(1)
    line(page).focus()
    page.keyboard.press("End")
    expect(said(page)).to_contain_text(f"{first} → {second}: handed over")
    told = cluster.moves("queues/%2F/q1/moves")[0]
    assert (told["from"], told["to"], told["why"], told["epoch"]) == (first, second, "moved", 2)
    page.get_by_text("As a table").click()
    expect(visit.row("Time line", "handed over")).to_contain_text(f"{first} → {second}")


def test_a_member_that_dies_and_returns_is_seen_to_lose_its_queues(cluster: Cluster, visit: Visit) -> None:
    lost = [f"q{number}" for number in range(9) if owner(cluster, f"q{number}") == "c"]
    assert lost
    page = visit.sign_in(at="#/cluster")
    expect(page.get_by_role("heading", name="Time line")).to_be_visible()
    waited(cluster.fleet.kill("c"))
    expect(page.locator(".stretch.down")).to_be_visible(timeout=30_000)
    line(page).focus()
    page.keyboard.press("End")
    expect(said(page)).to_contain_text("c was declared down")
    failed = [move for move in cluster.moves() if move.get("why") == "failed"]
    assert sorted(move["queue"] for move in failed) == sorted(lost)
    assert {move["from"] for move in failed} == {"c"}
    cluster.launch("c", f"{LOOPBACK}:{free_port()}")
    waited(cluster.fleet.ready("c"))
    expect(page.locator(".mark.good")).to_have_count(1, timeout=30_000)
    page.keyboard.press("End")
    expect(said(page)).to_contain_text("c is up")
    page.keyboard.press("Home")
    first = said(page).inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".mark.chosen")).to_have_count(1)
    expect(said(page)).not_to_have_text(first)
    page.keyboard.press("ArrowLeft")
    expect(said(page)).to_have_text(first)
    page.get_by_label("Time range").select_option("1m")
    expect(line(page)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_it_whole(visit: Visit, scheme: str) -> None:
    page = visit.sign_in(at="#/cluster")
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("cluster", "queues/%2F/q1"):
        visit.go(place)
        expect(line(page)).to_be_visible()
        expect(line(page).locator("svg text").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        visit.fits()
        box = line(page).bounding_box()
        svg = line(page).locator("svg").bounding_box()
        assert box is not None
        assert svg is not None
        assert svg["x"] + svg["width"] <= box["x"] + box["width"] + 1


def test_the_banner_of_a_cut_off_node_goes_with_the_node(cluster: Cluster, browser: Browser) -> None:
    """The last one here: no node is left."""
    with visiting(browser, cluster.url) as visit:
        page = visit.sign_in(at="#/queues")
        banner = page.locator("p.stale")
        expect(banner).to_have_count(0)
        waited(cluster.fleet.kill("b", "c"))
        expect(banner).to_contain_text("cut off from the cluster", timeout=30_000)
        waited(cluster.fleet.kill("a"))
        expect(page.get_by_text("Not up to date").first).to_be_visible(timeout=30_000)
        expect(banner).to_have_count(0)
