"""What MkDocs needs to show a repository: pages link to files beside docs/, which are put into the site.

A Markdown file becomes a page `project/PATH`, any other file `project/PATH` as it is. A folder has no page: with
`repo_url` a link to it leads to the repository, without one it fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "project"
NOT_SEARCHED = ("design/", "decisions/")
"""For people who change clusterbroker. The search is a user's, and its index is fetched with the first page."""
LINK = re.compile(r"(?<=\]\()([^()\s#]+)(#[^()\s]*)?(?=\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def outside(source: Path, target: str) -> Path | None:
    """The file beside docs/ that a link of a page leads to, None for any other link."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    there = (source.parent / unquote(target)).resolve()
    if there.is_relative_to(ROOT / "docs") or not there.is_relative_to(ROOT):
        return None
    return there


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds what pages link to, and what these link to."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    waiting += [ROOT / name for name in ("CHANGELOG.md", "ROADMAP.md", "CONTRIBUTING.md", "SECURITY.md", "README.md")]
    added: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if not source.is_relative_to(ROOT / "docs") and source not in added:
            added.add(source)
            name = f"{FOLDER}/{source.relative_to(ROOT)}"
            files.append(File.generated(config, name, abs_src_path=str(source)))
        if source.suffix != ".md":
            continue
        for found in LINK.finditer(FENCE.sub("", source.read_text(encoding="utf-8"))):
            there = outside(source, found[1])
            if there is not None and there.is_file() and there not in added:
                waiting.append(there)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links that lead out of docs/, or from there into it, as the site has them. What is not searched is marked."""
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    source = Path(page.file.abs_src_path)
    here = posixpath.dirname(page.file.src_uri)

    def mended(found: re.Match[str]) -> str:
        target, fragment = found[1], found[2] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        there = (source.parent / unquote(target)).resolve()
        if there.is_relative_to(ROOT / "docs"):
            name = str(there.relative_to(ROOT / "docs"))
        elif there.is_dir() and config["repo_url"]:
            return f"{config['repo_url'].rstrip('/')}/tree/main/{there.relative_to(ROOT)}"
        else:
            name = f"{FOLDER}/{there.relative_to(ROOT)}"
        return posixpath.relpath(name, here) + fragment

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(mended, part) for part in parts)
