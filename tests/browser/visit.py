"""A person at the page: what it does, in words of the page, and all that its browser asked of the network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 15_000


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's own browser, with a new profile directory."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGUMENTS)
        expect.set_options(timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visiting(browser: Browser, url: str, width: int = 1280, height: int = 900) -> Iterator[Visit]:
    """Somebody who was never here before."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield Visit(context, url)
    finally:
        context.close()


class Visit:
    """One browser at one node."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.page: Page = context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        context.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda line: self._said(line.type, line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, kind: str, text: str) -> None:
        # the browser itself writes a line for each answer that is an error; the page tells it, and tests look there
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.complaints.append(text)

    def assert_quiet(self) -> None:
        home = urlsplit(self.url).netloc
        elsewhere = [url for url in self.asked if urlsplit(url).netloc != home]
        assert not elsewhere, f"requests left the node: {elsewhere}"
        assert self.asked, "nothing was asked at all"
        assert not self.complaints, self.complaints

    def sign_in(self, user: str = "guest", password: str = "guest", at: str = "") -> Page:
        self.page.goto(f"{self.url}/{at}")
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("button", name="Sign out")).to_be_visible()
        return self.page

    def go(self, place: str) -> Page:
        self.page.goto(f"{self.url}/#/{place}")
        return self.page

    def row(self, table: str, text: str) -> Locator:
        return self.page.get_by_role("table", name=table).get_by_role("row").filter(has_text=text)

    def fits(self, width: int = 360) -> None:
        """The page is no wider than that, as soon as its charts have heard of a new size (in the next frame)."""
        self.page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=5000)

    def told(self, text: str) -> None:
        expect(self.page.get_by_role("status")).to_contain_text(text)

    def sure(self, button: str, word: str) -> None:
        """Clicks a button that asks first, and says yes."""
        self.page.get_by_role("button", name=button, exact=True).click()
        self.page.get_by_role("dialog").get_by_role("button", name=word, exact=True).click()
