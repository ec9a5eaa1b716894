"""How long somebody waits for the web page, in Debian's Chromium without a head.

    form        from the address to the sign-in form, nothing of the node in the browser's cache
    sign_in     from the click to the overview with its numbers
    overview    from the address to the overview of somebody who is signed in, nothing in the cache either

Times are of the one who looks: they end when the browser says that the thing is visible, and begin before it was told
the address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, StorageState

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PATIENCE_MS = 30_000
DRAWN = "Messages waiting"
"""The overview has it once it has numbers."""


class NoBrowser(RuntimeError):
    """There is none on this machine."""


def visited(url: str, times: int, user: str = "guest", password: str = "guest") -> dict[str, list[float]]:
    """Seconds of each visit. Raises NoBrowser, and playwright's errors when something is not drawn."""
    if not CHROMIUM.exists():
        raise NoBrowser("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # only this row needs it

    taken: dict[str, list[float]] = {"form": [], "sign_in": [], "overview": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGUMENTS)
        try:
            for number in range(times + 1):
                visit = _visit(browser, url, user, password)
                if number:  # the first one starts the browser's own parts
                    for name, seconds in visit.items():
                        taken[name].append(seconds)
        finally:
            browser.close()
    return taken


def _visit(browser: Browser, url: str, user: str, password: str) -> dict[str, float]:
    with _stranger(browser, None) as page:
        form_s = _until(page.get_by_role("button", name="Sign in"), lambda: page.goto(url, wait_until="commit"))
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        sign_in_s = _until(page.get_by_text(DRAWN), page.get_by_role("button", name="Sign in").click)
        signed_in = page.context.storage_state()
    with _stranger(browser, signed_in) as page:
        overview_s = _until(page.get_by_text(DRAWN), lambda: page.goto(url, wait_until="commit"))
    return {"form": form_s, "sign_in": sign_in_s, "overview": overview_s}


@contextmanager
def _stranger(browser: Browser, cookies: StorageState | None) -> Iterator[Page]:
    """A page in a context of its own: an empty cache, and perhaps the cookie of a session."""
    context = browser.new_context(storage_state=cookies)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def _until(there: Locator, act: Callable[[], object]) -> float:
    """Seconds from an act until something is visible."""
    began_s = time.perf_counter()
    act()
    there.wait_for()
    return time.perf_counter() - began_s
