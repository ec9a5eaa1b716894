"""The tree of commands: each is there, explained, documented, and costs a start nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from clusterbroker.broker.cli import rabbitmqctl
from clusterbroker.broker.cli.checks import CHECKS
from clusterbroker.broker.cli.commands import COLUMNS, JSON, LIST, REACH
from clusterbroker.broker.cli.parameters import SECONDS
from clusterbroker.broker.cli.tree import COMMANDS, SINGULARS
from clusterbroker.broker.version import VERSION
from tests.unit.broker.cli import reference

ALL = [pytest.param(words, command, id=" ".join(words)) for words, command in reference.commands()]


@pytest.mark.parametrize(("words", "command"), ALL)
def test_every_command_and_option_says_what_it_is(words: tuple[str, ...], command: Any, invoke: Any) -> None:
    assert (command.help or "").strip(), words
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{words}: {parameter.name}"
    done = invoke(*words, "--help")
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.stdout


DURATIONS = [
    pytest.param(words, parameter.opts[0], id=f"{' '.join(words)} {parameter.opts[0]}")
    for words, command in reference.commands()
    for parameter in command.params
    if SECONDS in (parameter.metavar or "") and (parameter.name != "watch" or words == ("queues", "list"))
]


@pytest.mark.parametrize(("words", "option"), DURATIONS)
@pytest.mark.parametrize("given", ["nan", "inf", "-1", "5m"])
def test_a_duration_is_a_number_of_seconds(words: tuple[str, ...], option: str, given: str, invoke: Any) -> None:
    done = invoke(*words, f"{option}={given}")
    assert done.exit_code == 2, done.output
    assert option in done.stderr
    assert given in done.stderr


def test_a_number_with_parts_is_a_duration_or_a_rate() -> None:
    for words, command in reference.commands():
        for parameter in command.params:
            if "float" in parameter.type.name:
                assert SECONDS in (parameter.metavar or "") or parameter.name == "rate", f"{words}: {parameter.name}"


def test_the_page_tells_all_of_them() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    told = page.partition(reference.BEGIN)[2].partition(reference.END)[0].strip()
    assert told == reference.reference(), "run: python -m tests.unit.broker.cli.reference"
    above = page.partition(reference.BEGIN)[0]
    for option in (
        "data-dir", "as", "url", "user", "password-file", "token-file", "ca-file", "columns", "sort", "filter", "vhost",
        "limit", "json", "watch",
    ):  # fmt: skip
        assert f"`--{option}" in above, f"{option} is told nowhere"


def test_all_shared_options_are_those() -> None:
    assert len({**REACH, **LIST, **COLUMNS, **JSON}) == 13, "tell the new one on the page, and above"


def test_a_noun_in_the_singular(served: Any, invoke: Any) -> None:
    assert SINGULARS["queue"] == "queues"
    at = ("--data-dir", str(served.directory), "--json")
    assert invoke("queue", "list", *at).stdout == invoke("queues", "list", *at).stdout
    assert " queue " not in invoke("--help").stdout, "one name is shown"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("list_queues", "no command 'list_queues': clusterbroker queues list"),
        ("list-users", "clusterbroker users list"),
        ("stop_app", "SIGTERM"),
        ("quues", "no command 'quues': queues"),
    ],
)
def test_a_command_of_rabbitmq_or_a_misspelt_one_is_understood(said: str, meant: str, invoke: Any) -> None:
    done = invoke(said, "-p", "/")
    assert done.exit_code == 2
    assert meant in " ".join(done.stderr.replace("│", " ").split())


def test_all_hints_name_commands() -> None:
    known = dict(reference.commands())
    for verb, meant in rabbitmqctl.COMMANDS.items():
        said = (word for word in meant.split() if word == word.lower() and not word.startswith("-"))
        words = tuple(word for word in said if "=" not in word and word not in CHECKS)
        assert words in known, verb
        for word in meant.split():
            if word.startswith("--"):
                assert any(word in parameter.opts for parameter in known[words].params), verb
    assert not rabbitmqctl.COMMANDS.keys() & rabbitmqctl.INSTEAD.keys()
    assert len(rabbitmqctl.COMMANDS) > 40


@pytest.mark.parametrize("group", ["journal", "users", "checks"])
def test_a_group_alone_shows_its_help(group: str) -> None:
    """As a process: the runner of the library shows it in any case."""
    done = subprocess.run([sys.executable, "-m", "clusterbroker", group], capture_output=True, text=True, check=False)
    assert f"{group} [OPTIONS] COMMAND" in done.stdout


def test_verbs_that_the_help_hides_are_understood(invoke: Any) -> None:
    for words in (
        ("user", "permit"), ("user", "permit-topic"), ("permission", "topic"), ("vhost", "limit"),
        ("queue", "force-leader"),
    ):  # fmt: skip
        assert invoke(*words, "--help").exit_code == 0, words


def test_an_unknown_command(invoke: Any) -> None:
    done = invoke("queus", "list")
    assert done.exit_code == 2
    assert "no command 'queus': queues" in done.stderr


def test_a_start_imports_none_of_it() -> None:
    code = (
        "import sys; from clusterbroker.broker.cli import main, start;"
        "rooms = (f'clusterbroker.broker.cli.{room}' for room in ('queues', 'commands', 'api'));"
        "print([m for m in ('httpx', 'rich', *rooms) if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_names_of_the_tree_are_one_of_each() -> None:
    assert not set(SINGULARS) & set(COMMANDS)


def test_the_version_is_said_in_both_ways(invoke: Any) -> None:
    assert invoke("--version").stdout == invoke("version").stdout == f"{VERSION}\n"
