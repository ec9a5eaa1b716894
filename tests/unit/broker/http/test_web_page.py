"""The page: how it is served, whether it is built or not."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from clusterbroker.broker.http import web_page
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place


def served(directory: Path) -> httpx.AsyncClient:
    app = FastAPI()
    web_page.add(app, directory)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "page" / "assets").mkdir(parents=True)
    (tmp_path / "page" / "index.html").write_text("<!doctype html><script src='/assets/a-1.js'></script>")
    (tmp_path / "page" / "assets" / "a-1.js").write_text("let a = 1;" * 100)
    (tmp_path / "page" / "favicon.svg").write_text("<svg/>")
    (tmp_path / "secret").write_text("not for you")
    return tmp_path / "page"


async def test_what_is_built_is_served_and_nothing_beside_it(built: Path) -> None:
    http = served(built)
    page = await http.get("/")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
    assert page.headers["content-type"].startswith("text/html")
    script = await http.get("/assets/a-1.js", headers={"accept-encoding": "gzip"})
    assert script.text == "let a = 1;" * 100
    assert script.headers["content-encoding"] == "gzip"
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    plain = await http.get("/assets/a-1.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert (await http.get("/favicon.svg")).headers["content-type"] == "image/svg+xml"
    for path in (
        "/assets/../../secret",
        "/assets/%2e%2e/%2e%2e/secret",
        "/../secret",
        "/assets",
        "/index.html",
    ):
        assert (await http.get(path)).status_code == 404, path


async def test_the_browser_is_told_to_keep_to_this_node(built: Path) -> None:
    for directory in (built, built / "nothing"):
        policy = (await served(directory).get("/")).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["frame-ancestors"] == "'none'"
        assert set(rules.values()) <= {"'none'", "'self'"}
    answer = await Client(recorded_place()).http.get("/")
    assert (answer.headers["x-frame-options"], answer.headers["x-content-type-options"]) == ("DENY", "nosniff")


async def test_without_a_build_the_page_says_how_to_make_it(tmp_path: Path) -> None:
    answer = await served(tmp_path).get("/")
    assert answer.status_code == 200
    assert "scripts/build-web" in answer.text
