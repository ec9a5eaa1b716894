"""`clusterbroker journal`: what it says of a journal that a real node wrote, whole and damaged, alone and beside it."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
from typer.testing import CliRunner, Result

from clusterbroker.broker.cli import export as export_room
from clusterbroker.broker.cli.journal import _broken_json, _how_it_goes_on, app
from clusterbroker.broker.cli.readable import body_text, jsonable, plain, visible
from clusterbroker.broker.wire.numbers import Int8
from clusterbroker.cluster.data_directory import RAFT, DataDirectory
from clusterbroker.journal.check import Broken, Costs
from clusterbroker.journal.values import LongBytes, Timestamp
from clusterbroker.pipeline.options import parse
from tests.support import processes

pytestmark = pytest.mark.quick

ESCAPE = "\x1b]0;owned\x07"
EVIL_QUEUE = "evil\x1b[31m\u202e"
HEADERS = {"n": 7, "deep": {"list": [1, None, True]}, "price": Decimal("1.25"), "raw": b"\x00\xff"}
START_TIMEOUT_S = 20.0


class StartedNode:
    """`clusterbroker start` in a process of its own, as users run it."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "clusterbroker.broker.cli.main", "start", "--data-dir", str(directory)]
        # small files, and no checkpoint unless a test compacts: what is in the tail stays there
        settings = {
            "CLUSTERBROKER_JOURNAL__SEGMENT_BYTES": str(1 << 20),
            "CLUSTERBROKER_JOURNAL__CHECKPOINT_INTERVAL_S": "3600",
        }
        self.process = processes.popen(
            [*command, "--amqp", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=os.environ | settings
        )
        watchdog = threading.Timer(START_TIMEOUT_S, self.process.kill)
        watchdog.start()
        said = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said.append(line.strip())
            if said[-1] == "ready":
                break
        watchdog.cancel()
        assert said[-1:] == ["ready"], f"the node did not become ready: {said}"
        self.url = f"amqp://guest:guest@{next(line.split()[1] for line in said if line.startswith('amqp '))}/"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def fill(url: str) -> None:
    """orders: 40 ready of 42, the second one was delivered and came back. `temporary` is not journaled."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in ("orders", "empty", EVIL_QUEUE):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("temporary")
        channel.basic_publish("", "temporary", b"gone with the node")

        def publish(queue: str, body: bytes, **properties: Any) -> None:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))

        for number in range(40):
            publish("orders", b"body %d" % number, message_id=f"m{number}", headers=HEADERS, timestamp=1_700_000_000)
        publish(EVIL_QUEUE, b"x")
        taken, returned = channel.basic_get("orders")[0], channel.basic_get("orders")[0]
        channel.basic_ack(taken.delivery_tag)
        channel.basic_nack(returned.delivery_tag, requeue=True)
        again = channel.basic_get("orders")[0]
        assert again.redelivered
        channel.basic_ack(again.delivery_tag)
        # the log keeps order: when these are confirmed, the acknowledgements before them are on the disk
        publish("orders", b"\x1b[2Jtext\n\xc3\xa9\\", correlation_id=ESCAPE)
        publish("orders", b"\xff\x00\x01")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StartedNode, Path]]:
    directory = tmp_path_factory.mktemp("running") / "data"
    started = StartedNode(directory)
    try:
        fill(started.url)
        yield started, directory
    finally:
        started.kill()


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed node leaves."""
    directory = tmp_path_factory.mktemp("stopped") / "data"
    started = StartedNode(directory)
    try:
        fill(started.url)
    finally:
        started.kill()
    return directory


@pytest.fixture
def data(left_behind: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(left_behind, tmp_path / "data", ignore=shutil.ignore_patterns("*.sock"))


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def as_json(*words: str | Path) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def bytes_of(directory: Path) -> dict[str, tuple[int, int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, hashlib.blake2b(path.read_bytes()).hexdigest())
        for path in directory.rglob("*")
        if path.is_file()
    }


def one_line(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("clusterbroker: "), result.stderr
    return str(result.stderr)


# -- ls


def test_ls_names_the_durable_queues_and_counts_what_waits(left_behind: Path) -> None:
    queues = {line["name"]: line for line in as_json("ls", left_behind)}
    assert set(queues) == {"orders", "empty", EVIL_QUEUE}
    orders = queues["orders"]
    assert (orders["vhost"], orders["ready"]) == ("/", 40)
    assert orders["bytes"] == sum(len(b"body %d" % number) for number in range(2, 40)) + 12 + 3
    assert orders["oldest_ms"] <= orders["newest_ms"]
    assert queues["empty"]["ready"] == 0
    assert queues["empty"]["oldest_ms"] is None
    assert "40" in run("ls", left_behind).stdout
    assert "no node runs on it" in run("ls", left_behind).stdout


def test_rows_that_a_transaction_has_staged_are_there_by_its_name(tmp_path: Path) -> None:
    started = StartedNode(tmp_path / "data")
    try:
        with pika.BlockingConnection(pika.URLParameters(started.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            words = {"x-producer": "p", "x-epoch": 0, "x-run": "r", "x-target": "amq.topic"}
            channel.exchange_declare("txn.a", "x-staging", durable=True, arguments=words)
            channel.basic_publish("txn.a", "k", b"staged")
    finally:
        started.kill()
    [line] = as_json("ls", tmp_path / "data")
    assert (line["vhost"], line["name"], line["ready"]) == ("/", "txn.a", 1)
    assert run("export", tmp_path / "data", "txn.a", "--to", tmp_path / "rows.jsonl").exit_code == 0
    [row] = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert base64.b64decode(json.loads(row)["body"]) == b"staged"
    pytest.importorskip("pyspark")
    from clusterbroker.pipeline.journal import JournalReader

    options = parse({"journal": str(tmp_path / "data")}, reads=True)
    assert JournalReader(options, (), None, frozenset()).partitions() == [], "no batch reads what is not committed"


def test_a_journal_directory_is_as_good_as_the_nodes(left_behind: Path) -> None:
    assert as_json("ls", left_behind / "journal") == as_json("ls", left_behind)


def test_beside_a_running_node_the_same_is_seen_and_the_node_goes_on(node: tuple[StartedNode, Path]) -> None:
    started, directory = node
    assert {line["name"]: line["ready"] for line in as_json("ls", directory)} == {
        "orders": 40,
        "empty": 0,
        EVIL_QUEUE: 1,
    }
    assert "its node runs" in run("ls", directory).stdout
    assert "beside its running node" in run("check", directory).stdout
    with pika.BlockingConnection(pika.URLParameters(started.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("moving", durable=True)
        for number in range(200):
            channel.basic_publish("", "moving", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            if number % 50 == 0:
                assert as_json("check", directory)["ok"]
        channel.queue_purge("moving")
        channel.queue_delete("moving")
    assert started.process.poll() is None


def test_nothing_is_written_offline(left_behind: Path, tmp_path: Path) -> None:
    before = bytes_of(left_behind)
    run("ls", left_behind)
    run("inspect", left_behind, "orders", "--body")
    run("check", left_behind)
    assert run("export", left_behind, "orders", "--to", tmp_path / "o.csv").exit_code == 0
    assert bytes_of(left_behind) == before


# -- inspect


def test_inspect_tells_all_of_a_message(left_behind: Path) -> None:
    messages = as_json("inspect", left_behind, "orders", "--limit", "0", "--body")
    assert len(messages) == 40
    assert [message["seq"] for message in messages] == sorted(message["seq"] for message in messages)
    first = messages[0]
    assert (first["exchange"], first["routing_key"], first["body"]) == ("", "orders", "body 2")
    assert (first["bytes"], first["body_encoding"]) == (6, "utf-8")
    assert first["properties"] == {"delivery_mode": 2, "message_id": "m2", "timestamp": 1_700_000_000}
    assert first["headers"] == {
        "n": 7,
        "deep": {"list": [1, None, True]},
        "price": {"$decimal": "1.25"},
        "raw": {"$binary": base64.b64encode(b"\x00\xff").decode()},
    }
    assert messages[-1]["body"] == "ff0001"
    assert messages[-1]["body_encoding"] == "hex"
    segment = left_behind / f"journal/segments/{first['segment']:08d}.seg"
    assert b"body 2" in segment.read_bytes()[first["offset"] :][:400]


def test_inspect_stops_at_its_limit_and_says_so(left_behind: Path) -> None:
    assert len(as_json("inspect", left_behind, "orders", "--limit", "3")) == 3
    assert "only the first 3 are shown" in run("inspect", left_behind, "orders", "--limit", "3").stdout
    assert "only the first" not in run("inspect", left_behind, "orders", "--limit", "40").stdout
    assert as_json("inspect", left_behind, "empty") == []


def test_inspect_takes_an_id(left_behind: Path) -> None:
    queue_id = next(line["id"] for line in as_json("ls", left_behind) if line["name"] == "orders")
    assert as_json("inspect", left_behind, queue_id) == as_json("inspect", left_behind, "orders")


@pytest.mark.parametrize("words", [("ls",), ("inspect", "orders", "--limit", "0", "--body"), ("check",)])
def test_what_was_stored_does_not_drive_the_terminal(left_behind: Path, words: tuple[str, ...]) -> None:
    shown = run(words[0], left_behind, *words[1:]).output
    assert set(re.findall(r"[^\n -~\xa1-\uffff]", shown)) == set()
    assert "\u202e" not in shown
    if words[0] == "inspect":
        assert r"\x1b[2Jtext\né\\" in shown
        assert r"\x1b]0;owned\x07" in shown


def test_visible_is_one_to_one() -> None:
    assert visible("plain text") == "plain text"
    assert visible("a\nb\\n") == r"a\nb\\n"
    assert visible("\udcff\x9b\u2028\U000e0001") == r"\xff\x9b\u2028\U000e0001"


def test_values_that_json_does_not_have() -> None:
    assert jsonable({"t": Timestamp(5), "i": Int8(-3), "x": LongBytes(b"\xff"), "f": float("inf"), "v": None}) == {
        "t": {"$timestamp": 5},
        "i": -3,
        "x": {"$binary": "/w=="},
        "f": {"$float": "inf"},
        "v": None,
    }
    assert plain(b"a\xff") == r"a\xff"
    assert body_text(b"\xff") == ("ff", "hex")


# -- check


def test_check_proves_a_whole_journal(left_behind: Path) -> None:
    report = as_json("check", left_behind)
    assert report["ok"]
    assert report["broken"] == []
    assert report["records"]["ENQ"] == 43
    assert run("check", left_behind).stdout.splitlines()[-1].startswith("whole: ")


def test_check_names_the_place_of_a_flipped_bit(data: Path) -> None:
    message = as_json("inspect", data, "orders", "--limit", "5", "--body")[-1]
    segment = data / f"journal/segments/{message['segment']:08d}.seg"
    flip(segment, segment.read_bytes().index(message["body"].encode(), message["offset"]))
    before = bytes_of(data)
    result = run("check", data)
    assert result.exit_code == 1
    seq = message["seq"]
    assert (
        f"broken: segments/{segment.name} at byte {message['offset']} (message {seq} of queue 'orders'" in result.stdout
    )
    last = result.stdout.splitlines()[-1]
    assert last.startswith("broken in 1 place; nothing was changed. A start serves everything else: it holds back ")
    assert f"holds back message {seq} of queue 'orders' of vhost '/' (`clusterbroker queues delete-messages`" in last
    assert "backup" not in last, "that is advice for who has lost the journal"
    report = json.loads(run("check", data, "--json").stdout)
    assert not report["ok"]
    (broken,) = report["broken"]
    assert (broken["offset"], broken["queue"], broken["seq"]) == (message["offset"], "orders", seq)
    assert broken["costs"] == "message"
    assert bytes_of(data) == before
    said = one_line(run("inspect", data, "orders"), 1)
    assert "journal check" in said


def test_what_a_member_does_about_damage_is_told(data: Path) -> None:
    place = DataDirectory(data)
    place.wiring_file = RAFT
    message = Broken("segments/1", 8, "wrong checksum", 0x7777, 3, Costs.MESSAGE)
    queue = Broken("index/data.mdb", None, "lost", 0x8888, None, Costs.QUEUE)
    told = _how_it_goes_on(place, [_broken_json(place, one) for one in (message, queue)])
    assert told.startswith("A start serves everything else, and makes the node's copy of such a queue anew")
    assert "where there is none it holds back message 3 of queue 0x7777 " in told
    assert "serves what can be read of queue 0x8888" in told
    place.wiring_file = "wiring/data.mdb"
    assert _how_it_goes_on(place, [_broken_json(place, Broken("index/data.mdb", None, "no index"))]) == ""
    unread = Broken("segments/1", 8, "wrong checksum", 0x7777, 3, Costs.NOTHING)
    assert "does not read what is broken" in _how_it_goes_on(place, [_broken_json(place, unread)])


def test_check_names_the_queue_when_a_segment_is_gone(data: Path) -> None:
    run("compact", data)
    for segment in (data / "journal/segments").iterdir():
        segment.unlink()
    report = json.loads(run("check", data, "--json").stdout)
    assert not report["ok"]
    assert run("check", data).exit_code == 1


def test_check_sees_a_damaged_index(data: Path) -> None:
    run("compact", data)
    index = data / "journal/index/data.mdb"
    orders = int(next(line["id"] for line in as_json("ls", data) if line["name"] == "orders"), 16)
    # the key of the first run of the queue, its value behind it
    at = index.read_bytes().index(orders.to_bytes(8, "big") + (0).to_bytes(8, "big"))
    flip(index, at + 30)
    report = json.loads(run("check", data, "--json").stdout)
    assert [(one["file"], one["queue"]) for one in report["broken"]] == [("index/data.mdb", "orders")]
    assert "queue 'orders' of vhost '/'" in run("check", data).stdout


def test_a_damaged_wiring_log_is_broken_but_leaves_the_ids(data: Path) -> None:
    wiring = data / "wiring/data.mdb"
    # pages that LMDB has freed still hold older copies
    for found in re.finditer(b"orders", wiring.read_bytes()):
        flip(wiring, found.start())
    result = run("check", data)
    assert result.exit_code == 1
    assert "wiring/data.mdb" in result.stdout
    listed = run("ls", data)
    assert listed.exit_code == 0
    assert "names are not known" in listed.stderr
    assert str(data / "wiring") in listed.stderr
    queues = json.loads(run("ls", data, "--json").stdout)
    assert sorted(line["ready"] for line in queues) == [1, 40]
    fullest = max(queues, key=lambda line: line["ready"])
    assert len(as_json("inspect", data, fullest["id"], "--limit", "0")) == 40


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


# -- export


def test_csv_is_read_back(left_behind: Path, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    result = run("export", left_behind, "orders", "--to", path)
    assert result.exit_code == 0, result.output
    assert "exported 40 messages" in result.stdout
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert base64.b64decode(rows[0]["body"]) == b"body 2"
    assert json.loads(rows[0]["headers"])["deep"] == {"list": [1, None, True]}
    assert (rows[0]["message_id"], rows[0]["priority"], rows[0]["redelivered"]) == ("m2", "", "true")
    assert base64.b64decode(rows[-1]["body"]) == b"\xff\x00\x01"
    assert rows[-2]["correlation_id"] == ESCAPE


def test_json_lines_are_read_back(left_behind: Path, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    assert run("export", left_behind, "orders", "--to", path).exit_code == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 40
    assert rows[0]["headers"]["price"] == {"$decimal": "1.25"}
    assert "priority" not in rows[0]
    assert base64.b64decode(rows[-1]["body"]) == b"\xff\x00\x01"


def test_parquet_is_read_back_in_batches(left_behind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export_room, "BATCH_ROWS", 16)
    path = tmp_path / "orders.parquet"
    result = run("export", left_behind, "orders", "--to", path)
    assert result.exit_code == 0, result.output
    assert parquet.ParquetFile(path).metadata.num_row_groups == 3
    rows = parquet.read_table(path).to_pylist()
    assert len(rows) == 40
    assert rows[0]["body"] == b"body 2"
    assert rows[0]["timestamp"] == 1_700_000_000
    assert rows[0]["enqueued"].tzinfo is not None
    assert json.loads(rows[0]["headers"])["n"] == 7
    assert rows[-1]["headers"] is None


def test_parquet_without_pyarrow_says_what_to_install(
    left_behind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.broker.extras.find_spec", lambda _name: None)
    said = one_line(run("export", left_behind, "orders", "--to", tmp_path / "o.parquet"), 2)
    assert "pip install 'clusterbroker[export]'" in said


def test_export_replaces_only_what_it_may(left_behind: Path, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("precious")
    assert "--force" in one_line(run("export", left_behind, "orders", "--to", path), 2)
    assert path.read_text() == "precious"
    assert run("export", left_behind, "orders", "--to", path, "--force").exit_code == 0
    assert ".parquet, .csv or .jsonl" in one_line(run("export", left_behind, "orders", "--to", tmp_path / "o.xml"), 2)
    assert "does not exist" in one_line(run("export", left_behind, "orders", "--to", tmp_path / "no/o.csv"), 2)
    assert sorted(os.listdir(tmp_path)) == ["orders.csv"]


def test_export_of_a_damaged_queue_keeps_what_came_before(data: Path, tmp_path: Path) -> None:
    run("compact", data)
    message = as_json("inspect", data, "orders", "--limit", "30")[-1]
    flip(data / f"journal/segments/{message['segment']:08d}.seg", message["offset"] + 40)
    said = one_line(run("export", data, "orders", "--to", tmp_path / "o.jsonl"), 1)
    assert f"byte {message['offset']}" in said
    assert "(29 messages)" in said
    assert len((tmp_path / "o.jsonl.part").read_text().splitlines()) == 29
    assert not (tmp_path / "o.jsonl").exists()


# -- compact, and what is not there


def test_compact_keeps_every_message(data: Path) -> None:
    before = as_json("inspect", data, "orders", "--limit", "0", "--body")
    result = run("compact", data)
    assert result.exit_code == 0, result.output
    assert re.search(r"before, .* after", result.stdout)
    after = as_json("inspect", data, "orders", "--limit", "0", "--body")
    assert [(one["seq"], one["body"], one["redelivered"]) for one in after] == [
        (one["seq"], one["body"], one["redelivered"]) for one in before
    ]
    assert as_json("check", data)["ok"]


def test_compact_refuses_beside_a_running_node(node: tuple[StartedNode, Path]) -> None:
    assert "stop the node first" in one_line(run("compact", node[1]), 1)


def test_what_is_not_there_is_said_in_one_line(left_behind: Path, tmp_path: Path) -> None:
    assert "give the directory" in one_line(run("ls", tmp_path), 3)
    assert "journal ls" in one_line(run("inspect", left_behind, "nothing"), 2)
    assert "journal ls" in one_line(run("inspect", left_behind, "orders", "--vhost", "other"), 2)
    assert "journal ls" in one_line(run("inspect", left_behind, "0xfff"), 2)
    assert "journal ls" in one_line(run("export", left_behind, "0xfff", "--to", tmp_path / "o.csv"), 2)
    assert run("export", left_behind, "orders").exit_code == 2


def test_a_journal_without_its_wiring_is_shown_but_not_whole(data: Path) -> None:
    shutil.rmtree(data / "wiring")
    assert run("check", data).exit_code == 1
    alone = data.parent / "alone"
    shutil.move(data / "journal", alone)
    assert run("check", alone).exit_code == 0
    assert sorted(line["ready"] for line in json.loads(run("ls", alone, "--json").stdout)) == [1, 40]
