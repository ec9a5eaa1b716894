"""The data directory of a node that does not run: what is changed there, and where nothing is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.cli.exit_codes import FAILED, UNREACHABLE
from clusterbroker.broker.embedded import Broker
from clusterbroker.broker.server.control.operations import WIRING
from clusterbroker.broker.server.directory import make

WORDS = {
    "user.add": ("users", "add", "bob", "s3cret"),
    "user.password": ("users", "password", "guest", "s3cret"),
    "user.delete": ("users", "delete", "guest"),
    "user.list": ("users", "list"),
    "vhost.add": ("vhosts", "add", "v"),
    "vhost.delete": ("vhosts", "delete", "/", "--yes"),
    "vhost.list": ("vhosts", "list"),
    "vhost.limit": ("vhost-limits", "set", "/", "max-queues", "1"),
    "permission.set": ("permissions", "set", "guest", "/", "", "", ""),
    "permission.topic": ("topic-permissions", "set", "guest", "/", "amq.topic", "", ""),
    "permission.clear": ("permissions", "clear", "guest", "/"),
    "permission.list": ("permissions", "list"),
    "policy.set": ("policies", "set", "p", "", '{"max-length": 1}'),
    "operator-policy.set": ("operator-policies", "set", "p", "", '{"max-length": 1}'),
    "policy.delete": ("policies", "delete", "p"),
    "policy.list": ("policies", "list"),
}
STOPPED = "clusterbroker: the node in {} is stopped: it knows of this when it starts\n"


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    directory = tmp_path / "node"
    with Broker(data_dir=directory):
        pass
    return directory


def test_these_are_all_that_work_while_a_node_is_stopped() -> None:
    assert set(WORDS) == set(WIRING)


@pytest.mark.parametrize("do", WORDS)
@pytest.mark.parametrize("there", [True, False])
def test_where_no_node_lives_nothing_is_made(tmp_path: Path, invoke: Any, do: str, there: bool) -> None:
    directory = tmp_path / "typo"
    if there:
        directory.mkdir()
    done = invoke(*WORDS[do], "--data-dir", str(directory))
    assert done.exit_code == UNREACHABLE
    assert done.stderr.startswith(
        f"clusterbroker: no node runs in {directory}, and it is no node's directory: say --data"
    )
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == (["typo"] if there else [])


def test_what_is_changed_of_a_stopped_node_is_said_to_be(stopped: Path, invoke: Any) -> None:
    where = ("--data-dir", str(stopped))
    done = invoke("users", "add", "bob", "s3cret", *where)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "created user 'bob'\n", STOPPED.format(stopped))
    before = invoke("users", "list", "--json", *where)
    assert (before.exit_code, before.stderr) == (0, ""), "nothing is changed by a look"
    assert [name in before.stdout for name in ("guest", "bob")] == [True, True]
    refused = invoke("users", "add", "bob", "s3cret", *where)
    assert (refused.exit_code, "there is a user 'bob' already" in refused.stderr) == (FAILED, True)
    assert "is stopped" not in refused.stderr
    with Broker(data_dir=stopped):  # an embedded node has no door
        assert invoke("users", "delete", "bob", *where).exit_code == FAILED
    assert "bob" in invoke("users", "list", *where).stdout


def test_who_was_deleted_does_not_come_back(stopped: Path, invoke: Any) -> None:
    """`guest` is made with a broker: its password is known to everybody."""
    assert invoke("users", "delete", "guest", "--data-dir", str(stopped)).exit_code == 0
    for _ in range(2):
        with Broker(data_dir=stopped):
            pass
        assert "guest" not in invoke("users", "list", "--data-dir", str(stopped)).stdout


def test_a_stopped_member_is_not_changed(tmp_path: Path, invoke: Any) -> None:
    make(tmp_path, "a", "a cluster")
    before = files(tmp_path)
    for do in ("user.list", "user.add"):
        done = invoke(*WORDS[do], "--data-dir", str(tmp_path))
        said = f"no node runs in {tmp_path}, and it is a cluster member's: start it, or ask another member"
        assert (done.exit_code, done.stderr) == (UNREACHABLE, f"clusterbroker: {said}\n")
    assert files(tmp_path) == before


def test_a_directory_that_is_damaged_is_not_changed(stopped: Path, tmp_path: Path, invoke: Any) -> None:
    other = tmp_path / "other"
    with Broker(data_dir=other):
        pass
    shutil.rmtree(stopped / "wiring")
    before = files(stopped)
    done = invoke("users", "list", "--data-dir", str(stopped))
    assert (done.exit_code, "its wiring log is gone: start it, to hear what to do" in done.stderr) == (FAILED, True)
    assert files(stopped) == before
    shutil.copytree(other / "wiring", stopped / "wiring")
    before = files(stopped)
    done = invoke("users", "add", "bob", "s3cret", "--data-dir", str(stopped))
    assert (done.exit_code, "Nothing was changed" in done.stderr) == (FAILED, True)
    changed = {name for name, content in files(stopped).items() if before.get(name) != content}
    assert not {name for name in changed if name.endswith("data.mdb")}
