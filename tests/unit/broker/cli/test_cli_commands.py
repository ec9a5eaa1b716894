"""Commands over a management API: what they show, what they change, what they refuse, and what they never say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.cli.exit_codes import FAILED, USAGE
from tests.unit.broker.management.set_up import queue


def test_a_list_for_people_and_for_programs(here: Any, there: Any) -> None:
    shown = here("queues", "list", "--vhost", "/", "--sort", "-ready")
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:4] == ["vhost", "name", "type", "leader"]
    assert lines[1].split()[1] in ("busy", "limited")
    rows = json.loads(there("queues", "list", "--json").stdout)
    assert {row["name"] for row in rows} == {"busy", "limited", "plain/slash", "agreed", "there"}
    assert "effective_policy_definition" in rows[0], "programs get the documents"
    few = json.loads(there("queues", "list", "--json", "--columns", "name,ready,messages", "--filter", "*usy").stdout)
    assert [sorted(row) for row in few] == [["messages", "name", "ready"]]
    assert json.loads(here("queues", "list", "--json", "--limit", "2", "--sort", "name").stdout)[0]["name"] == "agreed"


def test_a_column_that_is_none(here: Any) -> None:
    done = here("queues", "list", "--columns", "nmae")
    assert done.exit_code == USAGE
    assert "nothing here has a column 'nmae': choose of vhost, name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_names_with_everything_in_them(here: Any) -> None:
    shown = here("queues", "show", "plain/slash")
    assert shown.exit_code == 0
    assert "plain/slash" in shown.stdout
    assert here("vhosts", "show", "a/b").exit_code == 0
    for hostile in ("..", ".", "%2F", "a\x1b[2J", "?x=1", "#", "\udcff", "ä/ö"):
        done = here("queues", "show", hostile)
        assert done.exit_code == FAILED, hostile
        assert done.stderr.isprintable() or done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["queues", "declare", "q", "-a", "novalue"], USAGE, "'novalue' is not KEY=VALUE"),
        (["queues", "get", "busy", "--ack", "--reject"], USAGE, "not both"),
        (["queues", "get", "busy", "-n", "0"], USAGE, "not in the range"),
        (["queues", "force-owner", "busy", "n1"], USAGE, "--confirm-loss"),
        (["queues", "publish", "busy", "body", "--file", "/etc/hostname"], USAGE, "not both"),
        (["queues", "publish", "busy", "--file", "/none"], USAGE, "No such file"),
        (["bindings", "list", "--queue", "a", "--exchange", "b"], USAGE, "not both"),
        (["connections", "close"], USAGE, "say a connection's name"),
        (["connections", "close", "x", "--of", "y"], USAGE, "say a connection's name"),
        (["policies", "set", "p", "^p", "[]"], USAGE, "DEFINITION is not a JSON object"),
        (["policies", "set", "p", "^p", "{"], USAGE, "DEFINITION is not JSON"),
        (["operator-policies", "set", "p", "^p", '{"max-length": NaN}'], USAGE, "DEFINITION is not JSON"),
        (["parameters", "set", "c", "n", "{"], USAGE, "VALUE is not JSON"),
        (["definitions", "import", "/none"], USAGE, "No such file"),
        (["checks", "run", "none"], USAGE, "there is no check 'none'"),
        (["checks", "run", "port-listener"], USAGE, "needs an argument"),
        (["checks", "run", "alarms=1"], USAGE, "has no argument"),
        (["queues", "list", "--watch", "-1"], USAGE, "not in the range"),
        (["queues", "list", "--limit", "0"], USAGE, "not in the range"),
        (["vhost-limits", "set", "/", "max-none", "1"], USAGE, "max-none"),
        (["user-limits", "set", "none", "max-channels", "1"], FAILED, "no user 'none'"),
        (["global-parameters", "show", "none"], FAILED, "no global parameter 'none'"),
        (["parameters", "set", "policy", "n", "{}"], FAILED, "has a path of its own"),
        (["policies", "set", "p", "^p", '{"max-lenght": 1}'], FAILED, "max-lenght"),
        (["users", "tags", "none", "x"], FAILED, "there is no user 'none'"),
        (["nodes", "show", "none"], FAILED, "no node 'none'"),
    ],
)
def test_what_is_refused_is_one_line(there: Any, words: list[str], code: int, said: str) -> None:
    done = there(*words)
    assert done.exit_code == code, done.output
    assert said in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.output


def test_a_life_of_a_user_by_url(there: Any, served: Any) -> None:
    assert there("users", "add", "bob", "--tag", "monitoring", stdin="s3cret\n").stdout == "created user 'bob'\n"
    again = there("users", "add", "bob", stdin="s3cret\n")
    assert (again.exit_code, "there is a user 'bob' already" in again.stderr) == (FAILED, True)
    listed = there("users", "list", "--json").stdout
    assert {"name": "bob", "tags": ["monitoring"]}.items() <= next(
        row for row in json.loads(listed) if row["name"] == "bob"
    ).items()
    assert "password_hash" not in listed
    bob = {"CLUSTERBROKER_USER": "bob", "CLUSTERBROKER_PASSWORD": "s3cret"}
    assert there("whoami", **bob).exit_code == 0
    assert there("users", "tags", "bob", "administrator", "monitoring").exit_code == 0
    assert json.loads(there("whoami", "--json", **bob).stdout)["tags"] == ["administrator", "monitoring"], "still he"
    assert there("users", "password", "bob", stdin="other\n").exit_code == 0
    assert there("whoami", **(bob | {"CLUSTERBROKER_PASSWORD": "other"})).exit_code == 0
    assert there("permissions", "set", "bob", "/", "^bob", ".*", ".*").exit_code == 0
    assert json.loads(there("permissions", "list", "--of", "bob", "--json").stdout) == [
        {"user": "bob", "vhost": "/", "configure": "^bob", "write": ".*", "read": ".*"}
    ]
    assert there("users", "show", "bob", "--json").stdout.count("^bob") == 1
    assert there("users", "delete", "bob").exit_code == 0
    assert there("users", "delete", "bob").exit_code == FAILED


def test_a_password_is_neither_empty_nor_told(there: Any) -> None:
    done = there("users", "add", "eve", stdin="\n")
    assert (done.exit_code, "the password is empty" in done.stderr) == (USAGE, True)
    done = there("users", "add", "guest", "--replace", "--user", "nobody", stdin="s3cret\n")
    assert done.exit_code != 0
    assert "s3cret" not in done.output


def test_policies_have_the_same_fields_both_ways(there: Any) -> None:
    rows = json.loads(there("policies", "list", "--json").stdout)
    assert {"apply_to", "pattern", "definition", "priority", "vhost", "name"} <= set(rows[0])
    assert there("operator-policies", "show", "most").exit_code == 0


def test_definitions_out_and_in(here: Any, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    done = here("definitions", "export", str(file))
    assert "5 queues" in done.stdout
    assert oct(file.stat().st_mode)[-3:] == "600", "password hashes are in it"
    assert here("definitions", "export", str(file)).exit_code == USAGE, "it is not written over"
    assert here("definitions", "export", str(file), "--force").exit_code == 0
    assert here("definitions", "import", str(file)).stdout == "all definitions are there\n"
    told = here("definitions", "export")
    assert json.loads(told.stdout) == json.loads(file.read_text())
    assert here("definitions", "import", "-", stdin=told.stdout).exit_code == 0
    broken = json.loads(told.stdout)
    broken["bindings"].append({"source": "none", "destination": "none", "vhost": "/", "routing_key": ""})
    refused = here("definitions", "import", "-", stdin=json.dumps(broken))
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (FAILED, 1)


def test_a_queue_is_explained(here: Any) -> None:
    told = here("explain", "queue", "limited").stdout
    assert "queue 'limited' in vhost '/': durable" in told
    assert "leader: n1, epoch " in told
    assert "policy: limits; operator policy: most" in told
    assert "together: max-length=50" in told
    assert "max_length = 50, " in told
    assert "it is the only replica" in told
    assert json.loads(here("explain", "queue", "limited", "--json").stdout)["explain"]["max_length"].startswith("50")


def test_checks_and_their_exit_codes(here: Any) -> None:
    done = here("checks", "run", "virtual-hosts", "port-listener=5672", "protocol-listener=amqp")
    assert (done.exit_code, done.stdout.count(" ok ")) == (0, 3)
    done = here("checks", "run", "port-listener=1", "--json")
    assert done.exit_code == FAILED
    assert json.loads(done.stdout)[0]["reason"] == "No active listener"


def test_what_the_node_itself_does(there: Any, served: Any) -> None:
    assert there("queues", "rebalance").stdout == "moved 1 queue, 0 left\n"
    assert served.operations.done[-1] == ("queues.rebalance", {})
    assert there("drain").stdout == "transferred the leadership of 1 queue, 0 left\n"
    assert served.operations.done[-1] == ("drain", {"undo": False})


def test_data_dir_stands_behind_the_verb(served: Any, invoke: Any) -> None:
    done = invoke("queues", "--data-dir", str(served.directory), "list")
    assert done.exit_code == USAGE
    assert "options follow the command" in done.stderr


@pytest.mark.long
def test_names_are_completed(served: Any, invoke: Any) -> None:
    def offered(words: str, **environment: str) -> list[str]:
        asked = {"_CLUSTERBROKER_COMPLETE": "complete_bash", "COMP_WORDS": f"clusterbroker {words}"}
        asked["COMP_CWORD"] = str(len(words.split(" ")))
        from typer.testing import CliRunner

        from clusterbroker.broker.cli.main import app

        done = CliRunner().invoke(app, [], env=asked | environment, prog_name="clusterbroker")
        return done.stdout.split()

    at = f"--data-dir {served.directory}"
    assert offered("queu") == ["queues"]
    assert sorted(offered("queues mo")) == ["move-messages"]
    assert offered(f"queues show {at} li") == ["limited"]
    assert offered(f"queues show {at} .*") == []
    for number in range(300):
        served.place.must(queue(f"many.{number:03}"))
    assert offered(f"queues show {at} many.29") == [f"many.{number}" for number in range(290, 300)]
    assert offered(f"queues show {at} Many.29") == []
    assert len(offered(f"queues show {at} many")) == 200
    assert len(offered(f"queues show {at} ")) == 200
    assert offered(f"queues show {at} --vhost a/b th") == ["there"]
    assert offered(f"queues list {at} --vhost a") == ["a/b"]
    assert offered(f"users tags {at} gu") == ["guest"]
    assert offered(f"queues transfer-leader {at} busy n") == ["n1"]
    assert offered("queues show li", CLUSTERBROKER_DATA_DIR=str(served.directory)) == ["limited"]
    assert offered("queues show --data-dir /none li") == [], "and nothing is said"
    signed_in = {"CLUSTERBROKER_URL": served.url, "CLUSTERBROKER_USER": "guest", "CLUSTERBROKER_PASSWORD": "guest"}
    assert offered("queues show li", **signed_in) == ["limited"]
    assert offered("queues show li", **(signed_in | {"CLUSTERBROKER_PASSWORD": "wrong"})) == []
