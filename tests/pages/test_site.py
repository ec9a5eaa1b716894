"""The site of the pages: `scripts/docs`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, ROOT

NAV = re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_page_is_in_the_menu() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    named = {name for name in NAV if not name.startswith("project/")}
    assert named == pages, "mkdocs.yml, nav"
    assert len(NAV) == len(set(NAV))


@pytest.mark.matrix
@pytest.mark.processes
@pytest.mark.long
def test_the_site_is_built_without_a_warning() -> None:
    """A link that leads nowhere is one. The environment is made at the first time."""
    done = subprocess.run(["scripts/docs"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (
        "index.html",
        "getting-started/index.html",
        "tutorials/rpc/index.html",
        "project/CHANGELOG/index.html",
    ):
        assert Path(ROOT, "build/site", page).exists(), page
    found = {
        entry["location"] for entry in json.loads((ROOT / "build/site/search/search_index.json").read_text())["docs"]
    }
    assert "getting-started/" in found
    assert not [location for location in found if location.startswith(("design/", "decisions/"))]
