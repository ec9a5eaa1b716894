"""The code blocks of the pages for users, and how each of them is tried.

| block | tried |
|---|---|
| `python` with a title | a file of this name in the page's directory |
| `python` without | run in order in one namespace, with `url`, `pika`, `json`, `connection`, `channel` at hand |
| `console` | each line that begins with `$` is run by a shell there; the lines below are parts of what it prints |
| `toml`, `json`, `yaml` | read; `toml` also as settings of a node, unless it has a title |
| `text` or no language, and indented blocks | not run: what is shown |

Comments above a block change that. `<!-- before`, lines of code and `-->`: they are run before it, and not shown;
likewise `<!-- after`.
`<!-- not run: reason -->` leaves its run out. `<!-- in the background -->` keeps the last command of a `console` block
running: its first line is awaited at once, the others in the end. `<!-- page: node -->` anywhere on a page asks for a
node of its own process, as `clusterbroker start` runs it, in `clusterbroker-data`.
Every command `clusterbroker ...` of any block that has one is parsed by the program's own parser, run or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
NOT_FOR_USERS: Final = ("design", "decisions")
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.relative_to(ROOT / "docs").parts[0] not in NOT_FOR_USERS
    ),
]
LANGUAGES: Final = frozenset(("python", "console", "toml", "json", "yaml", "text", ""))
_FENCE: Final = re.compile(r"^(\s*)```(.*)$")
_NOT_RUN: Final = re.compile(r"<!-- not run: (.+?) -->", re.DOTALL)
_BEFORE: Final = re.compile(r"<!-- before\n(.+?)\n-->", re.DOTALL)
_AFTER: Final = re.compile(r"<!-- after\n(.+?)\n-->", re.DOTALL)
_TITLE: Final = re.compile(r'title="([^"]+)"')
BACKGROUND: Final = "<!-- in the background -->"


class Block(NamedTuple):
    """A block of code."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    """"" of a fence that names none, and of an indented block."""
    title: str
    text: str
    not_run: str
    """Why it is not run; "" of one that is."""
    before: str
    after: str
    """Code that is run before it, and after it."""
    background: bool
    fenced: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    above: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if opened := _FENCE.match(line):
            indent, info = opened.groups()
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
            text = "\n".join(row.removeprefix(indent) for row in lines[number + 1 : end])
            title = _TITLE.search(info)
            yield _block(page, number + 2, info.split()[0] if info.split() else "", title, text, above, fenced=True)
            number, above = end + 1, []
        elif line.startswith("    ") and line.strip() and _may_be_code(lines, number):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(row.removeprefix("    ") for row in lines[number:end]).rstrip()
            yield _block(page, number + 1, "", None, text, above, fenced=False)
            number, above = end, []
        else:
            if line.lstrip().startswith("<!--"):
                end = next(i for i in range(number, len(lines)) if "-->" in lines[i])
                above += lines[number : end + 1]
                number = end
            elif line.strip():
                above = []
            number += 1


def _may_be_code(lines: list[str], number: int) -> bool:
    """Whether an indented line begins a block: below a blank line, and not inside an item of a list."""
    if number == 0 or lines[number - 1].strip():
        return False
    before = [line for line in lines[:number] if line.strip()]
    for line in reversed(before):
        if not line.startswith(" "):
            return not re.match(r"([*-]|\d+\.) ", line)
    return True


def _block(
    page: Path, line: int, language: str, title: re.Match[str] | None, text: str, above: list[str], *, fenced: bool
) -> Block:
    said = "\n".join(above)
    reason = _NOT_RUN.search(said)
    before, after = _BEFORE.search(said), _AFTER.search(said)
    return Block(
        page,
        line,
        language,
        title[1] if title else "",
        text,
        reason[1] if reason else "",
        before[1] if before else "",
        after[1] if after else "",
        BACKGROUND in said,
        fenced,
    )


class Command(NamedTuple):
    """A line of a `console` block, and what it is to print."""

    text: str
    prints: tuple[str, ...]


def commands(block: Block) -> list[Command]:
    """The commands of a `console` block."""
    found: list[Command] = []
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ()))
        elif line.strip():
            assert found, f"{block.place}: a block of `console` begins with a command: `$ ...`"
            found[-1] = Command(found[-1].text, (*found[-1].prints, line))
    return found


_CALL: Final = re.compile(
    r"^(?:[\w$]*\$ |.*[|;&] *)?(?:sudo -u \w+ )?(?:[A-Z_]+=\S+ )*clusterbroker +(?P<words>[a-z-].*)$"
)


def calls(block: Block) -> Iterator[str]:
    """What follows `clusterbroker` in the lines of a block that are commands."""
    if block.language not in ("", "console", "text"):
        return
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        if found := _CALL.match(line):
            words = re.split(r"\s{3,}|\s+#\s|\s[|>&;]|\s\.\.\.", found["words"])[0]
            yield words.strip()
