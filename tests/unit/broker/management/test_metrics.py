"""What Prometheus is told, beside what RabbitMQ 3.10.8 told for the same set-up (tests/recorded/metrics.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from clusterbroker.broker.management import metrics, metrics_text, statistics
from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.bridges import BridgeRow
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.management.set_up import CONNECTION, NODE, NOW_MS, Place, queue, recorded_place

ROOT = Path(__file__).parents[4]
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/recorded/metrics.json").read_text(encoding="utf-8"))
FAMILIES = [name for name in RECORDED if not name.startswith(("/", "of"))]


@pytest.fixture(scope="module")
def place() -> Place:
    return recorded_place()


def parsed(text: Iterator[str]) -> dict[str, Metric]:
    whole = "".join(text)
    found = list(text_string_to_metric_families(whole))
    names = [family.name for family in found]
    assert len(names) == len(set(names)), "each metric is told once"
    assert whole.endswith("\n")
    return {family.name: family for family in found}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [
        sample
        for sample in found[name.removesuffix("_total")].samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(sample.value)


def as_theirs(ours: dict[str, Metric], address: str) -> list[str]:
    """What we tell under a name of RabbitMQ's, and differently: another type, other labels, or nowhere there."""
    theirs = RECORDED["/metrics"]["families"] | RECORDED[address]["families"]
    wrong = []
    for name, family in ours.items():
        if not name.startswith("rabbitmq"):
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels})
        if name not in theirs:
            wrong.append(f"{name} is not told by RabbitMQ")
        elif (family.type, labels) != (theirs[name]["type"], theirs[name]["labels"]):
            wrong.append(f"{name} is {family.type} {labels}, there {theirs[name]}")
    return wrong


def test_shared_names_mean_the_same_kind_of_thing(place: Place) -> None:
    ours = parsed(metrics.aggregated(place.replica, NOW_MS))
    assert as_theirs(ours, "/metrics") == []
    assert sum(name.startswith("rabbitmq") for name in ours) > 70


def test_by_object_too(place: Place) -> None:
    ours = parsed(metrics.per_object(place.replica, NOW_MS))
    # RabbitMQ tells these by channel and queue or exchange together, and we in one sum: what adds them up is right
    of_node = {f"rabbitmq_channel_{metric.name.removesuffix('_total')}" for metric in statistics.MESSAGES}
    assert {text.split()[0] for text in as_theirs(ours, "/metrics/per-object")} == of_node


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family(place: Place, family: str) -> None:
    ours = parsed(metrics.detailed(place.replica, {family}))
    assert as_theirs(ours, family) == []


def test_the_families_that_boards_use_are_there(place: Place) -> None:
    known = {*metrics.FAMILIES, *metrics.CLUSTER_FAMILIES}
    missing = {"channel_exchange_metrics", "channel_process_metrics", "channel_queue_exchange_metrics",
               "channel_queue_metrics", "ra_metrics", "auth_attempt_detailed_metrics", "cluster_metrics"}  # fmt: skip
    assert set(FAMILIES) - known == missing


def test_sums_and_values(place: Place) -> None:
    found = parsed(metrics.aggregated(place.replica, NOW_MS))
    for name, number in {
        "rabbitmq_queues": 5,
        "rabbitmq_connections": 1,
        "rabbitmq_channels": 2,
        "rabbitmq_consumers": 2,
        "rabbitmq_queue_messages_ready": 7,
        "rabbitmq_queue_messages_unacked": 2,
        "rabbitmq_queue_messages": 9,
        "rabbitmq_channel_messages_published_total": 15,
        "rabbitmq_channel_messages_delivered_ack_total": 2,
        "rabbitmq_connection_incoming_bytes_total": 1555,
        "rabbitmq_alarms_memory_used_watermark": 0,
        "clusterbroker_leased": 1,
        "clusterbroker_journal_flushes_total": 9,
    }.items():
        assert value(found, name) == number, name
    assert value(found, "rabbitmq_global_messages_routed_total", protocol="amqp091") == 15
    assert value(found, "rabbitmq_identity_info", rabbitmq_node=NODE) == 1


def test_bridges_are_told_by_name(place: Place) -> None:
    row = BridgeRow("/", "orders", "blocked", moved=7, again=2, doubtful=1, lost=3, held=4, lag_ms=1500)
    place.tell(rows.NodeRow(name=NODE, bridges=(row,)))
    found = parsed(metrics.aggregated(place.replica, NOW_MS))
    for name, number in {
        "messages_moved_total": 7, "messages_recognised_total": 2, "messages_doubtful_total": 1,
        "interruptions_total": 3, "messages_held": 4, "lag_seconds": 1.5,
    }.items():  # fmt: skip
        assert value(found, f"clusterbroker_bridge_{name}", vhost="/", bridge="orders") == number
    assert value(found, "clusterbroker_bridge_state", vhost="/", bridge="orders", state="blocked") == 1


def test_times_of_group_commits_are_a_histogram(place: Place) -> None:
    counts = (4, 3, *(0,) * 10, 1, 1)
    place.tell(rows.NodeRow(name=NODE, journal_flushes=9, journal_flush_us=12_500_000, journal_flush_counts=counts))
    found = parsed(metrics.aggregated(place.replica, NOW_MS))["clusterbroker_journal_commit_seconds"]
    assert found.type == "histogram"
    told = {(sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value for sample in found.samples}
    assert [told["bucket", le] for le in ("0.001", "0.0025", "5", "10", "+Inf")] == [4, 7, 7, 8, 9]
    assert (told["sum", None], told["count", None]) == (12.5, 9)


def test_values_by_object(place: Place) -> None:
    found = parsed(metrics.per_object(place.replica, NOW_MS))
    assert value(found, "rabbitmq_queue_messages_ready", vhost="/", queue="busy") == 3
    assert value(found, "rabbitmq_channel_messages_unacked", channel=f"{CONNECTION} (1)") == 2
    assert value(found, "clusterbroker_channel_messages_published_total", channel=f"{CONNECTION} (1)") == 15
    assert value(found, "clusterbroker_exchange_messages_in_total", vhost="/", exchange="events") == 5
    assert value(found, "clusterbroker_queue_messages_published_total", vhost="/", queue="busy") == 5


def test_a_vhost_and_a_family_of_it(place: Place) -> None:
    found = parsed(metrics.detailed(place.replica, {"queue_coarse_metrics", "nonsense"}, {"a/b"}))
    assert {name for name in found if "info" not in name} == {
        "rabbitmq_detailed_queue_messages_ready", "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_detailed_queue_messages",
    }  # fmt: skip
    assert value(found, "rabbitmq_detailed_queue_messages", vhost="a/b", queue="there") == 0
    assert len(found["rabbitmq_detailed_queue_messages"].samples) == 1


def test_a_node_tells_of_what_it_owns_only() -> None:
    place = recorded_place()
    place.tell(rows.NodeRow(name="n2"), rows.QueueRow(queue_id=place.queue_id("busy"), epoch=9, ready=77), node="n2")
    found = parsed(metrics.aggregated(place.replica, NOW_MS))
    assert value(found, "rabbitmq_queue_messages_ready") == 7, "the map names n1 as the owner"
    place.must(c.DeclareQueue(vhost="/", name="far", durable=True, owner=NodeId("n2")))
    place.tell(rows.QueueRow(queue_id=place.queue_id("far"), epoch=1, ready=5), node="n2")
    found = parsed(metrics.aggregated(place.replica, NOW_MS))
    assert (value(found, "rabbitmq_queues"), value(found, "rabbitmq_queue_messages_ready")) == (5, 7)
    assert value(found, "clusterbroker_cluster_queues") == 6


def test_how_far_copies_are_behind() -> None:
    place = recorded_place()
    copies = (rows.CopyLag("n2", 40, in_sync=False), rows.CopyLag("n3", 2))
    place.tell(rows.QueueRow(queue_id=place.queue_id("busy"), epoch=1, copies=copies))
    whole = parsed(metrics.aggregated(place.replica, NOW_MS))
    assert value(whole, "clusterbroker_copies_behind") == 1
    assert value(whole, "clusterbroker_copy_messages_behind") == 42
    found = parsed(metrics.per_object(place.replica, NOW_MS))
    assert value(found, "clusterbroker_queue_copy_messages_behind", queue="busy", node="n2") == 40


def test_before_a_node_has_told_anything() -> None:
    found = parsed(metrics.aggregated(Place().replica, NOW_MS))
    assert value(found, "rabbitmq_queues") == 0
    assert "clusterbroker_leased" not in found


def test_a_node_that_is_cut_off_says_so() -> None:
    place = recorded_place()
    place.replica.lease(False, NOW_MS - 4_000)
    assert value(parsed(metrics.aggregated(place.replica, NOW_MS)), "clusterbroker_stale_seconds") == 4


def test_names_of_clients_break_no_line() -> None:
    name = 'a"b\\c\nd\udcff'
    place = Place()
    place.must(queue(name))
    place.tell(rows.QueueRow(queue_id=place.queue_id(name), ready=1))
    found = parsed(metrics.per_object(place.replica, NOW_MS))
    (sample,) = found["rabbitmq_queue_messages_ready"].samples
    assert sample.labels["queue"] == 'a"b\\c\nd?'


def test_labels_are_escaped() -> None:
    assert metrics_text.labels({}) == ""
    assert metrics_text.labels({"a": 'x"y\\z\n'}) == '{a="x\\"y\\\\z\\n"}'


def test_every_metric_of_the_board_is_told(place: Place) -> None:
    """deploy/grafana: each name in its expressions is one that a node tells at /metrics."""
    whole = "".join(metrics.aggregated(place.replica, NOW_MS))
    told = set(re.findall(r"^# TYPE (\S+)", whole, re.MULTILINE))
    boards = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
    assert boards
    for board in boards:
        document = json.loads(board.read_text(encoding="utf-8"))
        used = set()
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                used |= set(re.findall(r"\b(?:rabbitmq|clusterbroker)_[a-z0-9_]+", target["expr"]))
        used -= {"rabbitmq_cluster", "rabbitmq_node"}  # labels
        assert used, board.name
        assert used <= told, f"{board.name} shows what no node tells: {sorted(used - told)}"


def test_the_alert_rules_ask_for_what_is_told(place: Place) -> None:
    """deploy/prometheus: each name in their expressions is one that a node tells at /metrics."""
    whole = "".join(metrics.aggregated(place.replica, NOW_MS))
    told = set(re.findall(r"^# TYPE (\S+)", whole, re.MULTILINE))
    document = yaml.safe_load((ROOT / "deploy" / "prometheus" / "clusterbroker.rules.yaml").read_text("utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    used = {name for rule in rules for name in re.findall(r"\b(?:rabbitmq|clusterbroker)_[a-z0-9_]+", rule["expr"])}
    assert len(used) > 15
    assert {name.removesuffix("_bucket") for name in used} <= told


def test_every_metric_of_ours_is_explained(place: Place) -> None:
    pages = (metrics.aggregated(place.replica, NOW_MS), metrics.per_object(place.replica, NOW_MS))
    told = {name for page in pages for name in re.findall(r"^# TYPE (clusterbroker_\S+)", "".join(page), re.MULTILINE)}
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(clusterbroker_[a-z0-9_]+)`", text))
    assert told == explained - set(metrics.FAMILIES)
    for family in (*metrics.FAMILIES, *metrics.CLUSTER_FAMILIES):
        assert f"`{family}`" in text
