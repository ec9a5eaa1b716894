"""What people are told is there: files, links, settings. Whoever adds one and does not say so fails here.

Elsewhere: every setting is in the sample configuration (`tests/unit/deploy/test_deploy_sample.py`), every metric of
ours in docs/metrics.md (`tests/unit/broker/management/test_metrics.py`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from clusterbroker.broker.config import fields

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
READMES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("*/README.md"))]
NOT_KEPT = {"build", "node_modules"}
"""Folders that a build makes."""


def told(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Without the code in fences: brackets there are no links."""
    return re.sub(r"^```.*?^```", "", told(page), flags=re.MULTILINE | re.DOTALL)


# -- links ------------------------------------------------------------------------------------------------------------


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)", prose(page)):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def anchors(page: Path) -> set[str]:
    """The fragments of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*READMES, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        name, _, fragment = target.partition("#")
        there = (page.parent / unquote(name)).resolve() if name else page
        assert there.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if fragment and there.suffix == ".md":
            assert fragment in anchors(there), f"{page.relative_to(ROOT)} links to {target}: no such heading"


def test_every_page_is_linked_from_somewhere() -> None:
    """A page that nobody finds is not told. Decisions and plans are listed by their folder."""
    reached = {
        (page.parent / unquote(target.partition("#")[0])).resolve()
        for page in (*READMES, *PAGES)
        for target in links(page)
        if target.partition("#")[0]
    }
    named = "".join(map(told, READMES))
    for page in PAGES:
        if page.parent == ROOT / "docs":
            assert page in reached or f"docs/{page.name}" in named, f"nothing leads to docs/{page.name}"


# -- citations --------------------------------------------------------------------------------------------------------

CITATION = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.md)\b(?: (\d+(?:\.\d+)?)\b)?")
"""A page, and perhaps the number of a section: `amqp-rules.md 5.3`, also written without the suffix."""


def sections(page: Path) -> set[str]:
    """Numbers of headings, and of the items of numbered lists under them."""
    found: set[str] = set()
    heading = ""
    for line in prose(page).splitlines():
        if numbered := re.match(r"#+ (\d+(?:\.\d+)*)\b", line):
            heading = numbered[1]
            found.add(heading)
        elif item := re.match(r"(\d+)\. ", line):
            found.add(f"{heading}.{item[1]}")
    return found


def test_pages_that_sources_cite_are_there() -> None:
    kinds = ("*.py", "*.pyx", "*.pxd", "*.pxi", "*.pyi", "*.txt", "*.toml", "*.yaml", "*.tsx", "*.ts", "scripts/*")
    listed = subprocess.run(
        ["git", "ls-files", *kinds, ":!bench"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    cited = 0
    for source in (ROOT / name for name in listed.stdout.split()):
        if not source.is_file():  # deleted, and not yet committed
            continue
        for name, number in CITATION.findall(told(source).replace("amqp-rules ", "amqp-rules.md ")):
            places = (ROOT / name, ROOT / "docs" / name, source.parent / name)
            page = next((place for place in places if place.exists()), None)
            assert page is not None, f"{source.relative_to(ROOT)} cites {name}"
            assert not number or number in sections(page), f"{source.relative_to(ROOT)} cites {name} {number}"
            cited += 1
    assert cited > 50, "comments cite pages"


def test_code_that_pages_name_is_there() -> None:
    """A path in code marks; decisions are of their time, and the house's plan names what is to come."""
    floors = "broker|cluster|journal|replication|pipeline|amqp10|tests|web|bench|deploy"
    pages = [page for page in PAGES if page.parent.name != "decisions" and page.stem != "007-house"]
    for page in (*pages, *READMES):
        if page.name == "CHANGELOG.md":
            continue
        for name in re.findall(rf"`((?:{floors})/[\w./*-]+)`", told(page)):
            assert exists(name), f"{page.relative_to(ROOT)} names {name}"


# -- source layout ---------------------------------------------------------------------------------------------------


def in_code(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def section(page: Path, title: str) -> str:
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", told(page), re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


def exists(name: str) -> bool:
    """A file, a folder, or a pattern of such, from the root or (a room of the map) inside of a floor."""
    places = [ROOT, ROOT / "broker", ROOT / "cluster"]
    return any(place.joinpath(name).exists() or any(place.glob(name.rstrip("/"))) for place in places)


@pytest.mark.parametrize("title", ["Source layout", "How it is tested", "How to change something"])
def test_every_file_that_the_readme_names_is_there(title: str) -> None:
    words = section(ROOT / "README.md", title)
    names = {name for name in in_code(words) if re.fullmatch(r"[\w.\-/*]+", name) and "/" in name}
    names |= set(re.findall(r"^\$ (scripts/\w+)", words, re.MULTILINE))
    assert names, title
    for name in sorted(names):
        assert exists(name), f"README: {name} under '{title}'"


def test_every_floor_and_every_room_of_the_broker_is_on_the_map() -> None:
    words = section(ROOT / "README.md", "Source layout")
    for floor in ("broker", "replication", "cluster", "journal", "amqp10", "pipeline"):
        assert f"`{floor}/`" in words
    rooms = {path.parent.name for path in (ROOT / "broker").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in words} == set()


def test_the_number_of_conformance_rules_is_that_of_the_suite() -> None:
    lines = told(ROOT / "tests" / "conformance" / "rules.txt").splitlines()
    rules = sum(1 for line in lines if line and not line.startswith("#"))
    assert re.findall(r"(\d+) rules of AMQP", section(ROOT / "README.md", "How it is tested")) == [str(rules)]


def test_every_script_is_named_somewhere() -> None:
    listed = subprocess.run(["git", "ls-files", "scripts"], cwd=ROOT, capture_output=True, text=True, check=True)
    words = "".join(map(told, (ROOT / "README.md", *PAGES)))
    for name in listed.stdout.split():
        if Path(name).suffix or name == "scripts/environment":  # parts of the others
            continue
        assert name in words, f"{name} is told nowhere"


# -- settings ---------------------------------------------------------------------------------------------------------


def test_no_page_tells_a_setting_that_there_is_not() -> None:
    """`[tls] certificate`, `limits.heartbeat_s` or CLUSTERBROKER_LOG__FORMAT on a page is one of the node's."""
    known = set(fields())
    sections = {name.partition(".")[0] for name in known if "." in name}
    variables = {name.upper().replace(".", "__") for name in known}
    for path in (ROOT / "broker" / "cli", ROOT / "pipeline"):  # their own
        variables |= {name for file in path.glob("*.py") for name in re.findall(r"CLUSTERBROKER_(\w+)", told(file))}
    words = "".join(told(file) for file in (ROOT / "broker").rglob("*.py"))
    for page in (ROOT / "README.md", *PAGES):
        text = told(page)
        for found in re.findall(r"CLUSTERBROKER_([A-Z][A-Z_]*[A-Z])\b(?!\.)", text):
            assert found in variables, f"{page.name}: CLUSTERBROKER_{found}"
        for found in re.findall(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)`", text):
            event = f'"{found}"' in words  # a line of the log, which is called like that
            assert found in known or event or found.endswith((".py", ".md")), f"{page.name}: {found}"
