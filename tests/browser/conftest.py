"""A node with the built page, and a browser without a head that talks to nobody else.

Skipped only where Debian's chromium is not installed. The page is built when its sources changed: without npm that is
an error, which says what to install.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from clusterbroker import Broker
from tests.browser.visit import CHROMIUM, Visit, chromium, visiting

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def built() -> None:
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed: apt-get install chromium")
    script = ROOT / "scripts/build-web"
    with script.open() as lock:  # of several workers one builds, and the others find it built
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([script, "--if-needed"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(built: None) -> Iterator[Broker]:
    with Broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def api(node: Broker) -> Iterator[httpx.Client]:
    """The API of the node, as guest."""
    with httpx.Client(base_url=f"{node.http_url}/api/", auth=("guest", "guest"), timeout=20, verify=False) as client:
        yield client


@pytest.fixture(scope="module")
def browser(built: None) -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def visit(node: Broker, browser: Browser) -> Iterator[Visit]:
    """A person without a past. In the end no request has left the node, and the page has complained of nothing."""
    with visiting(browser, node.http_url) as visit:
        yield visit
        visit.assert_quiet()
