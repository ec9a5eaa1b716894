"""Every block of code on the pages for users is run, or says why it is not. The rules: `tests/pages/blocks.py`."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from clusterbroker.broker.cli import watching
from clusterbroker.broker.cli.main import app
from clusterbroker.broker.config import load
from tests.pages.blocks import LANGUAGES, PAGES, ROOT, Block, blocks, calls, commands
from tests.pages.terminal import absent, terminal

BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = sorted({block.page for block in BLOCKS if not block.not_run and block.language in ("python", "console")})
"""Pages with something to run."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name)
@pytest.mark.interop
@pytest.mark.processes
def test_what_a_page_shows_works(page: Path, tmp_path: Path) -> None:
    told = page.read_text(encoding="utf-8")
    starts = any("clusterbroker start" in block.text and not block.not_run for block in blocks(page) if block.fenced)
    kind = "none" if starts else "node" if "<!-- page: node -->" in told else "embedded"
    with terminal(tmp_path, kind) as session:
        for block in blocks(page):
            if not block.not_run:
                session.run(block)


# -- what is not run is looked at --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_fence_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        if block.fenced:
            assert block.language in LANGUAGES, f"{block.place}: '{block.language}' is none of {sorted(LANGUAGES)}"
        if block.language == "console":
            assert commands(block), f"{block.place}: no command"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_is_of_its_language(page: Path) -> None:
    for block in blocks(page):
        try:
            if block.language == "python":
                compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            elif block.language == "json":
                json.loads(block.text)
            elif block.language == "yaml":
                list(yaml.safe_load_all(block.text))
            elif block.language == "toml":
                tomllib.loads(block.text)
        except Exception as error:
            pytest.fail(f"{block.place}: {error}")


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "toml" and not b.title], ids=lambda block: block.place
)
def test_a_file_of_settings_is_accepted(block: Block, tmp_path: Path) -> None:
    """Names and values; the files that it names need not be there."""
    text = block.text
    for kind in ("certificate", "key", "authorities"):
        for line in [line for line in text.splitlines() if line.startswith(f"{kind} =")]:
            there = tmp_path / kind
            there.write_text("")
            text = text.replace(line, f'{kind} = "{there}"')
    path = tmp_path / "node.toml"
    path.write_text(text)
    load(path)


ROOT_COMMAND: Any = typer.main.get_group(app)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_command_of_the_program_is_one(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words and options are understood; it is not carried out."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        for words in calls(block):
            problem = misunderstood(words)
            assert not problem, f"{block.place}: clusterbroker {words}\n{problem}"


def misunderstood(words: str) -> str:
    """What the parser says against a command line; "" when it has nothing to say."""
    command = ROOT_COMMAND
    context = command.context_class(command, info_name="clusterbroker")
    rest = shlex.split(words)
    try:
        while rest and hasattr(command, "resolve_command") and not rest[0].startswith("-"):
            _, command, rest = command.resolve_command(context, rest)
            context = command.context_class(command, info_name=command.name, parent=context)
        if command is not ROOT_COMMAND:
            command.make_parser(context).parse_args(args=watching.normalised(rest))
    except Exception as error:
        return str(getattr(error, "message", error)) or type(error).__name__
    return ""


def test_what_is_not_run_is_little() -> None:
    """A page may not leave the rule by leaving out most of its blocks."""
    kinds = Counter(bool(block.not_run) for block in BLOCKS if block.language in ("python", "console"))
    assert kinds[False] > 3 * kinds[True], f"{kinds[False]} blocks are run, {kinds[True]} are not"


# -- the rules themselves ---------------------------------------------------------------------------------------------


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    def block(language: str, text: str, title: str = "") -> Block:
        return Block(ROOT / "README.md", 1, language, title, text, "", "", "", False, True)

    with terminal(tmp_path, "embedded") as session:
        session.run(block("python", 'channel.queue_declare("q")\nassert url'))
        session.run(block("python", 'import sys\nsys.exit("no")', "bad.py"))
        with pytest.raises(AssertionError, match="exit code 1"):
            session.run(block("console", "$ python bad.py"))
        with pytest.raises(AssertionError, match="did not print"):
            session.run(block("console", "$ echo one\ntwo"))
        with pytest.raises(NameError):
            session.run(block("python", "missing"))


def test_lines_are_looked_for_in_their_order() -> None:
    assert not absent(("one", "th...e"), "one\ntwo\nthree\n")
    assert absent(("two", "one"), "one\ntwo\n") == "one"


def test_a_command_that_is_none_is_noticed() -> None:
    assert not misunderstood("queues list --vhost /")
    assert "--nonsense" in misunderstood("queues list --nonsense")
    assert misunderstood("quues list")
