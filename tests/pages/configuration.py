"""All settings of a node as Markdown, as they stand in docs/configuration.md; run it to write them there:

python -m tests.pages.configuration
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from clusterbroker.broker.cli.sample import NO_VARIABLE, sample

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BEGIN: Final = "<!-- settings: begin -->"
END: Final = "<!-- settings: end -->"
HEADER: Final = "| setting | default | values | meaning |\n|---|---|---|---|"


def rows() -> Iterator[tuple[str, str, str]]:
    """Section ("" of the top), its title or "", and the row of each setting of the sample file."""
    section = title = ""
    for paragraph in sample().split("\n\n")[1:]:
        lines = paragraph.splitlines()
        if lines[-1].startswith(("[", "#[")):
            section, title = lines[-1].strip("#[]"), _text(lines[:-1])
            continue
        words = " ".join(line.removeprefix("#").strip() for line in lines[:-1])
        if setting := re.match(r"#(\w+) = (.*)$", lines[-1]):
            text, allowed = _parted(words, section, setting[1])
            default = "" if setting[2] == '"..."' else f"`{setting[2]}`"
            yield section, title, f"| `{setting[1]}` | {default} | {allowed} | {_cell(text)} |"


def _parted(words: str, section: str, name: str) -> tuple[str, str]:
    """The description, and unit, kind and bounds: in the sample the latter come last, before the variable."""
    variable = "CLUSTERBROKER_" + (f"{section.upper()}__" if section else "") + name.upper()
    if section.startswith("pools."):
        variable = NO_VARIABLE
    described = words.removesuffix(variable).strip()
    text, stop, facts = described.rpartition(". ") if described.endswith(";") else (described, "", "")
    if stop:
        return text + ".", _cell(facts.strip("; ").removeprefix("no default").strip("; "))
    return described.rstrip(";"), ""


def _text(lines: list[str]) -> str:
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def reference() -> str:
    """All tables."""
    sections: dict[str, tuple[str, list[str]]] = {}
    for section, title, row in rows():
        sections.setdefault(section, (title, []))[1].append(row)
    parts = []
    for section, (title, lines) in sections.items():
        heading = f"## `[{section}]`" if section else "## Node"
        parts.append("\n\n".join(filter(None, (heading, title, HEADER + "\n" + "\n".join(lines)))))
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
